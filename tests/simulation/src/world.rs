//! One run of a plan: simulates the servers, the network and the processes on one thread, without waiting in real time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_runtime::{LockClient, LockGuard};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    callers::{self, Caller, FUNCTION_LEASE, Leaked, Process},
    chance::Chance,
    faults::Fault,
    history::{History, Line},
    ledger::{Counts, Ledger, Violation},
    network::{HostId, Layout, Membership, Network, ServerId, Way},
    panics,
    plan::{GROUP, Plan, Store},
    process,
    stop::StopSignal,
    topology::{Shard, SlotMap},
    watchdog,
};

/// The longest time that a shutdown is allowed to take: 10 s for the holds, and 2 s for the delays of messages.
const SHUTDOWN: Duration = Duration::from_secs(12);

/// The time for which a shutdown waits for a server that does not answer.
const SILENT: Duration = Duration::from_secs(10);
/// The `wait` and the lease of a guard that outlasts the shutdown of its client.
const OUTLASTS: Duration = Duration::from_secs(1);

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The counters of the run.
    pub counts: Counts,
    /// The violations of promises.
    pub violations: Vec<Violation>,
    /// The number of commands that servers carried out.
    pub commands: u64,
    /// The simulated length of the run, in milliseconds.
    pub passed: u64,
    /// The number of events in the history.
    pub events: u64,
    /// The events of the history, if they were stored.
    pub lines: Vec<Line>,
}

/// A process and its tasks.
struct Running {
    client: LockClient,
    tasks: JoinSet<Option<()>>,
    process: Process,
    /// The number of the runtime that was started last.
    newest_runtime: u32,
}

/// Starts a task of a process on the runtime with this number.
fn spawn(tasks: &mut JoinSet<Option<()>>, stop: &StopSignal, runtime: u32, caller: Arc<Caller>) {
    tasks.spawn(stop.clone().while_running(runtime, caller.live()));
}

/// The time for which callers make calls after the last fault.
const RECOVERY: Duration = Duration::from_secs(6);

/// The pause between two searches for forgotten waiters.
const LOOK: Duration = Duration::from_millis(500);
/// The number of comparisons between the ledger and the servers for each search for forgotten waiters.
const COMPARISONS: u32 = 10;

/// The number of started bodies after which callers begin no further calls. Without a network delay, callers enter so
/// often that a run could otherwise take more time than hundreds of others.
const MOST_ENTERED: u64 = 10_000;

/// The simulated world of one run: its servers, network, processes and faults.
pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) network: Network,
    pub(crate) ledger: Ledger,
    /// The random numbers for the faults.
    pub(crate) chance: Chance,
    /// The random numbers for the quirks of clients (see [`Plan::quirks`]).
    quirks: Chance,
    /// Set when the time of the plan is over or a promise is broken. Callers then begin no further calls.
    pub(crate) is_over: Arc<AtomicBool>,
    running: Mutex<BTreeMap<HostId, Running>>,
    /// The clients and processes of hosts that were killed or shut down.
    dead: Mutex<Vec<(LockClient, Process)>>,
    /// The time at which each node of a Redlock last lost its state.
    pub(crate) lost: Mutex<BTreeMap<ServerId, Instant>>,
    /// The guards that callers have leaked. They are dropped together with the world, because the world's memory could
    /// otherwise never be freed.
    leaked: Leaked,
    /// The primaries, each with its replicas.
    pub(crate) shards: Mutex<Vec<Shard>>,
    /// The map from slots to the shards of the cluster that store them.
    pub(crate) slots: Mutex<SlotMap>,
    /// The number of hosts on which `start` has tried to start a process so far.
    used: Mutex<HostId>,
}

/// Carries out a plan. If `kept` is set, stores the events for the timeline.
///
/// # Panics
/// If no runtime can be built.
#[must_use]
pub fn run(plan: &Plan, kept: bool) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be made");
    panics::watch();
    let _watched = watchdog::watch(plan.seed);
    let mut outcome = runtime.block_on(carry_out(plan, kept));
    drop(runtime);
    if let Some(panic) = panics::last() {
        outcome.violations.push(Violation {
            at: outcome.passed,
            promise: "nothing panics",
            seen: panic,
        });
    }
    outcome
}

