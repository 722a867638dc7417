//! Runs the fault matrix many times, and writes the results into `docs/faults.md`:
//! `cargo run --release --bin faults -- --write`. Without `--write`, the program prints the table. `--runs N` runs each
//! scenario N times instead of 20 times. `--again row_36` repeats row 36, and keeps the results of the other rows. Run
//! `cargo run --bin mutants -- row_` first: the table lists the mutants of each row, and marks the mutants that the
//! `mutants` command has not recorded as caught.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use support::{
    matrix::{NOT_YET, ROWS, RUNS_VARIABLE, Row, SEEN_VARIABLE},
    page,
};

/// Three scenarios run at once, because most scenarios spend most of their time waiting.
const THREADS: &str = "--test-threads=3";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let write = args.iter().any(|arg| arg == "--write");
    let runs = args.iter().position(|arg| arg == "--runs");
    let runs: u32 = match runs.map(|at| args.get(at + 1).and_then(|runs| runs.parse().ok())) {
        None => 20,
        Some(Some(runs)) => runs,
        Some(None) => {
            eprintln!("--runs wants a number");
            return ExitCode::FAILURE;
        }
    };
    let again = args.iter().position(|arg| arg == "--again");
    let again = again.map(|at| args.get(at + 1).cloned().unwrap_or_default());
    let root = support::root();
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
        page::update(&root.join("docs/faults.md"), "seen", &table).expect("the page has its marks");
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

/// Runs the tests whose names contain `rows`. Returns for each test whether it passed.
fn run(root: &Path, seen: &Path, runs: u32, rows: &str) -> BTreeMap<String, bool> {
    let mut tests = Command::new(env!("CARGO"))
        .args(["test", "--release", "--test", "faults", "--", rows, THREADS])
        .current_dir(root)
        .env(RUNS_VARIABLE, runs.to_string())
        .env(SEEN_VARIABLE, seen)
        .env_remove("CI")
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo can be started");
    let output = tests.stdout.take().expect("its output is piped");
    let mut outcomes = BTreeMap::new();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        println!("{line}");
        outcomes.extend(outcome(&line));
    }
    let _ = tests.wait();
    outcomes
}

/// Returns the table, and whether every row has passed. A row without a test is accepted if it is listed in `NOT_YET`.
fn table_of(seen: &Path, outcomes: &BTreeMap<String, bool>, runs: u32) -> (String, bool) {
    let mut text = format!(
        "{runs} runs of each scenario; ε = 250 ms.\n\n\
         | # | fault | promise | times | changes to the engine that the tests must detect | state |\n|---|---|---|---|---|---|\n"
    );
    let patches = patches::all().expect("the mutants are in the checkout");
    let seen_caught = patches::caught().expect("the record of caught mutants is in the checkout");
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
        let own = patches.iter().filter(|patch| patch.is_for(&name));
        let caught = own.map(|patch| match seen_caught.contains(&patch.what) {
            true => patch.what.clone(),
            false => format!("**not seen:** {}", patch.what),
        });
        let caught: Vec<String> = caught.collect();
        let _ = writeln!(
            text,
            "| {number} | {fault} | {expected} | {} | {} | {state} |",
            times.join("<br>"),
            caught.join("; ")
        );
    }
    (text, all_green)
}
