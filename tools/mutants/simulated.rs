//! Finds out which mutants the simulation detects with random seeds only, and how long each detection takes. No
//! scenario is written for a mutant.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use patches::Patch;
use progress::Progress;
use support::page;

use crate::{cargo_command, copy_sources, target_of};

/// The processor time, in seconds, for which the simulation tries new seeds on one mutant. The time corresponds to two
/// minutes on two cores. The limit is processor time, so that a busy machine tries as many seeds as an idle machine.
const PATIENCE: u64 = 240;

/// The code that the simulation does not run: a part of a file's path, and the reason. A mutant is left out if it
/// changes a file whose path contains the text.
const ELSEWHERE: [(&str, &str); 19] = [
    ("lock-macros/", "the attribute decides at compile time"),
    (
        "lock-runtime/src/private.rs",
        "only generated code calls it; the simulated function has no such option",
    ),
    (
        "lock-core/src/key",
        "keys are texts; the simulation has four",
    ),
    (
        "lock-core/src/duration",
        "texts of durations are read at compile time",
    ),
    ("lock-core/src/error", "callers do not convert errors"),
    (
        "lock-core/src/layout",
        "options that contradict each other are refused before the first request",
    ),
    (
        "backend/memory.rs",
        "the in-process backend is not simulated",
    ),
    ("background/clock.rs", "the world has its own clock"),
    (
        "redis/preflight/",
        "settings of the server are checked before the first call",
    ),
    ("/url.rs", "URLs are read before the first connection"),
    (
        "client/builder.rs",
        "the client's settings come before the first connection",
    ),
    (
        "transport/wait_connections.rs",
        "no plan has more connections than their limit",
    ),
    (
        "native/status.lua",
        "no caller asks for the status of a lock",
    ),
    (
        "redisson/status.lua",
        "no caller asks for the status of a lock",
    ),
    ("queue/scan.rs", "no caller walks through the locks"),
    (
        "protocol/words.rs",
        "the simulation does not read what a grant says about its caller",
    ),
    (
        "transport/credentials.rs",
        "the simulated servers ask for no password",
    ),
    ("redisson/tell.lua", "no process of the JVM listens"),
    (
        "redisson/cluster_tell.lua",
        "Redisson's layout is simulated on one server only",
    ),
];

const COST: &str = "the change costs commands or time, and breaks no promise";

/// Tests whose mutants the simulation cannot notice: the beginning of a test's name, and the reason. A mutant is left
/// out if all tests that must notice it begin with one of these texts.
const TESTED_ELSEWHERE: [(&str, &str); 20] = [
    (
        "callers::",
        "the simulation does not read what a grant says about its caller",
    ),
    ("operate::", "no caller releases a lock by force"),
    ("metrics::", "the simulation records no metrics"),
    (
        "members::another_process_sees",
        "no caller asks for the status of a lock",
    ),
    ("row_18_slow_line", COST),
    ("row_28_idle_clients", COST),
    ("row_48", COST),
    ("row_54", COST),
    ("holds_that_began_one_after_the_other", COST),
    ("many_holds_are_renewed_by_few_commands", COST),
    ("members::a_cohort_has_up_to_64_members", COST),
    ("strategy::one_process_sends", COST),
    ("options::tests::pauses_double", COST),
    (
        "connecting::",
        "the simulated servers pass all checks of a new connection",
    ),
    ("defaults::", "callers set each option themselves"),
    (
        "a_client_",
        "a simulated process has one client, and nobody counts its connections",
    ),
    ("layout::", "no process of the JVM takes part"),
    (
        "row_35",
        "the simulated servers have no rights and no passwords",
    ),
    (
        "row_53",
        "the simulated servers have new IDs after each restart",
    ),
    ("row_58", "nobody forges messages"),
];

