//! Tries the mutants: makes one small change at a time to a copy of the engine's sources, and checks that tests fail
//! with the change. Each mutant names the tests that must fail. Only these tests run. For a mutant of the suite
//! `promises`, however, the tests of all promises run, and no test but the named tests is allowed to fail.
//!
//! `cargo run --bin mutants` tries all mutants. With `-- row_2`, the command tries the mutants that name a test
//! beginning with `row_2`. `-- --draw 10 SEED` tries ten mutants that the seed selects from the suites `options` and
//! `faults`, whose tests take only seconds, and have the dependencies that the other tests have. Without SEED, the hash
//! of the newest commit is the seed.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use patches::{Patch, Suite};
use progress::Progress;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["--draw", count] => draw(count, &newest_commit()),
        ["--draw", count, seed] => draw(count, seed),
        [] => try_all(""),
        [only] => try_all(only),
        _ => Err("this combination of arguments is not valid".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Tries the mutants that name a test beginning with `only`. First checks that the tests of these mutants pass without
/// a mutant.
fn try_all(only: &str) -> Result<(), String> {
    let copy = fresh_copy();
    let mut chosen = patches::all()?;
    chosen.retain(|patch| patch.is_for(only));
    if chosen.is_empty() {
        return Err(format!("no mutant names a test that begins with `{only}`"));
    }
    for patch in &chosen {
        patch.check(&copy)?;
    }
    for suite in Suite::ALL {
        let patches = chosen.iter().filter(|patch| patch.suite == suite);
        let tests: Vec<&str> = patches.flat_map(names).collect();
        if tests.is_empty() {
            continue;
        }
        let without = run_tests(&copy, suite, &tests);
        if without.ran == 0 || !without.failed.is_empty() {
            return Err(
                "the tests do not run or fail without a mutant, so a run with mutants would show nothing".into(),
            );
        }
    }
    try_each(&copy, &chosen, 1)
}

/// Tries `count` mutants that the seed selects from those whose tests take only seconds. Leaves out the mutants of the unit
/// tests, because cargo compiles the dependencies of the unit tests again, with fewer features. Does not check that the tests
/// pass without a mutant. Tries a mutant a second time if it was not caught, because some mutants do not make a test
/// fail in every run.
fn draw(count: &str, seed: &str) -> Result<(), String> {
    let count = count
        .parse()
        .map_err(|_| "`--draw` needs a number of mutants")?;
    let copy = fresh_copy();
    let mut chosen = patches::all()?;
    let is_quick = |suite| matches!(suite, Suite::Options | Suite::Faults);
    chosen.retain(|patch| is_quick(patch.suite));
    shuffle(&mut chosen, seed);
    chosen.truncate(count);
    println!("trying {count} mutants that the seed {seed} selects");
    try_each(&copy, &chosen, 2)
}

/// Sorts the mutants in an order that the seed selects.
fn shuffle(chosen: &mut [Patch], seed: &str) {
    chosen.sort_by_cached_key(|patch| {
        let mut hasher = DefaultHasher::new();
        (seed, &patch.what).hash(&mut hasher);
        hasher.finish()
    });
}

fn newest_commit() -> String {
    let mut git = Command::new("git");
    let newest = git
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(support::root());
    let output = newest.output().expect("git names the newest commit");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Updates the copy of the sources, and returns the folder of the copy.
fn fresh_copy() -> PathBuf {
    let source = support::root();
    let copy = source.join("target/mutants/tree");
    copy_sources(source, &copy);
    copy
}

/// Tries each mutant until it is caught, at most `tries` times, and prints a table.
fn try_each(copy: &Path, chosen: &[Patch], tries: usize) -> Result<(), String> {
    println!("| tests | mutant | red tests | verdict |\n|---|---|---|---|");
    let mut missed = 0;
    let progress = Progress::of_steps(chosen.len());
    for patch in chosen {
        progress.begin(&patch.what);
        let mut caught = false;
        for _ in 0..tries {
            caught = try_mutant(copy, patch)?;
            if caught {
                break;
            }
        }
        missed += usize::from(!caught);
    }
    match missed {
        0 => Ok(()),
        _ => Err(format!(
            "{missed} of {} mutants were not caught by exactly the expected tests",
            chosen.len()
        )),
    }
}

fn names(patch: &Patch) -> impl Iterator<Item = &str> {
    patch.caught_by.iter().map(String::as_str)
}

/// Applies the patch to the copy, runs the tests on the copy, and reverts the patch. Returns whether exactly the
/// expected tests failed.
fn try_mutant(copy: &Path, patch: &Patch) -> Result<bool, String> {
    let tests: Vec<&str> = names(patch).collect();
    patch.apply(copy)?;
    let outcome = run_tests(copy, patch.suite, &tests);
    patch.revert(copy)?;
    let own = |red: &str, test: &str| match patch.suite {
        Suite::Faults | Suite::Crowds | Suite::Unit => red.contains(test),
        // In the other suites, a mutant names a test by the beginning of the test's path, which includes the module.
        _ => red.starts_with(test),
    };
    let asleep = |test: &&str| !outcome.failed.iter().any(|red| own(red, test));
    let asleep: Vec<&str> = tests.iter().copied().filter(asleep).collect();
    let stranger = |red: &String| !tests.iter().any(|test| own(red, test));
    let verdict = if outcome.ran == 0 {
        "does not compile".to_owned()
    } else if !asleep.is_empty() {
        format!("NOT CAUGHT by {asleep:?}")
    } else if outcome.failed.iter().any(stranger) {
        "caught, but other tests fail too".to_owned()
    } else {
        "caught".to_owned()
    };
    let failed: Vec<&str> = outcome.failed.iter().map(String::as_str).collect();
    let (tests, failed) = (tests.join(", "), failed.join(", "));
    progress::suspend(|| println!("| {tests} | {} | {failed} | {verdict} |", patch.what));
    Ok(verdict == "caught")
}

/// Copies the files of the git checkout, except for files that git ignores.
fn copy_sources(source: &Path, copy: &Path) {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(source)
        .output()
        .expect("git lists the sources");
    let listed = String::from_utf8(listed.stdout).expect("the file names are valid UTF-8");
    let listed: BTreeSet<&str> = listed.lines().collect();
    remove_others(copy, copy, &listed);
    for file in listed {
        let (from, to): (PathBuf, PathBuf) = (source.join(file), copy.join(file));
        if let (true, Some(folder)) = (from.is_file(), to.parent()) {
            std::fs::create_dir_all(folder).expect("the folders of the copy can be created");
            // If a file has not changed, its copy keeps its time stamp, so that cargo does not compile it again.
            if std::fs::read(&from).ok() != std::fs::read(&to).ok() {
                std::fs::copy(&from, &to).expect("a source file can be copied");
            }
        }
    }
}

/// Removes the files of a folder of the copy that are not among the sources any longer.
fn remove_others(copy: &Path, folder: &Path, sources: &BTreeSet<&str>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(copy).ok().and_then(Path::to_str);
        if path.is_dir() {
            remove_others(copy, &path, sources);
        } else if !name.is_some_and(|name| sources.contains(name)) {
            std::fs::remove_file(&path).expect("a file of the copy can be removed");
        }
    }
}

/// The number of lines at the end of cargo's error output that this program shows.
const ERRORS_SHOWN: usize = 12;

struct Outcome {
    ran: usize,
    failed: BTreeSet<String>,
}

/// Runs the tests of all promises, or the named tests of another suite.
fn run_tests(tree: &Path, suite: Suite, tests: &[&str]) -> Outcome {
    let tests = match suite {
        Suite::Soak => return soak(tree, tests),
        Suite::Promises => &[],
        _ => tests,
    };
    let target: &[&str] = match suite {
        Suite::Unit => &[
            "-plock-core",
            "-plock-macros",
            "-plock-runtime",
            "--all-features",
            "--lib",
        ],
        _ => &["--workspace", "--all-features", "--test", suite.name()],
    };
    let run = [&["test"], target, &["--", "--test-threads=2"], tests].concat();
    let output = cargo(tree, &run);
    let mut outcome = Outcome {
        ran: 0,
        failed: BTreeSet::new(),
    };
    for line in output.lines().filter_map(|line| line.strip_prefix("test ")) {
        if let Some((name, result)) = line.split_once(" ... ") {
            outcome.ran += 1;
            if result.ends_with("FAILED") {
                outcome.failed.insert(name.to_owned());
            }
        }
    }
    outcome
}

/// Runs the named soaks for one minute each. The soak `calm` has no faults, and the soak `faults` has random faults.
fn soak(tree: &Path, tests: &[&str]) -> Outcome {
    let mut outcome = Outcome {
        ran: 0,
        failed: BTreeSet::new(),
    };
    for test in BTreeSet::from_iter(tests) {
        let how: &[&str] = if *test == "faults" {
            &["--faults"]
        } else {
            &[]
        };
        let run = ["run", "--bin", "soak", "--", "--seconds", "60"];
        let output = cargo(tree, &[&run, how].concat());
        outcome.ran += usize::from(output.contains("keys left"));
        if output.contains("NOT as promised") {
            outcome.failed.insert((*test).to_owned());
        }
    }
    outcome
}

/// Runs the cargo that runs this program, or otherwise the cargo of the search path, in a source tree. Returns its
/// standard output.
fn cargo(tree: &Path, args: &[&str]) -> String {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(args)
        .current_dir(tree)
        // Cargo gives a crate of the copy the same file names as the crate in the sources, so the two must not share a
        // target directory.
        .env("CARGO_TARGET_DIR", tree.with_file_name("target"))
        // A mutant changes a few lines, so an incremental build takes a quarter of the time.
        .env("CARGO_INCREMENTAL", "1")
        .env(support::STRICT_VARIABLE, "1")
        // As many seeds as two cores run in a minute.
        .env("SIMULATION_SEEDS", "240")
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("cargo can be started");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    // Cargo reports failed tests on the standard output. Other errors appear only on the standard error, so this
    // function shows them.
    if !output.status.success() && !printed.contains("test result:") {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rev().take(ERRORS_SHOWN).collect::<Vec<_>>();
        progress::suspend(|| last.iter().rev().for_each(|line| eprintln!("{line}")));
    }
    printed
}
