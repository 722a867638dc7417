//! What a lock costs beside the least that a lock by hand can cost, on a real Redis server.
//!
//! `cargo bench --bench locks -- [--quick] [--only w3,w5] [--json FILE]`
//!
//! Ours and the floors (see `floors.rs`) take turns on one server of the benchmark's own, in one process with two
//! worker threads; a figure is the median of five rounds, and a ratio the median of the ratios within each round, so
//! that a machine that slows down slows both. `--quick` is one short round; so is a run without `--bench`, which is how
//! `cargo test --all-targets` starts it. The table is also written as JSON, by default to `bench/locks.json` in the
//! target folder.
//!
//! A target missed is printed, and fails nothing: machines differ. Two bodies seen inside one lock end the benchmark
//! with status 1.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use support::server::{RedisServer, is_installed};
use tokio::runtime;

#[path = "locks/contenders.rs"]
mod contenders;
#[path = "locks/crowd.rs"]
mod crowd;
#[path = "locks/floors.rs"]
mod floors;
#[path = "locks/processes.rs"]
mod processes;
#[path = "locks/report.rs"]
mod report;
#[path = "locks/workloads.rs"]
mod workloads;

use crate::{report::Report, workloads::Bench};

/// Threads that run tasks, in every process.
const WORKER_THREADS: usize = 2;

const USAGE: &str = "cargo bench --bench locks -- [--quick] [--only w1,w2,w3,w4,w5] [--json FILE]";

/// How often and how long.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rounds: usize,
    /// What is measured of a run, after a tenth of it to warm up.
    span: Duration,
}

impl Pace {
    const FULL: Self = Self {
        rounds: 5,
        span: Duration::from_secs(2),
    };
    const QUICK: Self = Self {
        rounds: 1,
        span: Duration::from_secs(1),
    };
}

/// What the command line asks for.
#[derive(Debug)]
struct Options {
    pace: Pace,
    only: Vec<String>,
    json: PathBuf,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut quick, mut as_benchmark) = (false, false);
        let mut only = Vec::new();
        let mut json = None;
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => quick = true,
                "--bench" => as_benchmark = true,
                "--only" => only.extend(value()?.split(',').map(str::to_lowercase)),
                "--json" => json = Some(PathBuf::from(value()?)),
                _ => return Err(format!("{arg} is not an option")),
            }
        }
        if let Some(name) = only
            .iter()
            .find(|name| !workloads::NAMES.contains(&name.as_str()))
        {
            return Err(format!("there is no workload {name}"));
        }
        Ok(Self {
            pace: if quick || !as_benchmark {
                Pace::QUICK
            } else {
                Pace::FULL
            },
            only,
            json: json.unwrap_or_else(default_json),
        })
    }

    fn wants(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == workload)
    }
}

fn default_json() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    PathBuf::from(target).join("bench").join("locks.json")
}

/// Now, in ns since 1970: the one clock that all processes of a run share.
fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    nanos(since)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until a time of [`now`].
async fn sleep_until(moment: u64) {
    tokio::time::sleep(Duration::from_nanos(moment.saturating_sub(now()))).await;
}

fn main() -> ExitCode {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((processes::WORKER, order)) = args.split_first().map(|(a, b)| (a.as_str(), b)) {
        runtime.block_on(processes::work(order));
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(args.into_iter()) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    if !is_installed("redis-server") {
        eprintln!(
            "the benchmark starts a server of its own, and redis-server is not installed: `sh tests/check.sh` \
             installs it, or use the package redis-server (apt-get) or redis (brew)"
        );
        return ExitCode::from(2);
    }
    let report = runtime.block_on(measure(&options));
    report.print();
    match report.write(&options.json) {
        Ok(()) => println!("\nwritten to {}", options.json.display()),
        Err(error) => eprintln!("\n{} cannot be written: {error}", options.json.display()),
    }
    if report.overlaps() > 0 {
        eprintln!(
            "{} times two bodies were inside one lock",
            report.overlaps()
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn measure(options: &Options) -> Report {
    let bench = Bench::start(RedisServer::start().await, options.pace).await;
    let mut report = Report::new(options.pace);
    for name in workloads::NAMES {
        if !options.wants(name) {
            continue;
        }
        eprintln!("{name} …");
        match name {
            workloads::ONE_BY_ONE => bench.one_by_one(&mut report).await,
            workloads::OWN_KEYS => bench.own_keys(&mut report).await,
            workloads::ONE_KEY => bench.one_key(&mut report).await,
            workloads::CALLERS => bench.callers(&mut report).await,
            _ => bench.processes(&mut report).await,
        }
    }
    report
}
