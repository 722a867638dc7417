//! The workloads. Each workload runs all locks that it compares, and fills one table of results.

use std::{collections::BTreeMap, time::Duration};

use lock_runtime::{LockClient, LockGuard, Release, Strategy};
use progress::Progress;
use support::{proxy::FaultProxy, server::RedisServer};

use crate::{
    calls::{Calls, Mode, Sit, sit_under},
    candidates::{Seat, ours},
    counts::{Shares, Watch},
    jvm::Redisson,
    leader::{Candidates, LEASE},
    options::Pace,
    report::{Figure, Limit, Report, Run, Table},
    runs::{WAITERS, fresh_key, per_acquisition, run_of, same_seats},
    waiters::{Visit, Waiters, Window},
};

pub(crate) const READERS: &str = "readers";
pub(crate) const RELEASES: &str = "releases";
pub(crate) const MIXED: &str = "mixed";
pub(crate) const PERMITS: &str = "permits";
pub(crate) const LEADER: &str = "leader";

/// The names of the workloads, in the order in which they run.
pub(crate) const NAMES: [&str; 5] = [READERS, RELEASES, MIXED, PERMITS, LEADER];

pub(crate) const OURS: &str = "ours";
pub(crate) const REDISSON: &str = "Redisson";

pub(crate) const PING: &str = "a round trip (PING) before `resign`";
pub(crate) const LED: &str = "ours: `resign`, until the next one leads";
pub(crate) const BODY: &str = "ours: `resign`, until its body begins";
/// The same, over a line with a round trip of [`FAR`].
pub(crate) const FAR_PING: &str = "far away: a round trip (PING) before `resign`";
pub(crate) const FAR_LED: &str = "ours, far away: `resign`, until the next one leads";
pub(crate) const FAR_BODY: &str = "ours, far away: `resign`, until its body begins";
pub(crate) const KILLED: &str = "ours: `kill -9`, until the next one leads";

/// The numbers of the other readers inside while one reader leaves.
pub(crate) const OTHERS: [usize; 4] = [1, 64, 256, 1_000];
/// The lease of these readers, which is not renewed during the run.
const LONG_LEASE: Duration = Duration::from_secs(3_600);
/// The number of releases that are measured one after another.
const RELEASES_AT_ONCE: usize = 10;

/// The number of runs of each lock within a round.
const PARTS: usize = 5;

/// The time for which Redisson warms up in each workload.
const WARMING_UP: Duration = Duration::from_secs(4);
/// The length of each run that the benchmark watches with `MONITOR`.
const WATCHED: Duration = Duration::from_millis(200);

/// The number of times in a round that a leader resigns, and that a leader is killed.
const RESIGNATIONS: usize = 20;
/// A round trip on which the time that a machine needs to wake a task does not count.
const FAR: Duration = Duration::from_millis(20);
const KILLS: usize = 8;
/// A leader is killed at another age each time, because the rest of its lease depends on its last renewal.
const AGE: Duration = Duration::from_millis(43);

/// Returns the name of the table's row for these calls of one lock.
pub(crate) fn row(name: &str, what: impl std::fmt::Display) -> String {
    format!("{name}, {what}")
}

/// Returns the number of steps that a workload shows in the progress bar.
pub(crate) fn steps(workload: &str, pace: Pace) -> usize {
    match workload {
        LEADER => pace.rounds,
        _ => pace.rounds * PARTS,
    }
}

