//! One hold: an entered critical section, from its grant to its release.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Backend, BackendError, Extend, Renewed},
    error::{LockError, LossReason},
    fencing::FencingToken,
    key::{LockKey, LockName},
    lease::{Grant, LeaseTerms, Moment, Renewal},
};
use tokio::sync::Notify;

use crate::{
    background::{Context, shutdown::TrackedTask, sync::lock},
    events::{Counters, TARGET, count},
    lease::{
        Applied, Lease, Requested,
        due_queue::{DueEntry, Scheduled},
        moment::AtomicMoment,
        policy::{self, Plan},
        siblings::Turns,
    },
};

/// The client of a hold, as the hold sees it.
pub(crate) trait HoldHost: fmt::Debug + Send + Sync {
    fn context(&self) -> &Arc<Context>;

    fn backend(&self) -> &Arc<dyn Backend>;

    fn counters(&self) -> &Counters;

    /// A hold has begun.
    fn begun(&self, hold: &Arc<HoldState>);

    /// Something is due for a hold by then.
    fn due_by(&self, hold: &Arc<HoldState>, moment: Moment);

    /// Everybody has left the hold.
    fn left(&self, hold: &Arc<HoldState>);

    /// A caller waits for the answer to its release until then.
    fn awaits_release(&self, release: Weak<dyn UnconfirmedRelease>, until: Moment);

    /// The hold has been released, or its release goes on in the background.
    fn released(&self, hold: &Arc<HoldState>);
}

/// A release that waits for its answer.
pub(crate) trait UnconfirmedRelease: Send + Sync {
    /// It goes on in the background, unless it was confirmed.
    fn go_on_in_background(&self);
}

/// What the engine knows of one hold.
pub(crate) struct HoldState {
    pub(crate) key: LockKey,
    pub(crate) name: LockName,
    pub(crate) token: FencingToken,
    pub(crate) terms: LeaseTerms,
    due_entry: DueEntry,
    /// Released before, the lock stays taken until then; none if it is free at once.
    retain_until: AtomicMoment,
    host: Arc<dyn HoldHost>,
    /// While it has not been released.
    tracked: Mutex<Option<TrackedTask>>,
    lease: Mutex<Lease>,
    lost: OnceLock<LossReason>,
    /// The lease is lost, or ends earlier than it did.
    lost_now: Notify,
    /// Whether somebody was warned that a fixed lease runs out.
    warned: AtomicBool,
    /// Whether somebody was warned that renewals fail; again after one that succeeds.
    renewal_warned: AtomicBool,
    /// Until when it is held for a body that has not begun; none once it has.
    unused_until: AtomicMoment,
    /// How many entered calls are inside; the last one out releases.
    entries: AtomicUsize,
    /// The turns of the calls nested in the entry that began the hold.
    pub(crate) turns: Turns,
}

impl fmt::Debug for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("lost", &self.lost.get())
            .finish_non_exhaustive()
    }
}

impl Scheduled for HoldState {
    fn due_entry(&self) -> &DueEntry {
        &self.due_entry
    }
}

impl HoldState {
    /// A hold just granted, with one entry inside.
    pub(crate) fn begin(
        host: Arc<dyn HoldHost>,
        key: LockKey,
        name: LockName,
        terms: LeaseTerms,
        grant: Grant,
    ) -> Arc<Self> {
        let entered = host.backend().now();
        let hold = Arc::new(Self {
            key,
            name,
            token: grant.token,
            terms,
            due_entry: DueEntry::new(),
            retain_until: AtomicMoment::new(Some(Moment::new(Duration::ZERO))),
            host,
            tracked: Mutex::new(None),
            lease: Mutex::new(Lease::granted(terms, &grant, entered)),
            lost: OnceLock::new(),
            lost_now: Notify::new(),
            warned: AtomicBool::new(false),
            renewal_warned: AtomicBool::new(false),
            unused_until: AtomicMoment::new(None),
            entries: AtomicUsize::new(1),
            turns: Turns::default(),
        });
        hold.host.begun(&hold);
        hold
    }

    /// Its body begins later than it: it is given back if the body has not begun by then, because nobody may poll the call
    /// that holds it. The call acquires again when it is polled.
    pub(crate) fn wait_for_body(self: &Arc<Self>, until: Moment) {
        if self.is_given_up() {
            return;
        }
        self.unused_until.set(Some(until));
        if self.backend().maintains_leases() {
            // No scheduler watches it: the grant ends by itself, as that of a fixed lease does.
            self.update_lease(|_| {});
        } else {
            self.host.due_by(self, until);
        }
    }