async fn carry_out(plan: &Plan, kept: bool) -> Outcome {
    let history = History::new(kept);
    let hosts = plan.processes + plan.spares;
    let chance = Chance::new(plan.seed, 1);
    let layout = Layout {
        stores: plan.store.servers(),
        membership: match plan.store {
            Store::Cluster { .. } => Membership::Cluster,
            _ => Membership::None,
        },
        sentinels: plan.store.sentinels(),
        group: GROUP,
        hosts,
        delay: plan.delay,
        lag: plan.lag,
    };
    let network = Network::new(&layout, chance, history.clone());
    let driving = tokio::spawn(network.clone().run());
    let plan = Arc::new(plan.clone());
    let world = World {
        ledger: Ledger::new(history.clone(), network.clone(), &plan),
        plan: plan.clone(),
        network,
        chance: Chance::new(plan.seed, 2),
        quirks: Chance::new(plan.seed, 7),
        is_over: Arc::default(),
        running: Mutex::default(),
        dead: Mutex::default(),
        leaked: Leaked::default(),
        lost: Mutex::default(),
        used: Mutex::new(0),
        shards: Mutex::default(),
        slots: Mutex::default(),
    };
    world.arrange();
    for _ in 0..plan.processes {
        world.start().await;
    }
    world.play().await;
    world.end().await;
    let of_server = |server| world.network.at_server(server, |redis, _| redis.commands());
    let commands = (0..plan.store.servers()).map(of_server).sum();
    let (counts, violations) = world.ledger.results();
    for (_, process) in &*world.dead.lock().unwrap_or_else(PoisonError::into_inner) {
        process.drop_forgotten();
    }
    drop(world);
    driving.abort();
    Outcome {
        counts,
        violations,
        commands,
        passed: history.now(),
        events: history.len(),
        lines: history.lines(),
    }
}

impl World {
    /// Starts a process on an unused host. Starts no process if all hosts are used, or if the client cannot connect,
    /// for example because the server is down.
    async fn start(&self) {
        let host = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            if *used == self.plan.processes + self.plan.spares {
                return;
            }
            *used += 1;
            *used - 1
        };
        let stream = 1_000 * (1 + host as u64);
        let drift = match self.plan.drift {
            0 => 0,
            most => self.chance.among(0..2 * most).cast_signed() - most.cast_signed(),
        };
        let random = Chance::new(self.plan.seed, stream);
        let stop = StopSignal::default();
        let (plan, stopping) = (&self.plan, stop.clone());
        let started = process::start(host, &self.network, random, drift, plan, stopping).await;
        let Ok(client) = started else {
            return;
        };
        let process = Process {
            host,
            client: client.clone(),
            ledger: self.ledger.clone(),
            plan: self.plan.clone(),
            is_over: self.is_over.clone(),
            closes: Arc::default(),
            forgotten: Arc::default(),
            leaked: self.leaked.clone(),
            leaks: Arc::default(),
            stop: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        for task in 0..self.plan.tasks {
            let chance = Chance::new(self.plan.seed, stream + 1 + task as u64);
            let orders = Chance::new(self.plan.seed, stream + 501 + task as u64);
            let runtime = task as u32 % self.plan.runtimes;
            let extras = Chance::new(self.plan.seed, stream + 751 + task as u64);
            let unpolled = Chance::new(self.plan.seed, stream + 901 + task as u64);
            let habits = Chance::new(self.plan.seed, stream + 951 + task as u64);
            let quirks = Chance::new(self.plan.seed, stream + 601 + task as u64);
            let readers = Chance::new(self.plan.seed, stream + 651 + task as u64);
            let chances = [chance, orders, extras, unpolled, habits, quirks, readers];
            let caller = Caller::new(&process, runtime, chances);
            spawn(&mut tasks, &stop, runtime, caller);
        }
        let running = Running {
            client,
            tasks,
            process,
            newest_runtime: self.plan.runtimes - 1,
        };
        self.running().insert(host, running);
    }

