//! Runs the fault matrix many times, and writes the results into `docs/faults.md`: `cargo run --release --bin faults --
//! --write`. Without `--write`, the program prints the table. `--runs N` runs each scenario N times instead of 20
//! times. `--again row_36` repeats row 36, and keeps the results of the other rows. `--mutants` runs no scenario, and
//! writes only the column of the mutants. `cargo run --bin mutants -- row_` tries these mutants.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use progress::Progress;
use support::{
    matrix::{NOT_YET, ROWS, RUNS_VARIABLE, Row, SEEN_VARIABLE},
    page,
};

/// Three scenarios run at the same time, because a scenario spends most of its time waiting.
const THREADS: &str = "--test-threads=3";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let write = args.iter().any(|arg| arg == "--write");
    let runs = args.iter().position(|arg| arg == "--runs");
    let runs: u32 = match runs.map(|at| args.get(at + 1).and_then(|runs| runs.parse().ok())) {
        None => 20,
        Some(Some(runs)) => runs,
        Some(None) => {
            eprintln!("--runs needs a number");
            return ExitCode::FAILURE;
        }
    };
    let again = args.iter().position(|arg| arg == "--again");
    let again = again.map(|at| args.get(at + 1).cloned().unwrap_or_default());
    let root = support::root();
    let page = root.join("docs/faults.md");
    if args.iter().any(|arg| arg == "--mutants") {
        let text = fs::read_to_string(&page).expect("the page `docs/faults.md` is in the checkout");
        fs::write(&page, with_mutants(&text)).expect("the page can be written");
        return ExitCode::SUCCESS;
    }
    let seen = root.join("target/faults");
    let earlier = seen.join("outcomes");
    let mut outcomes = BTreeMap::new();
    if let Some(row) = &again {
        let Ok(earlier) = fs::read_to_string(&earlier) else {
            eprintln!(
                "--again keeps the results of an earlier run, and there was none in this checkout"
            );
            return ExitCode::FAILURE;
        };
        outcomes.extend(earlier.lines().filter_map(outcome));
        let _ = fs::remove_file(seen.join(row));
    } else {
        let _ = fs::remove_dir_all(&seen);
        fs::create_dir_all(&seen).expect("the target folder can be written");
    }
    let rows = again.as_deref().unwrap_or("row_");
    outcomes.extend(run(root, &seen, runs, rows));
    let lines = outcomes.iter().map(|(test, passed)| {
        let result = if *passed { "ok" } else { "FAILED" };
        format!("test {test} ... {result}\n")
    });
    fs::write(earlier, lines.collect::<String>()).expect("the target folder can be written");
    let (table, green) = table_of(&seen, &outcomes, runs);
    if write {
        page::update(&page, "seen", &table).expect("the page contains the marks of the table");
    } else {
        println!("\n{table}");
    }
    if green {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses a line in which the test harness reports the result of a test. Returns `None` for other lines.
fn outcome(line: &str) -> Option<(String, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.to_owned(), result.ends_with("ok")))
}

/// Parses the line in which the test harness reports how many tests it runs. Returns `None` for other lines.
fn number_of_tests(line: &str) -> Option<usize> {
    let (number, _) = line.strip_prefix("running ")?.split_once(" test")?;
    number.parse().ok()
}

/// Runs the tests whose names contain `rows`. Returns whether each test passed.
fn run(root: &Path, seen: &Path, runs: u32, rows: &str) -> BTreeMap<String, bool> {
    let mut tests = Command::new(env!("CARGO"))
        .args(["test", "--release", "--test", "faults", "--test", "crowds"])
        .args(["--", rows, THREADS])
        .current_dir(root)
        .env(RUNS_VARIABLE, runs.to_string())
        .env(SEEN_VARIABLE, seen)
        .env(support::STRICT_VARIABLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo can be started");
    let output = tests.stdout.take().expect("the output of cargo is piped");
    let mut outcomes = BTreeMap::new();
    let mut progress = None;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        progress::suspend(|| println!("{line}"));
        // Until the tests have been compiled, cargo draws its own bar, so this program does not draw one.
        if let Some(tests) = number_of_tests(&line) {
            progress = Some(Progress::of_steps(tests));
        }
        if let Some((test, passed)) = outcome(&line) {
            if let Some(progress) = &progress {
                progress.end(format_args!("{test} has ended"));
            }
            outcomes.insert(test, passed);
        }
    }
    let _ = tests.wait();
    outcomes
}

/// Returns the table, and whether every row has passed. If a row has no test, it counts as passed only if `NOT_YET`
/// lists the row.
fn table_of(seen: &Path, outcomes: &BTreeMap<String, bool>, runs: u32) -> (String, bool) {
    let mut text = format!(
        "{runs} runs of each scenario; ε = 250 ms.\n\n\
         | # | fault | promise | times | changes to the engine that the tests must detect | state |\n|---|---|---|---|---|---|\n"
    );
    let mut all_green = true;
    for Row {
        number,
        fault,
        expected,
    } in ROWS
    {
        let name = format!("row_{number:02}");
        let passed: Vec<bool> = outcomes
            .iter()
            .filter_map(|(test, passed)| test.contains(&name).then_some(*passed))
            .collect();
        let state = match (passed.is_empty(), passed.iter().all(|passed| *passed)) {
            (true, _) if NOT_YET.contains(number) => "not yet",
            (true, _) => "**not run**",
            (false, true) => "green",
            (false, false) => "**red**",
        };
        all_green &= !state.starts_with('*');
        let times = fs::read_to_string(seen.join(&name)).unwrap_or_default();
        let times: Vec<&str> = times.lines().collect();
        let mutants = mutants_of(&name);
        let _ = writeln!(
            text,
            "| {number} | {fault} | {expected} | {} | {} | {state} |",
            times.join("<br>"),
            mutants
        );
    }
    (text, all_green)
}

/// Returns the mutants of a row of the fault matrix.
fn mutants_of(row: &str) -> String {
    let patches = patches::all().expect("the mutants are in the checkout");
    let own = patches.iter().filter(|patch| patch.is_for(row));
    let own: Vec<&str> = own.map(|patch| patch.what.as_str()).collect();
    own.join("; ")
}

/// Replaces the mutants in each row of the page, and keeps the results of the tests.
fn with_mutants(page: &str) -> String {
    let lines = page.lines().map(|line| {
        let mut cells: Vec<_> = line.split(" | ").map(str::to_owned).collect();
        let number = cells[0].strip_prefix("| ");
        let number = number.and_then(|row| row.parse::<u32>().ok());
        if let (Some(number), 6) = (number, cells.len()) {
            cells[4] = mutants_of(&format!("row_{number:02}"));
        }
        cells.join(" | ") + "\n"
    });
    lines.collect()
}
