//! Breaks the engine by one small change after the other, in a copy of the sources, and shows that the tests notice:
//! for a promise its own tests and no others, for a row of the fault matrix each of its tests.
//!
//! `cargo run --example mutants`, or `-- row_2` for those alone that tests beginning so shall catch.

#[path = "table.rs"]
mod table;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use table::{Mutant, Suite, mutants};

fn main() -> ExitCode {
    let only = std::env::args().nth(1).unwrap_or_default();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = source.join("target/mutants/tree");
    copy_sources(source, &copy);
    let chosen: Vec<_> = mutants()
        .filter(|mutant| mutant.caught_by.iter().any(|test| test.starts_with(&only)))
        .collect();
    for suite in [Suite::Promises, Suite::Faults, Suite::Options, Suite::Soak] {
        let tests = chosen.iter().filter(|mutant| mutant.suite == suite);
        let tests: Vec<_> = tests.flat_map(|mutant| mutant.caught_by).copied().collect();
        if !tests.is_empty() && !run_tests(&copy, suite, &tests).failed.is_empty() {
            println!("tests are red without a mutant, so nothing can be shown");
            return ExitCode::FAILURE;
        }
    }
    let mut all_caught = true;
    println!("| tests | mutant | red tests | verdict |\n|---|---|---|---|");
    for mutant in chosen {
        all_caught &= try_mutant(source, &copy, mutant);
    }
    if all_caught {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Changes the copy, tests it, and changes it back. True if the tests that shall notice did.
fn try_mutant(source: &Path, copy: &Path, mutant: &Mutant) -> bool {
    for change in mutant.changes {
        let text = std::fs::read_to_string(copy.join(change.file)).expect(change.file);
        assert_eq!(
            text.matches(change.from).count(),
            1,
            "{}: `{}` has to stand there once",
            change.file,
            change.from
        );
        std::fs::write(copy.join(change.file), text.replace(change.from, change.to))
            .expect(change.file);
    }
    let outcome = run_tests(copy, mutant.suite, mutant.caught_by);
    for change in mutant.changes {
        std::fs::copy(source.join(change.file), copy.join(change.file)).expect(change.file);
    }
    let own = |red: &str, test: &str| match mutant.suite {
        // The module is the promise.
        Suite::Promises | Suite::Options | Suite::Soak => red.starts_with(test),
        Suite::Faults => red.contains(test),
    };
    let asleep = |test: &&&str| !outcome.failed.iter().any(|red| own(red, test));
    let asleep: Vec<_> = mutant.caught_by.iter().filter(asleep).collect();
    let stranger = |red: &String| !mutant.caught_by.iter().any(|test| own(red, test));
    let verdict = if outcome.ran == 0 {
        "does not compile".to_owned()
    } else if !asleep.is_empty() {
        format!("NOT CAUGHT by {asleep:?}")
    } else if outcome.failed.iter().any(stranger) {
        "caught, but others are red too".to_owned()
    } else {
        "caught".to_owned()
    };
    let failed: Vec<&str> = outcome.failed.iter().map(String::as_str).collect();
    println!(
        "| {} | {} | {} | {verdict} |",
        mutant.caught_by.join(", "),
        mutant.what,
        failed.join(", ")
    );
    verdict == "caught"
}

/// Copies what git tracks, so that the copy's own target directory stays.
fn copy_sources(source: &Path, copy: &Path) {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(source)
        .output()
        .expect("git lists the sources");
    for file in String::from_utf8(listed.stdout)
        .expect("file names are text")
        .lines()
    {
        let (from, to): (PathBuf, PathBuf) = (source.join(file), copy.join(file));
        if let (true, Some(folder)) = (from.is_file(), to.parent()) {
            std::fs::create_dir_all(folder).expect("the copy's folders can be made");
            // An unchanged file keeps its time, so that it is not compiled again.
            if std::fs::read(&from).ok() != std::fs::read(&to).ok() {
                std::fs::copy(&from, &to).expect("a source file can be copied");
            }
        }
    }
}

struct Outcome {
    ran: usize,
    failed: BTreeSet<String>,
}

/// Runs a suite: the promises as a whole, of the others these tests.
fn run_tests(tree: &Path, suite: Suite, tests: &[&str]) -> Outcome {
    let (target, tests) = match suite {
        Suite::Soak => return soak(tree, tests),
        Suite::Promises => ("promises", &[][..]),
        Suite::Faults => ("faults", tests),
        Suite::Options => ("options", tests),
    };
    let run = [&["test", "--test", target, "--", "--test-threads=2"], tests].concat();
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

/// Soaks as these say.
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
        let run = ["run", "--example", "soak", "--", "--seconds", "60"];
        let output = cargo(tree, &[&run, how].concat());
        outcome.ran += usize::from(output.contains("keys left"));
        if output.contains("NOT as promised") {
            outcome.failed.insert((*test).to_owned());
        }
    }
    outcome
}

/// What cargo prints in this tree.
fn cargo(tree: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", tree.with_file_name("target"))
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("cargo can be started");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