/// The options that select the mutants, and say whether the results are written to the page.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    /// Selects only mutants that name a test beginning with one of these texts. Selects all mutants if there is no text.
    pub(crate) only: Vec<&'a str>,
    /// The number of mutants to draw at random, and the seed of the draw.
    pub(crate) draw: Option<(usize, String)>,
    /// Whether to leave out the mutants that were found, or were tried for at least `patience`.
    pub(crate) untried: bool,
    /// The processor time, in seconds, for which the simulation runs on each mutant.
    pub(crate) patience: u64,
    /// Whether all results are written to the page.
    pub(crate) writes: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            only: Vec::new(),
            draw: None,
            untried: false,
            patience: PATIENCE,
            writes: false,
        }
    }
}

/// The result of the simulation for a mutant.
#[derive(Debug, Clone)]
struct Seen {
    /// The seed that failed and the promise that it broke; `None` if no seed failed.
    failure: Option<(u64, String)>,
    /// The processor time of the simulation, in seconds.
    seconds: u64,
}

/// Runs the simulation on the chosen mutants of code that the simulation runs.
pub(crate) fn run(options: &Options<'_>) -> Result<(), String> {
    let source = support::root();
    let copy = source.join("target/mutants/tree");
    copy_sources(source, &copy);
    let all = patches::all()?;
    let mut chosen: Vec<&Patch> = all.iter().filter(|patch| reason(patch).is_none()).collect();
    let mut known = recorded().map_err(|error| error.to_string())?;
    let only = options.only.iter();
    chosen.retain(|patch| options.only.is_empty() || only.clone().any(|only| patch.is_for(only)));
    if options.untried {
        let is_tried = |seen: &Seen| seen.failure.is_some() || seen.seconds >= options.patience;
        chosen.retain(|patch| !known.get(&patch.what).is_some_and(is_tried));
    }
    if let Some((count, seed)) = &options.draw {
        crate::shuffle(&mut chosen, seed);
        chosen.truncate(*count);
    }
    if !build(&copy)? {
        return Err("the simulation does not compile without a mutant".into());
    }
    let unchanged = target_of(&copy).join("simulate-unchanged");
    fs::copy(program(&copy), &unchanged).map_err(|error| error.to_string())?;
    println!("| mutant | what was seen | seed | processor seconds |\n|---|---|---|---|");
    let progress = Progress::of_steps(chosen.len());
    let mut errors = 0;
    for patch in &chosen {
        progress.begin(&patch.what);
        match try_mutant(&copy, &unchanged, patch, options.patience) {
            Ok(seen) => {
                progress::suspend(|| println!("{}", row(&patch.what, &seen, None)));
                known.insert(patch.what.clone(), seen);
                record(&known).map_err(|error| error.to_string())?;
            }
            Err(error) => {
                progress::suspend(|| eprintln!("{}: {error}", patch.what));
                errors += 1;
            }
        }
    }
    drop(progress);
    let found = |patch: &&&Patch| {
        known
            .get(&patch.what)
            .is_some_and(|seen| seen.failure.is_some())
    };
    println!(
        "{} of {} found",
        chosen.iter().filter(found).count(),
        chosen.len()
    );
    if options.writes {
        let variants = variants(&all, &known).map_err(|error| error.to_string())?;
        page::update(&page_path(), "mutants", &table(&all, &known))
            .and_then(|()| page::update(&page_path(), "variants", &variants))
            .map_err(|error| error.to_string())?;
    }
    match errors {
        0 => Ok(()),
        _ => Err(format!("{errors} mutants could not be tried")),
    }
}

/// Builds the simulation with a mutant, and runs it for `patience` seconds of processor time. A seed that fails must
/// hold without the mutant: `unchanged` is the simulation of the sources as they are.
fn try_mutant(copy: &Path, unchanged: &Path, patch: &Patch, patience: u64) -> Result<Seen, String> {
    patch.check(copy)?;
    patch.apply(copy)?;
    let compiles = build(copy);
    patch.revert(copy)?;
    if !compiles? {
        return Err("does not compile".into());
    }
    let seen = simulate(copy, patience)?;
    match &seen.failure {
        Some((seed, promise)) if !holds(copy, unchanged, *seed)? => Err(format!(
            "seed {seed} fails without the mutant, too: {promise}"
        )),
        _ => Ok(seen),
    }
}

