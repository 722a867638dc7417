//! Breaks each promise by one small change to a copy of the sources, and shows that the tests of this promise notice,
//! and no others do: `cargo run --example mutants`, or with the number of a promise for that one alone.

mod table;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use table::{MUTANTS, Mutant};

fn main() -> ExitCode {
    let only: Option<u8> = std::env::args()
        .nth(1)
        .and_then(|argument| argument.parse().ok());
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = source.join("target/mutants/tree");
    copy_sources(source, &copy);
    println!(
        "unchanged: {}",
        if run_tests(&copy).failed.is_empty() {
            "green"
        } else {
            "RED, nothing can be shown"
        }
    );
    let mut all_caught = true;
    println!("| promise | mutant | red tests | verdict |\n|---|---|---|---|");
    for mutant in MUTANTS
        .iter()
        .filter(|mutant| only.is_none_or(|only| only == mutant.promise))
    {
        let caught = try_mutant(source, &copy, mutant);
        all_caught &= caught;
    }
    if all_caught {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Changes the copy, tests it, and changes it back. True if the promise's own tests noticed, and no others.
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
    let outcome = run_tests(copy);
    for change in mutant.changes {
        std::fs::copy(source.join(change.file), copy.join(change.file)).expect(change.file);
    }
    let own = format!("p{:02}_", mutant.promise);
    let strangers = outcome.failed.iter().any(|test| !test.starts_with(&own));
    let verdict = match (outcome.ran, outcome.failed.is_empty(), strangers) {
        (0, _, _) => "does not compile",
        (_, true, _) => "NOT CAUGHT",
        (_, _, true) => "caught, but others are red too",
        (_, _, false) => "caught",
    };
    let failed: Vec<&str> = outcome.failed.iter().map(String::as_str).collect();
    println!(
        "| {} | {} | {} | {verdict} |",
        mutant.promise,
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

fn run_tests(tree: &Path) -> Outcome {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--test", "promises", "--", "--test-threads=2"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", tree.with_file_name("target"))
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("cargo can be started");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
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
