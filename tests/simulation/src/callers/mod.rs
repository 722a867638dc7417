//! Simulated callers, which use locks as applications do.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use lock_runtime::{
    FencingToken, Hold, Lock, LockClient, LockError, LockGuard, OnLost, Release, Strategy,
    distributed_lock,
};
use tokio::time::{sleep, timeout};

use crate::{
    chance::Chance,
    late::{Late, Lateness, late},
    ledger::{CallId, Ledger, Presence, Wanted},
    network::HostId,
    plan::{Plan, Store},
    process::{on_both_runtimes, on_runtime},
    stop::StopSignal,
};

mod guards;
mod nested;
mod several;
mod way;

pub use way::Way;

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

impl Process {
    /// Drops the calls of this process that are never polled again.
    pub fn drop_forgotten(&self) {
        let mut forgotten = self
            .forgotten
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let forgotten = std::mem::take(&mut *forgotten);
        drop(forgotten);
    }

    /// Returns whether the process holds a lock that nobody will release.
    #[must_use]
    pub fn leaks(&self) -> bool {
        self.leaks.load(Ordering::Acquire)
    }
}

/// The shortest lease that callers renew.
const SHORTEST_RENEWED: Duration = Duration::from_secs(1);

/// The time by which a guard's lease is extended is shorter than this.
pub(crate) const LONGEST_EXTENSION: Duration = Duration::from_secs(2);

/// A call that is never polled again.
type Forgotten = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The leaked guards of all processes of a run.
pub type Leaked = Arc<Mutex<Vec<(LockGuard, Presence)>>>;

/// A process whose callers use locks.
#[derive(Clone)]
pub struct Process {
    /// The number of the process's host.
    pub host: HostId,
    /// The client of the process.
    pub client: LockClient,
    /// The ledger of the run, which records all holds and detects broken promises.
    pub ledger: Ledger,
    /// The plan of the run, which sets the options of calls.
    pub plan: Arc<Plan>,
    /// Set when the time of the plan is over or a promise is broken. Callers then begin no further calls.
    pub is_over: Arc<AtomicBool>,
    /// Set before the client is shut down. The callers of the process then begin no further calls.
    pub closes: Arc<AtomicBool>,
    /// Calls that are never polled again.
    pub forgotten: Arc<Mutex<Vec<Forgotten>>>,
    /// Guards that nobody releases or drops before the run is over.
    pub leaked: Leaked,
    /// Set once the process holds a lock that nobody will release.
    pub leaks: Arc<AtomicBool>,
    /// The signal that stops the process and lets it continue.
    pub stop: StopSignal,
}

/// One task of a process, which makes one call after another.
pub struct Caller {
    process: Process,
    /// The number of the runtime on which the task runs.
    runtime: u32,
    chance: Arc<Chance>,
    /// The random numbers for the order of several keys. They are apart from `chance`, so that the other options of old
    /// seeds stay the same.
    orders: Chance,
    /// The random numbers for `max_hold`, `on_lost` and for two extensions at the same time.
    extras: Chance,
    /// The random numbers that decide which bodies leave a nested call unpolled.
    unpolled: Chance,
    /// The random numbers for the habits of callers (see [`Plan::habits`]).
    habits: Chance,
    /// The random numbers for the quirks of callers (see [`Plan::quirks`]).
    quirks: Chance,
    /// The random numbers that decide which calls read (see [`Plan::readers`]).
    readers: Chance,
    /// The delay between the wake-up of a call and its next poll by this task.
    late: Lateness,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").finish_non_exhaustive()
    }
}

impl Caller {
    /// Creates a task of this process, which runs on the runtime with this number.
    #[must_use]
    pub fn new(process: &Process, runtime: u32, chances: [Chance; 7]) -> Arc<Self> {
        let [chance, orders, extras, unpolled, habits, quirks, readers] = chances;
        let late = if chance.percent(process.plan.slow) {
            if process.plan.rhythmic {
                Lateness::Always(chance.pick(&process.plan.pauses))
            } else {
                Lateness::UpTo(chance.pick(&[20, 300, 1_500, 4_000]))
            }
        } else {
            Lateness::Never
        };
        Arc::new(Self {
            process: process.clone(),
            runtime,
            chance: Arc::new(chance),
            orders,
            extras,
            unpolled,
            habits,
            quirks,
            readers,
            late,
        })
    }

    /// Makes calls until the run is over.
    pub async fn live(self: Arc<Self>) {
        on_runtime(self.runtime, self.make_calls()).await;
    }

