//! The workload with several processes. This executable starts itself again, once for each worker.
//!
//! A worker connects, writes `ready`, and reads when its run begins, when the measured window begins, and when both
//! end. Then the worker runs its tasks, and writes a line for each task with the times of the task's visits. The
//! results count only the part of the window in which every worker was served.

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

/// The first argument of a worker. The arguments after the first one: the URL, the name of the lock and the key.
pub(crate) const WORKER: &str = "--worker";

const READY: &str = "ready";
pub(crate) const PROCESSES: usize = 4;
pub(crate) const TASKS: usize = 16;

/// The time that the workers have to prepare: from the message with their times until the beginning of their run.
pub(crate) const LEAD: Duration = Duration::from_millis(200);

/// The handle of a worker in the process that has started it.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(url: &str, who: &str, key: &str) -> Self {
        let this = std::env::current_exe().expect("the benchmark knows its executable");
        let mut command = dies_with_parent(this);
        command
            .args([WORKER, url, who, key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command).expect("a worker can be started");
        let output = child.stdout.take().expect("its output is piped");
        Self {
            child,
            lines: BufReader::new(output).lines(),
        }
    }

    fn line(&mut self) -> String {
        let line = self.lines.next().expect("a worker goes on to its end");
        line.expect("a worker writes text")
    }

    fn tell(&mut self, window: Window) {
        let input = self.child.stdin.as_mut().expect("its input is piped");
        let Window { begin, from, end } = window;
        writeln!(input, "{begin} {from} {end}").expect("a worker listens");
    }

    /// Waits until the worker has ended, and returns the visits of its tasks.
    fn visits(mut self) -> Vec<Vec<Visit>> {
        let tasks = (0..TASKS).map(|_| parse_visits(&self.line())).collect();
        let status = self.child.wait().expect("a worker ends");
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
        .map(|word| word.parse().expect("processes write numbers"))
        .collect()
}

fn write_visits(visits: &[Visit]) -> String {
    let fields = visits.iter().map(|visit| {
        // A task that gave up did not enter the lock, so 0 is written in place of the time at which the task left.
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

/// Returns the part of the measured window in which every process was served: it begins once every process has entered
/// the lock, and ends as soon as one of the processes has made its last entry.
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
    // If a process was never served, that part of the window is empty.
    let served = workers
        .iter()
        .map(|tasks| served(tasks).unwrap_or((u64::MAX, 0)));
    served.fold(window, |window, (first, last)| Window {
        from: window.from.max(first),
        end: window.end.min(last),
        ..window
    })
}

/// Computes the results of several processes at one key from the visits of each process's tasks.
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

/// The workers of a run, which are ready.
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
        panic!("a worker is told URL, lock and key");
    };
    let candidate = connect(who, url).await;
    println!("{READY}");
    let line = io::stdin()
        .lines()
        .next()
        .expect("a worker is told its time");
    let times = numbers(&line.expect("the time is text"));
    let [begin, from, end] = times[..] else {
        panic!("a worker is told begin, from and end");
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
        let visits = task.await.expect("a task of a worker ends");
        println!("{}", write_visits(&visits));
    }
}