/// A server, and all locks that are compared on it.
pub(crate) struct Bench {
    server: RedisServer,
    pace: Pace,
    progress: Progress,
    client: LockClient,
    /// The locks that run in this process.
    here: Vec<(&'static str, Sit)>,
    redisson: Result<Redisson, String>,
    /// How many commands each lock sends for itself, by the kind of call.
    shares: BTreeMap<(&'static str, &'static str), Shares>,
}

impl Bench {
    /// Connects this project's client and Redisson to the server. `others` are the peers that run in this process.
    pub(crate) async fn start(
        server: RedisServer,
        pace: Pace,
        progress: Progress,
        others: Vec<(&'static str, Sit)>,
    ) -> Self {
        let client = ours(&server.url(), Strategy::Handoff, Release::Confirmed).await;
        let program = support::root().join("benches/family/Family.java");
        let program = program.to_str().expect("the path is valid UTF-8");
        let mut redisson = Redisson::start_program(program, &server.url());
        match &mut redisson {
            Ok(redisson) => {
                progress::suspend(|| eprintln!("Redisson warms up …"));
                for calls in [Calls::Readers, Calls::Mixed, Calls::Permits] {
                    let window = Window::of(WAITERS, WARMING_UP);
                    redisson.sit(calls.name(), &same_seats(WAITERS), window);
                }
            }
            Err(why) => progress::suspend(|| eprintln!("Redisson is left out: {why}")),
        }
        let mut here = vec![(OURS, sit_under(client.clone()))];
        here.extend(others);
        Self {
            server,
            pace,
            progress,
            client,
            here,
            redisson,
            shares: BTreeMap::new(),
        }
    }

    fn parts(&self) -> usize {
        self.pace.rounds * PARTS
    }

    /// Returns this project's lock, and Redisson's unless it is left out.
    fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let redisson = self.redisson.as_ref().map(|_| REDISSON);
        std::iter::once(OURS).chain(redisson)
    }

    /// Runs [`WAITERS`] tasks that want one key. Returns the visits of the tasks, and the window of the run.
    async fn sit(&mut self, name: &str, calls: Calls, span: Duration) -> (Vec<Vec<Visit>>, Window) {
        let seats = same_seats(WAITERS);
        let window = Window::of(WAITERS, span);
        let visits = match (&mut self.redisson, name) {
            (Ok(redisson), REDISSON) => redisson.sit(calls.name(), &seats, window),
            _ => {
                let here = self.here.iter().find(|(who, _)| *who == name);
                here.expect("the lock runs in this process").1(calls, seats, window).await
            }
        };
        (visits, window)
    }

    /// Learns which commands a lock sends itself under these calls.
    async fn watch(&mut self, name: &'static str, calls: Calls) {
        let watch = Watch::begin(&self.server).await;
        self.sit(name, calls, WATCHED).await;
        let shares = watch.end(&self.server).await;
        self.shares.insert((name, calls.name()), shares);
    }

    /// Runs tasks like [`sit`](Self::sit). Returns their figures, with the commands of each acquisition. The lock has to be
    /// [watched](Self::watch) before.
    async fn counted(&mut self, name: &'static str, calls: Calls) -> Run {
        let of = (name, calls.name());
        let before = self.shares[&of].so_far(&self.server).await;
        let (visits, window) = self.sit(name, calls, self.pace.span).await;
        let sent = self.shares[&of].since(&self.server, before).await;
        let waiters = Waiters::of(&visits, window);
        // The calls of these workloads can be inside together.
        let mut run = run_of(&waiters, 0);
        run.remove(&Figure::Overlaps);
        run.extend(per_acquisition(sent, &waiters));
        run
    }

    /// Many readers of one key without a writer, and many writers of one key.
    pub(crate) async fn readers(&mut self, report: &mut Report) {
        let mut table = Table::new("readers", "64 tasks at ONE key: reads only, or writes only");
        let of = |name, kinds: [Calls; 2]| kinds.map(|calls| (name, calls));
        let mut rows = Vec::new();
        for name in self.names() {
            rows.extend(of(name, [Calls::Readers, Calls::Writers]));
        }
        rows.extend(of(OURS, [Calls::LongReaders, Calls::LongWriters]));
        for (name, calls) in &rows {
            self.watch(name, *calls).await;
        }
        for _ in 0..self.parts() {
            self.progress.begin(READERS);
            for (name, calls) in &rows {
                table.add(row(name, calls.name()), self.counted(name, *calls).await);
            }
        }
        let mut target = |what, limit, ours: Calls, other: (&str, Calls)| {
            let (ours, other) = (row(OURS, ours.name()), row(other.0, other.1.name()));
            let ratio = table.ratio(&ours, &other, Figure::Rate);
            report.target("readers", what, Limit::AtLeast(limit), ratio);
        };
        let what = "rate of readers, × writers";
        target(what, 2.0, Calls::Readers, (OURS, Calls::Writers));
        let what = "rate of readers of 1 ms, × writers of 1 ms";
        target(what, 2.0, Calls::LongReaders, (OURS, Calls::LongWriters));
        if self.redisson.is_ok() {
            let what = "rate of readers, × Redisson's readers";
            target(what, 5.0, Calls::Readers, (REDISSON, Calls::Readers));
        }
        report.table(table);
    }

