//! The workloads. The workloads. Each workload runs all locks that it compares, and fills one table of results.

use std::{sync::Arc, time::Instant};

use progress::Progress;
use support::{sent::Sent, server::RedisServer};

use crate::{
    candidates::{Candidate, Cycle, LEASE, WAIT, Who},
    options::Pace,
    processes,
    report::{Figure, Limit, Report, Run, Table},
    runs::{Callers, SLICES, WAITERS, fresh_key, own_seats, per_acquisition, run_of, same_seats},
    waiters::{Detector, Waiters, gather},
};

pub(crate) const ONE_BY_ONE: &str = "w1";
pub(crate) const OWN_KEYS: &str = "w2";
pub(crate) const ONE_KEY: &str = "w3";
pub(crate) const CALLERS: &str = "w4";
pub(crate) const PROCESSES: &str = "w5";
pub(crate) const REENTRY: &str = "reentry";
pub(crate) const SERVER: &str = "server";
pub(crate) const CLUSTER: &str = "cluster";

/// The names of the workloads, in the order in which they run.
pub(crate) const NAMES: [&str; 8] = [
    ONE_BY_ONE, OWN_KEYS, ONE_KEY, CALLERS, PROCESSES, REENTRY, SERVER, CLUSTER,
];

/// Returns the number of steps that a workload shows in the progress bar. A step is a round; the workload [`SERVER`] is
/// a single step.
pub(crate) fn steps(workload: &str, pace: Pace) -> usize {
    match workload {
        CALLERS => pace.rounds.min(CALLER_ROUNDS),
        SERVER => 1,
        _ => pace.rounds,
    }
}

const OURS: &str = "ours";

/// The largest number of rounds of the workload W4. Each run of W4 takes two seconds.
const CALLER_ROUNDS: usize = 3;

/// The smallest number of tasks that want one key. If many tasks wait, much of a lock's own work runs while the tasks
/// wait anyway. With few tasks, more of this work shows in the rate.
const SMALLEST: usize = 8;

/// The number of tasks from which on the baselines run only in the first round, because runs with many tasks are long.
const LARGE: usize = 1_000;

/// The number of re-entries (nested calls) into one hold in each round.
const REENTRIES: u32 = 1_000;

/// Returns the name of the table's row for this many tasks that use one lock.
fn row(who: Who, tasks: usize) -> String {
    format!("{who}, {tasks} tasks")
}

/// A server, and all locks that are compared on it.
#[derive(Debug)]
pub(crate) struct Bench {
    server: RedisServer,
    pace: Pace,
    progress: Progress,
    ours: Candidate,
    background: Candidate,
    sha: Candidate,
    sha_defaults: Candidate,
    set: Candidate,
    gate: Candidate,
}

