//! The five workloads.

use std::sync::Arc;

use support::{sent::Sent, server::RedisServer};

use crate::{
    contenders::{Contender, Cycle, Who},
    crowd::{Crowd, Detector, gather},
    options::Pace,
    processes,
    report::{Figure, Limit, Report, Run, Table},
    runs::{CROWD, Callers, SLICES, crowd_run, fresh_key, own_seats, per_acquisition, same_seats},
};

pub(crate) const ONE_BY_ONE: &str = "w1";
pub(crate) const OWN_KEYS: &str = "w2";
pub(crate) const ONE_KEY: &str = "w3";
pub(crate) const CALLERS: &str = "w4";
pub(crate) const PROCESSES: &str = "w5";

/// All of them, in their order.
pub(crate) const NAMES: [&str; 5] = [ONE_BY_ONE, OWN_KEYS, ONE_KEY, CALLERS, PROCESSES];

const OURS: &str = "ours";

/// Crowds that should all be served at one rate, beside [`CROWD`].
const OTHER_CROWDS: [usize; 2] = [8, 512];

/// A server, and all who are compared on it.
#[derive(Debug)]
pub(crate) struct Bench {
    server: RedisServer,
    pace: Pace,
    ours: Contender,
    sha: Contender,
    sha_defaults: Contender,
    set: Contender,
    gate: Contender,
}

impl Bench {
    /// Connects all.
    pub(crate) async fn start(server: RedisServer, pace: Pace) -> Self {
        let url = server.url();
        Self {
            pace,
            ours: Contender::connect(Who::Ours, &url).await,
            sha: Contender::connect(Who::FloorSha, &url).await,
            sha_defaults: Contender::connect(Who::FloorShaDefaults, &url).await,
            set: Contender::connect(Who::FloorSet, &url).await,
            gate: Contender::connect(Who::FloorGate, &url).await,
            server,
        }
    }

    fn contender(&self, who: Who) -> &Contender {
        match who {
            Who::Ours => &self.ours,
            Who::FloorSha => &self.sha,
            Who::FloorShaDefaults => &self.sha_defaults,
            Who::FloorSet => &self.set,
            Who::FloorGate => &self.gate,
        }
    }

    /// Runs tasks that do not meet, in turns.
    async fn alone(&self, table: &mut Table, tasks: usize, figure: fn(&Crowd) -> (Figure, f64)) {
        for _ in 0..self.pace.rounds * SLICES as usize {
            for who in [
                Who::FloorSha,
                Who::Ours,
                Who::FloorSet,
                Who::FloorShaDefaults,
            ] {
                let span = self.pace.span / SLICES;
                let crowd = gather(self.contender(who), own_seats(tasks), span, None).await;
                table.add(who.name(), [figure(&crowd)]);
            }
        }
    }

    /// W1: one task, its own key: what a lock costs that nobody else wants.
    pub(crate) async fn one_by_one(&self, report: &mut Report) {
        let mut table = Table::new("W1", "one task, its own key: time per lock and unlock");
        let figure = |crowd: &Crowd| (Figure::Cycle, 1e6 / crowd.rate);
        self.alone(&mut table, 1, figure).await;
        let ratio = |to: Who| table.ratio(OURS, to.name(), Figure::Cycle);
        let limit = Limit::AtMost(1.10);
        report.target("W1", "time, × floor-sha", limit, ratio(Who::FloorSha));
        let to_defaults = ratio(Who::FloorShaDefaults);
        report.target("W1", "time, × floor-sha/defaults", limit, to_defaults);
        report.table(table);
    }

    /// W2: many tasks that do not meet: what the client can carry.
    pub(crate) async fn own_keys(&self, report: &mut Report) {
        let mut table = Table::new(
            "W2",
            "64 tasks, each its own key: locks and unlocks a second",
        );
        let figure = |crowd: &Crowd| (Figure::Rate, crowd.rate);
        self.alone(&mut table, CROWD, figure).await;
        let ratio = |to: Who| table.ratio(OURS, to.name(), Figure::Rate);
        let limit = Limit::AtLeast(1.2);
        report.target("W2", "rate, × floor-sha", limit, ratio(Who::FloorSha));
        let to_defaults = ratio(Who::FloorShaDefaults);
        report.target("W2", "rate, × floor-sha/defaults", limit, to_defaults);
        report.table(table);
    }

