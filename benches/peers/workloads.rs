//! The workloads. Each workload runs all its participants (the locks that it compares).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use progress::Progress;
use serde_json::{Value, json};
use support::{sent::Sent, server::RedisServer};

use crate::{
    candidates::Seat,
    counts::{Shares, Watch},
    faults::{self, Contest, Leak},
    jvm::{Asking, Kind, Redisson},
    names::{self, OURS, OURS_BACKGROUND, OURS_RENEWED, REDISSON, REDISSON_FAIR, SET, SHA},
    options::Pace,
    peer::Peer,
    processes::{self, Workers},
    report::{Figure, Report, Run, Table},
    round_trips,
    runs::{Callers, SLICES, WAITERS, own_seats, per_acquisition, run_of, same_seats},
    server_share,
    waiters::{Detector, Waiters, Window, gather, overlaps},
};

const ONE_BY_ONE: &str = "w1";
const OWN_KEYS: &str = "w2";
const ONE_KEY: &str = "w3";
const CALLERS: &str = "w4";
const PROCESSES: &str = "w5";
const SERVER: &str = "server";
const FAULTS: &str = "faults";

/// The names of the workloads, in the order in which they run.
pub(crate) const NAMES: [&str; 7] = [
    ONE_BY_ONE, OWN_KEYS, ONE_KEY, CALLERS, PROCESSES, SERVER, FAULTS,
];

/// The largest number of rounds of the workload W4. Under a lock that polls every 100 ms, a run of W4 takes ten
/// seconds.
const CALLER_ROUNDS: usize = 3;
/// The largest number of rounds in which the workload W3 runs with other numbers of tasks than [`WAITERS`]. With
/// [`WAITERS`] tasks, W3 runs in every round.
const OTHER_ROUNDS: usize = 3;

/// With this number of tasks or more, all participants run in the first round, and only this project's lock with its
/// default strategy runs in the later rounds.
const LARGE: usize = 1_000;

/// The time for which the Redisson processes of the workload W5 warm up under each kind of lock.
const WARMING_UP: Duration = Duration::from_secs(5);

/// The length of each run that the benchmark watches with `MONITOR`.
const WATCHED: Duration = Duration::from_millis(200);
/// The number of tasks in these runs.
const WATCHED_TASKS: usize = 16;

/// Returns the name of the table's row for this many tasks that use one lock.
pub(crate) fn row(name: &str, tasks: usize) -> String {
    format!("{name}, {tasks} tasks")
}

/// A participant: a Rust lock in this process, or a lock of Redisson in the Java process.
enum Part<'a> {
    Rust(&'a Peer),
    Jvm(&'a mut Redisson, Kind),
}

/// Returns the kind of Redisson's lock, or `None` if the participant is a Rust lock.
fn kind(name: &str) -> Option<Kind> {
    match name {
        REDISSON => Some(Kind::Plain),
        REDISSON_FAIR => Some(Kind::Fair),
        _ => None,
    }
}

/// The results of one participant under the faults. A result is `None` if the participant was not tested under this
/// fault.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) acquiring: Option<Leak>,
    pub(crate) holding: Option<Leak>,
    pub(crate) outlasted: Option<Contest>,
    pub(crate) taken: Option<Contest>,
}

/// All measurements of a run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) report: Report,
    /// The text that says how the figures were measured.
    pub(crate) setting: String,
    pub(crate) sizes: &'static [usize],
    pub(crate) faults: Vec<(&'static str, Faults)>,
}

/// Returns the number of steps of a workload that the progress bar shows.
fn steps(workload: &str, pace: Pace) -> usize {
    match workload {
        ONE_BY_ONE | OWN_KEYS => slices(pace),
        ONE_KEY | PROCESSES => pace.rounds,
        CALLERS => caller_rounds(pace),
        _ => 1,
    }
}

/// Returns the total number of parts in all rounds. In the workloads in which each task has its own key, a round is
/// divided into parts.
fn slices(pace: Pace) -> usize {
    pace.rounds * SLICES as usize
}

fn caller_rounds(pace: Pace) -> usize {
    pace.rounds.min(CALLER_ROUNDS)
}

