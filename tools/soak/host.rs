//! The host of the soak: starts the servers and the workers, disturbs them, and judges the results.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    process::{ChildStderr, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use progress::{Progress, suspend};
use support::{
    clock::now,
    page,
    process::{self, Worker, dies_with_parent},
};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::sleep,
};

use crate::{
    Options,
    failovers::Failover,
    ledger::{Found, Ledger, Visit},
    plan::{Course, DELETED_FROM, Poller, read_outcomes},
    site::{Site, Trouble},
};

/// The longest time from the moment at which a caller gets a lock until the host has the report of this visit.
const LAG: Duration = Duration::from_secs(60);
/// The limit, in ns, for callers that get the lock in another order than they called. Such a change of order is allowed
/// only if the two calls are less than this time apart. On a busy machine, a debug build can take more than a second to
/// send a request, so requests can reach the server in another order.
const ORDER: u64 = 3_000_000_000;
/// The longest time, in ns, for which a slow poller is allowed to keep other callers from a lock. The limit is the sum
/// of a claim (2 s), a probe interval (200 ms), and 1 s for the delays of a loaded machine.
const STANDS: u64 = 2_000_000_000 + 200_000_000 + 1_000_000_000;
/// The interval at which the host checks those visits whose reports have certainly arrived.
const SETTLE: Duration = Duration::from_secs(10);
/// The interval at which the host checks whether the run is over.
const TICK: Duration = Duration::from_millis(200);
/// How long the host waits, after a run, for the remaining keys to disappear. The shorter time is for runs in which all
/// workers clean up before they end. The longer time is for runs with faults or failovers, after which the last leases
/// and queues must expire.
const DRAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A holder loses its lock if a replica without the holder's grant is promoted. The holder must learn of the loss
/// within a third of its lease plus this time, which allows for the delays of a loaded machine.
const LATE: Duration = Duration::from_secs(1);

/// The reports of all workers.
#[derive(Debug)]
struct Seen {
    ledger: Ledger,
    /// For each process, the last report of its counts, and whether the process has reported a regular end.
    outcomes: Vec<(BTreeMap<String, u64>, bool)>,
    waits: Waits,
}

/// The reports of all workers, which the host's tasks share.
#[derive(Debug, Clone)]
pub(crate) struct Record(Arc<Mutex<Seen>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0
            .lock()
            .expect("no thread panics while it holds this mutex")
    }

    /// Records that a primary is about to be killed.
    pub(crate) fn failover(&self, failover: Failover) {
        self.lock().ledger.failovers.push(failover);
    }

    /// Records that a replica of the last killed primary was promoted.
    pub(crate) fn promoted(&self, at: u64) {
        if let Some(failover) = self.lock().ledger.failovers.last_mut() {
            failover.promoted = at;
        }
    }
}

/// Statistics of how long callers waited in the queue for their locks.
#[derive(Debug, Default)]
struct Waits {
    /// The number of waits for each power of two, in µs. Each wait is counted under the next higher power of two.
    below: BTreeMap<u64, u64>,
    longest: u64,
}

impl Waits {
    fn add(&mut self, visit: &Visit) {
        if visit.asked > 0 {
            let micros = visit.entered.saturating_sub(visit.asked) / 1000;
            *self
                .below
                .entry((micros + 1).next_power_of_two())
                .or_default() += 1;
            self.longest = self.longest.max(micros);
        }
    }

    /// Returns the lowest power of two, in µs, such that at least this share of the waits is shorter.
    fn most(&self, share: f64) -> u64 {
        let all: u64 = self.below.values().sum();
        let mut seen = 0;
        for (below, count) in &self.below {
            seen += count;
            if seen as f64 >= share * all as f64 {
                return *below;
            }
        }
        0
    }
}

/// The processes of the workers.
#[derive(Debug)]
pub(crate) struct Crew {
    pids: Vec<AtomicU32>,
}

impl Crew {
    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.pids[index].load(Ordering::Acquire)
    }

    /// Kills a worker. A new worker takes its place.
    pub(crate) fn kill(&self, index: usize) {
        process::signal(self.pid(index), "KILL");
    }
}

/// Returns the memory of a process in KiB, or `None` if the system does not report it.
fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// The position of a worker in the list of worker processes, and the settings of the workers that are started at this
/// position.
struct Place {
    index: usize,
    url: String,
    options: Options,
}

