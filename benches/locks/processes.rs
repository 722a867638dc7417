//! The workload with several processes. The benchmark starts its own executable again, once for each worker.
//!
//! A worker connects, writes `ready`, and reads three points in time: when its run begins, when the measured window
//! begins, and when both end. During the run, the worker's tasks lock and unlock in a loop. One cycle of lock and
//! unlock is a visit. After the run, the worker writes a line for each task with the times of the task's visits. The
//! results count only the part of the window in which the tasks of every worker got the lock.

use std::{
    io::{self, BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Stdio},
    sync::Arc,
    time::Duration,
};

use support::{
    process::{dies_with_parent, spawn},
    sent::Sent,
    server::RedisServer,
};

use crate::{
    candidates::{Cycle, Seat},
    report::{Figure, Run},
    runs::{fresh_key, per_acquisition, run_of},
    waiters::{Detector, Visit, Waiters, Window, overlaps, sit},
};

/// The first argument of a worker. The URL, the name of the lock and the key follow as further arguments.
pub(crate) const WORKER: &str = "--worker";

const READY: &str = "ready";
pub(crate) const PROCESSES: usize = 4;
pub(crate) const TASKS: usize = 16;

/// The time that the workers have to prepare. This time begins when the workers get the times of their run, and ends
/// when the run begins.
pub(crate) const LEAD: Duration = Duration::from_millis(200);

/// The handle of a worker in the process that has started it.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(url: &str, who: &str, key: &str) -> Self {
        let this = std::env::current_exe().expect("the path of this executable is known");
        let mut command = dies_with_parent(this);
        command
            .args([WORKER, url, who, key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command).expect("a worker can be started");
        let output = child
            .stdout
            .take()
            .expect("the output of the worker is piped");
        Self {
            child,
            lines: BufReader::new(output).lines(),
        }
    }

    fn line(&mut self) -> String {
        let line = self.lines.next().expect("the worker writes all its lines");
        line.expect("the worker writes valid UTF-8")
    }

    fn tell(&mut self, window: Window) {
        let input = self
            .child
            .stdin
            .as_mut()
            .expect("the input of the worker is piped");
        let Window { begin, from, end } = window;
        writeln!(input, "{begin} {from} {end}").expect("the worker reads its input");
    }

    /// Waits until the worker has ended, and returns the visits of its tasks.
    fn visits(mut self) -> Vec<Vec<Visit>> {
        let tasks = (0..TASKS).map(|_| parse_visits(&self.line())).collect();
        let status = self
            .child
            .wait()
            .expect("the worker process can be awaited");
        assert!(status.success(), "a worker failed: {status}");
        tasks
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace()
        .map(|word| word.parse().expect("the line contains numbers"))
        .collect()
}

fn write_visits(visits: &[Visit]) -> String {
    let fields = visits.iter().map(|visit| {
        // If the task gave up, it has never held the lock. The line then contains 0 instead of the time at which the
        // task left.
        format!(
            "{} {} {}",
            visit.asked,
            visit.entered,
            visit.left.unwrap_or_default()
        )
    });
    fields.collect::<Vec<_>>().join(" ")
}

fn parse_visits(line: &str) -> Vec<Visit> {
    let visits = numbers(line);
    let visits = visits.chunks_exact(3).map(|visit| Visit {
        asked: visit[0],
        entered: visit[1],
        left: Some(visit[2]).filter(|left| *left != 0),
    });
    visits.collect()
}

/// Returns the part of the measured window in which every process got the lock. This part of the window begins when the
/// last of the processes has got the lock for the first time. The part ends when one process gets the lock for its last
/// time.
fn common(workers: &[Vec<Vec<Visit>>], window: Window) -> Window {
    let served = |tasks: &Vec<Vec<Visit>>| {
        let visits = tasks.iter().flatten();
        let mut entered: Vec<u64> = visits
            .filter(|visit| visit.left.is_some())
            .map(|visit| visit.entered)
            .collect();
        entered.sort_unstable();
        entered.first().copied().zip(entered.last().copied())
    };
    // If a process never got the lock, the part is empty.
    let served = workers
        .iter()
        .map(|tasks| served(tasks).unwrap_or((u64::MAX, 0)));
    served.fold(window, |window, (first, last)| Window {
        from: window.from.max(first),
        end: window.end.min(last),
        ..window
    })
}

/// Computes the results of several processes that want one key, from the visits of each process's tasks.
pub(crate) fn together(processes: Vec<Vec<Vec<Visit>>>, window: Window) -> (Waiters, Run) {
    let window = common(&processes, window);
    let tasks: Vec<_> = processes.into_iter().flatten().collect();
    let waiters = Waiters::of(&tasks, window);
    let run = run_of(&waiters, overlaps(&tasks));
    (waiters, run)
}

/// Starts the workers, waits until they have ended, and returns the figures of the run. [`Sent::so_far`] explains
/// `plain`.
pub(crate) async fn run(server: &RedisServer, who: &str, plain: &[&str], span: Duration) -> Run {
    let ((waiters, mut run), sent, scripts) = {
        let workers = Workers::start(&server.url(), who);
        let (scripts, before) = (server.scripts().await, Sent::so_far(server, plain).await);
        let ended = workers.run(span);
        let sent = before.since(server, plain).await;
        (ended, sent, server.scripts().await - scripts)
    };
    run.extend(per_acquisition(sent, &waiters));
    run.insert(Figure::Scripts, scripts as f64 / waiters.served as f64);
    run
}

/// The workers of a run, which have all started and connected.
pub(crate) struct Workers(Vec<Worker>);

impl Workers {
    /// Starts the workers, and waits until they are ready. All tasks of the workers want one key.
    pub(crate) fn start(url: &str, who: &str) -> Self {
        let key = fresh_key();
        let mut workers: Vec<Worker> = (0..PROCESSES)
            .map(|_| Worker::start(url, who, &key))
            .collect();
        for worker in &mut workers {
            assert_eq!(worker.line(), READY);
        }
        Self(workers)
    }

    /// Lets the workers run, waits until they have ended, and computes the results.
    pub(crate) fn run(mut self, span: Duration) -> (Waiters, Run) {
        let window = Window::after(LEAD, span);
        for worker in &mut self.0 {
            worker.tell(window);
        }
        together(self.0.into_iter().map(Worker::visits).collect(), window)
    }
}

/// Runs this process as a worker. `connect` opens the lock with the given name at the given URL.
pub(crate) async fn work<C: Cycle>(order: &[String], connect: impl AsyncFnOnce(&str, &str) -> C) {
    let [url, who, key] = order else {
        panic!("a worker needs the arguments URL, lock and key");
    };
    let candidate = connect(who, url).await;
    println!("{READY}");
    let line = io::stdin()
        .lines()
        .next()
        .expect("the worker receives the times of its run");
    let times = numbers(&line.expect("the times are valid UTF-8"));
    let [begin, from, end] = times[..] else {
        panic!("a worker needs three times: begin, from and end");
    };
    let window = Window { begin, from, end };
    let detector = Arc::new(Detector::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let detector = detector.clone();
            tokio::spawn(sit(candidate.clone(), Seat::at(key), window, detector))
        })
        .collect();
    for task in tasks {
        let visits = task.await.expect("a task of a worker does not panic");
        println!("{}", write_visits(&visits));
    }
}
