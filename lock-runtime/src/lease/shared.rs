//! The state that the clones of a client share, with a registry of the client's holds.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use foldhash::HashMap;
use lock_core::{backend::Backend, key::LockName, lease::Moment};

use crate::{
    backend::memory::Link,
    background::{
        Context, Polled, ShutdownSignal, TaskTracker, TrackedTask, drained, isolated, lock,
    },
    events::{Counters, Hooks, LeaseLoss, LeaseWarning},
    lease::{
        hold::{HoldHost, HoldState, UnconfirmedRelease},
        scheduler::RenewalScheduler,
    },
    limits,
};

/// The state that all clones of a client share.
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) registry: HoldRegistry,
    pub(crate) scheduler: Arc<RenewalScheduler>,
    /// Signals that the client's shutdown has begun.
    pub(crate) shutdown: ShutdownSignal,
    hooks: Hooks,
    /// The connection with the in-process registry, which a test can interrupt. `None` with any other backend.
    pub(crate) link: Option<Arc<Link>>,
}

impl Shared {
    pub(crate) fn new(
        context: Arc<Context>,
        backend: Arc<dyn Backend>,
        counters: Arc<Counters>,
        hooks: Hooks,
        link: Option<Arc<Link>>,
    ) -> Self {
        Self {
            scheduler: Arc::new(RenewalScheduler::new(context.clone(), backend.clone())),
            context,
            backend,
            counters,
            registry: HoldRegistry::default(),
            shutdown: ShutdownSignal::default(),
            hooks,
            link,
        }
    }
}

