//! The workloads, each with all who take part in it.

use std::sync::Arc;

use lock_runtime::Strategy;
use serde_json::{Value, json};
use support::{page::Grid, sent::Sent, server::RedisServer};

use crate::{
    contenders::{Cycle, Seat, Who},
    crowd::{Crowd, Detector, gather, overlaps},
    faults::{self, Contest, Leak},
    jvm::{Asking, Kind, Redisson},
    options::Pace,
    report::{Figure, Report, Run, Table},
    rivals::{Poll, Rival},
    runs::{CROWD, Callers, SLICES, crowd_run, own_seats, per_acquisition, same_seats},
};

const ONE_BY_ONE: &str = "w1";
const OWN_KEYS: &str = "w2";
const ONE_KEY: &str = "w3";
const CALLERS: &str = "w4";
const FAULTS: &str = "faults";

/// All of them, in their order.
pub(crate) const NAMES: [&str; 5] = [ONE_BY_ONE, OWN_KEYS, ONE_KEY, CALLERS, FAULTS];

/// The fourth takes a poller ten seconds: no more rounds than these.
const CALLER_ROUNDS: usize = 3;

const OURS: &str = "ours";
const OURS_RENEWED: &str = "ours, renewed";
const OURS_NOTIFY: &str = "ours, notify";
const OURS_SPIN: &str = "ours, spin";
const SHA: &str = "floor-sha";
const SET: &str = "floor-set";
const GATE: &str = "floor-gate";
const RSLOCK: &str = "rslock";
const RSLOCK_USING: &str = "rslock, using";
const REDIS_LOCK: &str = "redis-lock";
const ASYNC_REDIS_LOCK: &str = "async-redis-lock";
const DISTRIBUTED_LOCK_REDIS: &str = "distributed-lock-redis";
const RSLOCK_QUICK: &str = "rslock, 5 ms";
const REDIS_LOCK_QUICK: &str = "redis-lock, 5 ms";
const ASYNC_REDIS_LOCK_QUICK: &str = "async-redis-lock, 5 ms";
const DISTRIBUTED_LOCK_REDIS_QUICK: &str = "distributed-lock-redis, 5 ms";
const REDISSON: &str = "Redisson";
const REDISSON_FAIR: &str = "Redisson, fair";
const REDISSON_ONCE: &str = "Redisson, tryLockAsync()";
const REDISSON_TIMED: &str = "Redisson, tryLockAsync(0, 30 s)";

/// Who takes part where waiting does not matter.
const ALONE: [&str; 9] = [
    SHA,
    SET,
    OURS,
    RSLOCK,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    REDISSON,
    REDISSON_FAIR,
];

/// Who takes part where it does.
const AT_ONE_KEY: [&str; 15] = [
    SHA,
    GATE,
    OURS,
    OURS_NOTIFY,
    OURS_SPIN,
    RSLOCK,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    RSLOCK_QUICK,
    REDIS_LOCK_QUICK,
    ASYNC_REDIS_LOCK_QUICK,
    DISTRIBUTED_LOCK_REDIS_QUICK,
    REDISSON,
    REDISSON_FAIR,
];

/// All of these, in the order of the page.
const COST_ROWS: [&str; 16] = [
    SHA,
    SET,
    GATE,
    OURS,
    OURS_NOTIFY,
    OURS_SPIN,
    RSLOCK,
    RSLOCK_QUICK,
    REDIS_LOCK,
    REDIS_LOCK_QUICK,
    ASYNC_REDIS_LOCK,
    ASYNC_REDIS_LOCK_QUICK,
    DISTRIBUTED_LOCK_REDIS,
    DISTRIBUTED_LOCK_REDIS_QUICK,
    REDISSON,
    REDISSON_FAIR,
];

/// Who is dropped.
const DROPPED: [&str; 7] = [
    SHA,
    OURS,
    RSLOCK,
    RSLOCK_USING,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
];

/// Who outlasts its lease, and has its lock taken away.
const OUTLASTING: [&str; 7] = [
    OURS,
    OURS_RENEWED,
    RSLOCK,
    RSLOCK_USING,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
];

/// All of these, in the order of the page.
const FAULT_ROWS: [&str; 10] = [
    SHA,
    OURS,
    OURS_RENEWED,
    RSLOCK,
    RSLOCK_USING,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    REDISSON_ONCE,
    REDISSON_TIMED,
];

