//! Finds out which mutants the simulation detects, and how long each detection takes. No scenario of the simulation was
//! made for a mutant.

use std::{path::Path, time::Instant};

use patches::Patch;
use progress::Progress;

use crate::{cargo, copy_sources};

/// How long the simulation tries new seeds on one mutant, in seconds.
const PATIENCE: u64 = 120;

/// The simulation does not run sources whose paths contain one of these texts. These sources are the in-process
/// backend, decisions at compile time, and steps before the first connection.
const ELSEWHERE: [&str; 5] = [
    "lock-macros/",
    "lock-core/src/key",
    "backend/memory.rs",
    "transport/preflight.rs",
    "/url.rs",
];

/// Tries the mutants that name a test beginning with `only`, except for mutants of sources that match [`ELSEWHERE`].
pub(crate) fn run(only: &str) -> Result<(), String> {
    let source = support::root();
    let copy = source.join("target/mutants/tree");
    copy_sources(source, &copy);
    let mut chosen = patches::all()?;
    chosen.retain(|patch| patch.is_for(only) && is_simulated(patch));
    if let Some(found) = simulate(&copy) {
        return Err(format!(
            "the simulation reports a broken promise without a mutant: {found}"
        ));
    }
    println!("| mutant | what was seen | after |\n|---|---|---|");
    let mut found = 0;
    let progress = Progress::of_steps(chosen.len());
    for patch in &chosen {
        progress.begin(&patch.what);
        patch.check(&copy)?;
        patch.apply(&copy)?;
        let began = Instant::now();
        let seen = simulate(&copy);
        patch.revert(&copy)?;
        found += usize::from(seen.is_some());
        let seen = seen.unwrap_or_else(|| "nothing".into());
        let took = began.elapsed().as_secs();
        progress::suspend(|| println!("| {} | {seen} | {took} s |", patch.what));
    }
    drop(progress);
    println!("{found} of {} found", chosen.len());
    Ok(())
}

fn is_simulated(patch: &Patch) -> bool {
    let elsewhere = |file: &String| ELSEWHERE.iter().any(|part| file.contains(part));
    !patch.changes().iter().any(elsewhere)
}

/// Runs the simulation on the sources in `tree`. Returns the first line of its output that reports a broken promise, or
/// `None` if no line does.
fn simulate(tree: &Path) -> Option<String> {
    let patience = PATIENCE.to_string();
    let built = [
        "build",
        "--release",
        "-p",
        "lock-simulation",
        "--example",
        "simulate",
    ];
    cargo(tree, &built);
    let run = [
        "run",
        "--release",
        "-p",
        "lock-simulation",
        "--example",
        "simulate",
        "--",
    ];
    let how = ["--first", "--from", "1", "--seconds", &patience];
    let output = cargo(tree, &[&run[..], &how].concat());
    let seed = output.lines().find(|line| line.starts_with("seed "));
    seed.map(str::to_owned)
}
