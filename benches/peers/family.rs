//! The benchmark `benches/family.rs` with the readers and writers of other crates.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml --bench family -- [--quick] [--only mixed] [--json FILE]`
//!
//! A full run writes its tables into `docs/performance.md`.

use std::process::ExitCode;

#[path = "../locks/baselines.rs"]
mod baselines;
#[path = "../family/calls.rs"]
mod calls;
#[path = "../locks/candidates.rs"]
#[expect(dead_code, reason = "this benchmark measures other calls")]
mod candidates;
#[path = "../locks/clock.rs"]
mod clock;
mod counts;
#[expect(dead_code, reason = "this benchmark gives other orders")]
mod jvm;
#[path = "../family/leader.rs"]
mod leader;
#[path = "../locks/options.rs"]
#[expect(dead_code, reason = "each run of this benchmark has as many tasks")]
mod options;
#[path = "../family/pages.rs"]
mod pages;
#[expect(dead_code, reason = "this benchmark measures readers and writers only")]
mod peer;
mod readers;
#[path = "../locks/report.rs"]
#[expect(dead_code, reason = "this benchmark has other figures")]
mod report;
#[path = "../family/run.rs"]
mod run;
#[path = "../locks/runs.rs"]
#[expect(dead_code, reason = "this benchmark has no guarded function")]
mod runs;
#[path = "../locks/waiters.rs"]
#[expect(dead_code, reason = "this benchmark gathers its tasks itself")]
mod waiters;
#[path = "../family/workloads.rs"]
mod workloads;

fn main() -> ExitCode {
    run::main(true, readers::connect)
}
