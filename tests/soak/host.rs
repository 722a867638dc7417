//! The host: it starts the server and the workers, lets things go wrong, and judges what was seen.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use support::{
    process::{self, Worker, dies_with_parent},
    proxy::FaultProxy,
    server::RedisServer,
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::{
    Options,
    chaos::Chaos,
    ledger::{Found, Ledger, Visit},
    plan::{DELETED_FROM, now, read_outcomes},
};

/// A visit is reported within this time after it began.
const LAG: Duration = Duration::from_secs(30);
const PROGRESS: Duration = Duration::from_secs(10);
/// How long what is left may take to end: without faults everybody has cleaned up behind himself, after faults the last
/// leases and queues have to run out.
const DRAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What all workers have said.
#[derive(Debug)]
struct Seen {
    ledger: Ledger,
    /// Of each process, the newest; those that were killed stay.
    outcomes: Vec<BTreeMap<String, u64>>,
    ended: usize,
}

/// The workers' processes.
#[derive(Debug)]
pub(crate) struct Crew {
    pids: Vec<AtomicU32>,
}

impl Crew {
    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.pids[index].load(Ordering::Acquire)
    }

    /// Kills one; another takes its place.
    pub(crate) fn kill(&self, index: usize) {
        process::signal(self.pid(index), "KILL");
    }
}

/// The memory that a process has, in KiB; `None` where the system does not say.
fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Keeps one place filled with a worker process, and passes on what it says.
async fn employ(
    index: usize,
    url: String,
    options: Options,
    crew: Arc<Crew>,
    seen: Arc<Mutex<Seen>>,
    mut stop: watch::Receiver<bool>,
) {
    for incarnation in 0_u64.. {
        let this = std::env::current_exe().expect("a program knows its file");
        let seed = options.seed ^ ((index as u64) << 16) ^ (incarnation << 8);
        let mut command: Command = dies_with_parent(this);
        command
            .args([
                "worker",
                &url,
                &options.tasks.to_string(),
                &seed.to_string(),
            ])
            .arg(if options.faults { "faults" } else { "calm" })
            .stderr(Stdio::inherit());
        let mut worker = Worker::obeying(command);
        crew.pids[index].store(worker.pid(), Ordering::Release);
        let place = {
            let mut seen = seen.lock().expect("nobody panics here");
            seen.outcomes.push(BTreeMap::new());
            seen.outcomes.len() - 1
        };
        let mut told = false;
        let killed = loop {
            let line = tokio::select! {
                line = worker.line() => line,
                _ = stop.wait_for(|stop| *stop), if !told => {
                    worker.tell("stop");
                    told = true;
                    continue;
                }
            };
            let Some(line) = line else { break true };
            let mut seen = seen.lock().expect("nobody panics here");
            if let Some(visit) = Visit::read(&line) {
                seen.ledger.add(visit);
            } else if let Some(outcomes) = read_outcomes(&line) {
                seen.outcomes[place] = outcomes;
            } else if line == "ended" {
                seen.ended += 1;
                break false;
            }
        };
        if !killed || *stop.borrow() {
            return;
        }
    }
}