/// A server, and all locks that are compared on it.
pub(crate) struct Bench {
    server: RedisServer,
    pace: Pace,
    /// The names of the workloads to run.
    wanted: Vec<&'static str>,
    progress: Progress,
    peers: Vec<(&'static str, Peer)>,
    redisson: Result<Redisson, String>,
    /// Which commands each participant sends itself.
    shares: BTreeMap<&'static str, Shares>,
}

impl Bench {
    /// Connects the clients of all locks to the server.
    pub(crate) async fn start(server: RedisServer, pace: Pace, wanted: Vec<&'static str>) -> Self {
        let steps = wanted.iter().map(|name| steps(name, pace)).sum();
        let progress = Progress::of_steps(steps);
        let url = &server.url();
        let mut peers = Vec::new();
        for name in names::RUST {
            peers.push((name, names::connect(name, url).await));
        }
        let redisson = match Redisson::start(url) {
            Ok(mut redisson) => {
                progress::suspend(|| eprintln!("Redisson warms up …"));
                for kind in [Kind::Plain, Kind::Fair] {
                    for seats in [own_seats(WAITERS), same_seats(WAITERS)] {
                        redisson.gather(kind, &seats, pace.span * pace.rounds as u32);
                    }
                }
                Ok(redisson)
            }
            Err(why) => {
                progress::suspend(|| eprintln!("Redisson is left out: {why}"));
                Err(why)
            }
        };
        let mut bench = Self {
            server,
            pace,
            wanted,
            progress,
            peers,
            redisson,
            shares: BTreeMap::new(),
        };
        progress::suspend(|| eprintln!("the commands of each lock are watched …"));
        for name in names::COST_ROWS {
            bench.watch(name).await;
        }
        bench
    }

    /// Learns which commands a participant sends itself, unless the participant is left out.
    async fn watch(&mut self, name: &'static str) {
        let watch = Watch::begin(&self.server).await;
        for seats in [own_seats(WATCHED_TASKS), same_seats(WATCHED_TASKS)] {
            if self.gather(name, seats, WATCHED).await.is_none() {
                return;
            }
        }
        let shares = watch.end(&self.server).await;
        self.shares.insert(name, shares);
    }

    fn peer(&self, name: &str) -> &Peer {
        let peer = self.peers.iter().find(|(who, _)| *who == name);
        &peer.expect("the participant is one of the Rust locks").1
    }

    /// Returns the participant with this name, or `None` if the participant is Redisson and Redisson is left out.
    fn part(&mut self, name: &str) -> Option<Part<'_>> {
        let Some(kind) = kind(name) else {
            return Some(Part::Rust(self.peer(name)));
        };
        Some(Part::Jvm(self.redisson.as_mut().ok()?, kind))
    }

    /// Returns the commands that a participant has sent so far, or `None` if the participant is left out.
    async fn sent(&self, name: &str) -> Option<Sent> {
        let shares = self.shares.get(name)?;
        Some(shares.so_far(&self.server).await)
    }

    async fn sent_since(&self, name: &str, before: Sent) -> Sent {
        self.shares[name].since(&self.server, before).await
    }

    /// Runs a group of tasks. Returns the results of the tasks, and the number of overlaps, which is valid only if all
    /// tasks want one key. Returns `None` if the participant is left out.
    async fn gather(
        &mut self,
        name: &str,
        seats: Vec<Seat>,
        span: Duration,
    ) -> Option<(Waiters, u64)> {
        Some(match self.part(name)? {
            Part::Rust(peer) => {
                let detector = Arc::new(Detector::default());
                let one_key = seats.iter().all(|seat| seat.key == seats[0].key);
                let shared = one_key.then_some(&detector);
                (gather(peer, seats, span, shared).await, detector.overlaps())
            }
            Part::Jvm(redisson, kind) => {
                let (visits, window) = redisson.gather(kind, &seats, span);
                (Waiters::of(&visits, window), overlaps(&visits))
            }
        })
    }

    /// Runs a group of tasks like [`gather`](Self::gather). Also returns the commands that the tasks sent.
    async fn waiters(
        &mut self,
        name: &str,
        seats: Vec<Seat>,
        parts: u32,
    ) -> Option<(Waiters, Sent, u64)> {
        let before = self.sent(name).await?;
        let (waiters, overlaps) = self.gather(name, seats, self.pace.span / parts).await?;
        Some((waiters, self.sent_since(name, before).await, overlaps))
    }

    /// Runs tasks with separate keys under each participant once, for one part of a round.
    async fn alone(&mut self, table: &mut Table, tasks: usize) {
        for name in names::ALONE {
            let seats = own_seats(tasks);
            if let Some((waiters, sent, _)) = self.waiters(name, seats, SLICES).await {
                let mut run = Run::from([
                    (Figure::Cycle, 1e6 * tasks as f64 / waiters.rate),
                    (Figure::Rate, waiters.rate),
                ]);
                run.extend(per_acquisition(sent, &waiters));
                table.add(name, run);
            }
        }
    }