    /// Its body begins, unless it has been given back.
    pub(crate) fn begin_body(&self) {
        let before = self
            .unused_until
            .0
            .swap(AtomicMoment::NONE, Ordering::AcqRel);
        let stands = match before {
            AtomicMoment::NONE => true,
            Self::GIVEN_UP => {
                self.unused_until.0.store(before, Ordering::Release);
                false
            }
            // In process, the backend decides.
            _ => self.update_lease(|_| {}),
        };
        if !stands {
            self.forget_lease();
        }
    }

    const GIVEN_UP: u64 = 0;

    pub(crate) fn is_given_up(&self) -> bool {
        self.unused_until.0.load(Ordering::Acquire) == Self::GIVEN_UP
    }

    /// Whether somebody relies on it: a body that has begun, or a guard. Nobody loses what nobody used; the call that
    /// holds it acquires it again.
    fn is_in_use(&self) -> bool {
        self.unused_until.get().is_none()
    }

    /// When to look whether the body has begun.
    pub(crate) fn unused_until(&self) -> Option<Moment> {
        self.unused_until.get().filter(|_| !self.is_given_up())
    }

    /// Gives it back if its body has not begun in time. One step decides that or the beginning.
    pub(crate) fn give_up_unused(&self, now: Moment) -> bool {
        let Some(until) = self.unused_until().filter(|until| *until <= now) else {
            return false;
        };
        let (until, order) = (AtomicMoment::nanos(until), Ordering::AcqRel);
        let given_up = self
            .unused_until
            .0
            .compare_exchange(until, Self::GIVEN_UP, order, Ordering::Acquire)
            .is_ok();
        if given_up {
            tracing::debug!(target: TARGET, key = %self.key, token = %self.token, "the call that holds it is not polled, giving it back");
            self.forget_lease();
            self.backend()
                .release_in_background(&self.name, self.token, None, self.deadline());
        }
        given_up
    }

    /// Marks the lease as not held. No body has started on it, so this does not count as a loss.
    fn forget_lease(&self) {
        self.lost.get_or_init(|| LossReason::NotHeld);
        self.lost_now.notify_waiters();
    }

    pub(crate) fn host(&self) -> &Arc<dyn HoldHost> {
        &self.host
    }

    pub(crate) fn track(&self, task: TrackedTask) {
        *lock(&self.tracked) = Some(task);
    }

    pub(crate) fn untrack(&self) {
        lock(&self.tracked).take();
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        self.host.backend()
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.host.counters()
    }