    /// Blocks the newest runtime of a process for a while. If the process has only one runtime, does nothing.
    pub(crate) async fn block_runtime(&self, host: HostId, time: Duration) {
        let of_host = |running: &Running| (running.process.stop.clone(), running.newest_runtime);
        let running = self.running().get(&host).map(of_host);
        if let Some((stop, runtime @ 1..)) = running {
            self.ledger.stop(host);
            stop.block(runtime);
            sleep(time).await;
            self.ledger.go_on(host);
            stop.go_on();
        }
    }

    /// Ends the newest runtime of a process together with its callers, and starts another one. If the process has only
    /// one runtime, does nothing.
    pub(crate) async fn end_runtime(&self, host: HostId) {
        let of_host = |running: &mut Running| {
            let runtime = running.newest_runtime;
            running.newest_runtime += u32::from(runtime > 0);
            (running.process.clone(), runtime)
        };
        let running = self.running().get_mut(&host).map(of_host);
        let Some((process, runtime @ 1..)) = running else {
            return;
        };
        process.stop.end(runtime);
        // The tasks of the runtime are dropped as soon as they are polled.
        sleep(Duration::from_millis(1)).await;
        self.ledger.end_runtime(host, runtime);
        if let Some(running) = self.running().get_mut(&host) {
            let stream = 1_000_000 + 1_000 * (host as u64 + 100 * u64::from(runtime));
            for task in 0..self.plan.tasks as u64 / u64::from(self.plan.runtimes) {
                let chances = [0, 1, 2, 3, 4, 5, 6]
                    .map(|which| Chance::new(self.plan.seed, stream + 10 * task + which));
                let caller = Caller::new(&process, runtime + 1, chances);
                spawn(&mut running.tasks, &process.stop, runtime + 1, caller);
            }
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<HostId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the host of a random process.
    pub(crate) fn somebody(&self) -> HostId {
        let hosts: Vec<HostId> = self.running().keys().copied().collect();
        if hosts.is_empty() {
            0
        } else {
            self.chance.pick(&hosts)
        }
    }

    /// Stops a process for a while, and then lets it continue.
    pub(crate) async fn stop(&self, host: HostId, time: Duration) {
        let process = self
            .running()
            .get(&host)
            .map(|running| running.process.clone());
        if let Some(process) = process {
            self.ledger.stop(host);
            process.stop.stop();
            sleep(time).await;
            self.ledger.go_on(host);
            process.stop.go_on();
        }
    }

    /// Keeps the client of a process that has ended, until the end of the run.
    fn bury(&self, client: LockClient, process: Process) {
        let mut dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        dead.push((client, process));
    }

    /// Kills a process and starts another one.
    pub(crate) async fn replace(&self, host: HostId) {
        self.ledger.crash(host);
        self.network.crash(host);
        let killed = self.running().remove(&host);
        if let Some(killed) = killed {
            // The engine of the killed process continues to run, but its host can no longer send or receive messages.
            drop(killed.tasks);
            self.bury(killed.client, killed.process);
        }
        self.start().await;
    }

    /// Shuts the client of a process down while its callers make calls, and starts another process.
    pub(crate) async fn shut_down(&self, host: HostId) {
        let is_quirky = self.plan.quirks && self.plan.store.servers() == 1;
        if !is_quirky || self.quirks.percent(50) {
            return self.close(host, Duration::ZERO).await;
        }
        // The server does not hear the client for some time.
        let longest = self.quirks.pick(&[4_000, 20_000]);
        let time = self.quirks.millis(1..longest);
        tokio::join!(self.close(host, time), async {
            self.network.hold(host, 0, Way::Up, true);
            sleep(time).await;
            self.network.hold(host, 0, Way::Up, false);
        });
    }

    /// Shuts the client of a process down. `silence` is the time for which the server does not hear the client.
    async fn close(&self, host: HostId, silence: Duration) {
        let removed = self.running().remove(&host);
        let Some(mut closing) = removed else {
            return;
        };
        closing.process.closes.store(true, Ordering::Release);
        self.ledger.close(host);
        // The shutdown waits for the bodies, and the bodies of some callers are polled late.
        let bodies = Duration::from_millis(8 * self.plan.body);
        let late = if self.plan.slow > 0 {
            8 * SHUTDOWN
        } else {
            SHUTDOWN
        };
        let began = Instant::now();
        let ended = timeout(bodies + late, closing.client.shutdown()).await;
        // A shutdown gives up the holds of a server that has not answered for this time. The checks below apply to runs
        // without other faults, in which no server is silent for longer than `silence` and the delays of messages.
        let is_whole = began.elapsed().min(silence + Duration::from_secs(1)) < SILENT;
        if closing.process.leaks() {
            self.ledger.crash(host);
            self.network.crash(host);
        } else if ended.is_err() {
            let seen = format!("host {host} has not shut down");
            self.ledger.violated("each shutdown ends in time", seen);
        } else {
            if is_whole {
                self.ledger.check_shut_down(host);
                self.ledger.check_given_back(host);
            }
            let all = async { while closing.tasks.join_next().await.is_some() {} };
            if timeout(bodies + late, all).await.is_err() {
                let calls = self.ledger.unended().join("; ");
                self.ledger
                    .violated("every call of a closed client ends", calls);
            }
        }
        drop(closing.tasks);
        self.bury(closing.client, closing.process);
        self.start().await;
    }

    /// Lets callers make calls until the time of the plan is over, a promise is broken, or [`MOST_ENTERED`] bodies have
    /// started. Causes faults, except in the last part of this time.
    async fn play(&self) {
        let faulty = Duration::from_secs(self.plan.seconds);
        let recovery = match self.plan.faults[..] {
            [] => Duration::ZERO,
            _ => RECOVERY,
        };
        let watching = self.watch(|| self.ledger.entered() > MOST_ENTERED);
        let playing = timeout(faulty + recovery, watching);
        tokio::join!(
            async {
                self.go_wrong(Instant::now() + faulty).await;
                // After this crash, no further fault occurs, so the judge sees when the locks of the killed process are
                // free.
                if self.plan.faults.contains(&Fault::Crash) {
                    self.happen(Fault::Crash).await;
                }
            },
            async {
                let _ = playing.await;
                self.is_over.store(true, Ordering::Release);
            }
        );
    }

    /// Looks for forgotten waiters, and compares the ledger with the servers, until a promise is broken or `is_enough`
    /// returns true.
    async fn watch(&self, is_enough: impl Fn() -> bool) {
        while !self.ledger.is_violated() && !is_enough() {
            for _ in 0..COMPARISONS {
                sleep(LOOK / COMPARISONS).await;
                self.ledger.compare();
            }
            self.ledger.look();
        }
    }

    /// Waits until all calls have ended, shuts down the clients, and checks that the servers have no keys of locks and
    /// the engines have no tasks left.
    async fn end(&self) {
        if self.ledger.is_violated() {
            return;
        }
        let plan = &self.plan;
        let body = Duration::from_millis(8 * plan.body);
        let calls = plan.longest_wait().max(Duration::from_secs(5)) + body;
        let patience = 4 * (calls + plan.longest_lease() + Duration::from_secs(10));
        let mut running = std::mem::take(&mut *self.running());
        let ending = async {
            for process in running.values_mut() {
                while let Some(ended) = process.tasks.join_next().await {
                    if let Err(panic) = ended {
                        self.ledger.violated("no panic", panic.to_string());
                    }
                }
            }
        };
        let has_ended = tokio::select! {
            biased;
            ended = timeout(patience, ending) => ended.is_ok(),
            () = self.watch(|| false) => return,
        };
        if !has_ended {
            let calls = self.ledger.unended().join("; ");
            self.ledger.violated("every call ends", calls);
            return;
        }
        let kept = self.keep_guard(&running).await;
        for (host, process) in &running {
            let ended = timeout(SHUTDOWN, process.client.shutdown()).await;
            if process.process.leaks() {
                continue;
            }
            match ended {
                Ok(()) => self.ledger.check_shut_down(*host),
                Err(_) => {
                    let seen = format!("host {host} has not shut down");
                    self.ledger.violated("each shutdown ends in time", seen);
                }
            }
        }
        for (host, process) in &running {
            let missed = process.client.stats().missed_wakeups;
            self.ledger.missed_wakeups(missed);
            // If late polls always come after the same pause, the message about a grant and the answer to a probe can
            // arrive at the same moment. The engine can then apply the probe's answer first.
            let coincides = plan.slow > 0 && plan.rhythmic;
            // If late polls come after random pauses, a message and an answer can also arrive together by chance, but
            // only rarely. With the longest delay and the shortest lease, a message can arrive at the end of the time
            // that the engine is sure of, and a probe arrives before the next answer.
            // If a member of a cohort overruns its lease, the waiting members learn of the next grant of their session
            // from its message or from a probe, whichever comes first.
            let is_short = |lease: &Duration| lease.as_millis() <= 4 * u128::from(plan.body);
            let overruns =
                plan.ways.contains(&callers::Way::LeakedGuard) || plan.leases.iter().any(is_short);
            let by_chance = u64::from(plan.slow > 0 || plan.delay >= 40 || overruns);
            if missed > by_chance && plan.faults.is_empty() && !coincides {
                let seen = format!("host {host} learned of {missed} grants only from a probe");
                self.ledger
                    .violated("a message notifies the waiter of each grant", seen);
            }
        }
        let has_crashed =
            *self.used.lock().unwrap_or_else(PoisonError::into_inner) != running.len();
        let leaks = running.values().any(|process| process.process.leaks());
        for process in running.values() {
            process.process.drop_forgotten();
        }
        self.ledger.forget_released();
        drop(running);
        // If the clock of a server was set back by some time, leases and queue entries last longer by this time.
        let back = self.ledger.was_set_back();
        // The clients have released their locks. Only a lock whose release the servers have not answered, or whose
        // holder has crashed, is taken until the end of its lease. If many readers keep a lock for their minimum holds, its
        // key can stay until the lease of a reader ends that has left.
        let is_shared = plan.readers > 0;
        let lease = if has_crashed || leaks || is_shared || !plan.faults.is_empty() {
            let longest = plan.longest_lease().max(FUNCTION_LEASE);
            longest + longest / 100
        } else {
            Duration::ZERO
        };
        sleep(lease + back + Duration::from_secs(1)).await;
        let is_grant = |key: &str| !key.contains(":queue") && !key.contains(":claim");
        self.look_for_keys("no grant outlasts its lease", is_grant);
        drop(kept);
        let beyond = plan.longest_lease().max(plan.longest_wait());
        sleep(beyond * 2 + back + Duration::from_secs(10)).await;
        self.look_for_keys("nothing is left on the server", |_| true);
        let tasks = Handle::current().metrics().num_alive_tasks();
        if !has_crashed && !leaks && tasks > 1 {
            let seen = format!("{} tasks", tasks - 1);
            self.ledger.violated("no task is left in the engine", seen);
        }
    }

    /// Acquires a guard whose lease is renewed, in one of the processes, and lets it outlast the shutdown of its client.
    async fn keep_guard(&self, running: &BTreeMap<HostId, Running>) -> Option<LockGuard> {
        let process = running.values().next()?;
        if !self.plan.quirks || self.quirks.percent(70) {
            return None;
        }
        let lock = process.client.lock("kept").wait(OUTLASTS);
        let guard = lock.lease(OUTLASTS).renew(true).acquire().await.ok()?;
        process.process.leaks.store(true, Ordering::Release);
        Some(guard)
    }

    /// Checks that none of the locks' keys that `is_meant` selects are left on the servers.
    fn look_for_keys(&self, promise: &'static str, is_meant: impl Fn(&str) -> bool) {
        for server in 0..self.plan.store.servers() {
            let left = self.network.at_server(server, crate::redis::Redis::keys);
            // The token counters, and the mark of a Redlock's node (`lock:fence:whole`), are allowed to stay.
            let counts = |key: &&String| {
                !key.contains("fence") && !key.contains("lock_token") && is_meant(key)
            };
            let left: Vec<String> = left.iter().filter(counts).cloned().collect();
            if !left.is_empty() {
                let seen = format!("{} on server {server}", left.join(", "));
                self.ledger.violated(promise, seen);
            }
        }
    }
}