impl Place {
    /// Starts a worker at this position, and a thread that writes what the worker writes to its standard error.
    /// `incarnation` is the number of earlier workers at this position.
    fn start(&self, incarnation: u64) -> (Worker, JoinHandle<()>) {
        let this = std::env::current_exe().expect("the path of this program is known");
        let options = &self.options;
        let seed = options.seed ^ ((self.index as u64) << 16) ^ (incarnation << 8);
        let mut command: Command = dies_with_parent(this);
        command
            .args([
                "worker",
                &self.url,
                &self.index.to_string(),
                &options.processes.to_string(),
                &options.tasks.to_string(),
                &seed.to_string(),
            ])
            .arg(options.course.name())
            .stderr(Stdio::piped());
        let mut worker = Worker::obeying(command);
        let errors = worker.errors().expect("the standard error is piped");
        let relay = spawn_blocking(|| relay(errors));
        (worker, relay)
    }
}

/// Writes the lines of a worker's standard error to the standard error of the host, and keeps these lines apart from
/// the bar that shows the progress.
fn relay(errors: ChildStderr) {
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        suspend(|| eprintln!("{line}"));
    }
}

/// Records the reports of the worker at a position. If the worker is killed during the run, starts another worker at
/// the same position.
async fn employ(
    place: Place,
    (mut worker, mut relay): (Worker, JoinHandle<()>),
    crew: Arc<Crew>,
    record: Record,
    mut stop: watch::Receiver<bool>,
) {
    for incarnation in 1_u64.. {
        let entry = {
            let mut seen = record.lock();
            seen.outcomes.push((BTreeMap::new(), false));
            seen.outcomes.len() - 1
        };
        let mut told = false;
        let killed = loop {
            let line = tokio::select! {
                line = worker.line() => line,
                _ = stop.wait_for(|stop| *stop), if !told => {
                    worker.tell("stop");
                    told = true;
                    continue;
                }
            };
            let Some(line) = line else { break true };
            let mut seen = record.lock();
            if let Some(visit) = Visit::read(&line) {
                seen.ledger.add(visit);
                seen.waits.add(&visit);
            } else if let Some(outcomes) = read_outcomes(&line) {
                seen.outcomes[entry].0 = outcomes;
            } else if line == "ended" {
                seen.outcomes[entry].1 = true;
                break false;
            }
        };
        if !killed || *stop.borrow() {
            drop(worker);
            relay.await.expect("the thread does not panic");
            return;
        }
        (worker, relay) = place.start(incarnation);
        crew.pids[place.index].store(worker.pid(), Ordering::Release);
    }
}

/// Runs the soak. Returns whether all promises were kept.
pub(crate) async fn run(options: Options) -> bool {
    println!("seed {}", options.seed);
    let mut site = Site::start(&options).await;
    let told_within = options.course.lease() / 3 + LATE;
    let record = Record(Arc::new(Mutex::new(Seen {
        ledger: Ledger::new(DELETED_FROM, nanos(told_within)),
        outcomes: Vec::new(),
        waits: Waits::default(),
    })));
    let places = (0..options.processes).map(|index| Place {
        index,
        url: site.url(&options, index),
        options: options.clone(),
    });
    // Every worker is started before the first fault. A worker that has not started yet would have the PID 0, and a
    // signal to the PID 0 would reach every process of the host's process group.
    let hired: Vec<_> = places.map(|place| (place.start(0), place)).collect();
    let pids = hired.iter().map(|((worker, _), _)| worker.pid().into());
    let crew = Arc::new(Crew {
        pids: pids.collect(),
    });
    let (stop, stopped) = watch::channel(false);
    let mut workers = JoinSet::new();
    for (worker, place) in hired {
        let (crew, record, stopped) = (crew.clone(), record.clone(), stopped.clone());
        workers.spawn(employ(place, worker, crew, record, stopped));
    }
    let (started, began) = (Instant::now(), now());
    let mut trouble = Trouble::of(&options);
    let mut early_memory = None;
    let enough = AtomicBool::new(false);
    {
        let striking = async {
            while !(enough.load(Ordering::Relaxed) && trouble.is_over()) {
                trouble.strike(&mut site, &crew, &record).await;
            }
        };
        let watching = watch_run(
            &options,
            &record,
            &crew,
            started,
            &enough,
            &mut early_memory,
        );
        tokio::join!(striking, watching);
    }
    let late_memory = memory(std::process::id()).zip(memory(crew.pid(0)));
    let took = started.elapsed();
    stop.send_replace(true);
    while let Some(ended) = workers.join_next().await {
        ended.expect("the task of a worker does not panic");
    }
    let patience = if options.course.is_clean() {
        DRAIN.0
    } else {
        DRAIN.1
    };
    let left = drained(&site, patience).await;
    let mut seen = record.lock();
    seen.ledger.settle(u64::MAX);
    let memory = early_memory
        .zip(late_memory)
        .filter(|_| options.course == Course::Calm);
    if let Some(first) = seen.ledger.found().first_fault {
        let after = Duration::from_nanos(first.saturating_sub(began));
        println!("the first overlap or fallen token came after {after:.1?}");
    }
    report(&options, &seen, &trouble, took, memory, &left)
}