    async fn at_one_key(&self, who: Who, tasks: usize) -> Run {
        let (server, contender) = (&self.server, self.contender(who));
        let detector = Arc::new(Detector::default());
        let plain = contender.plain();
        let (scripts, before) = (server.scripts().await, Sent::so_far(server, plain).await);
        let seats = same_seats(tasks);
        let crowd = gather(contender, seats, self.pace.span, Some(&detector)).await;
        let sent = before.since(server, plain).await;
        let scripts = server.scripts().await - scripts;
        let mut run = crowd_run(&crowd, detector.overlaps());
        run.extend(per_acquisition(sent, &crowd));
        run.insert(Figure::Scripts, scripts as f64 / crowd.served as f64);
        run
    }

    /// W3: all at one key, and whether a longer queue costs.
    pub(crate) async fn one_key(&self, report: &mut Report) {
        let mut table = Table::new(
            "W3",
            "64 tasks (or as many as it says), ONE key, empty body",
        );
        let row = |tasks: usize| format!("ours, {tasks} tasks");
        for _ in 0..self.pace.rounds {
            for who in [Who::FloorSha, Who::FloorGate, Who::Ours] {
                table.add(who.name(), self.at_one_key(who, CROWD).await);
            }
            for tasks in OTHER_CROWDS {
                table.add(row(tasks), self.at_one_key(Who::Ours, tasks).await);
            }
        }
        let to_gate = table.ratio(OURS, Who::FloorGate.name(), Figure::Rate);
        report.target("W3", "rate, × floor-gate", Limit::AtLeast(1.25), to_gate);
        let scripts = table.median(OURS, Figure::Scripts);
        report.target(
            "W3",
            "scripts per acquisition",
            Limit::AtMost(2.05),
            scripts,
        );
        let fairness = table.median(OURS, Figure::Fairness);
        report.target(
            "W3",
            "least / most served task",
            Limit::AtLeast(0.98),
            fairness,
        );
        let rates = OTHER_CROWDS.map(|tasks| table.ratio(&row(tasks), OURS, Figure::Rate));
        let (low, high) = rates.iter().fold((1.0_f64, 1.0_f64), |(low, high), rate| {
            (low.min(*rate), high.max(*rate))
        });
        let what = "slowest / fastest of 8, 64 and 512 tasks";
        report.target("W3", what, Limit::AtLeast(0.90), low / high);
        report.table(table);
    }

    async fn callers_of(&self, who: Who) -> Run {
        let contender = self.contender(who);
        let own_count = || match contender {
            Contender::Ours(client) => client.stats().commands as f64,
            _ => f64::NAN,
        };
        let plain = contender.plain();
        let (before, counted) = (Sent::so_far(&self.server, plain).await, own_count());
        let callers = Callers::call(contender).await;
        let mut run = callers.run(before.since(&self.server, plain).await);
        run.insert(Figure::OwnCount, own_count() - counted);
        run
    }

    /// W4: a hundred callers of a guarded function. `own_count` is the client's own count of its commands.
    pub(crate) async fn callers(&self, report: &mut Report) {
        let mut table = Table::new(
            "W4",
            "100 callers × 20 ms, one key, all at once (ideal 2 s)",
        );
        for _ in 0..self.pace.rounds {
            for who in [Who::FloorGate, Who::Ours] {
                table.add(who.name(), self.callers_of(who).await);
            }
        }
        let over = table.median(OURS, Figure::OverIdeal);
        report.target("W4", "wall time, × ideal", Limit::AtMost(1.06), over);
        let commands = table.median(OURS, Figure::Commands);
        report.target("W4", "commands sent", Limit::AtMost(220.0), commands);
        report.table(table);
    }

    /// W5: one key for several processes.
    pub(crate) async fn processes(&self, report: &mut Report) {
        let mut table = Table::new("W5", "4 processes × 16 tasks, ONE key, empty body");
        for _ in 0..self.pace.rounds {
            for who in [Who::FloorSha, Who::FloorGate, Who::Ours] {
                let run = processes::run(&self.server, who, &fresh_key(), self.pace.span).await;
                table.add(who.name(), run);
            }
        }
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
}
