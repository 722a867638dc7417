//! Redisson in a separate Java process. The process reads an order from each line of its input, and answers each order
//! with a line of JSON. `tests/redisson/src/main/java/Harness.java` describes the orders.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    thread,
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use support::{jvm::program, process::spawn};

use crate::{
    candidates::Seat,
    clock::{nanos, now},
    runs::{CALLER_BODY, CALLER_COUNT, CALLER_LEAD, Callers, same_seats},
    waiters::{Visit, Window, overlaps},
};

/// The kind of Redisson lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Plain,
    Fair,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fair => "fair",
        }
    }
}

/// The kind of Redisson call that is cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asking {
    /// `tryLockAsync()`, which takes a lock that Redisson renews.
    Once,
    /// `tryLockAsync(0, lease)`, which takes a lock that Redisson does not renew.
    Timed,
}

impl Asking {
    fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Timed => "timed",
        }
    }
}

/// The Java process that runs Redisson.
#[derive(Debug)]
pub(crate) struct Redisson {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

#[derive(Deserialize)]
struct Visits {
    done: u64,
    tasks: Vec<Vec<u64>>,
}

#[derive(Deserialize)]
struct Cancelled {
    cancelled: u64,
}

impl Redisson {
    /// Starts the Java process. The error says what is missing, or why the process did not start.
    pub(crate) fn start(url: &str) -> Result<Self, String> {
        Self::start_program("Harness", url)
    }

    /// Starts a Java process that runs the given program, which is a class or a source file.
    pub(crate) fn start_program(name: &str, url: &str) -> Result<Self, String> {
        let mut command = program(name)?;
        command
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command).map_err(|error| format!("java: {error}"))?;
        let orders = child
            .stdin
            .take()
            .expect("the input of the Java process is piped");
        let answers = child
            .stdout
            .take()
            .expect("the output of the Java process is piped");
        let mut redisson = Self {
            child,
            orders,
            answers: BufReader::new(answers).lines(),
        };
        match redisson.answer::<String>() {
            Some(_) => Ok(redisson),
            None => Err("the Java process did not start; its error is printed above".to_owned()),
        }
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Option<T> {
        let line = self.answers.next()?.ok()?;
        Some(serde_json::from_str(&line).expect("Redisson's harness answers with JSON"))
    }

    pub(crate) fn obey<T: DeserializeOwned>(&mut self, mut order: String, seats: &[Seat]) -> T {
        for seat in seats {
            let _ = write!(order, " {}", seat.key);
        }
        writeln!(self.orders, "{order}").expect("Redisson's harness reads its input");
        self.answer()
            .expect("Redisson's harness answers each order")
    }

    /// Runs one thread for each seat, as [`gather`](crate::waiters::gather) runs one task for each seat. Returns the
    /// visits of each thread and the window.
    pub(crate) fn gather(
        &mut self,
        kind: Kind,
        seats: &[Seat],
        span: Duration,
    ) -> (Vec<Vec<Visit>>, Window) {
        let window = Window::of(seats.len(), span);
        (self.sit(kind.name(), seats, window), window)
    }

    pub(crate) fn sit(&mut self, kind: &str, seats: &[Seat], window: Window) -> Vec<Vec<Visit>> {
        let Window { begin, end, .. } = window;
        let visits: Visits = self.obey(format!("loop {kind} {begin} {end}"), seats);
        visits.tasks()
    }

    /// Runs `threads` threads in each of `processes`. All threads want the same key. Returns the visits of each
    /// process's threads.
    pub(crate) fn sit_together(
        processes: &mut [Self],
        kind: Kind,
        threads: usize,
        window: Window,
    ) -> Vec<Vec<Vec<Visit>>> {
        let seats = same_seats(processes.len() * threads);
        thread::scope(|scope| {
            let sitting: Vec<_> = processes
                .iter_mut()
                .zip(seats.chunks(threads))
                .map(|(process, seats)| {
                    scope.spawn(move || process.sit(kind.name(), seats, window))
                })
                .collect();
            let visits = sitting.into_iter();
            visits
                .map(|visits| {
                    visits
                        .join()
                        .expect("the thread of a process does not panic")
                })
                .collect()
        })
    }

    /// Runs one thread for each caller, as [`Callers::call`] runs one task for each caller.
    pub(crate) fn call(&mut self, kind: Kind) -> Callers {
        let begin = now() + nanos(CALLER_LEAD);
        let body = CALLER_BODY.as_millis();
        let seats = same_seats(CALLER_COUNT as usize);
        let visits: Visits = self.obey(format!("call {} {begin} {body}", kind.name()), &seats);
        let tasks = visits.tasks();
        Callers {
            begin,
            done: visits.done,
            overlaps: overlaps(&tasks),
            visits: tasks.into_iter().flatten().collect(),
        }
    }

    /// Requests the lock of each seat, one after another, and cancels each request. The cancellation of the request
    /// with the index N follows N × `pause` after the request. Returns the number of requests that were cancelled
    /// before they were answered.
    pub(crate) fn cancel(&mut self, asking: Asking, pause: Duration, seats: &[Seat]) -> u64 {
        let order = format!("cancel {} {}", asking.name(), nanos(pause));
        self.obey::<Cancelled>(order, seats).cancelled
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Visits {
    fn tasks(&self) -> Vec<Vec<Visit>> {
        let visits = |task: &Vec<u64>| {
            let visits = task.chunks_exact(3).map(|visit| Visit {
                asked: visit[0],
                entered: visit[1],
                left: Some(visit[2]),
            });
            visits.collect()
        };
        self.tasks.iter().map(visits).collect()
    }
}
