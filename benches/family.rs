//! Measures readers, semaphores and leaders on a real Redis server, beside Redisson.
//!
//! `cargo bench --bench family -- [--quick] [--only readers,leader] [--json FILE]`
//!
//! - `readers`: 64 readers of one key, and 64 writers of one key.
//! - `releases`: the server's time for the release of one reader while up to 1,000 others stay inside.
//! - `mixed`: 95 % readers and 5 % writers of one key.
//! - `permits`: 64 tasks that want a permit of a semaphore of ten.
//! - `leader`: how long nobody leads after a leader has resigned, and after its process was killed.
//!
//! The locks run one after another on a server that the benchmark starts, several times in each round. This project's
//! locks run in this process with two worker threads, and Redisson runs in a Java process. Without a JDK and Maven,
//! Redisson is left out. A figure is the median of all runs, and a ratio is the median of the ratios of neighbouring
//! runs; a longest wait is that of all runs. Every run writes JSON, by default to `bench/family.json` in the target folder.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml --bench family` adds the readers and writers of other crates. A
//! full run of that command writes its tables into `docs/performance.md`.
//!
//! The benchmark prints whether each target was reached. A missed target does not fail the run, because machines differ.

use std::process::ExitCode;

#[path = "locks/baselines.rs"]
mod baselines;
#[path = "family/calls.rs"]
mod calls;
#[path = "locks/candidates.rs"]
#[expect(dead_code, reason = "this benchmark measures other calls")]
mod candidates;
#[path = "locks/clock.rs"]
mod clock;
#[path = "peers/counts.rs"]
mod counts;
#[path = "peers/jvm.rs"]
#[expect(dead_code, reason = "this benchmark gives other orders")]
mod jvm;
#[path = "family/leader.rs"]
mod leader;
#[path = "locks/options.rs"]
#[expect(dead_code, reason = "each run of this benchmark has as many tasks")]
mod options;
#[path = "family/pages.rs"]
mod pages;
#[path = "locks/report.rs"]
#[expect(dead_code, reason = "this benchmark has other figures")]
mod report;
#[path = "family/run.rs"]
mod run;
#[path = "locks/runs.rs"]
#[expect(dead_code, reason = "this benchmark has no guarded function")]
mod runs;
#[path = "locks/waiters.rs"]
#[expect(dead_code, reason = "this benchmark gathers its tasks itself")]
mod waiters;
#[path = "family/workloads.rs"]
mod workloads;

fn main() -> ExitCode {
    run::main(false, async |_| Vec::new())
}