/// Checks the visits and shows the progress, until the planned time or the planned number of acquisitions is reached.
/// Then sets `enough`. Also measures the memory of the host and of a worker after a tenth of the run.
async fn watch_run(
    options: &Options,
    record: &Record,
    crew: &Crew,
    started: Instant,
    enough: &AtomicBool,
    early_memory: &mut Option<Memory>,
) {
    let mut next_check = SETTLE;
    let progress = Progress::of_time();
    loop {
        sleep(TICK).await;
        let (elapsed, visits) = (started.elapsed(), record.lock().ledger.found().visits);
        if elapsed >= next_check {
            next_check += SETTLE;
            let settled = now().saturating_sub(nanos(LAG));
            record.lock().ledger.settle(settled);
        }
        let part = options.part(elapsed, visits);
        let failovers = record.lock().ledger.failovers.len();
        let now = match options.failovers {
            0 => format!("{visits} acquisitions"),
            all => format!("{visits} acquisitions, {failovers} of {all} failovers"),
        };
        progress.reach(options.part_with_failovers(part, failovers), now);
        if part >= 0.1 && early_memory.is_none() {
            *early_memory = memory(std::process::id()).zip(memory(crew.pid(0)));
        }
        if part >= 1.0 {
            enough.store(true, Ordering::Relaxed);
            return;
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits, for at most `patience`, until no key except for the counters of fencing tokens is left on the servers.
/// Returns the keys that are left.
async fn drained(site: &Site, patience: Duration) -> Vec<String> {
    let started = Instant::now();
    loop {
        let keys = site.keys().await;
        if keys.is_empty() || started.elapsed() > patience {
            return keys;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The memory of the host and of a worker, in KiB.
type Memory = (u64, u64);

/// Describes the disturbances of the run and their results.
fn describe(trouble: &Trouble, found: Found, failovers: &[Failover]) -> String {
    let mut text = String::new();
    match trouble {
        Trouble::None => {}
        Trouble::Chaos(chaos) => {
            let all: u64 = chaos.injected.values().sum();
            let shares = chaos.injected.iter().map(|(fault, count)| {
                let share = 100 * count / all.max(1);
                format!("{fault:?} {count} ({share} %)")
            });
            let shares: Vec<_> = shares.collect();
            let _ = writeln!(text, "{all} faults: {}", shares.join(", "));
            let _ = writeln!(
                text,
                "{} overlaps and late entries at keys that an operator had deleted; their tokens tell the holders apart",
                found.allowed
            );
        }
        Trouble::Moves(moves) => {
            let _ = writeln!(
                text,
                "{} moves of {} slots between 3 primaries, {} of them slow",
                moves.fast + moves.slow,
                moves.slots.len(),
                moves.slow
            );
        }
        Trouble::Failovers(_) => {
            for (number, failover) in (1..).zip(failovers) {
                let promoted = failover.promoted.saturating_sub(failover.killed);
                let _ = writeln!(
                    text,
                    "failover {number}: a replica was promoted after {} ms; {}",
                    promoted / 1_000_000,
                    stood(failover.stood().collect())
                );
            }
            let all = failovers.iter().flat_map(Failover::stood);
            let _ = writeln!(text, "all failovers: {}", stood(all.collect()));
            let _ = writeln!(
                text,
                "{} overlaps and late entries after a failover whose new primary lacked the grant; their tokens tell the holders apart",
                found.unreplicated
            );
        }
    }
    text
}

/// Describes how long callers waited in failovers.
fn stood(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let ms = |time: Option<&u64>| time.map_or(0, |time| time / 1_000_000);
    format!(
        "{} callers stood for {} ms in the median, {} ms at most",
        times.len(),
        ms(times.get(times.len() / 2)),
        ms(times.last())
    )
}

fn report(
    options: &Options,
    seen: &Seen,
    trouble: &Trouble,
    took: Duration,
    memory: Option<(Memory, Memory)>,
    left: &[String],
) -> bool {
    let found = seen.ledger.found();
    let Found {
        visits,
        overlaps,
        allowed: _,
        unreplicated: _,
        repeated,
        fallen,
        overtaken,
        stood,
        stood_buffered,
        first_fault: _,
    } = found;
    let rate = u128::from(visits) * 1000 / took.as_millis().max(1);
    let mut text = format!(
        "{visits} acquisitions by {} processes with {} tasks each in {} s, {rate} a second\n",
        options.processes,
        options.tasks,
        took.as_secs()
    );
    let by_poller = seen.ledger.by_poller();
    let slow = by_poller
        .iter()
        .filter(|(poller, _)| **poller != Poller::Prompt);
    let share = |count: u64| count as f64 * 100.0 / visits.max(1) as f64;
    let all_slow: u64 = slow.clone().map(|(_, count)| *count).sum();
    let kinds = slow.map(|(poller, count)| format!("{poller:?} {:.1} %", share(*count)));
    let kinds: Vec<_> = kinds.collect();
    let _ = writeln!(
        text,
        "{all_slow} acquisitions by slow pollers, {:.1} %: {}",
        share(all_slow),
        kinds.join(", ")
    );
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut unaccounted, mut died) = (0, 0);
    for (outcomes, has_ended) in &seen.outcomes {
        let begun = outcomes.get("begun").copied().unwrap_or(0);
        let all: u64 = outcomes.values().sum();
        let open = begun - (all - begun);
        let open_ones = if *has_ended {
            &mut unaccounted
        } else {
            &mut died
        };
        *open_ones += open;
        for (name, count) in outcomes {
            *total.entry(name).or_default() += count;
        }
    }
    let counts = total.iter().map(|(name, count)| format!("{count} {name}"));
    let _ = writeln!(text, "calls: {}", counts.collect::<Vec<_>>().join(", "));
    let killed = seen.outcomes.iter().filter(|(_, ended)| !ended).count() as u64;
    let _ = writeln!(
        text,
        "{unaccounted} calls did not end, not counting {died} calls of {killed} processes that were killed"
    );
    let waits = &seen.waits;
    let _ = writeln!(
        text,
        "waited in the queue: half below {} µs, 99 % below {} µs, the longest {} ms; overtaken by calls that began at most {} ms later",
        waits.most(0.5),
        waits.most(0.99),
        waits.longest / 1000,
        overtaken / 1_000_000
    );
    let _ = writeln!(
        text,
        "longest time without an entry while a prompt caller waited: {} ms, at keys of whole buffers {} ms",
        stood / 1_000_000,
        stood_buffered / 1_000_000
    );
    text += &describe(trouble, found, &seen.ledger.failovers);
    if let Some(((host, worker), (late_host, late_worker))) = memory {
        let _ = writeln!(
            text,
            "memory after a tenth of the run → at its end: a worker {worker} → {late_worker} KiB, the host with the last minute of visits {host} → {late_host} KiB"
        );
    }
    let _ = writeln!(
        text,
        "{overlaps} overlaps, {repeated} repeated tokens, {fallen} tokens that fell, {} keys left",
        left.len()
    );
    println!("\n{text}");
    let starved = total.get("starved").copied().unwrap_or(0);
    let flat = memory.is_none_or(|((_, early), (_, late))| late < early + early / 4 + 16 * 1024);
    let is_clean = options.course.is_clean();
    let checks = [
        (visits > 0, "no caller has entered a lock"),
        (
            overlaps + repeated + fallen == 0,
            "a visit overlapped, or a token was repeated or fell",
        ),
        (left.is_empty(), "keys are left on the servers"),
        (unaccounted == 0, "some calls did not end"),
        (
            killed == trouble.workers_killed(),
            "a worker process ended without being killed",
        ),
        (flat, "the memory of a worker has grown too much"),
        (
            trouble.unplanned_failovers() == 0,
            "a primary was silent and was replaced, so the results are not those of the planned failovers",
        ),
        // Under faults, this check is left out, because a waiting caller possibly has to reconnect again and again.
        (
            options.course == Course::Faults || starved == 0,
            "callers waited for their whole `wait` without entering",
        ),
        // The next two checks are left out under faults and failovers, because a waiting caller that has to reconnect
        // gets the lock late.
        (
            !is_clean || overtaken < ORDER,
            "a caller entered long before an earlier caller",
        ),
        (
            !is_clean || stood < STANDS,
            "a slow poller delayed other callers by more than a claim, a probe interval and one second",
        ),
        (
            all_slow * 10 > visits * 3,
            "slow pollers made less than three tenths of the acquisitions",
        ),
    ];
    let mut fine = true;
    for (_, what) in checks.iter().filter(|(holds, _)| !holds) {
        println!("NOT as promised: {what}; seed {}", options.seed);
        fine = false;
    }
    if !left.is_empty() {
        println!("left: {left:?}");
    }
    if fine && options.write {
        let page = support::root().join("docs/soak.md");
        let block = format!("```text\n{text}```");
        page::update(&page, options.course.name(), &block)
            .expect("the page contains the marks of the block");
    }
    fine
}