impl Bench {
    /// Connects the clients of all locks to the server.
    pub(crate) async fn start(server: RedisServer, pace: Pace, progress: Progress) -> Self {
        let url = server.url();
        Self {
            pace,
            progress,
            ours: Candidate::connect(Who::Ours, &url).await,
            background: Candidate::connect(Who::OursBackground, &url).await,
            sha: Candidate::connect(Who::BaselineSha, &url).await,
            sha_defaults: Candidate::connect(Who::BaselineShaDefaults, &url).await,
            set: Candidate::connect(Who::BaselineSet, &url).await,
            gate: Candidate::connect(Who::BaselineGate, &url).await,
            server,
        }
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    fn candidate(&self, who: Who) -> &Candidate {
        match who {
            Who::Ours => &self.ours,
            Who::OursBackground => &self.background,
            Who::BaselineSha => &self.sha,
            Who::BaselineShaDefaults => &self.sha_defaults,
            Who::BaselineSet => &self.set,
            Who::BaselineGate => &self.gate,
        }
    }

    /// Reports that a round of a workload begins. The first round has the number 0.
    fn begin(&self, workload: &str, round: usize) {
        let round = round + 1;
        self.progress
            .begin(format_args!("{workload}, round {round}"));
    }

    /// Runs tasks with separate keys under each lock in turn. Adds `figure` to the table for each part of a round.
    async fn alone(
        &self,
        (name, table): (&str, &mut Table),
        tasks: usize,
        figure: fn(&Waiters) -> (Figure, f64),
    ) {
        let slices = SLICES as usize;
        for slice in 0..self.pace.rounds * slices {
            if slice % slices == 0 {
                self.begin(name, slice / slices);
            }
            for who in [
                Who::BaselineSha,
                Who::Ours,
                Who::OursBackground,
                Who::BaselineSet,
                Who::BaselineShaDefaults,
            ] {
                let span = self.pace.span / SLICES;
                let waiters = gather(self.candidate(who), own_seats(tasks), span, None).await;
                table.add(who.name(), [figure(&waiters)]);
            }
        }
    }

    /// W1: one task with its own key. Measures the time of a lock and unlock without contention.
    pub(crate) async fn one_by_one(&self, report: &mut Report) {
        let mut table = Table::new("W1", "one task, its own key: time per lock and unlock");
        let figure = |waiters: &Waiters| (Figure::Cycle, 1e6 / waiters.rate);
        self.alone((ONE_BY_ONE, &mut table), 1, figure).await;
        let ratio = |who: Who| table.ratio(who.name(), Who::BaselineSha.name(), Figure::Cycle);
        let mut target = |what, limit, who| {
            report.target("W1", what, Limit::AtMost(limit), ratio(who));
        };
        target("time, × baseline-sha", 1.05, Who::Ours);
        target(
            "time in the background, × baseline-sha",
            0.75,
            Who::OursBackground,
        );
        report.table(table);
    }

    /// W2: many tasks with separate keys. Measures how many locks and unlocks a second one client can handle.
    pub(crate) async fn own_keys(&self, report: &mut Report) {
        let mut table = Table::new(
            "W2",
            "64 tasks, each its own key: locks and unlocks a second",
        );
        let figure = |waiters: &Waiters| (Figure::Rate, waiters.rate);
        self.alone((OWN_KEYS, &mut table), WAITERS, figure).await;
        let ratio = |who: Who| table.ratio(who.name(), Who::BaselineSha.name(), Figure::Rate);
        let mut target = |what, who| {
            report.target("W2", what, Limit::AtLeast(1.3), ratio(who));
        };
        target("rate, × baseline-sha", Who::Ours);
        target(
            "rate in the background, × baseline-sha",
            Who::OursBackground,
        );
        report.table(table);
    }

    async fn at_one_key(&self, who: Who, tasks: usize) -> Run {
        let (server, candidate) = (&self.server, self.candidate(who));
        let detector = Arc::new(Detector::default());
        let plain = candidate.plain();
        let (scripts, before) = (server.scripts().await, Sent::so_far(server, plain).await);
        let seats = same_seats(tasks);
        let waiters = gather(candidate, seats, self.pace.span, Some(&detector)).await;
        let sent = before.since(server, plain).await;
        let scripts = server.scripts().await - scripts;
        let mut run = run_of(&waiters, detector.overlaps());
        run.extend(per_acquisition(sent, &waiters));
        run.insert(Figure::Scripts, scripts as f64 / waiters.served as f64);
        run
    }

    /// W3: all tasks want the same key. The runs with more tasks show whether a longer queue lowers the rate.
    pub(crate) async fn one_key(&self, report: &mut Report) {
        let mut table = Table::new("W3", "all tasks at ONE key, empty body");
        for round in 0..self.pace.rounds {
            self.begin(ONE_KEY, round);
            for tasks in self.pace.sizes {
                for who in [Who::BaselineSha, Who::BaselineGate, Who::Ours] {
                    if who == Who::Ours || *tasks < LARGE || round == 0 {
                        table.add(row(who, *tasks), self.at_one_key(who, *tasks).await);
                    }
                }
            }
        }
        let ours = row(Who::Ours, WAITERS);
        let to_baseline = |tasks| {
            let [ours, baseline] = [Who::Ours, Who::BaselineSha].map(|who| row(who, tasks));
            table.ratio(&ours, &baseline, Figure::Rate)
        };
        let mut target = |what: &str, limit, value| report.target("W3", what, limit, value);
        let what = "rate of 64 tasks, × baseline-sha";
        target(what, Limit::AtLeast(8.0), to_baseline(WAITERS));
        let what = "rate of 8 tasks, × baseline-sha";
        target(what, Limit::AtLeast(4.0), to_baseline(SMALLEST));
        for tasks in self.pace.sizes.iter().filter(|tasks| **tasks > WAITERS) {
            let ratio = table.ratio(&row(Who::Ours, *tasks), &ours, Figure::Rate);
            let what = format!("rate of {tasks} tasks, × that of 64");
            target(&what, Limit::AtLeast(0.85), ratio);
        }
        // All tasks but the one that holds the lock share a grant, which costs two scripts.
        for (tasks, limit) in [(SMALLEST, 0.3), (WAITERS, 0.035)] {
            let scripts = table.median(&row(Who::Ours, tasks), Figure::Scripts);
            let what = format!("scripts per acquisition of {tasks} tasks");
            target(&what, Limit::AtMost(limit), scripts);
        }
        let fairness = table.median(&ours, Figure::Fairness);
        target("least / most served task", Limit::AtLeast(0.98), fairness);
        let turns = table.median(&ours, Figure::SlowTurns);
        target("p99 wait, × tasks ÷ rate", Limit::AtMost(3.0), turns);
        report.table(table);
    }

    async fn callers_of(&self, who: Who) -> Run {
        let candidate = self.candidate(who);
        let own_count = || match candidate {
            Candidate::Ours(client) => client.stats().commands as f64,
            _ => f64::NAN,
        };
        let plain = candidate.plain();
        let (before, counted) = (Sent::so_far(&self.server, plain).await, own_count());
        let callers = Callers::call(candidate).await;
        let mut run = callers.run(before.since(&self.server, plain).await);
        run.insert(Figure::OwnCount, own_count() - counted);
        run
    }

    /// W4: a hundred callers call one guarded function at the same time. The figure `own_count` is the number of
    /// commands in the client's own statistics.
    pub(crate) async fn callers(&self, report: &mut Report) {
        let mut table = Table::new(
            "W4",
            "100 callers × 20 ms, one key, all at once (ideal 2 s)",
        );
        for round in 0..self.pace.rounds.min(CALLER_ROUNDS) {
            self.begin(CALLERS, round);
            for who in [Who::BaselineGate, Who::Ours] {
                table.add(who.name(), self.callers_of(who).await);
            }
        }
        let over = table.median(OURS, Figure::OverIdeal);
        report.target("W4", "wall time, × ideal", Limit::AtMost(1.06), over);
        let commands = table.median(OURS, Figure::Commands);
        report.target("W4", "commands sent", Limit::AtMost(220.0), commands);
        report.table(table);
    }

    /// W5: the tasks of several processes want the same key.
    pub(crate) async fn processes(&self, report: &mut Report) {
        let mut table = Table::new("W5", "4 processes × 16 tasks, ONE key, empty body");
        for round in 0..self.pace.rounds {
            self.begin(PROCESSES, round);
            for who in [Who::BaselineSha, Who::BaselineGate, Who::Ours] {
                let plain = self.candidate(who).plain();
                let run = processes::run(&self.server, who.name(), plain, self.pace.span).await;
                table.add(who.name(), run);
            }
        }
        let to_baseline = table.ratio(OURS, Who::BaselineSha.name(), Figure::Rate);
        report.target(
            "W5",
            "rate, × baseline-sha",
            Limit::AtLeast(1.1),
            to_baseline,
        );
        let scripts = table.median(OURS, Figure::Scripts);
        report.target("W5", "scripts per acquisition", Limit::AtMost(2.1), scripts);
        let fairness = table.median(OURS, Figure::Fairness);
        report.target(
            "W5",
            "least / most served task",
            Limit::AtLeast(0.95),
            fairness,
        );
        report.table(table);
    }

    /// The workload R: many nested calls run inside one hold whose lease is renewed. Measures the time of one re-entry,
    /// and the number of commands that all re-entries together send.
    pub(crate) async fn reentry(&self, report: &mut Report) {
        let Candidate::Ours(client) = &self.ours else {
            unreachable!("`Who::Ours` connects a lock of this project");
        };
        let title = "a renewed hold, entered 1000 times more: each time, and what all of them send";
        let mut table = Table::new("R", title);
        for round in 0..self.pace.rounds {
            self.begin(REENTRY, round);
            let (client, key) = (client.clone(), fresh_key());
            let again = async {
                let before = (
                    Sent::so_far(&self.server, &[]).await,
                    client.stats().commands,
                );
                let since = Instant::now();
                for _ in 0..REENTRIES {
                    let nested = client.lock(&key).wait(WAIT).lease(LEASE).renew(true);
                    nested
                        .run(async {})
                        .await
                        .expect("the call is already inside the hold");
                }
                let cycle = since.elapsed().as_secs_f64() * 1e6 / f64::from(REENTRIES);
                let own_count = client.stats().commands - before.1;
                let sent = before.0.since(&self.server, &[]).await;
                Run::from([
                    (Figure::Cycle, cycle),
                    (Figure::Commands, sent.commands as f64),
                    (Figure::OwnCount, own_count as f64),
                ])
            };
            let hold = client.lock(&key).wait(WAIT).lease(LEASE).renew(true);
            table.add(
                OURS,
                hold.run(again)
                    .await
                    .expect("no other caller uses this key"),
            );
        }
        let commands = table.highest(OURS, Figure::Commands);
        report.target("R", "commands sent", Limit::AtMost(0.0), commands);
        report.table(table);
    }
}
