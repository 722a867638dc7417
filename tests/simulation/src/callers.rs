//! Simulated callers, which use locks as applications do.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use lock_runtime::{
    FencingToken, Hold, Holds, InCurrentHold, Lock, LockClient, LockError, LockGuard, MultiLock,
    OnLost, Release, ReleaseOutcome, Strategy, distributed_lock,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    chance::Chance,
    faults::Fault,
    late::{Late, Lateness, late},
    ledger::{CallId, Ledger, Presence, Wanted},
    network::HostId,
    plan::{Plan, Store},
    process::{on_both_runtimes, on_runtime},
    stop::StopSignal,
};

/// The way in which a caller uses locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Runs a body under a lock.
    Run,
    /// Runs a body under a lock, and does not wait for the release.
    RunInBackground,
    /// Runs a body under a lock with a minimum hold.
    RunForAtLeast,
    /// Calls a function that has the attribute `#[distributed_lock]`.
    Function,
    /// Acquires a guard and releases it.
    Guard,
    /// Acquires a guard and drops it.
    DroppedGuard,
    /// Acquires a guard and extends its lease.
    ExtendedGuard,
    /// Acquires a guard and leaks it.
    LeakedGuard,
    /// Tries to acquire the lock once, without waiting.
    Try,
    /// Takes several locks in one call.
    Several,
    /// Runs a body that enters its own lock again.
    Nested,
    /// Runs a body whose concurrent parts all enter the body's lock again.
    Siblings,
    /// Runs a body that spawns a task within its hold. The task enters the body's lock again.
    TakenAlong,
    /// Drops the call after a random time of up to a second.
    Dropped,
    /// Polls the call only now and then, in a `select!` loop.
    Select,
    /// Stops polling the call, but does not drop it.
    Forgotten,
    /// Moves the call to another task, which continues to poll it.
    Moved,
    /// Makes several calls in a buffered stream with a slow consumer.
    Buffered,
}

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

impl Way {
    /// All ways in which a caller can use locks.
    pub const ALL: [Self; 18] = [
        Self::Run,
        Self::RunInBackground,
        Self::RunForAtLeast,
        Self::Function,
        Self::Guard,
        Self::DroppedGuard,
        Self::ExtendedGuard,
        Self::LeakedGuard,
        Self::Try,
        Self::Several,
        Self::Nested,
        Self::Siblings,
        Self::TakenAlong,
        Self::Dropped,
        Self::Select,
        Self::Forgotten,
        Self::Moved,
        Self::Buffered,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::RunInBackground => "run, released in the background",
            Self::RunForAtLeast => "run, hold at least",
            Self::Function => "function",
            Self::Guard => "guard",
            Self::DroppedGuard => "dropped guard",
            Self::ExtendedGuard => "extended guard",
            Self::LeakedGuard => "leaked guard",
            Self::Try => "try",
            Self::Several => "several keys",
            Self::Nested => "nested",
            Self::Siblings => "siblings",
            Self::TakenAlong => "taken along",
            Self::Dropped => "dropped",
            Self::Select => "select loop",
            Self::Forgotten => "forgotten",
            Self::Moved => "moved",
            Self::Buffered => "buffered",
        }
    }

    /// Returns whether a call that is made in this way is polled after each of its wake-ups.
    #[must_use]
    pub fn is_prompt(self) -> bool {
        !matches!(self, Self::Select | Self::Forgotten | Self::Buffered)
    }

    /// Returns whether calls that are made in this way get their lock in the order in which they began.
    #[must_use]
    pub fn is_orderly(self) -> bool {
        self.is_prompt() && !matches!(self, Self::Several | Self::LeakedGuard)
    }
}

/// The shortest lease that callers renew.
const SHORTEST_RENEWED: Duration = Duration::from_secs(1);

/// The time by which a guard's lease is extended is shorter than this.
pub(crate) const LONGEST_EXTENSION: Duration = Duration::from_secs(2);

/// The longest time by which a nested call exceeds its `wait` if it is polled without delay: 200 ms to leave, and the
/// delays of messages.
const NESTED_LONGER: Duration = Duration::from_millis(700);