/// Returns the reason why the simulation cannot notice this mutant, or `None` if the simulation should notice it.
fn reason(patch: &Patch) -> Option<&str> {
    if let Some(reason) = &patch.unsimulated {
        return Some(reason);
    }
    let changes = patch.changes();
    let by_file = ELSEWHERE
        .iter()
        .find(|(part, _)| changes.iter().any(|file| file.contains(part)));
    let by_test = TESTED_ELSEWHERE.iter().find(|(beginning, _)| {
        patch
            .caught_by
            .iter()
            .all(|test| test.starts_with(beginning))
    });
    by_file.or(by_test).map(|(_, reason)| *reason)
}

fn row(what: &str, seen: &Seen, unnoticed: Option<&str>) -> String {
    let Seen { failure, seconds } = seen;
    match (failure, unnoticed) {
        (Some((seed, promise)), _) => format!("| {what} | {promise} | {seed} | {seconds} |"),
        (None, None) => format!("| {what} | **nothing** | | {seconds} |"),
        (None, Some(why)) => format!("| {what} | **nothing**: {why} | | {seconds} |"),
    }
}

/// Reads a line that [`row`] has written. Returns `None` for any other line.
fn seen_in(line: &str) -> Option<(String, Seen)> {
    let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
    let [what, promise, seed, seconds] = cells[..] else {
        return None;
    };
    let seconds = seconds.parse().ok()?;
    let failure = seed.parse().ok().zip(Some(promise.to_owned()));
    Some((what.to_owned(), Seen { failure, seconds }))
}

/// Returns the text of the page: the mutants that were tried, and the reasons why others were not.
fn table(all: &[Patch], known: &BTreeMap<String, Seen>) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let (mut rows, mut tried, mut found, mut untried) = (String::new(), 0, 0, 0);
    for patch in all {
        if let Some(reason) = reason(patch) {
            reasons.entry(reason).or_default().push(&patch.what);
        } else if let Some(seen) = known.get(&patch.what) {
            tried += 1;
            found += usize::from(seen.failure.is_some());
            rows += &row(&patch.what, seen, patch.unnoticed.as_deref());
            rows.push('\n');
        } else {
            untried += 1;
        }
    }
    let mut text = format!(
        "{found} of {tried} mutants were found. {untried} further mutants of code that the simulation runs were not \
         tried.\n\n| mutant | broken promise | seed | processor seconds |\n|---|---|---|---|\n{rows}\n\
         These mutants change what the simulation does not run:\n\n| reason | mutants |\n|---|---|\n"
    );
    for (reason, mutants) in reasons {
        let _ = writeln!(text, "| {reason} | {} |", mutants.join("; "));
    }
    text
}

/// Returns the table of the model's broken variants. A row names the mutants that remove the rule of a variant from the
/// engine, and the first seed with which the simulation has found one of them.
fn variants(all: &[Patch], known: &BTreeMap<String, Seen>) -> io::Result<String> {
    let (mut rows, mut found) = (String::new(), 0);
    let variants = patches::variants()?;
    for variant in &variants {
        let named = |patch: &&Patch| patch.variants.contains(variant);
        let mutants: Vec<&Patch> = all.iter().filter(named).collect();
        let seed = |patch: &&Patch| known.get(&patch.what)?.failure.as_ref().map(|seen| seen.0);
        let seed = mutants.iter().filter_map(seed).min();
        found += usize::from(seed.is_some());
        let without = patches::WITHOUT_MUTANT
            .iter()
            .find(|(name, _)| name == variant);
        let what = match without {
            Some((_, reason)) => format!("none: {reason}"),
            None => {
                let what: Vec<&str> = mutants.iter().map(|patch| patch.what.as_str()).collect();
                what.join("; ")
            }
        };
        let seed = seed.map_or_else(String::new, |seed| seed.to_string());
        let _ = writeln!(rows, "| `{variant}` | {what} | {seed} |");
    }
    Ok(format!(
        "The simulation finds {found} of {} rules.\n\n| variant | mutant | seed |\n|---|---|---|\n{rows}",
        variants.len() - patches::WITHOUT_MUTANT.len()
    ))
}