    async fn make_calls(self: &Arc<Self>) {
        let process = &self.process;
        while !process.is_over.load(Ordering::Acquire) && !process.closes.load(Ordering::Acquire) {
            let way = self.chance.pick(&self.process.plan.ways);
            self.call(way).await;
            match self.chance.among(0..4) {
                0 => sleep(self.chance.millis(0..50)).await,
                _ => tokio::task::yield_now().await,
            }
        }
    }

    /// Delays the polls of `future`, if this task polls its calls late.
    fn late<F: Future>(&self, future: F) -> Late<F> {
        late(future, self.late, &self.chance, &self.process.ledger)
    }

    fn key(&self) -> String {
        format!("k{}", self.chance.index(self.process.plan.keys))
    }

    /// Returns true with a probability of `percent` % if the plan has extras.
    fn has_extra(&self, percent: u32) -> bool {
        self.process.plan.extras && self.extras.percent(percent)
    }

    /// Returns true with a probability of `percent` % if callers have habits.
    fn has_habit(&self, percent: u32) -> bool {
        self.process.plan.habits && self.habits.percent(percent)
    }

    /// Returns true with a probability of `percent` % if callers have quirks.
    fn has_quirk(&self, percent: u32) -> bool {
        self.process.plan.quirks && self.quirks.percent(percent)
    }

    /// Chooses random options for a call that locks this key, and records in the ledger that the call begins.
    fn begin(&self, way: Way, key: &str) -> (Lock, CallId) {
        let plan = &self.process.plan;
        let drawn = match plan.one_strategy_each {
            true => plan.strategies[self.process.host % plan.strategies.len()],
            false => self.chance.pick(&plan.strategies),
        };
        // A plan can combine a store with a strategy that the store refuses.
        let strategy = match (plan.store, drawn) {
            (Store::Redisson, Strategy::Handoff) => Strategy::Notify,
            (Store::Redisson, drawn) => drawn,
            (_, Strategy::Notify) => Strategy::Handoff,
            (_, drawn) => drawn,
        };
        let wait = if way == Way::Try {
            Duration::ZERO
        } else {
            self.chance.pick(&plan.waits)
        };
        let only = plan.only_lease_of(self.process.host);
        let lease = only.unwrap_or_else(|| self.chance.pick(&plan.leases));
        let keeps = matches!(way, Way::LeakedGuard | Way::Forgotten) || lease < SHORTEST_RENEWED;
        let renewed = !keeps && self.chance.percent(70);
        let mut lock = self
            .process
            .client
            .lock(key)
            .wait(wait)
            .strategy(strategy)
            .lease(lease)
            .renew(renewed);
        // The nested calls of the other ways write.
        let may_read =
            !matches!(way, Way::Nested | Way::Siblings | Way::TakenAlong) && plan.store.has_queue();
        let reads = may_read && plan.readers > 0 && self.readers.percent(plan.readers);
        let mut permits = 0;
        if let Some(of) = plan.permits.filter(|_| may_read) {
            permits = 1 + self.readers.among(0..u64::from(of.min(3))) as u32;
            lock = lock_runtime::simulation::with_permits(lock, permits, of);
        } else if reads {
            lock = lock.read();
        }
        let mut at_least = Duration::ZERO;
        match way {
            Way::RunInBackground => lock = lock.release(Release::Background),
            Way::RunForAtLeast => {
                at_least = self.chance.millis(1..800).min(lease);
                lock = lock.hold_at_least(at_least);
            }
            _ => {}
        }
        let is_limited = renewed && way != Way::ExtendedGuard && self.has_extra(25);
        let max_hold = is_limited.then(|| self.extras.millis(1..1_500));
        if let Some(max_hold) = max_hold {
            lock = lock.max_hold(max_hold);
        }
        let longest = match way {
            Way::ExtendedGuard => lease + LONGEST_EXTENSION,
            Way::Nested | Way::Siblings | Way::TakenAlong => plan.longest_lease(),
            _ => lease,
        };
        let wanted = Wanted {
            lease: longest,
            own_lease: lease,
            renewed,
            max_hold,
            at_least,
            reads,
            permits,
            ..self.wanted(way, vec![key.to_owned()], wait, strategy)
        };
        (lock, self.process.ledger.begin(wanted))
    }

