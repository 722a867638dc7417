//! Measures what spans and metrics cost. The benchmark compares the rates with and without a subscriber of the spans
//! and a recorder of the metrics. The benchmark measures one task with its own key, and 64 tasks that want one key.
//!
//! `cargo bench -p lock-tests --features metrics --bench observed`
//!
//! Each run is a process of its own, because a process can install only one subscriber and one recorder. In each round,
//! every setting runs once. The benchmark computes a ratio within each round, and prints the median of these ratios.

use std::{
    env, io,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lock_runtime::LockClient;
use progress::Progress;
use support::server::RedisServer;
use tokio::runtime::Builder;
use tracing_subscriber::{filter::Targets, fmt::format::FmtSpan, prelude::*};

/// The length of a measured run. The run first warms up for a tenth of this time.
const SPAN: Duration = Duration::from_secs(1);
const ROUNDS: usize = 15;
/// The number of tasks that want one key.
const TASKS: usize = 64;
/// The first argument of a process that measures one run.
const RUN: &str = "run";
const WORKLOADS: [(&str, &str); 2] = [("w1", "one task, its own key"), ("w3", "64 tasks, one key")];

/// The possible settings of a run. A setting says which listeners to spans and metrics are installed.
const SETTINGS: [(&str, &str); 4] = [
    ("nobody", "nobody listens"),
    ("spans", "spans, as text"),
    ("metrics", "metrics, for Prometheus"),
    ("both", "spans and metrics"),
];

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [run, setting, workload, url] if run == RUN => {
            listen(setting);
            println!("{}", rate(workload, url));
        }
        // `cargo test --all-targets` starts the benchmark without this argument.
        args if args.iter().any(|argument| argument == "--bench") => compare(ROUNDS, SPAN),
        _ => compare(1, SPAN / 10),
    }
}

/// Installs the subscriber and the recorder of a setting.
fn listen(setting: &str) {
    if matches!(setting, "spans" | "both") {
        // Each span is written as a line of text when it ends.
        let spans = tracing_subscriber::fmt::layer()
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(io::sink);
        let only = Targets::new().with_target("lock_runtime::span", tracing::Level::DEBUG);
        tracing_subscriber::registry()
            .with(spans.with_filter(only))
            .init();
    }
    if matches!(setting, "metrics" | "both") {
        let builder = metrics_exporter_prometheus::PrometheusBuilder::new();
        builder
            .install_recorder()
            .expect("the process has no other recorder");
        lock_runtime::describe_metrics();
    }
}

/// Returns the number of acquisitions per second.
fn rate(workload: &str, url: &str) -> f64 {
    let tasks = if workload == "w1" { 1 } else { TASKS };
    let span = Duration::from_millis(
        env::var("SPAN_MS")
            .expect("the length")
            .parse()
            .expect("ms"),
    );
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let client = LockClient::connect(url).await.expect("the server answers");
        let entered = Arc::new(AtomicU64::new(0));
        let tasks = (0..tasks).map(|_| {
            let (lock, entered) = (client.lock("k"), entered.clone());
            tokio::spawn(async move {
                loop {
                    lock.run(async {}).await.expect("the lock is granted");
                    entered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        tokio::time::sleep(span / 10).await;
        let (began, before) = (Instant::now(), entered.load(Ordering::Relaxed));
        tokio::time::sleep(span).await;
        let after = entered.load(Ordering::Relaxed);
        let took = began.elapsed();
        // The tasks end before the shutdown, which would refuse their next call.
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        client.shutdown().await;
        (after - before) as f64 / took.as_secs_f64()
    })
}

/// Runs all settings in turn, and prints their rates and ratios.
fn compare(rounds: usize, span: Duration) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(RedisServer::start());
    println!("| | {} |", SETTINGS.map(|(_, name)| name).join(" | "));
    println!("|---|{}", "---|".repeat(SETTINGS.len()));
    let progress = Progress::of_steps(WORKLOADS.len() * rounds);
    for (workload, title) in WORKLOADS {
        let measured: Vec<Vec<f64>> = (1..=rounds)
            .map(|round| {
                progress.begin(format_args!("{title}, round {round} of {rounds}"));
                let run =
                    |(setting, _): &(&str, &str)| one_run(setting, workload, &server.url(), span);
                SETTINGS.iter().map(run).collect()
            })
            .collect();
        let cells = (0..SETTINGS.len()).map(|setting| {
            let rate = median(measured.iter().map(|round| round[setting]));
            let ratio = median(measured.iter().map(|round| round[setting] / round[0]));
            format!("{rate:.0}/s ({ratio:.2} ×)")
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        progress::suspend(|| println!("| {title} | {cells} |"));
    }
}

fn one_run(setting: &str, workload: &str, url: &str, span: Duration) -> f64 {
    let this = env::current_exe().expect("the path of this program");
    let output = Command::new(this)
        .args([RUN, setting, workload, url])
        .env("SPAN_MS", span.as_millis().to_string())
        .stderr(Stdio::inherit())
        .output()
        .expect("this program can be started again");
    let text = String::from_utf8(output.stdout).expect("a number");
    text.trim().parse().expect("a number")
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
