//! A scheduler with one leader: three processes can run the jobs, and one of them does. The command kills the leader in the
//! middle, and the next one catches up on the jobs that were missed meanwhile. Then an operator asks the leader to resign.
//! The example needs `redis-server`.
//!
//! ```text
//! cargo run --example scheduler
//! ```

use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lock_runtime::{LockClient, LockError, Term, leader};
use support::{
    process::{Worker, dies_with_parent, signal},
    server::RedisServer,
};
use tokio::{sync::mpsc, time::sleep};

/// The time between two jobs. Each job is named by the number of such times since 1970.
const EVERY: Duration = Duration::from_millis(100);

/// Runs the jobs while this process leads. Prints each job with the token of the term, instead of doing something.
#[leader("scheduler", lease = "2s")]
async fn schedule(term: Term) -> Result<(), LockError> {
    let missed = term.vacant_for().unwrap_or_default();
    println!("leads {} {}", term.token(), missed.as_millis());
    // A leader that crashes can have run the first of these jobs, so a job must do no harm if it runs twice.
    let mut job = now() - count(missed) - 1;
    loop {
        while job <= now() {
            println!("job {job} {}", term.token());
            job += 1;
        }
        sleep(EVERY / 2).await;
    }
}

fn count(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / EVERY.as_millis()).unwrap_or_default()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    count(since.unwrap_or_default())
}

/// A process that can lead.
async fn candidate(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    LockClient::connect(url).await?.install()?;
    Ok(schedule().await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    if let Some(url) = std::env::args().nth(1) {
        return match candidate(&url).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await;
    let client = client.expect("the server accepts clients");
    let (says, mut said) = mpsc::unbounded_channel();
    let mut processes = Vec::new();
    for number in 0..3 {
        let this = std::env::current_exe().expect("this program has a path");
        let mut command = dies_with_parent(this);
        command.arg(server.url());
        let mut process = Worker::start(command);
        processes.push(process.pid());
        let says = says.clone();
        tokio::spawn(async move {
            while let Some(line) = process.line().await {
                let _ = says.send((number, line));
            }
        });
        // Candidates lead in the order in which they queue.
        support::until(async || {
            let status = client.lock("leader:scheduler").status().await;
            status.is_ok_and(|status| status.waiters == number && status.holder.is_some())
        })
        .await;
    }
    let (mut jobs, mut of_leader) = (BTreeSet::new(), 0);
    while let Some((number, line)) = said.recv().await {
        let mut words = line.split(' ');
        let (word, value) = (words.next(), words.next());
        if word == Some("leads") {
            let missed = words.next().unwrap_or_default();
            println!("process {number} leads, nobody led for {missed} ms");
            of_leader = 0;
        }
        let job: Option<u64> = value.and_then(|value| value.parse().ok());
        let Some(job) = job.filter(|_| word == Some("job")) else {
            continue;
        };
        jobs.insert(job);
        of_leader += 1;
        match (number, of_leader) {
            (0, 10) => {
                println!("  it has run 10 jobs, and is killed");
                signal(processes[0], "KILL");
            }
            (1, 50) => {
                println!("  it has run 50 jobs, and is asked to resign");
                let asked = client.leader("scheduler").dismiss().await;
                assert!(asked.is_ok_and(|leader| leader.is_some()));
            }
            (2, 10) => break,
            _ => {}
        }
    }
    let (first, last) = (jobs.first().copied(), jobs.last().copied());
    let all = first.unwrap_or_default()..=last.unwrap_or_default();
    let missing: Vec<u64> = all.clone().filter(|job| !jobs.contains(job)).collect();
    println!("{} jobs, {} of them missing", all.count(), missing.len());
    match missing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
