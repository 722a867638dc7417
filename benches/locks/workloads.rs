//! The five workloads.

use std::{sync::Arc, time::Duration};

use support::server::RedisServer;
use uuid::Uuid;

use crate::{
    Pace,
    contenders::{Contender, Seat, Who},
    crowd::{Crowd, Detector, gather},
    now, processes,
    report::{Figure, Limit, Report, Run, Table},
    sleep_until,
};

pub(crate) const ONE_BY_ONE: &str = "w1";
pub(crate) const OWN_KEYS: &str = "w2";
pub(crate) const ONE_KEY: &str = "w3";
pub(crate) const CALLERS: &str = "w4";
pub(crate) const PROCESSES: &str = "w5";

/// All of them, in their order.
pub(crate) const NAMES: [&str; 5] = [ONE_BY_ONE, OWN_KEYS, ONE_KEY, CALLERS, PROCESSES];

/// The first two workloads cut a round into so many, each with a ratio of its own: which thread a task and its
/// connection share makes a run two or three times as fast as the next one, for ours and for the floors.
const SLICES: u32 = 10;

const OURS: &str = "ours";

/// Tasks of the second and the third workload.
const CROWD: usize = 64;

/// Crowds that should all be served at one rate, beside [`CROWD`].
const OTHER_CROWDS: [usize; 2] = [8, 512];

/// The fourth workload: callers at once, and the time each is inside.
const CALLER_COUNT: u32 = 100;
const CALLER_BODY: Duration = Duration::from_millis(20);

/// Commands of making a connection and of reading the statistics. Connections stand before a run.
const NOT_COUNTED: [&str; 4] = ["info", "hello", "client|setinfo", "client|setname"];

/// Commands that only scripts run here, ours or a floor's: the statistics count those too. What is missing in this
/// list is counted as sent, so an error shows as too many.
const WITHIN_SCRIPTS: [&str; 17] = [
    "del", "exists", "get", "hexists", "hincrby", "incr", "pexpire", "pttl", "publish", "set",
    "time", "zadd", "zcard", "zpopmin", "zrange", "zrem", "zscore",
];

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

/// A key that nobody has used.
fn fresh_key() -> String {
    Uuid::new_v4().simple().to_string()
}

fn same_seats(tasks: usize) -> Vec<Seat> {
    let key = fresh_key();
    (0..tasks).map(|_| Seat::at(&key)).collect()
}

fn own_seats(tasks: usize) -> Vec<Seat> {
    (0..tasks).map(|_| Seat::at(&fresh_key())).collect()
}

/// The figures of a crowd at one key.
pub(crate) fn crowd_run(crowd: &Crowd, scripts: u64, overlaps: u64) -> Run {
    Run::from([
        (Figure::Rate, crowd.rate),
        (Figure::Scripts, scripts as f64 / crowd.served as f64),
        (Figure::Least, crowd.least as f64),
        (Figure::Most, crowd.most as f64),
        (Figure::Fairness, crowd.fairness()),
        (Figure::MedianWait, crowd.wait_ms(0.5)),
        (Figure::SlowWait, crowd.wait_ms(0.99)),
        (Figure::WorstWait, crowd.wait_ms(1.0)),
        (Figure::Overlaps, overlaps as f64),
    ])
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
        let detector = Arc::new(Detector::default());
        let before = self.server.scripts().await;
        let seats = same_seats(tasks);
        let crowd = gather(self.contender(who), seats, self.pace.span, Some(&detector)).await;
        let scripts = self.server.scripts().await - before;
        crowd_run(&crowd, scripts, detector.overlaps())
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

    /// Commands that clients have sent.
    async fn sent(&self) -> u64 {
        let calls = self.server.calls().await;
        let sent = calls.iter().filter(|(name, _)| {
            let name = name.as_str();
            !NOT_COUNTED.contains(&name) && !WITHIN_SCRIPTS.contains(&name)
        });
        sent.map(|(_, calls)| calls).sum()
    }

    async fn callers_of(&self, who: Who) -> Run {
        let contender = self.contender(who);
        let own_count = || match contender {
            Contender::Ours(client) => client.stats().commands as f64,
            _ => f64::NAN,
        };
        let detector = Arc::new(Detector::default());
        let (sent, counted) = (self.sent().await, own_count());
        let begin = now() + crate::nanos(Duration::from_millis(50));
        let callers: Vec<_> = same_seats(CALLER_COUNT as usize)
            .into_iter()
            .map(|seat| {
                let (mut contender, detector) = (contender.clone(), detector.clone());
                tokio::spawn(async move {
                    sleep_until(begin).await;
                    let mut inside = 0;
                    let body = async {
                        detector.enter();
                        let entered = now();
                        tokio::time::sleep(CALLER_BODY).await;
                        inside = now() - entered;
                        detector.leave();
                    };
                    contender.cycle(&seat, u64::MAX, body).await;
                    inside
                })
            })
            .collect();
        let mut bodies = 0;
        for caller in callers {
            bodies += caller.await.expect("a caller ends");
        }
        let wall = Duration::from_nanos(now() - begin).as_secs_f64();
        let ideal = (CALLER_BODY * CALLER_COUNT).as_secs_f64();
        Run::from([
            (Figure::Wall, wall),
            (Figure::OverIdeal, wall / ideal),
            (Figure::Bodies, Duration::from_nanos(bodies).as_secs_f64()),
            (Figure::Commands, (self.sent().await - sent) as f64),
            (Figure::OwnCount, own_count() - counted),
            (Figure::Overlaps, detector.overlaps() as f64),
        ])
    }

    /// W4: a hundred callers of a guarded function. `bodies_s` is what the bodies took by themselves: a timer of 20 ms
    /// is late by up to one. `own_count` is the client's own count of its commands.
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