    /// Returns the options of a call whose lease of [`FUNCTION_LEASE`] is renewed, and whose hold has neither a minimum
    /// nor a limit.
    fn wanted(&self, way: Way, keys: Vec<String>, wait: Duration, strategy: Strategy) -> Wanted {
        let store = self.process.plan.store;
        let queues = strategy == Strategy::Handoff && !wait.is_zero() && store.has_queue();
        let plan = &self.process.plan;
        // The messages for a call that is polled on two runtimes in turn can go to the session of either runtime.
        let is_in_turn = way == Way::Moved && plan.quirks && plan.runtimes == 2;
        let notified = strategy == Strategy::Notify && !wait.is_zero() && !is_in_turn;
        Wanted {
            host: self.process.host,
            runtime: self.runtime,
            way: way.name(),
            keys,
            is_multi: false,
            wait,
            lease: FUNCTION_LEASE,
            own_lease: FUNCTION_LEASE,
            renewed: true,
            max_hold: None,
            at_least: Duration::ZERO,
            reads: false,
            permits: 0,
            runs: !matches!(
                way,
                Way::Guard | Way::DroppedGuard | Way::ExtendedGuard | Way::LeakedGuard
            ),
            entries: match way {
                Way::Siblings => 2,
                Way::Nested | Way::TakenAlong => 1,
                _ => 0,
            },
            prompt: way.is_prompt() && self.late == Lateness::Never,
            forgets: way == Way::Forgotten && self.late == Lateness::Never,
            pause: match self.late {
                Lateness::Always(pause) if way.is_prompt() => Some(pause),
                _ => None,
            },
            queues,
            woken: queues || notified,
            confirmed: !matches!(way, Way::RunInBackground | Way::DroppedGuard),
        }
    }

    async fn call(self: &Arc<Self>, way: Way) {
        match way {
            Way::Run | Way::RunInBackground | Way::RunForAtLeast | Way::Try => self.run(way).await,
            Way::Function => self.function().await,
            Way::Guard | Way::DroppedGuard | Way::ExtendedGuard | Way::LeakedGuard => {
                self.guard(way).await;
            }
            Way::Several => self.several().await,
            Way::Nested | Way::Siblings | Way::TakenAlong => self.entering_again(way).await,
            Way::Dropped => {
                let time = self.chance.millis(0..1_000);
                let (lock, call) = self.begin(way, &self.key());
                let this = self.clone();
                let calling = self.late(async move { lock.run(this.body(call)).await });
                match timeout(time, calling).await {
                    Ok(ended) => self.end(call, ended.err()),
                    Err(_) => self.process.ledger.give_up(call),
                }
            }
            Way::Select => self.select().await,
            Way::Forgotten => self.forgotten().await,
            Way::Moved if self.process.plan.runtimes == 2 && self.has_quirk(50) => {
                on_both_runtimes(self.run(Way::Moved)).await;
            }
            Way::Moved => {
                let this = self.clone();
                let mut calling = Box::pin(async move { this.run(Way::Moved).await });
                if timeout(self.chance.millis(0..300), &mut calling)
                    .await
                    .is_err()
                {
                    let stop = self.process.stop.clone();
                    // If the process has two runtimes, the call moves to the other one.
                    let runtime = self.process.plan.runtimes - 1 - self.runtime;
                    let calling = on_runtime(runtime, calling);
                    let _ = tokio::spawn(stop.while_running(runtime, calling)).await;
                }
            }
            Way::Buffered => {
                let many = 2 + self.chance.index(4);
                let calls = (0..many).map(|_| self.run(Way::Buffered));
                let mut calls = pin!(stream::iter(calls).buffer_unordered(many));
                while calls.next().await.is_some() {
                    sleep(self.chance.millis(0..1_500)).await;
                }
            }
        }
    }

    fn end(&self, call: CallId, error: Option<LockError>) {
        self.process.ledger.end(call, error.as_ref());
    }

    fn enter(&self, call: CallId) -> Presence {
        let hold = Hold::current().expect("the body runs within a hold");
        self.process.ledger.enter(call, hold)
    }

    async fn body(self: Arc<Self>, call: CallId) {
        let _leaving = Leaving {
            ledger: &self.process.ledger,
            call,
            token: Hold::current().map(|hold| hold.token()),
        };
        let _inside = self.enter(call);
        self.work().await;
        self.process.ledger.finish(call);
    }

    async fn work(&self) {
        let longest = self.process.plan.body;
        if longest == 0 || self.chance.percent(30) {
            tokio::task::yield_now().await;
        } else {
            for _ in 0..=self.chance.index(2) {
                sleep(self.chance.millis(0..longest + 1)).await;
            }
        }
    }

    async fn run(self: &Arc<Self>, way: Way) {
        let (lock, call) = self.begin(way, &self.key());
        let ended = if way == Way::Run && self.has_extra(20) {
            self.process.ledger.continues(call);
            let lock = lock.on_lost(OnLost::Continue);
            self.late(lock.run(self.clone().whole_body(call))).await
        } else {
            self.late(lock.run(self.clone().body(call))).await
        };
        self.end(call, ended.err());
    }

