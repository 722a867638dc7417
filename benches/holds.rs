//! Measures what many holds and many waiting calls cost their process. The benchmark answers three questions. Are
//! 100,000 leases renewed in time? How much processor time does the engine's thread need for the renewals? How much
//! memory does a held lock need, and how much a waiting call?
//!
//! `cargo bench --bench holds -- [--quick] [--only renewals,held,waiting]`
//!
//! The benchmark starts a Redis server. The benchmark measures memory both with this server and with the in-memory
//! backend, and renewals only with the server. The memory is the number of bytes that the process has requested from
//! its allocator and has not freed. With `--quick`, the benchmark acquires fewer locks and observes them for a shorter
//! time. A run without the argument `--bench` is quick too, because `cargo test --all-targets` starts the benchmark
//! without that argument.
//!
//! The benchmark prints whether each target was reached. A missed target does not fail the run, because machines
//! differ. If a lease is lost, the run ends with status 1.

use std::{alloc::System, process::ExitCode, time::Duration};

use progress::Progress;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::server::{RedisServer, is_installed};
use tokio::runtime;

#[path = "holds/memory.rs"]
mod memory;
#[path = "holds/renewals.rs"]
mod renewals;
#[path = "holds/targets.rs"]
mod targets;
#[path = "holds/threads.rs"]
mod threads;

use crate::targets::Targets;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WORKLOADS: [&str; 3] = ["renewals", "held", "waiting"];
const USAGE: &str = "cargo bench --bench holds -- [--quick] [--only renewals,held,waiting]";

/// The size of a run: the number of held locks, the number of waiting calls, the lease, and the time of observation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) holds: usize,
    pub(crate) waiting: usize,
    pub(crate) lease: Duration,
    /// The time during which the benchmark observes the renewals.
    pub(crate) span: Duration,
}

impl Scale {
    const WHOLE: Self = Self {
        holds: 100_000,
        waiting: 10_000,
        lease: Duration::from_secs(30),
        span: Duration::from_secs(45),
    };
    const QUICK: Self = Self {
        holds: 1_000,
        waiting: 200,
        lease: Duration::from_secs(3),
        span: Duration::from_secs(3),
    };
}

fn main() -> ExitCode {
    let (mut quick, mut as_benchmark) = (false, false);
    let mut only = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--bench" => as_benchmark = true,
            "--only" => only.extend(
                args.next()
                    .iter()
                    .flat_map(|list| list.split(','))
                    .map(str::to_owned),
            ),
            _ => {
                eprintln!("{arg} is not an option\nusage: {USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    if let Some(name) = only.iter().find(|name| !WORKLOADS.contains(&name.as_str())) {
        eprintln!("there is no workload {name}\nusage: {USAGE}");
        return ExitCode::from(2);
    }
    if !is_installed("redis-server") {
        eprintln!(
            "the benchmark starts a server of its own, and redis-server is not installed: see tests/check.sh"
        );
        return ExitCode::from(2);
    }
    let scale = if quick || !as_benchmark {
        Scale::QUICK
    } else {
        Scale::WHOLE
    };
    let wants = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the tokio runtime can be built");
    let targets = runtime.block_on(measure(scale, wants));
    targets.print();
    ExitCode::from(u8::from(targets.lost > 0))
}

async fn measure(scale: Scale, wants: impl Fn(&str) -> bool) -> Targets {
    let server = RedisServer::start().await;
    let mut targets = Targets::default();
    let urls = [("Redis", server.url()), ("in process", "memory:".into())];
    let steps = [1, urls.len(), urls.len() * memory::KINDS];
    let steps = WORKLOADS.iter().zip(steps);
    let steps = steps.filter_map(|(name, steps)| wants(name).then_some(steps));
    let progress = Progress::of_steps(steps.sum());
    if wants(WORKLOADS[0]) {
        renewals::measure(&server, scale, &mut targets, &progress).await;
    }
    for (place, url) in &urls {
        if wants(WORKLOADS[1]) {
            memory::held(place, url, scale, &mut targets, &progress).await;
        }
        if wants(WORKLOADS[2]) {
            memory::waiting(place, url, scale, &mut targets, &progress).await;
        }
    }
    targets
}