    /// One reader leaves while others stay inside. Measures the server's time for the script that releases.
    pub(crate) async fn releases(&mut self, report: &mut Report) {
        let title = "one reader leaves while others stay inside: the server's time for the release";
        let mut table = Table::new("releases", title);
        let keys = OTHERS.map(|others| (others, fresh_key()));
        let mut inside = Vec::new();
        for (others, key) in &keys {
            for _ in 0..*others {
                inside.push(read(&self.client, key).await);
            }
            if let Ok(redisson) = &mut self.redisson {
                redisson.obey::<()>(format!("hold {others}"), &[of_redisson(key)]);
            }
        }
        for _ in 0..self.parts() {
            self.progress.begin(RELEASES);
            for (others, key) in &keys {
                for name in self.names() {
                    let mut micros = Vec::new();
                    for _ in 0..RELEASES_AT_ONCE {
                        micros.push(self.release(name, key).await);
                    }
                    // A single release can be disturbed by other work of the machine.
                    micros.sort_unstable();
                    let median = micros[RELEASES_AT_ONCE / 2] as f64;
                    table.add(row(name, others), [(Figure::ServerTime, median)]);
                }
            }
        }
        for guard in inside {
            guard.release().await;
        }
        report.table(table);
    }

    /// Lets one more reader enter and leave. Returns the server's time for the script with which the reader leaves, in
    /// µs.
    async fn release(&mut self, name: &str, key: &str) -> u64 {
        let before = match &mut self.redisson {
            Ok(redisson) if name == REDISSON => {
                redisson.obey::<()>("enter".to_owned(), &[of_redisson(key)]);
                let before = scripts(&self.server).await;
                redisson.obey::<()>("leave".to_owned(), &[of_redisson(key)]);
                before
            }
            _ => {
                let guard = read(&self.client, key).await;
                let before = scripts(&self.server).await;
                guard.release().await;
                before
            }
        };
        scripts(&self.server).await - before
    }

    /// Many readers and a few writers at one key.
    pub(crate) async fn mixed(&mut self, report: &mut Report) {
        let title = "64 tasks at ONE key: 95 % reads, 5 % writes";
        let mut table = Table::new("mixed", title);
        let here = self.here.iter().map(|(name, _)| *name);
        let names: Vec<_> = here.chain(self.names().skip(1)).collect();
        for _ in 0..self.parts() {
            self.progress.begin(MIXED);
            for name in &names {
                let (visits, window) = self.sit(name, Calls::Mixed, self.pace.span).await;
                let worst = |mode| Waiters::of(&only(mode, &visits), window).wait_ms(1.0);
                let run = Run::from([
                    (Figure::Rate, Waiters::of(&visits, window).rate),
                    (Figure::ReaderWait, worst(Mode::Read)),
                    (Figure::WriterWait, worst(Mode::Write)),
                    (Figure::Overlaps, intrusions(&visits) as f64),
                ]);
                table.add(*name, run);
            }
        }
        report.table(table);
    }

    /// Many tasks want a permit of one semaphore with ten permits.
    pub(crate) async fn permits(&mut self, report: &mut Report) {
        let mut table = Table::new("permits", "64 tasks at ONE semaphore of 10 permits");
        for name in self.names() {
            self.watch(name, Calls::Permits).await;
        }
        for _ in 0..self.parts() {
            self.progress.begin(PERMITS);
            for name in self.names() {
                table.add(name, self.counted(name, Calls::Permits).await);
            }
        }
        report.table(table);
    }

