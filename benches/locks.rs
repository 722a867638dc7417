//! Compares the cost of a lock with the cost of minimal hand-written locks, on a real Redis server.
//!
//! `cargo bench --bench locks -- [--quick] [--only w3,w5] [--json FILE]`
//!
//! This project's locks and the baselines (minimal locks in `baselines.rs`) run one after another on a server that the
//! benchmark starts. The tasks that use a lock run in one process with two worker threads. In the workload W5, the
//! tasks run in four processes with two worker threads each. A figure is the median of all rounds. A ratio is first
//! computed within each round, because a machine that slows down slows all locks of the round. The printed ratio is the
//! median of all rounds. `--quick` runs one round without the largest number of tasks. A run without the argument
//! `--bench` is quick too, because `cargo test --all-targets` starts the benchmark without that argument. The benchmark
//! prints its tables, and writes them as JSON, by default to `bench/locks.json` in the target folder.
//!
//! The workload `cluster` compares a Redis Cluster of three primaries with one server. A full run, which is any run
//! that is not quick, writes the results of this workload into `docs/performance.md`.
//!
//! The benchmark prints whether each target was reached. A missed target does not fail the run, because machines
//! differ. If two bodies held one lock at the same time, the run ends with status 1.

use std::{process::ExitCode, time::Duration};

use progress::Progress;
use support::{page, server::RedisServer};
use tokio::runtime;

#[path = "locks/baselines.rs"]
mod baselines;
#[path = "locks/candidates.rs"]
mod candidates;
#[path = "locks/clock.rs"]
mod clock;
#[path = "locks/cluster.rs"]
mod cluster;
#[path = "locks/options.rs"]
mod options;
#[path = "locks/processes.rs"]
mod processes;
#[expect(dead_code, reason = "only the benchmark of the peers writes pages")]
#[path = "locks/report.rs"]
mod report;
#[path = "locks/runs.rs"]
mod runs;
#[path = "locks/server_share.rs"]
mod server_share;
#[path = "locks/waiters.rs"]
mod waiters;
#[path = "locks/workloads.rs"]
mod workloads;

use crate::{
    candidates::Candidate,
    options::{Defaults, Options, Pace},
    report::Report,
    workloads::Bench,
};

/// The number of threads that run tasks in each process.
const WORKER_THREADS: usize = 2;

const DEFAULTS: Defaults = Defaults {
    pace: Pace {
        rounds: 5,
        span: Duration::from_secs(1),
        sizes: &options::SIZES,
    },
    workloads: &workloads::NAMES,
    file: "locks.json",
    usage: "cargo bench --bench locks -- [--quick] [--only w1,w2,w3,w4,w5,reentry,server,cluster] [--json FILE]",
};

fn main() -> ExitCode {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .expect("the tokio runtime can be built");
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((processes::WORKER, order)) = args.split_first().map(|(a, b)| (a.as_str(), b)) {
        runtime.block_on(processes::work(order, async |who, url| {
            Candidate::connect(who.parse().expect("a lock's name"), url).await
        }));
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(args.into_iter(), &DEFAULTS) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let report = runtime.block_on(measure(&options));
    report.print();
    match report::write(&options.json, &report.json()) {
        Ok(()) => println!("\nwritten to {}", options.json.display()),
        Err(error) => eprintln!("\n{} cannot be written: {error}", options.json.display()),
    }
    if let Some(table) = report
        .of(cluster::ID)
        .filter(|_| options.pace.rounds != Pace::QUICK.rounds)
    {
        let page = support::root().join("docs/performance.md");
        let markdown = cluster::markdown(table, options.pace);
        page::update(&page, workloads::CLUSTER, &markdown)
            .expect("the page contains the marks of the table");
    }
    if report.overlaps() > 0 {
        eprintln!(
            "two bodies held one lock at the same time in {} cases",
            report.overlaps()
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn measure(options: &Options) -> Report {
    let names = workloads::NAMES.iter().copied();
    let names = names.filter(|name| options.wants(name));
    let steps = names
        .clone()
        .map(|name| workloads::steps(name, options.pace));
    let progress = Progress::of_steps(steps.sum());
    let bench = Bench::start(RedisServer::start().await, options.pace, progress).await;
    let mut report = Report::new(options.pace);
    for name in names {
        match name {
            workloads::ONE_BY_ONE => bench.one_by_one(&mut report).await,
            workloads::OWN_KEYS => bench.own_keys(&mut report).await,
            workloads::ONE_KEY => bench.one_key(&mut report).await,
            workloads::CALLERS => bench.callers(&mut report).await,
            workloads::PROCESSES => bench.processes(&mut report).await,
            workloads::REENTRY => bench.reentry(&mut report).await,
            workloads::CLUSTER => {
                cluster::measure(options.pace, &mut report, bench.progress()).await;
            }
            _ => {
                bench.progress().begin(name);
                report.table(server_share::measure(options.pace).await);
            }
        }
    }
    report
}