    /// The local deadline; none while the backend itself keeps the lease.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        lock(&self.lease).deadline()
    }

    pub(crate) fn is_claim(&self) -> bool {
        lock(&self.lease).is_claim()
    }

    fn begun(&self) -> Moment {
        lock(&self.lease).begun()
    }

    /// Whether a body may start on what was confirmed, without another word of the backend.
    pub(crate) fn is_fresh(&self) -> bool {
        // A backend that keeps leases by itself has nothing to confirm.
        self.backend().maintains_leases() || lock(&self.lease).is_fresh(self.backend().now())
    }

    /// The end that an extension is added to.
    pub(crate) fn lease_ends(&self) -> Moment {
        lock(&self.lease).ends(self.backend().now())
    }

    /// What is due for the lease.
    pub(crate) fn step(&self, now: Moment) -> Extend {
        lock(&self.lease).step(now)
    }

    /// A request to the backend that is sent at `now`.
    pub(crate) fn request(&self, extend: Extend, now: Moment) -> Requested {
        lock(&self.lease).request(extend, now)
    }

    /// Applies an answer of the backend: the only way in which a lease is renewed. An answer that is read after the
    /// local deadline revives nothing, whether or not anybody has noticed the loss before.
    pub(crate) fn apply(
        &self,
        requested: Requested,
        answer: Renewed,
    ) -> Result<Applied, LossReason> {
        let until = match answer {
            Renewed::Until(until) => until,
            // Released meanwhile is no loss.
            Renewed::NotHeld if self.has_ended() => return Err(LossReason::NotHeld),
            Renewed::NotHeld => return Err(self.lose(LossReason::NotHeld)),
        };
        if let Some(reason) = self.loss() {
            return Err(reason);
        }
        self.renewal_warned.store(false, Ordering::Release);
        let applied = lock(&self.lease).apply(requested, until, self.backend().now());
        match applied {
            Applied::Late => Err(self.lose(LossReason::Expired)),
            applied => Ok(applied),
        }
    }

    /// A renewal or a check has failed, or has no answer yet. It is tried again until the local deadline: only the first
    /// failure is a warning.
    pub(crate) fn renewal_failed(&self, error: &BackendError) {
        count(&self.counters().renewal_failed);
        let remaining = self.remaining();
        if !self.is_in_use() || self.renewal_warned.swap(true, Ordering::AcqRel) {
            tracing::debug!(target: TARGET, key = %self.key, token = %self.token, ?remaining, %error, "renewal failed");
        } else {
            tracing::warn!(target: TARGET, key = %self.key, token = %self.token, ?remaining, %error, "renewal failed, trying again until the lease ends");
        }
    }

    /// Asks the backend, and applies its answer. The engine does both, so that a caller that is polled late finds what the
    /// answer has changed.
    async fn ask(
        self: &Arc<Self>,
        extend: Extend,
    ) -> Result<Result<Applied, LossReason>, BackendError> {
        let hold = self.clone();
        let asking = async move {
            let requested = hold.request(extend, hold.backend().now());
            let answer = hold.backend().renew(&hold.name, hold.token, extend);
            Ok(hold.apply(requested, answer.await?))
        };
        if self.backend().maintains_leases() {
            // In process, the answer is there at once.
            return asking.await;
        }
        let asked = self.host.context().run(asking).await;
        asked.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
    }

    /// Extends the lease to this, from now.
    pub(crate) async fn renew(
        self: Arc<Self>,
        lease: Duration,
    ) -> Result<Result<Applied, LossReason>, BackendError> {
        self.ask(Extend::To(lease)).await
    }

    /// Confirms the whole lease before a body starts on it. What it finds shows in the lease.
    pub(crate) async fn confirm(self: Arc<Self>) -> Result<(), BackendError> {
        self.ask(Extend::To(self.terms.time)).await.map(drop)
    }

    /// Ends a fixed lease its whole time from now, because its body begins only now, however long the lock was held
    /// before. What it finds shows in the lease.
    pub(crate) async fn restart(self: Arc<Self>) -> Result<(), BackendError> {
        self.ask(Extend::Restart(self.terms.time)).await.map(drop)
    }

    /// Promises the lease until then, and as long as those inside ask for renewal, on a backend that keeps it by itself.
    pub(crate) fn promise(&self, until: Moment) {
        self.update_lease(|lease| lease.promise(until));
    }

    /// Changes what a backend that keeps leases by itself is told, and tells it. False if the lease is over.
    fn update_lease(&self, change: impl FnOnce(&mut Lease)) -> bool {
        let mut lease = lock(&self.lease);
        let now = self.backend().now();
        change(&mut lease);
        if !self.backend().maintains_leases() {
            return true;
        }
        if lease.is_over(now) {
            return false;
        }
        let ends = [lease.backend_deadline(), self.unused_until()];
        let until = ends.into_iter().flatten().min();
        if until == lease.deadline() {
            return true;
        }
        let time = until.map_or(Duration::MAX, |until| until.since(now));
        let kept = self
            .backend()
            .renew(&self.name, self.token, Extend::Restart(time));
        // In process, the answer is there at once. A lock that was released has no lease.
        let is_scheduled = matches!(kept.now_or_never(), Some(Ok(Renewed::Until(_))));
        if is_scheduled {
            lease.set_deadline(until);
            self.lost_now.notify_waiters();
        }
        is_scheduled
    }

    /// An entry that leaves wants the lock to stay taken until then.
    pub(crate) fn retain_until(&self, until: Moment) {
        self.retain_until
            .0
            .fetch_max(AtomicMoment::nanos(until), Ordering::AcqRel);
    }

    /// Until when the lock stays taken after its release, if that is still to come and the lock is not lost.
    pub(crate) fn retained_until(&self) -> Option<Moment> {
        self.retain_until
            .get()
            .filter(|until| *until > self.backend().now() && self.loss().is_none())
    }

    /// The loss as the error of a call inside, if the lease is lost by now.
    pub(crate) fn not_lost(&self) -> Result<(), LockError> {
        self.loss()
            .map_or(Ok(()), |reason| Err(self.lost_by(reason)))
    }

    /// The error of a call that is not inside, because the hold has ended.
    pub(crate) fn not_held(&self) -> LockError {
        self.lost_by(LossReason::NotHeld)
    }

    fn lost_by(&self, reason: LossReason) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            token: self.token,
            reason,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.has_ended() || self.loss().is_some() {
            return Duration::ZERO;
        }
        match self.deadline() {
            Some(until) => until.since(self.backend().now()),
            None => self.terms.time,
        }
    }

    /// Whether the lease is lost by now, and how. One that ends after everybody has left is not lost.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if let Some(reason) = self.lost.get() {
            return Some(*reason);
        }
        (self.has_passed() && !self.has_ended()).then(|| {
            if self.give_up_unused(self.backend().now()) {
                LossReason::NotHeld
            } else {
                self.lose(LossReason::Expired)
            }
        })
    }

    fn has_passed(&self) -> bool {
        self.deadline()
            .is_some_and(|until| self.backend().now() >= until)
    }

    /// Whether the lease stands, as far as this process knows, also while it is given back.
    pub(crate) fn is_valid(&self) -> bool {
        self.lost.get().is_none() && !self.has_passed()
    }

    /// Marks the lease as lost. The first reason stands, is logged and counted.
    pub(crate) fn lose(&self, reason: LossReason) -> LossReason {
        let mut first = false;
        let reason = *self.lost.get_or_init(|| {
            first = true;
            reason
        });
        if first {
            if self.is_in_use() {
                count(&self.counters().lost);
                tracing::warn!(target: TARGET, key = %self.key, token = %self.token, ?reason, "lease lost while held");
            } else {
                tracing::debug!(target: TARGET, key = %self.key, token = %self.token, ?reason, "lease lost before its body began");
            }
            self.lost_now.notify_waiters();
        }
        reason
    }

    /// Ends when the lease is lost; never, once everybody has left.
    pub(crate) async fn wait_for_loss(&self) -> LossReason {
        loop {
            let mut told = pin!(self.lost_now.notified());
            told.as_mut().enable();
            if let Some(reason) = self.loss() {
                return reason;
            }
            match self.deadline().filter(|_| !self.has_ended()) {
                Some(until) => tokio::select! {
                    biased;
                    () = told => {}
                    () = self.backend().sleep_until(until) => {}
                },
                None => told.await,
            }
        }
    }

    /// Ends when the lease is lost, after a warning when a body has used 80 % of a fixed lease.
    pub(crate) async fn watch(self: Arc<Self>) -> LossReason {
        let late = self.begun() + self.terms.time * 4 / 5;
        if self.terms.renewal == Renewal::Fixed && !self.warned.load(Ordering::Acquire) {
            let loss = pin!(self.wait_for_loss());
            tokio::select! {
                biased;
                reason = loss => return reason,
                () = self.backend().sleep_until(late) => {}
            }
            if self.plan().is_none() && !self.warned.swap(true, Ordering::AcqRel) {
                tracing::warn!(target: TARGET, key = %self.key,
                    token = %self.token,
                    lease = ?self.terms.time,
                    remaining = ?self.remaining(),
                    "the body has used 80 % of its fixed lease, which nobody renews"
                );
            }
        }
        self.wait_for_loss().await
    }

    /// Whether everybody has left.
    pub(crate) fn has_ended(&self) -> bool {
        self.entries.load(Ordering::Acquire) == 0
    }

    /// Counts an entry out; true if it was the last.
    pub(crate) fn count_out(&self) -> bool {
        self.entries.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether a loss was noticed.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Counts one more entry, unless the hold has ended already.
    pub(crate) fn count_in(&self) -> bool {
        self.entries
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |entries| {
                (entries > 0).then_some(entries + 1)
            })
            .is_ok()
    }

    /// How the hold is renewed, `None` if its lease is fixed. The most demanding of those inside decides.
    pub(crate) fn plan(&self) -> Option<Plan> {
        lock(&self.lease).plan()
    }

    /// Makes the lease last as long as a nested entry asks for: one round trip, or none if a renewal covers it
    /// already. The longer deadline stays when the entry has left.
    pub(crate) async fn cover(
        self: Arc<Self>,
        terms: LeaseTerms,
    ) -> Result<Option<RenewalDemand>, BackendError> {
        let now = self.backend().now();
        let wanted = Plan::of(terms, now);
        if self.backend().maintains_leases() {
            self.update_lease(|lease| {
                lease.promise(now + terms.time);
                wanted.into_iter().for_each(|plan| lease.add(plan));
            });
        } else {
            let deadline = self.deadline().unwrap_or(now);
            if let Some(lease) = policy::extension(self.plan(), deadline, terms, now)
                && self.ask(Extend::To(lease)).await?.is_err()
            {
                return Ok(None); // lost
            }
            if let Some(plan) = wanted {
                lock(&self.lease).add(plan);
                let due = self.backend().now() + plan.lease / 3;
                self.host.due_by(&self, due);
            }
        }
        Ok(wanted.map(|plan| RenewalDemand { hold: self, plan }))
    }
}

/// A nested entry's demand for renewal; dropped, it ends.
#[derive(Debug)]
pub(crate) struct RenewalDemand {
    hold: Arc<HoldState>,
    plan: Plan,
}

impl Drop for RenewalDemand {
    fn drop(&mut self) {
        let now = self.hold.backend().now();
        self.hold.update_lease(|lease| lease.remove(self.plan, now));
    }
}