/// One who takes part.
enum Part<'a> {
    Rust(&'a Rival),
    Jvm(&'a mut Redisson, Kind),
}

/// What one lock does wrong.
#[derive(Debug, Default)]
struct Faults {
    acquiring: Option<Leak>,
    holding: Option<Leak>,
    outlasted: Option<Contest>,
    taken: Option<Contest>,
}

/// All that was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) report: Report,
    setting: String,
    costs: Grid,
    faults: Vec<(&'static str, Faults)>,
}

/// A server, and all who are compared on it.
pub(crate) struct Bench {
    server: RedisServer,
    pace: Pace,
    rivals: Vec<(&'static str, Rival)>,
    redisson: Result<Redisson, String>,
}

impl Bench {
    /// Connects all.
    pub(crate) async fn start(server: RedisServer, pace: Pace) -> Self {
        let url = &server.url();
        let rivals = vec![
            (SHA, Rival::own(Who::FloorSha, url).await),
            (SET, Rival::own(Who::FloorSet, url).await),
            (GATE, Rival::own(Who::FloorGate, url).await),
            (OURS, Rival::own(Who::Ours, url).await),
            (OURS_NOTIFY, Rival::ours(url, Strategy::Notify).await),
            (OURS_SPIN, Rival::ours(url, Strategy::Spin).await),
            (RSLOCK, Rival::rslock(url, Poll::Documented).await),
            (RSLOCK_QUICK, Rival::rslock(url, Poll::Quick).await),
            (RSLOCK_USING, Rival::rslock_using(url).await),
            (REDIS_LOCK, Rival::redis_lock(url, Poll::Documented).await),
            (REDIS_LOCK_QUICK, Rival::redis_lock(url, Poll::Quick).await),
            (
                ASYNC_REDIS_LOCK,
                Rival::async_redis_lock(url, Poll::Documented).await,
            ),
            (
                ASYNC_REDIS_LOCK_QUICK,
                Rival::async_redis_lock(url, Poll::Quick).await,
            ),
            (
                DISTRIBUTED_LOCK_REDIS,
                Rival::distributed_lock_redis(url, Poll::Documented).await,
            ),
            (
                DISTRIBUTED_LOCK_REDIS_QUICK,
                Rival::distributed_lock_redis(url, Poll::Quick).await,
            ),
        ];
        let redisson = match Redisson::start(url) {
            Ok(mut redisson) => {
                eprintln!("Redisson warms up …");
                for kind in [Kind::Plain, Kind::Fair] {
                    for seats in [own_seats(CROWD), same_seats(CROWD)] {
                        redisson.gather(kind, &seats, pace.span * pace.rounds as u32);
                    }
                }
                Ok(redisson)
            }
            Err(why) => {
                eprintln!("Redisson is left out: {why}");
                Err(why)
            }
        };
        Self {
            server,
            pace,
            rivals,
            redisson,
        }
    }

    fn rival(&self, name: &str) -> &Rival {
        let rival = self.rivals.iter().find(|(who, _)| *who == name);
        &rival.expect("the name of a rival").1
    }

    /// `None` for Redisson if it is left out.
    fn part(&mut self, name: &str) -> Option<Part<'_>> {
        let kind = match name {
            REDISSON => Kind::Plain,
            REDISSON_FAIR => Kind::Fair,
            _ => return Some(Part::Rust(self.rival(name))),
        };
        Some(Part::Jvm(self.redisson.as_mut().ok()?, kind))
    }

    fn plain(&self, name: &str) -> &'static [&'static str] {
        let rival = self.rivals.iter().find(|(who, _)| *who == name);
        rival.map_or(&[], |(_, rival)| rival.plain())
    }

    /// What a crowd did and sent, and how many of it were inside at once if all are at one key.
    async fn crowd(
        &mut self,
        name: &str,
        seats: Vec<Seat>,
        parts: u32,
    ) -> Option<(Crowd, Sent, u64)> {
        let (plain, span) = (self.plain(name), self.pace.span / parts);
        let before = Sent::so_far(&self.server, plain).await;
        let (crowd, overlaps) = match self.part(name)? {
            Part::Rust(rival) => {
                let detector = Arc::new(Detector::default());
                let one_key = seats.iter().all(|seat| seat.key == seats[0].key);
                let shared = one_key.then_some(&detector);
                (
                    gather(rival, seats, span, shared).await,
                    detector.overlaps(),
                )
            }
            Part::Jvm(redisson, kind) => {
                let (visits, window) = redisson.gather(kind, &seats, span);
                (Crowd::of(&visits, window), overlaps(&visits))
            }
        };
        Some((crowd, before.since(&self.server, plain).await, overlaps))
    }

    /// Runs tasks that do not meet, in turns.
    async fn alone(&mut self, table: &mut Table, tasks: usize) {
        for _ in 0..self.pace.rounds * SLICES as usize {
            for name in ALONE {
                let seats = own_seats(tasks);
                if let Some((crowd, sent, _)) = self.crowd(name, seats, SLICES).await {
                    let mut run = Run::from([
                        (Figure::Cycle, 1e6 * tasks as f64 / crowd.rate),
                        (Figure::Rate, crowd.rate),
                    ]);
                    run.extend(per_acquisition(sent, &crowd));
                    table.add(name, run);
                }
            }
        }
    }

    /// W1: one task, its own keys.
    async fn one_by_one(&mut self, measured: &mut Measured) {
        let mut table = Table::new("W1", "one task, its own key: time per lock and unlock");
        self.alone(&mut table, 1).await;
        // Known: one command in, one out.
        for name in [SHA, SET, OURS] {
            let sent = table.median(name, Figure::Sent);
            assert!(
                (sent - 2.0).abs() < 0.01,
                "{name} is counted with {sent} commands, not 2"
            );
        }
        let title = "one task, own keys: µs (× floor-sha) · commands · server µs";
        measured.costs.column(title, |row| {
            let cycle = known(table.median(row, Figure::Cycle))?;
            let ratio = table.ratio(row, SHA, Figure::Cycle);
            let [sent, server] = [Figure::Sent, Figure::ServerTime].map(|f| table.median(row, f));
            Some(format!("{cycle:.0} ({ratio:.2}) · {sent:.1} · {server:.0}"))
        });
        measured.report.table(table);
    }

    /// W2: many tasks that do not meet.
    async fn own_keys(&mut self, measured: &mut Measured) {
        let title = "64 tasks, each its own key: locks and unlocks a second";
        let mut table = Table::new("W2", title);
        self.alone(&mut table, CROWD).await;
        let title = "64 tasks, own keys: 1000/s (× floor-sha)";
        measured.costs.column(title, |row| {
            let rate = known(table.median(row, Figure::Rate))? / 1e3;
            let ratio = table.ratio(row, SHA, Figure::Rate);
            Some(format!("{rate:.1} ({ratio:.2})"))
        });
        measured.report.table(table);
    }

    /// W3: all at one key.
    async fn one_key(&mut self, measured: &mut Measured) {
        let mut table = Table::new("W3", "64 tasks, ONE key, empty body");
        for _ in 0..self.pace.rounds {
            for name in AT_ONE_KEY {
                let seats = same_seats(CROWD);
                if let Some((crowd, sent, overlaps)) = self.crowd(name, seats, 1).await {
                    assert!(
                        !name.starts_with(OURS) || overlaps == 0,
                        "two of ours were inside at once"
                    );
                    let mut run = crowd_run(&crowd, overlaps);
                    run.extend(per_acquisition(sent, &crowd));
                    table.add(name, run);
                }
            }
        }
        let title = "64 tasks, ONE key: 1000/s (× floor-sha) · commands · server µs · \
                     least/most served · longest wait";
        measured.costs.column(title, |row| {
            let median = |figure| table.median(row, figure);
            let rate = known(median(Figure::Rate))? / 1e3;
            let ratio = table.ratio(row, SHA, Figure::Rate);
            let [sent, server, least, most, wait] = [
                Figure::Sent,
                Figure::ServerTime,
                Figure::Least,
                Figure::Most,
                Figure::WorstWait,
            ]
            .map(median);
            Some(format!(
                "{rate:.1} ({ratio:.2}) · {sent:.1} · {server:.0} · \
                 {least:.0}/{most:.0} · {wait:.0} ms"
            ))
        });
        measured.report.table(table);
    }

    /// W4: a hundred callers of one guarded function.
    async fn callers(&mut self, measured: &mut Measured) {
        let mut table = Table::new(
            "W4",
            "100 callers × 20 ms, one key, all at once (ideal 2 s)",
        );
        for _ in 0..self.caller_rounds() {
            for name in AT_ONE_KEY {
                let plain = self.plain(name);
                let before = Sent::so_far(&self.server, plain).await;
                let callers = match self.part(name) {
                    Some(Part::Rust(rival)) => Callers::call(rival).await,
                    Some(Part::Jvm(redisson, kind)) => redisson.call(kind),
                    None => continue,
                };
                let run = callers.run(before.since(&self.server, plain).await);
                assert!(
                    run[&Figure::Wall] >= 2.0,
                    "{name} is faster than the bodies are"
                );
                table.add(name, run);
            }
        }
        // A loaded machine ends the bodies late, which is no lock's fault.
        let title = "100 callers × 20 ms: s (of these in the bodies) · commands";
        measured.costs.column(title, |row| {
            let wall = known(table.median(row, Figure::Wall))?;
            let [bodies, commands] =
                [Figure::Bodies, Figure::Commands].map(|f| table.median(row, f));
            Some(format!("{wall:.2} ({bodies:.2}) · {commands:.0}"))
        });
        measured.report.table(table);
    }

    async fn faults(&mut self, measured: &mut Measured) {
        for name in DROPPED {
            let acquiring = faults::while_acquiring(&self.server, self.rival(name)).await;
            let holding = faults::while_holding(&self.server, self.rival(name)).await;
            assert!(acquiring.dropped > 0, "nobody was dropped while acquiring");
            match name {
                // Known: ours leaves nothing, and by hand nothing is cleaned up.
                OURS => assert_eq!((acquiring.left, holding.left), (0, 0), "ours leaves keys"),
                SHA => assert_eq!(holding.left, holding.dropped, "keys are counted wrong"),
                _ => {}
            }
            let faults = measured.faults_of(name);
            (faults.acquiring, faults.holding) = (Some(acquiring), Some(holding));
        }
        if let Ok(redisson) = &mut self.redisson {
            for (name, asking) in [
                (REDISSON_ONCE, Asking::Once),
                (REDISSON_TIMED, Asking::Timed),
            ] {
                let leak = faults::while_redisson_acquires(&self.server, redisson, asking).await;
                measured.faults_of(name).acquiring = Some(leak);
            }
        }
        // Nobody is in the others' way: all wait for time to pass.
        let contests = OUTLASTING.map(|name| {
            let (rival, renew) = match name {
                OURS_RENEWED => (self.rival(OURS), true),
                _ => (self.rival(name), false),
            };
            let server = &self.server;
            async move { (name, faults::contests(server, rival, renew).await) }
        });
        for (name, [outlasted, taken]) in futures_util::future::join_all(contests).await {
            let faults = measured.faults_of(name);
            (faults.outlasted, faults.taken) = (Some(outlasted), Some(taken));
            if [OURS, OURS_RENEWED].contains(&name) {
                assert_eq!(outlasted.overlap_s, 0.0, "{name} overlaps");
            }
        }
    }

    /// What has to be known beside the figures.
    fn setting(&self) -> String {
        let Pace { rounds, span } = self.pace;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let redisson = match &self.redisson {
            Ok(_) => String::new(),
            Err(why) => format!(" Redisson was left out: {why}."),
        };
        format!(
            "Medians of {rounds} interleaved rounds of {span:?} ({} of the callers) on {cores} cores and one server on \
             loopback.{redisson}",
            self.caller_rounds()
        )
    }

    fn caller_rounds(&self) -> usize {
        self.pace.rounds.min(CALLER_ROUNDS)
    }

    /// Measures what is wanted.
    pub(crate) async fn measure(&mut self, wants: impl Fn(&str) -> bool) -> Measured {
        let mut measured = Measured {
            report: Report::new(self.pace),
            setting: self.setting(),
            costs: Grid::new("lock", COST_ROWS),
            faults: Vec::new(),
        };
        for name in NAMES {
            if !wants(name) {
                continue;
            }
            eprintln!("{name} …");
            match name {
                ONE_BY_ONE => self.one_by_one(&mut measured).await,
                OWN_KEYS => self.own_keys(&mut measured).await,
                ONE_KEY => self.one_key(&mut measured).await,
                CALLERS => self.callers(&mut measured).await,
                _ => self.faults(&mut measured).await,
            }
        }
        measured
    }
}

