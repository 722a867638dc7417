//! Runs the simulation with one seed after another, and reports each seed whose run breaks a promise: `cargo run
//! --release --example simulate -- --minutes 60`.
//!
//! A seed determines the plan of its run: the backend, the participants, their options, and the faults. If a run breaks
//! a promise, the program searches for a smaller plan that breaks the same promise. The program then prints arguments
//! with which the smaller plan can be run again, such as `--seed 7 --steps 3,0,1`, and writes a timeline of the smaller
//! plan to `target/simulation`.
//!
//! Before the new seeds, the program runs the seeds that once failed, unless `--from` is given.
//!
//! - `--seconds N`, `--minutes N`: how long the program runs (10 s by default).
//! - `--processor-seconds N`: the processor time after which the program ends.
//! - `--seeds N`: runs this number of seeds, however long it takes.
//! - `--from N`: the first seed (by default derived from the current time).
//! - `--threads N`: the number of seeds that run at once (by default one for each core).
//! - `--store NAME`: runs only seeds with this backend: `redis`, `redisson`, `redlock`, `sentinel` or
//!   `cluster`.
//! - `--first`: stops at the first seed whose run breaks a promise, and searches for no smaller plan.
//! - `--seed N [--steps 3,0,1]`: runs only the plan of this seed, and writes its timeline to `target/simulation`. With
//!   `--steps`, runs instead the smaller plan for which the program has printed these steps.

use std::{
    fs,
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lock_simulation::{
    corpus,
    history::Line,
    ledger::{Counts, Violation},
    plan::Plan,
    shrink::{follow, shrink},
    world::run,
};
use progress::Progress;
use rustix::time::{ClockId, clock_gettime};

/// The time between two updates of the progress.
const PROGRESS: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Total {
    counts: Counts,
    runs: u64,
    /// The number of bodies that have started in runs with faults.
    under_faults: u64,
    commands: u64,
    passed: u64,
    failed: Vec<u64>,
    /// The processor time of the run that needed the most, and the seed of this run.
    longest: (Duration, u64),
}

fn main() -> ExitCode {
    let mut time = Duration::from_secs(10);
    let mut from = None;
    let mut threads = thread::available_parallelism().map_or(1, usize::from);
    let (mut seed, mut steps) = (None, Vec::new());
    let (mut first, mut processor) = (false, Duration::MAX);
    let mut store = None;
    let mut seeds = u64::MAX;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--first" {
            first = true;
            continue;
        }
        let value = args.next().unwrap_or_default();
        let number = || {
            value
                .parse::<u64>()
                .unwrap_or_else(|_| panic!("{arg} takes a number"))
        };
        match arg.as_str() {
            "--seconds" => time = Duration::from_secs(number()),
            "--minutes" => time = Duration::from_secs(60 * number()),
            "--processor-seconds" => {
                time = Duration::MAX;
                processor = Duration::from_secs(number());
            }
            "--seeds" => {
                time = Duration::MAX;
                seeds = number();
            }
            "--from" => from = Some(number()),
            "--threads" => threads = usize::try_from(number()).expect("few threads"),
            "--store" => store = Some(value.clone()),
            "--seed" => seed = Some(number()),
            "--steps" => {
                let step = |step: &str| step.parse().expect("--steps takes numbers");
                steps = value.split(',').map(step).collect();
            }
            _ => panic!("unknown argument {arg}; the head of this file lists the arguments"),
        }
    }
    match seed {
        Some(seed) => one(seed, &steps),
        None => {
            let from = match from {
                Some(from) => from,
                None if replay_failed() => new_seed(),
                None => return ExitCode::FAILURE,
            };
            let seeds = from..from.saturating_add(seeds);
            many(seeds, threads, (time, processor), first, store.as_deref())
        }
    }
}

/// Returns a first seed that is derived from the current time.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() % 1_000_000 * 1_000)
}

/// Runs the seeds that once failed, and returns whether all promises were kept.
fn replay_failed() -> bool {
    let mut holds = true;
    for (arguments, outcome) in corpus::replay() {
        for violation in &outcome.violations {
            holds = false;
            println!("{arguments}: {violation}");
        }
    }
    holds
}

/// Runs the plan to which these steps lead from the plan of this seed, and writes the timeline of the run.
fn one(seed: u64, steps: &[usize]) -> ExitCode {
    let plan = follow(seed, steps);
    println!("{plan:#?}");
    let outcome = run(&plan, true);
    println!(
        "{}",
        write_timeline(&plan, &outcome.violations, &outcome.lines)
    );
    println!("{:#?}", outcome.counts);
    for violation in &outcome.violations {
        println!("{violation}");
    }
    ExitCode::from(u8::from(!outcome.violations.is_empty()))
}