/// Runs the soak; whether all is as promised.
pub(crate) async fn run(options: Options) -> bool {
    println!("seed {}", options.seed);
    let builder = RedisServer::builder().arg("--loglevel", "warning");
    let mut server = if options.faults {
        builder.aof_always().start().await
    } else {
        builder.start().await
    };
    let mut proxies = Vec::new();
    for _ in 0..options.processes {
        proxies.push(FaultProxy::start(server.port()).await);
    }
    let crew = Arc::new(Crew {
        pids: (0..options.processes).map(|_| AtomicU32::new(0)).collect(),
    });
    let seen = Arc::new(Mutex::new(Seen {
        ledger: Ledger::new(DELETED_FROM),
        outcomes: Vec::new(),
        ended: 0,
    }));
    let (stop, stopped) = watch::channel(false);
    let mut workers = JoinSet::new();
    for (index, proxy) in proxies.iter().enumerate() {
        // Without faults nothing stands between.
        let url = if options.faults {
            proxy.url()
        } else {
            server.url()
        };
        let (options, crew) = (options.clone(), crew.clone());
        workers.spawn(employ(
            index,
            url,
            options,
            crew,
            seen.clone(),
            stopped.clone(),
        ));
    }
    let started = Instant::now();
    let mut chaos = Chaos::new(options.seed);
    let (mut next_progress, mut early_memory) = (PROGRESS, None);
    let found = || seen.lock().expect("nobody panics here").ledger.found();
    loop {
        if options.faults {
            chaos.strike(&mut server, &proxies, &crew).await;
        } else {
            sleep(Duration::from_millis(200)).await;
        }
        let (elapsed, visits) = (started.elapsed(), found().visits);
        if elapsed >= next_progress {
            next_progress += PROGRESS;
            let lag = u64::try_from(LAG.as_nanos()).unwrap_or(u64::MAX);
            let mut seen = seen.lock().expect("nobody panics here");
            seen.ledger.settle(now().saturating_sub(lag));
            println!("{:>5} s  {visits} acquisitions", elapsed.as_secs());
        }
        let part = options.part(elapsed, visits);
        if part >= 0.1 && early_memory.is_none() {
            early_memory = memory(std::process::id()).zip(memory(crew.pid(0)));
        }
        if part >= 1.0 {
            break;
        }
    }
    let late_memory = memory(std::process::id()).zip(memory(crew.pid(0)));
    let took = started.elapsed();
    stop.send_replace(true);
    while let Some(ended) = workers.join_next().await {
        ended.expect("nobody panics here");
    }
    let patience = if options.faults { DRAIN.1 } else { DRAIN.0 };
    let left = drained(&server, patience).await;
    let mut seen = seen.lock().expect("nobody panics here");
    seen.ledger.settle(u64::MAX);
    let memory = early_memory.zip(late_memory).filter(|_| !options.faults);
    report(&options, &seen, &chaos, took, memory, &left)
}

/// The keys that are left after this time.
async fn drained(server: &RedisServer, patience: Duration) -> Vec<String> {
    let started = Instant::now();
    loop {
        let mut keys = server.keys().await;
        keys.retain(|key| key != "lock:fence");
        if keys.is_empty() || started.elapsed() > patience {
            return keys;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

type Memory = (u64, u64);

fn report(
    options: &Options,
    seen: &Seen,
    chaos: &Chaos,
    took: Duration,
    memory: Option<(Memory, Memory)>,
    left: &[String],
) -> bool {
    let Found {
        visits,
        overlaps,
        allowed,
        repeated,
        fallen,
    } = seen.ledger.found();
    let rate = u128::from(visits) * 1000 / took.as_millis().max(1);
    println!(
        "\n{visits} acquisitions by {} processes with {} tasks each in {} s, {rate} a second",
        options.processes,
        options.tasks,
        took.as_secs()
    );
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    let mut unaccounted = 0;
    for outcomes in &seen.outcomes {
        let ended: u64 = outcomes
            .iter()
            .filter(|(name, _)| *name != "begun")
            .map(|(_, n)| n)
            .sum();
        unaccounted += outcomes.get("begun").copied().unwrap_or(0) - ended;
        for (name, count) in outcomes {
            *total.entry(name).or_default() += count;
        }
    }
    let counts: Vec<_> = total
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    println!("calls: {}", counts.join(", "));
    let killed = seen.outcomes.len() - seen.ended;
    println!("{unaccounted} calls without an end, in {killed} processes that were killed");
    let all: u64 = chaos.injected.values().sum();
    if all > 0 {
        let shares = chaos.injected.iter().map(|(fault, count)| {
            let share = 100 * count / all;
            format!("{fault:?} {count} ({share} %)")
        });
        println!("{all} faults: {}", shares.collect::<Vec<_>>().join(", "));
        println!("{allowed} overlaps where an operator had deleted the key, whose tokens rose");
    }
    let mut fine = overlaps + repeated + fallen == 0 && left.is_empty() && visits > 0;
    // Only who was killed leaves without a word.
    fine &= unaccounted == 0 || killed > 0;
    if let Some(((host, worker), (late_host, late_worker))) = memory {
        println!("memory: host {host} → {late_host} KiB, worker {worker} → {late_worker} KiB");
        fine &= late_worker < worker + worker / 4 + 16 * 1024;
    }
    println!(
        "{overlaps} overlaps, {repeated} repeated tokens, {fallen} fallen, {} keys left",
        left.len()
    );
    if !left.is_empty() {
        println!("left: {left:?}");
    }
    if !fine {
        println!("NOT as promised; seed {}", options.seed);
    }
    fine
}