/// The `wait` of nested calls beside a call that is not polled.
const UNPOLLED_WAIT: Duration = Duration::from_secs(8);

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
    pub fn new(process: &Process, runtime: u32, chances: [Chance; 6]) -> Arc<Self> {
        let [chance, orders, extras, unpolled, habits, quirks] = chances;
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
        let strategy = match plan.one_strategy_each {
            true => plan.strategies[self.process.host % plan.strategies.len()],
            false => self.chance.pick(&plan.strategies),
        };
        let wait = if way == Way::Try {
            Duration::ZERO
        } else {
            self.chance.pick(&plan.waits)
        };
        let lease = match plan.one_lease_each {
            true => plan.leases[self.process.host % plan.leases.len()],
            false => self.chance.pick(&plan.leases),
        };
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
        let notified = strategy == Strategy::Notify
            && !wait.is_zero()
            && store != Store::Redlock
            && !is_in_turn;
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

    async fn guard(self: &Arc<Self>, way: Way) {
        let (lock, call) = self.begin(way, &self.key());
        let guard = match self.late(lock.acquire()).await {
            Ok(guard) => guard,
            Err(error) => return self.end(call, Some(error)),
        };
        let entered = Instant::now();
        let inside = self.process.ledger.enter(call, Hold::clone(&guard));
        if way == Way::LeakedGuard {
            self.process.leaks.store(true, Ordering::Release);
            let leaked = &self.process.leaked;
            let mut leaked = leaked.lock().unwrap_or_else(PoisonError::into_inner);
            leaked.push((guard, inside));
            drop(leaked);
            return self.end(call, None);
        }
        if way != Way::ExtendedGuard || !self.has_habit(40) {
            self.work().await;
        }
        if way == Way::ExtendedGuard {
            if self.process.plan.delay > 0 && self.has_habit(30) {
                // The guard is released while its extension is under way.
                let by = self.habits.millis(10..LONGEST_EXTENSION.as_millis() as u64);
                let patience = self.habits.millis(1..2 * self.process.plan.delay + 2);
                let _ = timeout(patience, guard.extend(by)).await;
            } else {
                self.extend(&guard, call, entered).await;
                self.work().await;
            }
        }
        drop(inside);
        if self.process.plan.unpolled_releases && self.quirks.percent(30) {
            self.process.ledger.forget_release(call);
            let releasing = async move {
                guard.release().await;
            };
            self.leave_unfinished(Box::pin(releasing)).await;
        } else if way == Way::DroppedGuard {
            drop(guard);
        } else {
            let hold = Hold::clone(&guard);
            let outcome = self.late(guard.release()).await;
            if outcome == ReleaseOutcome::Released {
                self.process.ledger.keep_released(hold);
            }
            self.process.ledger.released(call, outcome);
        }
        self.end(call, None);
    }

    /// Polls a future once. If it does not end, keeps it and does not poll it again.
    async fn leave_unfinished(&self, mut future: Forgotten) {
        if !poll_only(&mut future, 1).await {
            let forgotten = &self.process.forgotten;
            let mut forgotten = forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            forgotten.push(future);
        }
    }

    /// Extends the lease of a guard, and checks the answer.
    async fn extend(&self, guard: &LockGuard, call: CallId, entered: Instant) {
        let by = self.chance.millis(10..LONGEST_EXTENSION.as_millis() as u64);
        let (before, began) = (guard.remaining(), Instant::now());
        let extending = guard.extend(by);
        let extended = if self.has_extra(50) {
            // An extension counts from its call, not from its first poll. If a guard is extended by two calls at the
            // same time, the lease does not grow by the sum.
            let other = guard.extend(by);
            sleep(self.extras.millis(0..200)).await;
            let first = extending.await;
            let _ = other.await;
            first
        } else {
            extending.await
        };
        let took = began.elapsed();
        self.check_longest(guard, call, before, by, began);
        let before = match self.confirmed(call, entered, began) {
            Some(confirmed) if before <= Duration::from_secs(2) => before.max(confirmed),
            _ => before,
        };
        // The engine shortens each lease by the possible drift of the clocks, on a Redlock by a hundredth.
        let tolerance = (before + by) / 50 + Duration::from_millis(5);
        let ledger = &self.process.ledger;
        match extended {
            // A lease that has ended early, because a clock was set ahead, has no time left.
            Ok(left) if left + took + tolerance < before + by && guard.loss().is_none() => ledger
                .violated(
                    "an extension adds to the time left",
                    format!("{left:?} left {took:?} after {by:?} were added to {before:?}"),
                ),
            // A script that extends a lease begins with a command that a server without free memory allows.
            Err(LockError::Refused { detail, .. }) => {
                ledger.violated("an extension needs no memory", detail.to_string());
            }
            Err(LockError::Lost { .. }) if !guard.remaining().is_zero() => ledger.violated(
                "an extension reports only a real loss",
                format!("{:?} left after the error", guard.remaining()),
            ),
            _ => {}
        }
    }

    /// Returns the time that was left of a lease at `began`, if the grant was sent to its caller, lasted only for its
    /// claim, and counted as confirmed for its whole lease. Returns `None` if this is not certain.
    fn confirmed(&self, call: CallId, entered: Instant, began: Instant) -> Option<Duration> {
        let Process { ledger, plan, .. } = &self.process;
        let (lease, _) = ledger.lease_of(call)?;
        let is_certain = self.late == Lateness::Never
            && !ledger.is_disturbed()
            && plan.store.has_queue()
            && plan.replicas == 0
            // A member of a cohort enters with two thirds of its lease at least, which is more than a claim.
            && lease >= Duration::from_secs(4)
            && began - entered < Duration::from_millis(50);
        let delays = Duration::from_millis(20 + 2 * plan.delay);
        is_certain.then(|| lease.saturating_sub(began - entered + delays))
    }

    /// Checks that an extension moves the end of a lease by `by` at most, if the engine does not renew the lease.
    /// `before` is the time that was left of the lease at `began`. A grant that lasts only for its claim counts as
    /// confirmed for its whole lease.
    fn check_longest(
        &self,
        guard: &LockGuard,
        call: CallId,
        before: Duration,
        by: Duration,
        began: Instant,
    ) {
        let ledger = &self.process.ledger;
        let Some((lease, renewed)) = ledger.lease_of(call) else {
            return;
        };
        let (left, took) = (guard.remaining(), began.elapsed());
        let end = before.max(lease) + by + Duration::from_millis(5);
        if !renewed && left > end {
            let seen = format!("{left:?} left {took:?} after {by:?} were added to {before:?}");
            ledger.violated("an extension counts from the end of the lease", seen);
        }
    }

    async fn several(self: &Arc<Self>) {
        let Some((locks, keys, call)) = self.begin_several(Way::Several) else {
            return tokio::task::yield_now().await;
        };
        let ended = self.late(locks.run(self.clone().body_of(call, keys))).await;
        self.end(call, ended.err());
    }

    /// Chooses random keys and options for a call with several keys, and records in the ledger that the call begins.
    /// Returns `None` if no key was chosen, or only one for a call that is forgotten: like a call with several keys, it would
    /// keep its lock until a claim after its `wait`, and the judge takes it for a call with one key.
    fn begin_several(&self, way: Way) -> Option<(MultiLock, Vec<String>, CallId)> {
        let plan = &self.process.plan;
        let keys: Vec<String> = (0..plan.keys)
            .filter(|_| self.chance.percent(60))
            .map(|key| format!("k{key}"))
            .collect();
        if keys.is_empty() || way == Way::Forgotten && keys.len() == 1 {
            return None;
        }
        let mut keys = self.orders.shuffled(keys);
        if self.orders.percent(20) {
            keys.push(self.orders.pick(&keys));
        }
        let wait = self.chance.pick(&plan.waits);
        let lease = self.chance.pick(&plan.leases);
        let keeps = way == Way::Forgotten || lease < SHORTEST_RENEWED;
        let renewed = !keeps && self.chance.percent(70);
        let locks = self
            .process
            .client
            .locks(keys.clone())
            .wait(wait)
            .lease(lease)
            .renew(renewed);
        let wanted = Wanted {
            lease,
            own_lease: lease,
            renewed,
            is_multi: true,
            ..self.wanted(way, keys.clone(), wait, Strategy::Handoff)
        };
        Some((locks, keys, self.process.ledger.begin(wanted)))
    }

    /// The body of a call with several keys.
    async fn body_of(self: Arc<Self>, call: CallId, keys: Vec<String>) {
        let holds = Holds::current().expect("the body runs within several holds");
        let _inside = self.enter_each(call, &holds, &keys);
        self.work().await;
    }

    /// Records that a call has entered the body under several locks, and checks that its holds are in the order of its
    /// keys.
    fn enter_each(&self, call: CallId, holds: &Holds, keys: &[String]) -> Vec<Presence> {
        let ledger = &self.process.ledger;
        let held: Vec<String> = holds.iter().map(|hold| hold.key().to_string()).collect();
        if held != keys {
            let seen = format!("holds of {held:?}, keys {keys:?}");
            ledger.violated("the holds are in the order of the keys", seen);
        }
        let is_first = |(number, _): &(usize, &Hold)| !held[..*number].contains(&held[*number]);
        let firsts = holds.iter().enumerate().filter(is_first);
        firsts
            .map(|(_, hold)| ledger.enter(call, hold.clone()))
            .collect()
    }

    async fn entering_again(self: &Arc<Self>, way: Way) {
        let key = self.key();
        let (lock, call) = self.begin(way, &key);
        let this = self.clone();
        let (wait, lease) = (
            self.chance.pick(&self.process.plan.waits),
            self.chance.pick(&self.process.plan.leases),
        );
        let inner = self.process.client.lock(&key).wait(wait).lease(lease);
        let inner = inner.renew(lease >= SHORTEST_RENEWED && self.has_habit(70));
        let calling = lock.run(async move {
            let _inside = this.enter(call);
            let outer = Hold::current().expect("the body runs within a hold");
            this.work().await;
            match way {
                Way::Siblings if this.leaves_unpolled() => {
                    this.process.ledger.lasts_long(call);
                    if this.has_habit(50) {
                        this.leave_turn_unpolled(inner, &outer).await;
                    } else {
                        this.leave_unpolled(inner, &outer).await;
                    }
                }
                Way::Siblings => {
                    let beside = AtomicBool::new(false);
                    let (first, second) = tokio::join!(
                        inner.run(this.again(&outer, Some(&beside))),
                        inner.run(this.again(&outer, Some(&beside)))
                    );
                    this.check_memory(&first, &outer);
                    this.check_memory(&second, &outer);
                }
                Way::TakenAlong => {
                    let (this, outer) = (this.clone(), outer.clone());
                    let task = async move {
                        let entered = inner.run(this.again(&outer, None)).await;
                        this.check_memory(&entered, &outer);
                    };
                    let stop = self.process.stop.clone();
                    let task = on_runtime(self.runtime, task.in_current_hold());
                    let _ = tokio::spawn(stop.while_running(self.runtime, task)).await;
                }
                _ => {
                    let asked = Instant::now();
                    let began = OnceLock::new();
                    let entering = inner.run(async {
                        let _ = began.set(asked.elapsed());
                        this.check_nested(call, &outer, lease);
                        this.again(&outer, None).await;
                    });
                    this.check_memory(&entering.await, &outer);
                    let took = match (began.into_inner(), this.late) {
                        (None, Lateness::Never) => Some(asked.elapsed()),
                        (began, _) => began, // a call that is polled late also fails late
                    };
                    if let Some(took) = took {
                        this.check_nested_wait(&outer, wait, took);
                    }
                }
            }
            if !this.process.plan.is_ordered() && this.has_habit(50) {
                this.process.ledger.lasts_long(call);
                this.check_renewals_end(&outer, call).await;
            }
            this.work().await;
        });
        let ended = self.late(calling).await;
        self.end(call, ended.err());
    }

    /// Checks that a server without free memory does not refuse a nested call.
    fn check_memory(&self, entered: &Result<(), LockError>, outer: &Hold) {
        if let Err(error @ LockError::Refused { .. }) = entered
            && outer.loss().is_none()
        {
            let seen = format!("{} with token {}: {error}", outer.key(), outer.token());
            let ledger = &self.process.ledger;
            ledger.violated("a nested call needs no memory", seen);
        }
    }

    /// Checks that a nested call has begun its body, or has failed, within its `wait`. A turn that a call has taken in
    /// time lasts for a claim, but a call that is polled without delay needs less time.
    fn check_nested_wait(&self, outer: &Hold, wait: Duration, took: Duration) {
        let Process { ledger, plan, .. } = &self.process;
        let longer = match self.late {
            Lateness::Never if !plan.faults.contains(&Fault::StopProcess) => NESTED_LONGER,
            _ if ledger.is_disturbed() => return,
            _ => Duration::from_millis(2_050),
        };
        if plan.replicas == 0 && outer.loss().is_none() && took > wait + longer {
            let seen = format!("{}: {took:?} of {wait:?}", outer.key());
            ledger.violated("a nested call begins within its `wait`", seen);
        }
    }

    /// Checks that the replicas have the extended lease when the body of a nested call with this lease begins.
    fn check_nested(&self, call: CallId, outer: &Hold, lease: Duration) {
        if self.late == Lateness::Never && outer.loss().is_none() {
            let token = outer.token().get();
            self.process.ledger.check_nested(call, token, lease);
        }
    }

    /// Checks that the renewals that nested calls have asked for have ended, if the engine does not renew the lease for
    /// the call itself.
    async fn check_renewals_end(&self, outer: &Hold, call: CallId) {
        let ledger = &self.process.ledger;
        let Some((lease, false)) = ledger.lease_of(call) else {
            return;
        };
        // Until then, the answer to a renewal may arrive.
        sleep(Duration::from_millis(20 + 4 * self.process.plan.delay)).await;
        let (before, began) = (outer.remaining(), Instant::now());
        sleep(self.habits.millis(100..1_500)).await;
        let (left, took) = (outer.remaining(), began.elapsed());
        // The confirmation of a grant moves the end of its lease.
        // A check moves the end of the lease, too, because the client allows less for the drift of the clocks when less
        // of the lease is left.
        let end = before.max(lease) + Duration::from_millis(20) + took / 50;
        if left + took > end && !ledger.is_disturbed() {
            let seen = format!("{before:?} left, and {left:?} left {took:?} later");
            ledger.violated("renewals end with the nested call that asks for them", seen);
        }
    }

    /// Returns whether the body of this call leaves a nested call unpolled. The call can then outlast its lease, and
    /// lose its place.
    fn leaves_unpolled(&self) -> bool {
        let plan = &self.process.plan;
        plan.unpolled && !plan.is_ordered() && self.unpolled.percent(50)
    }

    /// Makes three nested calls. The second call gets its turn after the first call, but is not polled. Checks that the
    /// third call nevertheless enters.
    async fn leave_unpolled(&self, inner: Lock, outer: &Hold) {
        let beside = AtomicBool::new(false);
        let inner = inner.wait(UNPOLLED_WAIT);
        let mut first = Box::pin(inner.run(self.again(outer, Some(&beside))));
        if timeout(Duration::from_millis(5), &mut first).await.is_ok() {
            return;
        }
        let mut second = Box::pin(inner.run(self.again(outer, Some(&beside))));
        let has_ended = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_ready())).await;
        let _ = first.await;
        let third = inner.run(self.again(outer, Some(&beside))).await;
        // A call that waits for replicas, and is polled late, can miss its turn again and again.
        let misses = self.late != Lateness::Never && self.process.plan.replicas > 0;
        let may_fail = misses || outer.loss().is_some() || beside.load(Ordering::Acquire);
        if matches!(third, Err(LockError::Busy { .. })) && !may_fail {
            let seen = format!("{} with token {}", outer.key(), outer.token());
            let ledger = &self.process.ledger;
            ledger.violated("a sibling that is not polled passes its turn on", seen);
        }
        if !has_ended {
            let _ = second.await;
        }
    }

    /// Makes two nested calls. The first call takes its turn, needs a longer lease, and is not polled again. Checks that
    /// the second call nevertheless enters.
    async fn leave_turn_unpolled(&self, inner: Lock, outer: &Hold) {
        let beside = AtomicBool::new(false);
        let inner = inner.lease(self.process.plan.longest_lease());
        let inner = inner.wait(UNPOLLED_WAIT);
        let mut first = Box::pin(inner.run(self.again(outer, Some(&beside))));
        let has_ended = poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx).is_ready())).await;
        if has_ended {
            return;
        }
        if !beside.load(Ordering::Acquire) {
            let second = inner.run(self.again(outer, Some(&beside))).await;
            // A call that is polled late can miss its turn again and again, and so can a call that waits for replicas.
            let is_certain = self.late == Lateness::Never
                && self.process.plan.replicas == 0
                && outer.loss().is_none();
            if is_certain && matches!(second, Err(LockError::Busy { .. })) {
                let seen = format!("{} with token {}", outer.key(), outer.token());
                let ledger = &self.process.ledger;
                ledger.violated("a sibling that is not polled passes its turn on", seen);
            }
        }
        let _ = first.await;
    }

    /// Runs the body of a nested call, and checks that the call is an entry into the hold `outer`. Sibling calls share
    /// the flag `beside`, which is set while one of them runs its body.
    async fn again(&self, outer: &Hold, beside: Option<&AtomicBool>) {
        let hold = Hold::current().expect("the body runs within a hold");
        let ledger = &self.process.ledger;
        let is_lost = || outer.loss().is_some();
        if hold.token() != outer.token() && !is_lost() {
            ledger.violated(
                "a nested call enters the enclosing hold",
                format!("token {} inside {}", hold.token(), outer.token()),
            );
        }
        if let Some(beside) = beside {
            if beside.swap(true, Ordering::AcqRel) && !is_lost() {
                let seen = format!(
                    "two sibling calls run their bodies for {} with token {} at the same time",
                    hold.key(),
                    hold.token()
                );
                ledger.violated("siblings take turns", seen);
            }
            self.work().await;
            beside.store(false, Ordering::Release);
        } else {
            self.work().await;
        }
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

/// Polls the call `polls` times, if it does not end before. Returns whether the call has ended.
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