/// Runs these seeds in order, until the time or the processor time is over or, if `first` is set, until one of them
/// fails.
fn many(
    seeds: Range<u64>,
    threads: usize,
    (time, processor): (Duration, Duration),
    first: bool,
    store: Option<&str>,
) -> ExitCode {
    let began = Instant::now();
    let (next, over) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let total = Mutex::new(Total::default());
    println!(
        "runs the seeds from {} on, {threads} at a time",
        seeds.start
    );
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while began.elapsed() < time && used() < processor && !over.load(Ordering::Acquire)
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        break;
                    }
                    if store.is_some_and(|name| Plan::of(seed).store.name() != name) {
                        continue;
                    }
                    if !carry_out(seed, &total, !first) && first {
                        break;
                    }
                }
                over.store(true, Ordering::Release);
            });
        }
        scope.spawn(|| {
            let progress = Progress::of_time();
            while !over.load(Ordering::Acquire) {
                thread::park_timeout(PROGRESS);
                let tried = next.load(Ordering::Relaxed) - seeds.start;
                #[expect(clippy::cast_precision_loss, reason = "it is printed")]
                let parts = [
                    began.elapsed().as_secs_f64() / time.as_secs_f64(),
                    used().as_secs_f64() / processor.as_secs_f64(),
                    tried as f64 / (seeds.end - seeds.start) as f64,
                ];
                let total = total.lock().unwrap_or_else(PoisonError::into_inner);
                let now = format!(
                    "{} runs, {} entered, {} failed",
                    total.runs,
                    total.counts.entered,
                    total.failed.len()
                );
                drop(total);
                progress.reach(parts.into_iter().fold(0.0, f64::max), now);
            }
        });
    });
    tell(&total, began.elapsed());
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("faults {:#?}", total.counts.faults);
    println!("calls {:#?}", total.counts.ways);
    println!("errors {:#?}", total.counts.errors);
    println!(
        "grants of which callers learned only from a probe: {}",
        total.counts.missed_wakeups
    );
    println!(
        "callers that entered during another hold, because a server had lost its grant: {}",
        total.counts.excused
    );
    println!("failed seeds: {:?}", total.failed);
    let (longest, seed) = total.longest;
    println!("processor time of the longest run: {longest:?}, of seed {seed}");
    println!("processor seconds: {}", used().as_secs());
    ExitCode::from(u8::from(!total.failed.is_empty()))
}

/// Runs one seed, and returns whether all promises were kept. If a promise was broken and `smaller` is set, also
/// shrinks the plan and writes the timeline of the smaller plan.
fn carry_out(seed: u64, total: &Mutex<Total>, smaller: bool) -> bool {
    let plan = Plan::of(seed);
    let before = used_by(ClockId::ThreadCPUTime);
    let outcome = run(&plan, false);
    let used = used_by(ClockId::ThreadCPUTime) - before;
    let first = outcome.violations.first().cloned();
    {
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.counts.add(&outcome.counts);
        total.runs += 1;
        total.longest = total.longest.max((used, seed));
        if !plan.faults.is_empty() {
            total.under_faults += outcome.counts.entered;
        }
        total.commands += outcome.commands;
        total.passed += outcome.passed;
        total.failed.extend(first.as_ref().map(|_| seed));
    }
    let holds = first.is_none();
    if let Some(violation) = first {
        progress::suspend(|| println!("seed {seed}: {violation}"));
        if !smaller {
            return false;
        }
        let shrunk = shrink(&plan, violation.promise);
        let outcome = run(&shrunk.plan, true);
        let steps: Vec<_> = shrunk.steps.iter().map(ToString::to_string).collect();
        let timeline = write_timeline(&shrunk.plan, &outcome.violations, &outcome.lines);
        let steps = steps.join(",");
        progress::suspend(|| {
            println!("seed {seed}, smaller: --seed {seed} --steps {steps}, {timeline}");
        });
    }
    holds
}

/// Returns the processor time that this program has used.
fn used() -> Duration {
    used_by(ClockId::ProcessCPUTime)
}

/// Returns the time of a clock that measures processor time.
fn used_by(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

fn tell(total: &Mutex<Total>, elapsed: Duration) {
    let total = total.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = elapsed.as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "it is printed")]
    let rate = total.counts.entered as f64 / used().as_secs_f64();
    println!(
        "{seconds:.0} s: {} runs, {} entered ({rate:.0} in a second of one core), {} of them in runs with faults, {} polls \
         delayed, {} commands, {} simulated seconds, {} faults, {} failed",
        total.runs,
        total.counts.entered,
        total.under_faults,
        total.counts.late_polls,
        total.commands,
        total.passed / 1_000,
        total
            .counts
            .faults
            .iter()
            .filter(|(name, _)| **name != "over")
            .map(|(_, count)| count)
            .sum::<u64>(),
        total.failed.len(),
    );
}

/// Writes the timeline to a file. Returns a text that names the file.
fn write_timeline(plan: &Plan, violations: &[Violation], lines: &[Line]) -> String {
    let folder = PathBuf::from("target/simulation");
    let file = folder.join(format!("seed-{}.txt", plan.seed));
    let mut text = format!("{plan:#?}\n\n");
    for line in lines {
        text += &format!("{line}\n");
    }
    for violation in violations {
        text += &format!("\n{violation}\n");
    }
    match fs::create_dir_all(&folder).and_then(|()| fs::write(&file, text)) {
        Ok(()) => format!("timeline in {}", file.display()),
        Err(error) => format!("no timeline: {error}"),
    }
}