    /// W1: one task with its own key, and, for comparison, round trips of a `PING`.
    async fn one_by_one(&mut self, measured: &mut Measured) {
        let mut table = Table::new("W1", "one task, its own key: time per lock and unlock");
        let mut trips = Table::new("RT", "one task: time per round trip of a PING");
        let span = self.pace.span / SLICES;
        for _ in 0..slices(self.pace) {
            self.progress.begin(ONE_BY_ONE);
            self.alone(&mut table, 1).await;
            let socket = round_trips::of_a_socket(&self.server, span).await;
            trips.add(names::SOCKET, [(Figure::Cycle, socket)]);
            let library = round_trips::of_the_crate(&self.server, span).await;
            trips.add(names::CRATE, [(Figure::Cycle, library)]);
        }
        measured.report.table(trips);
        // Each of the following locks must send exactly one command to lock and one command to unlock.
        for name in [SHA, SET, OURS, OURS_BACKGROUND] {
            let sent = table.median(name, Figure::Sent);
            assert!(
                (sent - 2.0).abs() < 0.01,
                "the server counted {sent} commands of {name} for one lock and unlock, not 2"
            );
        }
        measured.report.table(table);
    }

    /// W2: many tasks with separate keys.
    async fn own_keys(&mut self, measured: &mut Measured) {
        let title = "64 tasks, each its own key: locks and unlocks a second";
        let mut table = Table::new("W2", title);
        for _ in 0..slices(self.pace) {
            self.progress.begin(OWN_KEYS);
            self.alone(&mut table, WAITERS).await;
        }
        measured.report.table(table);
    }

    /// W3: all tasks want the same key.
    async fn one_key(&mut self, measured: &mut Measured) {
        let mut table = Table::new("W3", "all tasks at ONE key, empty body");
        for round in 0..self.pace.rounds {
            self.progress.begin(ONE_KEY);
            for name in names::AT_ONE_KEY {
                self.at_one_key(&mut table, name, WAITERS).await;
            }
            let others = self.pace.sizes.iter().filter(|tasks| **tasks != WAITERS);
            for tasks in others.filter(|_| round < OTHER_ROUNDS) {
                let able = names::EVERY_SIZE.into_iter();
                for name in able.filter(|name| names::can_serve(name, *tasks)) {
                    if *tasks < LARGE || name == OURS || round == 0 {
                        self.at_one_key(&mut table, name, *tasks).await;
                    }
                }
            }
        }
        measured.report.table(table);
    }

    async fn at_one_key(&mut self, table: &mut Table, name: &'static str, tasks: usize) {
        let Some((waiters, sent, overlaps)) = self.waiters(name, same_seats(tasks), 1).await else {
            return;
        };
        assert!(
            !name.starts_with(OURS) || overlaps == 0,
            "two bodies held one lock of this project at the same time"
        );
        let mut run = run_of(&waiters, overlaps);
        run.extend(per_acquisition(sent, &waiters));
        table.add(row(name, tasks), run);
    }

    /// W4: a hundred callers call one guarded function at the same time.
    async fn callers(&mut self, measured: &mut Measured) {
        let mut table = Table::new(
            "W4",
            "100 callers × 20 ms, one key, all at once (ideal 2 s)",
        );
        for _ in 0..caller_rounds(self.pace) {
            self.progress.begin(CALLERS);
            for name in names::AT_ONE_KEY {
                let Some(before) = self.sent(name).await else {
                    continue;
                };
                let callers = match self.part(name) {
                    Some(Part::Rust(peer)) => Callers::call(peer).await,
                    Some(Part::Jvm(redisson, kind)) => redisson.call(kind),
                    None => continue,
                };
                let run = callers.run(self.sent_since(name, before).await);
                assert!(
                    run[&Figure::Wall] >= 2.0,
                    "{name} took less time than the bodies take"
                );
                table.add(name, run);
            }
        }
        measured.report.table(table);
    }

