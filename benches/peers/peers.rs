//! Compares this project's locks with their peers (the locks of other libraries) on a real Redis server. The benchmark
//! measures all locks in the workloads of `cargo bench --bench locks`, and tests how they react to faults.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml -- [--quick] [--only w3,faults] [--json FILE]`
//!
//! All locks run one after another on a server that the benchmark starts. The Rust locks run in this process with two
//! worker threads, and Redisson runs in a Java process. In the workload W5, each lock runs in four processes. Without a
//! JDK and Maven, Redisson is left out. A figure is the median of all rounds, and a ratio is the median of the ratios
//! within each round. A full run, without `--quick` and `--only`, writes its tables into `docs/peers.md` and
//! `docs/performance.md`, and draws `docs/performance.svg`. Every run writes JSON, by default to `bench/peers.json` in
//! the target folder.
//!
//! Some results of this project's own locks and of the baselines are known in advance. If a measurement contradicts
//! such a result, the benchmark panics. The benchmark asserts nothing about the behaviour of a peer.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use support::{page, server::RedisServer};
use tokio::runtime;

#[path = "../locks/baselines.rs"]
mod baselines;
#[expect(
    dead_code,
    reason = "only the benchmark `locks` counts commands by their names"
)]
#[path = "../locks/candidates.rs"]
mod candidates;
#[path = "../locks/clock.rs"]
mod clock;
mod counts;
mod faults;
mod jvm;
mod names;
#[path = "../locks/options.rs"]
mod options;
mod pages;
mod peer;
mod picture;
#[expect(
    dead_code,
    reason = "only the benchmark `locks` counts commands by their names"
)]
#[path = "../locks/processes.rs"]
mod processes;
#[expect(dead_code, reason = "only the benchmark `locks` has targets")]
#[path = "../locks/report.rs"]
mod report;
mod round_trips;
#[path = "../locks/runs.rs"]
mod runs;
#[path = "../locks/server_share.rs"]
mod server_share;
#[path = "../../examples/inventory/svg.rs"]
mod svg;
#[path = "../locks/waiters.rs"]
mod waiters;
mod workloads;

use crate::{
    options::{Defaults, Options, Pace},
    workloads::{Bench, Measured},
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
    file: "peers.json",
    usage: "cargo bench --manifest-path benches/peers/Cargo.toml -- [--quick] \
                     [--only w1,w2,w3,w4,w5,server,faults] [--json FILE]",
};

fn docs() -> PathBuf {
    support::root().join("docs")
}

fn main() -> ExitCode {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .expect("the tokio runtime can be built");
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((processes::WORKER, order)) = args.split_first().map(|(a, b)| (a.as_str(), b)) {
        runtime.block_on(processes::work(order, names::connect));
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(args.into_iter(), &DEFAULTS) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let measured = runtime.block_on(async {
        let server = RedisServer::start().await;
        let wanted = workloads::NAMES
            .into_iter()
            .filter(|name| options.wants(name));
        let mut bench = Bench::start(server, options.pace, wanted.collect()).await;
        bench.measure().await
    });
    show(&measured, &options)
}

fn show(measured: &Measured, options: &Options) -> ExitCode {
    measured.report.print();
    let (peers, performance) = (measured.peers_page(), measured.performance_page());
    println!("\n{peers}");
    for (name, text) in &performance {
        println!("\n{name}\n\n{text}");
    }
    let mut written = vec![(
        options.json.clone(),
        report::write(&options.json, &measured.json()),
    )];
    let whole = workloads::NAMES.iter().all(|name| options.wants(name));
    if whole && options.pace.rounds == DEFAULTS.pace.rounds {
        let [page, other, drawing] =
            ["peers.md", "performance.md", "performance.svg"].map(|name| docs().join(name));
        let done = page::update(&page, "measured", &peers);
        written.push((page, done));
        for (name, text) in &performance {
            let done = page::update(&other, name, text);
            written.push((other.clone(), done));
        }
        let done = report::write(&drawing, &picture::draw(measured));
        written.push((drawing, done));
    }
    for (path, done) in written {
        match done {
            Ok(()) => println!("written to {}", path.display()),
            Err(error) => {
                eprintln!("{} cannot be written: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
