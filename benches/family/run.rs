//! Runs the benchmark, with or without other Rust locks.

use std::{process::ExitCode, time::Duration};

use progress::Progress;
use support::{page, server::RedisServer};
use tokio::runtime;

use crate::{
    calls::Sit,
    leader::{self, LEAD},
    options::{self, Defaults, Options, Pace},
    pages,
    report::{self, Report},
    workloads::{self, Bench},
};

/// The number of threads that run tasks.
const WORKER_THREADS: usize = 2;

const DEFAULTS: Defaults = Defaults {
    pace: Pace {
        rounds: 5,
        span: Duration::from_secs(1),
        sizes: &options::SIZES,
    },
    workloads: &workloads::NAMES,
    file: "family.json",
    usage: "cargo bench --bench family -- [--quick] [--only readers,releases,mixed,permits,leader] [--json FILE]",
};

/// Runs the benchmark. `connect` connects the other Rust locks to the server at a URL. A full run writes its tables into
/// `docs/performance.md` if `has_page`.
pub(crate) fn main(
    has_page: bool,
    connect: impl AsyncFnOnce(&str) -> Vec<(&'static str, Sit)>,
) -> ExitCode {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .expect("the tokio runtime can be built");
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [LEAD, url] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        runtime.block_on(leader::lead(url));
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(args.into_iter(), &DEFAULTS) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let (setting, report) = runtime.block_on(measure(&options, connect));
    report.print();
    let markdown = format!("{setting}\n\n{}", pages::markdown(&report));
    println!("\n{markdown}");
    match report::write(&options.json, &report.json()) {
        Ok(()) => println!("written to {}", options.json.display()),
        Err(error) => eprintln!("{} cannot be written: {error}", options.json.display()),
    }
    let whole = workloads::NAMES.iter().all(|name| options.wants(name));
    if has_page && whole && options.pace.rounds == DEFAULTS.pace.rounds {
        let page = support::root().join("docs/performance.md");
        page::update(&page, "family", &markdown)
            .expect("the page contains the marks of the tables");
    }
    ExitCode::SUCCESS
}

async fn measure(
    options: &Options,
    connect: impl AsyncFnOnce(&str) -> Vec<(&'static str, Sit)>,
) -> (String, Report) {
    let names = workloads::NAMES.into_iter();
    let names = names.filter(|name| options.wants(name));
    let steps = names
        .clone()
        .map(|name| workloads::steps(name, options.pace));
    let progress = Progress::of_steps(steps.sum());
    let server = RedisServer::start().await;
    let others = connect(&server.url()).await;
    let mut bench = Bench::start(server, options.pace, progress, others).await;
    let mut report = Report::new(options.pace);
    for name in names {
        match name {
            workloads::READERS => bench.readers(&mut report).await,
            workloads::RELEASES => bench.releases(&mut report).await,
            workloads::MIXED => bench.mixed(&mut report).await,
            workloads::PERMITS => bench.permits(&mut report).await,
            _ => bench.leader(&mut report).await,
        }
    }
    (bench.setting(), report)
}