    /// W5: the tasks of several processes want the same key.
    async fn processes(&mut self, measured: &mut Measured) {
        let mut table = Table::new("W5", "4 processes × 16 tasks, ONE key, empty body");
        let mut jvms = Vec::new();
        if self.redisson.is_ok() {
            for _ in 0..processes::PROCESSES {
                let jvm = Redisson::start(&self.server.url());
                jvms.push(jvm.expect("the Java process has started before"));
            }
            progress::suspend(|| eprintln!("Redisson's processes warm up …"));
            for kind in [Kind::Plain, Kind::Fair] {
                let window = Window::after(processes::LEAD, WARMING_UP);
                Redisson::sit_together(&mut jvms, kind, processes::TASKS, window);
            }
        }
        let span = self.pace.span;
        for _ in 0..self.pace.rounds {
            self.progress.begin(PROCESSES);
            for name in names::EVERY_SIZE {
                let (sent, (waiters, mut run)) = match kind(name) {
                    Some(kind) => {
                        let Some(before) = self.sent(name).await else {
                            continue;
                        };
                        let window = Window::after(processes::LEAD, span);
                        let tasks = processes::TASKS;
                        let visits = Redisson::sit_together(&mut jvms, kind, tasks, window);
                        let sent = self.sent_since(name, before).await;
                        (sent, processes::together(visits, window))
                    }
                    None => {
                        let workers = Workers::start(&self.server.url(), name);
                        let before = self.sent(name).await;
                        let before = before.expect("the Rust locks are not left out");
                        let ended = workers.run(span);
                        (self.sent_since(name, before).await, ended)
                    }
                };
                run.extend(per_acquisition(sent, &waiters));
                table.add(name, run);
            }
        }
        let overlaps = table.highest(OURS, Figure::Overlaps);
        assert_eq!(
            overlaps, 0.0,
            "two bodies held one lock of this project at the same time"
        );
        measured.report.table(table);
    }

    async fn faults(&mut self, measured: &mut Measured) {
        for name in names::DROPPED {
            let acquiring = faults::while_acquiring(&self.server, self.peer(name)).await;
            let holding = faults::while_holding(&self.server, self.peer(name)).await;
            assert!(
                acquiring.dropped > 0,
                "no caller was dropped while it acquired"
            );
            match name {
                // Two results are known in advance. This project's lock leaves no key behind, and the baseline leaves
                // the key of each dropped holder.
                OURS => assert_eq!(
                    (acquiring.left, holding.left),
                    (0, 0),
                    "the lock of this project leaves keys"
                ),
                SHA => assert_eq!(
                    holding.left, holding.dropped,
                    "each dropped holder leaves one key"
                ),
                _ => {}
            }
            let faults = measured.faults_of(name);
            (faults.acquiring, faults.holding) = (Some(acquiring), Some(holding));
        }
        if let Ok(redisson) = &mut self.redisson {
            for (name, asking) in [
                (names::REDISSON_ONCE, Asking::Once),
                (names::REDISSON_TIMED, Asking::Timed),
            ] {
                let leak = faults::while_redisson_acquires(&self.server, redisson, asking).await;
                measured.faults_of(name).acquiring = Some(leak);
            }
        }
        // The contests run concurrently. The contests spend nearly all their time waiting, so they do not disturb each
        // other.
        let contests = names::OUTLASTING.map(|name| {
            let (peer, renew) = match name {
                OURS_RENEWED => (self.peer(OURS), true),
                _ => (self.peer(name), false),
            };
            let server = &self.server;
            async move { (name, faults::contests(server, peer, renew).await) }
        });
        for (name, [outlasted, taken]) in futures_util::future::join_all(contests).await {
            let faults = measured.faults_of(name);
            (faults.outlasted, faults.taken) = (Some(outlasted), Some(taken));
            if [OURS, OURS_RENEWED].contains(&name) {
                assert_eq!(outlasted.overlap_s, 0.0, "{name} overlaps");
            }
        }
    }

    /// Returns the sentences that say how the benchmark measured the figures.
    fn setting(&self) -> String {
        let Pace { rounds, span, .. } = self.pace;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let redisson = match &self.redisson {
            Ok(_) => String::new(),
            Err(why) => format!(" Redisson was left out: {why}."),
        };
        format!(
            "Medians of {rounds} interleaved rounds of {span:?} ({} rounds for the 100 callers) on {cores} cores, with \
             one server on loopback.{redisson}",
            caller_rounds(self.pace)
        )
    }

    /// Runs the selected workloads, and returns all measurements.
    pub(crate) async fn measure(&mut self) -> Measured {
        let mut measured = Measured {
            report: Report::new(self.pace),
            setting: self.setting(),
            sizes: self.pace.sizes,
            faults: Vec::new(),
        };
        for name in self.wanted.clone() {
            match name {
                ONE_BY_ONE => self.one_by_one(&mut measured).await,
                OWN_KEYS => self.own_keys(&mut measured).await,
                ONE_KEY => self.one_key(&mut measured).await,
                CALLERS => self.callers(&mut measured).await,
                PROCESSES => self.processes(&mut measured).await,
                SERVER => {
                    self.progress.begin(SERVER);
                    let table = server_share::measure(self.pace).await;
                    measured.report.table(table);
                }
                _ => {
                    self.progress.begin(name);
                    self.faults(&mut measured).await;
                }
            }
        }
        measured
    }
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