fn known(value: f64) -> Option<f64> {
    Some(value).filter(|value| !value.is_nan())
}

impl Measured {
    fn faults_of(&mut self, name: &'static str) -> &mut Faults {
        let found = self.faults.iter().position(|(who, _)| *who == name);
        let found = found.unwrap_or_else(|| {
            self.faults.push((name, Faults::default()));
            self.faults.len() - 1
        });
        &mut self.faults[found].1
    }

    /// The tables of the page.
    pub(crate) fn markdown(&self) -> String {
        let mut faults = Grid::new("lock", FAULT_ROWS);
        let mut column = |title, cell: fn(&Faults) -> Option<String>| {
            faults.column(title, |row| {
                let faults = self.faults.iter().find(|(name, _)| *name == row);
                cell(&faults?.1)
            });
        };
        column("dropped while acquiring: keys left", |faults| {
            Some(faults.acquiring?.describe())
        });
        column("dropped while holding: keys left", |faults| {
            Some(faults.holding?.describe())
        });
        column("6 s of work in a lease of 2 s", |faults| {
            Some(faults.outlasted?.describe())
        });
        column("lock deleted 0.5 s into 6 s of work", |faults| {
            Some(faults.taken?.describe())
        });
        format!(
            "{}\n\n{}\n{}",
            self.setting,
            self.costs.markdown(),
            faults.markdown()
        )
    }

    pub(crate) fn json(&self) -> String {
        let mut json: Value = serde_json::from_str(&self.report.json()).expect("the report's JSON");
        let faults = self.faults.iter().map(|(name, faults)| {
            let Faults {
                acquiring,
                holding,
                outlasted,
                taken,
            } = faults;
            let faults = json!({
                "acquiring": acquiring,
                "holding": holding,
                "outlasted": outlasted,
                "taken": taken,
            });
            ((*name).to_owned(), faults)
        });
        json["faults"] = Value::Object(faults.collect());
        format!("{json:#}\n")
    }
}
