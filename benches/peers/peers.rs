//! Ours beside its peers, on a real Redis server: the workloads of `cargo bench --bench locks`, and what goes wrong.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml -- [--quick] [--only w3,faults] [--json FILE]`
//!
//! All take turns on one server of the benchmark's own. The Rust locks run in this process with two worker threads,
//! Redisson in a Java process, if there are a JDK and Maven. A figure is the median of all rounds, a ratio the median of
//! the ratios within each round. A whole run writes its tables into `docs/peers.md`; any run writes JSON, by default to
//! `bench/peers.json` in the target folder.
//!
//! What is known beforehand is asserted: a measurement that is off ends the run with a panic. What a peer does is shown.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use support::{page, server::RedisServer};
use tokio::runtime;

#[path = "../locks/clock.rs"]
mod clock;
#[path = "../locks/contenders.rs"]
mod contenders;
#[path = "../locks/crowd.rs"]
mod crowd;
mod faults;
#[path = "../locks/floors.rs"]
mod floors;
mod jvm;
#[path = "../locks/options.rs"]
mod options;
#[expect(dead_code, reason = "targets are the other benchmark's")]
#[path = "../locks/report.rs"]
mod report;
mod rivals;
#[path = "../locks/runs.rs"]
mod runs;
mod workloads;

use crate::{
    options::{Defaults, Options, Pace},
    workloads::{Bench, Measured},
};

/// Threads that run tasks.
const WORKER_THREADS: usize = 2;

const DEFAULTS: Defaults = Defaults {
    pace: Pace {
        rounds: 5,
        span: Duration::from_secs(1),
    },
    workloads: &workloads::NAMES,
    file: "peers.json",
    usage: "cargo bench --manifest-path benches/peers/Cargo.toml -- [--quick] \
                     [--only w1,w2,w3,w4,faults] [--json FILE]",
};

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/peers.md")
}

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1), &DEFAULTS) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let measured = runtime.block_on(async {
        let server = RedisServer::start().await;
        let mut bench = Bench::start(server, options.pace).await;
        bench.measure(|name| options.wants(name)).await
    });
    show(&measured, &options)
}

fn show(measured: &Measured, options: &Options) -> ExitCode {
    measured.report.print();
    println!("\n{}", measured.markdown());
    let mut written = vec![(
        options.json.clone(),
        report::write(&options.json, &measured.json()),
    )];
    let whole = workloads::NAMES.iter().all(|name| options.wants(name));
    if whole && options.pace.rounds == DEFAULTS.pace.rounds {
        let path = page_path();
        let done = page::update(&path, "measured", &measured.markdown());
        written.push((path, done));
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