    /// A leader resigns, or its process is killed.
    pub(crate) async fn leader(&mut self, report: &mut Report) {
        let title = "the time without a leader, with a lease of 1 s";
        let mut table = Table::new("leader", title);
        let candidates = Candidates::on(&self.server).await;
        let far = FaultProxy::start(self.server.port()).await;
        far.delay(FAR / 2);
        let lines = [
            (self.server.url(), [PING, LED, BODY]),
            (far.url(), [FAR_PING, FAR_LED, FAR_BODY]),
        ];
        let mut add = |row, seconds: f64| table.add(row, [(Figure::Vacant, seconds * 1e3)]);
        for round in 0..self.pace.rounds {
            self.progress.begin(LEADER);
            for (url, rows) in &lines {
                for times in candidates.resign(url, RESIGNATIONS).await {
                    for (row, time) in rows.iter().copied().zip(times) {
                        add(row, time.as_secs_f64());
                    }
                }
            }
            for kill in 0..KILLS {
                let age = AGE * (round * KILLS + kill) as u32;
                add(KILLED, candidates.kill(age).await.as_secs_f64());
            }
        }
        let trips = table.ratio(FAR_LED, FAR_PING, Figure::Vacant);
        let what = "vacant after `resign`, round trips of a far line";
        report.target("leader", what, Limit::AtMost(2.0), trips);
        let after_kill = table.highest(KILLED, Figure::Vacant) - LEASE.as_secs_f64() * 1e3;
        let what = "vacant after kill -9 beyond the lease, ms";
        report.target("leader", what, Limit::AtMost(50.0), after_kill);
        report.table(table);
    }

    /// Returns the sentences that say how the benchmark measured the figures.
    pub(crate) fn setting(&self) -> String {
        let Pace { rounds, span, .. } = self.pace;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let redisson = match &self.redisson {
            Ok(_) => String::new(),
            Err(why) => format!(" Redisson was left out: {why}."),
        };
        format!(
            "Medians of {} interleaved runs of {span:?} on {cores} cores, with one server on loopback.{redisson}",
            rounds * PARTS
        )
    }
}

async fn read(client: &LockClient, key: &str) -> LockGuard {
    let reader = client.lock(key).read().lease(LONG_LEASE);
    reader.acquire().await.expect("no writer uses this key")
}

/// Returns the name of Redisson's lock. Redisson stores its lock under the name itself, and this project under a longer
/// key, so both can have the same name.
fn of_redisson(key: &str) -> Seat {
    Seat::at(key)
}

/// Returns the server's time for all scripts so far, in µs.
async fn scripts(server: &RedisServer) -> u64 {
    let costs = server.costs().await;
    let scripts = ["evalsha", "eval"].iter();
    scripts
        .filter_map(|name| costs.get(*name))
        .map(|cost| cost.micros)
        .sum()
}

/// Returns the visits with this mode under [`Calls::Mixed`].
fn only(mode: Mode, tasks: &[Vec<Visit>]) -> Vec<Vec<Visit>> {
    let tasks = tasks.iter().enumerate().map(|(first, visits)| {
        let turns = (first..).zip(visits);
        let turns = turns.filter(|(turn, _)| Calls::Mixed.mode(*turn) == mode);
        turns.map(|(_, visit)| *visit).collect()
    });
    tasks.collect()
}

/// Returns the number of visits under [`Calls::Mixed`] that entered before a writer had left, or that wrote and entered
/// before anybody had left.
fn intrusions(tasks: &[Vec<Visit>]) -> usize {
    let of = |mode| {
        let visits = only(mode, tasks).into_iter().flatten();
        visits.filter_map(move |visit| Some((visit.entered, visit.left?, mode == Mode::Write)))
    };
    let mut bodies: Vec<_> = of(Mode::Read).chain(of(Mode::Write)).collect();
    bodies.sort_unstable();
    let (mut written_until, mut inside_until, mut intrusions) = (0, 0, 0);
    for (entered, left, writes) in bodies {
        let free_from = if writes { inside_until } else { written_until };
        intrusions += usize::from(entered < free_from);
        inside_until = inside_until.max(left);
        written_until = if writes { inside_until } else { written_until };
    }
    intrusions
}