    /// Runs a body that the engine must not drop, even if the lease is lost.
    async fn whole_body(self: Arc<Self>, call: CallId) {
        let mut unfinished = Unfinished {
            caller: &self,
            call,
            is_finished: false,
        };
        self.clone().body(call).await;
        unfinished.is_finished = true;
    }

    async fn function(self: &Arc<Self>) {
        let key = self.key();
        let keys = vec![key.clone()];
        let wanted = self.wanted(Way::Function, keys, FUNCTION_WAIT, Strategy::Handoff);
        let call = self.process.ledger.begin(wanted);
        let calling = guarded(self.clone(), call, key);
        let ended = self.late(calling).await;
        self.end(call, ended.err());
    }

    async fn select(self: &Arc<Self>) {
        let (lock, call) = self.begin(Way::Select, &self.key());
        let mut calling = pin!(lock.run(self.clone().body(call)));
        loop {
            tokio::select! {
                biased;
                ended = &mut calling => return self.end(call, ended.err()),
                () = sleep(self.chance.millis(1..200)) => {}
            }
            sleep(self.chance.millis(0..2_500)).await;
        }
    }

    async fn forgotten(self: &Arc<Self>) {
        let is_quirky = self.has_quirk(50);
        let several = if is_quirky && self.quirks.percent(50) {
            self.begin_several(Way::Forgotten)
        } else {
            None
        };
        let this = self.clone();
        let (call, mut calling): (CallId, Forgotten) = if let Some((locks, keys, call)) = several {
            let calling = async move {
                let ended = locks.run(this.clone().body_of(call, keys)).await;
                this.end(call, ended.err());
            };
            (call, Box::pin(calling))
        } else {
            let (lock, call) = self.begin(Way::Forgotten, &self.key());
            let calling = async move {
                let ended = lock.run(this.clone().body(call)).await;
                this.end(call, ended.err());
            };
            (call, Box::pin(calling))
        };
        let has_ended = if is_quirky {
            poll_only(&mut calling, 1 + self.quirks.index(6)).await
        } else {
            let time = self.chance.millis(0..300);
            timeout(time, &mut calling).await.is_ok()
        };
        if !has_ended {
            // The engine gives back the locks of a call that waits and is not polled.
            if !self.process.ledger.forget(call) {
                self.process.leaks.store(true, Ordering::Release);
            }
            let forgotten = &self.process.forgotten;
            let mut forgotten = forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            forgotten.push(calling);
        }
        // A call that is never polled again can delay other callers by 2 s (a claim), so the task pauses before its
        // next call.
        sleep(Duration::from_secs(3)).await;
    }
}

/// Polls the call until it ends, but at most `polls` times. Returns whether the call has ended.
async fn poll_only(calling: &mut Forgotten, polls: usize) -> bool {
    let mut left = polls;
    poll_fn(|cx| {
        let has_ended = calling.as_mut().poll(cx).is_ready();
        left -= 1;
        if has_ended || left == 0 {
            Poll::Ready(has_ended)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// A value in a body. Records a broken promise if its destructor runs outside the hold of the body.
struct Leaving<'a> {
    ledger: &'a Ledger,
    call: CallId,
    token: Option<FencingToken>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let token = Hold::current().map(|hold| hold.token());
        if token != self.token && self.ledger.knows(self.call) {
            let seen = format!("{:?}: {token:?} instead of {:?}", self.call, self.token);
            self.ledger
                .violated("a body is dropped inside its hold", seen);
        }
    }
}

/// A body that the engine must not drop. Records a broken promise if it is dropped, unless its process was killed, or its
/// runtime has ended.
struct Unfinished<'a> {
    caller: &'a Caller,
    call: CallId,
    is_finished: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Process { ledger, stop, .. } = &self.caller.process;
        let may_end = self.is_finished || stop.has_ended(self.caller.runtime);
        if !may_end && ledger.knows(self.call) {
            let seen = format!("{:?}", self.call);
            ledger.violated("a body that continues after a loss is not dropped", seen);
        }
    }
}

/// The lease of the annotated function.
pub const FUNCTION_LEASE: Duration = Duration::from_secs(2);
/// The `wait` of the annotated function.
const FUNCTION_WAIT: Duration = Duration::from_secs(4);

#[distributed_lock(key = "<key>", wait = "4s", lease = "2s", renew = true, client = caller.process.client.clone())]
async fn guarded(caller: Arc<Caller>, call: CallId, key: String) -> Result<(), LockError> {
    let _ = key;
    caller.body(call).await;
    Ok(())
}