/// Builds the simulation of the sources in `tree`. Returns whether the sources compile.
fn build(tree: &Path) -> Result<bool, String> {
    // The build includes the library of the other tests. The simulation calls little of this library, so the library is
    // compiled without optimisation, which is faster.
    let built = cargo_command()
        .args(["build", "--quiet", "--release"])
        .args(["-p", "lock-simulation", "--example", "simulate"])
        .args(["--config", "profile.release.package.lock-tests.opt-level=0"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target_of(tree))
        .env("CARGO_INCREMENTAL", "1")
        .status();
    Ok(built.map_err(|error| error.to_string())?.success())
}

fn program(tree: &Path) -> PathBuf {
    target_of(tree).join("release/examples/simulate")
}

/// Returns whether the simulation of the unchanged sources keeps all promises with this seed.
fn holds(tree: &Path, unchanged: &Path, seed: u64) -> Result<bool, String> {
    let mut run = Command::new(unchanged);
    run.args(["--seed", &seed.to_string()]).current_dir(tree);
    let run = run.output().map_err(|error| error.to_string())?;
    Ok(run.status.success())
}

/// Runs the simulation that was built from the sources in `tree`.
fn simulate(tree: &Path, patience: u64) -> Result<Seen, String> {
    let (patience, began) = (patience.to_string(), Instant::now());
    let run = Command::new(program(tree))
        .args(["--first", "--from", "1", "--threads", "2"])
        .args(["--processor-seconds", &patience])
        .current_dir(tree)
        .output()
        .map_err(|error| error.to_string())?;
    let [printed, errors] = [&run.stdout, &run.stderr].map(|text| String::from_utf8_lossy(text));
    let failed = |line: &str| {
        let (seed, failure) = line.strip_prefix("seed ")?.split_once(": ")?;
        let promise = failure.split(": ").nth(1).unwrap_or(failure);
        Some((seed.parse().ok()?, promise.to_owned()))
    };
    // The watchdog names the seed of a run that does not end.
    let endless = |line: &str| failed(line).map(|(seed, _)| (seed, "each run ends".to_owned()));
    let failure = printed.lines().find_map(failed);
    let failure = failure.or_else(|| errors.lines().find_map(endless));
    let seconds = printed
        .lines()
        .find_map(|line| line.strip_prefix("processor seconds: "));
    // If a run does not end, its watchdog ends the program, and no time is printed.
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    if seconds.is_none() && failure.is_none() {
        return Err(format!("the simulation has crashed: {errors}"));
    }
    let seconds = seconds.unwrap_or_else(|| began.elapsed().as_secs());
    Ok(Seen { failure, seconds })
}

fn page_path() -> PathBuf {
    support::root().join("docs/simulation.md")
}

fn results() -> PathBuf {
    support::root().join("target/mutants/simulated")
}

/// Returns the results of earlier runs: those on the page, and the newer ones that are known on this machine.
fn recorded() -> io::Result<BTreeMap<String, Seen>> {
    let page = fs::read_to_string(page_path())?;
    let newer = match fs::read_to_string(results()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(page
        .lines()
        .chain(newer.lines())
        .filter_map(seen_in)
        .collect())
}

fn record(known: &BTreeMap<String, Seen>) -> io::Result<()> {
    let rows = known
        .iter()
        .map(|(what, seen)| row(what, seen, None) + "\n");
    fs::write(results(), rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let found = Seen {
            failure: Some((28, "two holds never overlap".into())),
            seconds: 3,
        };
        let missed = Seen {
            failure: None,
            seconds: 240,
        };
        for seen in [found, missed] {
            let line = row("a `wait` has no end", &seen, Some("it is rare"));
            let (what, read) = seen_in(&line).expect("the line is a row");
            assert_eq!(what, "a `wait` has no end");
            assert_eq!(read.failure, seen.failure);
            assert_eq!(read.seconds, seen.seconds);
        }
        assert!(seen_in("| mutant | broken promise | seed | processor seconds |").is_none());
        assert!(seen_in("| reason | mutants |").is_none());
    }
}