impl Shared {
    /// Carries out steps of an acquisition. If the locks are on a server, the steps do not depend on when the caller is
    /// polled ([`Context::drive`]). Locks in process follow the clock of the caller's runtime, so the caller polls their
    /// steps.
    pub(crate) async fn carry_out<F>(&self, steps: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if self.backend.maintains_leases() {
            steps.await
        } else {
            self.context.drive(steps).await
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

impl HoldHost for Shared {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn begun(&self, hold: &Arc<HoldState>) {
        let older = self.registry.add(hold);
        if !self.backend.maintains_leases() {
            self.scheduler.schedule(hold);
        }
        for older in older {
            // If the older hold has not ended, the server has granted the lock twice, and has probably lost the older
            // grant.
            self.due_by(&older, self.context.now());
        }
    }

    fn awaits_body(&self, hold: &Arc<HoldState>, until: Moment, polled: Option<Polled>) {
        self.scheduler.watch_offer(hold, until, polled);
    }

    fn due_by(&self, hold: &Arc<HoldState>, moment: Moment) {
        self.scheduler.bring_forward(hold, moment);
    }

    fn lease_nearly_over(&self, warning: &LeaseWarning) {
        self.hooks.lease_warning.call(warning);
    }

    fn lost(&self, loss: &LeaseLoss) {
        // A loss can be noticed anywhere in the engine, so a panic of the user's function is caught.
        isolated(|| self.hooks.lost.call(loss));
    }

    fn left(&self, hold: &Arc<HoldState>) {
        self.scheduler.remove(hold);
    }

    fn awaits_release(&self, release: Weak<dyn UnconfirmedRelease>, until: Moment) {
        self.scheduler.watch_release(release, until);
    }

    fn released(&self, hold: &Arc<HoldState>) {
        self.registry.remove(hold);
    }
}

/// The present holds of one lock.
#[derive(Debug, Default)]
struct Present {
    newest: Weak<HoldState>,
    /// The other holds, if the newest one is that of a reader.
    others: Vec<Weak<HoldState>>,
}

impl Present {
    fn all(&self) -> impl Iterator<Item = Arc<HoldState>> {
        let others = self.others.iter().filter_map(Weak::upgrade);
        self.newest.upgrade().into_iter().chain(others)
    }
}

/// The holds of one client in this process. A caller that finds a lock busy learns from this registry whether the same
/// client holds the lock. A shutdown uses this registry to wait until all locks are released.
#[derive(Debug, Default)]
pub(crate) struct HoldRegistry {
    /// The holds of each lock that have not been released. A lock has one, unless its holds are those of readers.
    present: Mutex<HashMap<LockName, Present>>,
    /// When a long wait for each lock was last reported. Reports older than [`limits::REPORT_AGAIN`] are removed.
    reported: Mutex<HashMap<LockName, Moment>>,
    /// Tracks the holds that have not been released, including lost holds.
    holds: TaskTracker,
    /// Tracks the acquisitions in progress.
    entering: TaskTracker,
}

impl HoldRegistry {
    /// Adds a hold. If the client has had other holds of the same lock, returns those with older grants, which have possibly
    /// ended. Readers can be inside together.
    pub(crate) fn add(&self, hold: &Arc<HoldState>) -> Vec<Arc<HoldState>> {
        hold.track(self.holds.token());
        let mut present = lock(&self.present);
        let before = present
            .get(&hold.name)
            .and_then(|present| present.newest.upgrade());
        if let Some(before) = &before
            && before.mode().is_shared()
            && hold.mode().is_shared()
            && let Some(of_lock) = present.get_mut(&hold.name)
        {
            of_lock.others.push(Arc::downgrade(hold));
            drop(present); // the last handle to a hold is not dropped under the mutex
            return Vec::new();
        }
        // The grant of `hold` may have been read so late that a newer hold of the same lock has already begun.
        if before
            .as_ref()
            .is_some_and(|before| before.token > hold.token)
        {
            drop(present);
            // If too little of the lease is left to begin the body, the call acquires the lock again. Otherwise, the server
            // has possibly lost its tokens with its data.
            if !hold.is_fresh() {
                hold.give_up();
            }
            return vec![hold.clone()];
        }
        let newest = Arc::downgrade(hold);
        let older = present.insert(
            hold.name.clone(),
            Present {
                newest,
                others: Vec::new(),
            },
        );
        drop(present);
        // The previous holds of this lock are over, because a newer hold has begun. If the body of a previous hold has not
        // begun, `give_up` makes its call acquire the lock again.
        drop(before);
        let older: Vec<_> = older.iter().flat_map(Present::all).collect();
        older.iter().for_each(|hold| {
            hold.give_up();
        });
        older
    }

    /// Gives back every lock whose body has not begun.
    pub(crate) fn give_up_unused(&self) {
        for hold in self.all() {
            hold.give_up();
        }
    }

    pub(crate) fn remove(&self, hold: &Arc<HoldState>) {
        {
            let mut present = lock(&self.present);
            let is_this = |other: &Weak<HoldState>| other.as_ptr() == Arc::as_ptr(hold);
            // If this hold was lost, a newer hold of the same lock may have replaced it.
            if let Some(of_lock) = present.get_mut(&hold.name) {
                of_lock.others.retain(|other| !is_this(other));
                if is_this(&of_lock.newest) {
                    match of_lock.others.pop() {
                        Some(other) => of_lock.newest = other,
                        None => {
                            present.remove(&hold.name);
                        }
                    }
                }
            }
        }
        hold.untrack();
    }

    /// Registers an acquisition, which is in progress until the returned value is dropped.
    pub(crate) fn entering(&self) -> TrackedTask {
        self.entering.token()
    }

    /// Returns the newest hold of a lock; `None` if this client does not hold the lock.
    pub(crate) fn hold_of(&self, name: &LockName) -> Option<Arc<HoldState>> {
        lock(&self.present).get(name)?.newest.upgrade()
    }

    /// Returns the present holds of all locks.
    pub(crate) fn all(&self) -> Vec<Arc<HoldState>> {
        let present = lock(&self.present);
        present.values().flat_map(Present::all).collect()
    }

    /// Returns whether a call that has waited for a long time may report this now. If many calls of this client wait for
    /// one lock, only one of them reports it in [`limits::REPORT_AGAIN`].
    pub(crate) fn may_report_wait(&self, name: &LockName, now: Moment) -> bool {
        let mut reported = lock(&self.reported);
        reported.retain(|_, at| now.since(*at) < limits::REPORT_AGAIN);
        if reported.contains_key(name) {
            return false;
        }
        reported.insert(name.clone(), now);
        true
    }

    /// Whether this client holds the lock, as far as this process knows.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.hold_of(name).is_some_and(|hold| hold.is_valid())
    }

    /// Groups the held locks by shard. For each shard, returns the name of one held lock, and the time after which the
    /// last lease in this shard ends (zero if no lease is valid). If no lock is held, returns one shard without a lock.
    pub(crate) fn held_by_shard(
        &self,
        shard: impl Fn(&LockName) -> u16,
    ) -> BTreeMap<u16, (Option<LockName>, Duration)> {
        let mut held = BTreeMap::new();
        for hold in self.all() {
            let first = || (Some(hold.name.clone()), Duration::ZERO);
            let (_, longest) = held.entry(shard(&hold.name)).or_insert_with(first);
            *longest = hold.lease_left().max(*longest);
        }
        if held.is_empty() {
            held.insert(0, (None, Duration::ZERO));
        }
        held
    }

    /// Waits until no acquisition is in progress.
    pub(crate) async fn nobody_enters(&self) {
        drained(&self.entering).await;
    }

    /// Waits until every hold is released.
    pub(crate) async fn drained(&self) {
        drained(&self.holds).await;
    }
}
