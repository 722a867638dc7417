//! One hold, from its grant to its release.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
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
    options::Mode,
};
use tokio::sync::Notify;
use tracing::Span;

use crate::{
    background::{Context, Polled, TrackedTask, lock},
    events::{Counters, LeaseLoss, LeaseWarning, TARGET, count, metrics},
    lease::{
        Applied, Lease, Requested,
        due_queue::{DueEntry, Scheduled},
        moment::AtomicMoment,
        policy::{self, Plan},
        siblings::Turns,
    },
    limits,
};

mod demand;
mod loss;

pub(crate) use demand::RenewalDemand;

/// The functions that a hold needs from its client.
pub(crate) trait HoldHost: fmt::Debug + Send + Sync {
    fn context(&self) -> &Arc<Context>;

    fn backend(&self) -> &Arc<dyn Backend>;

    fn counters(&self) -> &Counters;

    /// Called when a hold has begun.
    fn begun(&self, hold: &Arc<HoldState>);

    /// Called when a hold begins to wait for its body, which `polled` polls. If the body has not begun by `until`, the
    /// lock is given back.
    fn awaits_body(&self, hold: &Arc<HoldState>, until: Moment, polled: Option<Polled>);

    /// Makes the next renewal or check of the hold due at `moment`, unless it is due earlier already.
    fn due_by(&self, hold: &Arc<HoldState>, moment: Moment);

    /// Called when the lease is lost while it is in use.
    fn lost(&self, loss: &LeaseLoss);

    /// Called when a body has used most of its fixed lease.
    fn lease_nearly_over(&self, warning: &LeaseWarning);

    /// Called when no call is inside the hold any more.
    fn left(&self, hold: &Arc<HoldState>);

    /// Called when a caller begins to wait for the confirmation of its release. The caller waits no longer than until
    /// `until`.
    fn awaits_release(&self, release: Weak<dyn UnconfirmedRelease>, until: Moment);

    /// Called when the hold has been released, or when its release continues in the background.
    fn released(&self, hold: &Arc<HoldState>);
}

/// A release that the backend has not confirmed yet.
pub(crate) trait UnconfirmedRelease: Send + Sync {
    /// Makes the release continue in the background, unless it has been confirmed.
    fn go_on_in_background(&self);
}

/// The engine's state of one hold.
pub(crate) struct HoldState {
    pub(crate) key: LockKey,
    pub(crate) name: LockName,
    pub(crate) token: FencingToken,
    /// The name under which metrics report this lock.
    label: &'static str,
    /// The path of the annotated function, or the label of a lock of the explicit API; empty if there is neither.
    function: &'static str,
    pub(crate) terms: LeaseTerms,
    /// The number of replicas that the call asked for which acquired the lock.
    pub(crate) replicas: usize,
    /// Which other callers can be inside the lock, at first.
    mode: Mode,
    /// Whether the hold of a writer has become that of a reader.
    is_downgraded: AtomicBool,
    grant: Grant,
    /// Whether a call has taken the lock.
    is_taken: AtomicBool,
    due_entry: DueEntry,
    /// If the hold is released before this moment, the lock stays taken until this moment. The initial value is zero,
    /// so that a release frees the lock at once.
    retain_until: AtomicMoment,
    host: Arc<dyn HoldHost>,
    call: Mutex<Call>,
    lease: Mutex<Lease>,
    lost: OnceLock<LossReason>,
    /// The end of a lease that was lost: the local deadline, or the moment at which the engine noticed the loss. `None`
    /// while the lease is not lost.
    lost_at: AtomicMoment,
    /// Whether the engine has warned that the body blocks its thread.
    blocked_warned: AtomicBool,
    /// Wakes the tasks that wait for the loss of the lease. For an in-process lock, these tasks are also woken when the
    /// deadline changes.
    lost_now: Notify,
    /// Whether the engine has warned that the body has used most of its fixed lease.
    warned: AtomicBool,
    /// Whether the engine has warned that renewals fail. Becomes `false` when the backend next confirms the grant.
    renewal_warned: AtomicBool,
    /// The moment until which the hold waits for its body to begin; `None` if the hold does not wait. The value is
    /// [`GIVEN_UP`](Self::GIVEN_UP) once the engine has given the lock back because the body did not begin in time.
    unused_until: AtomicMoment,
    /// The number of entries (calls inside the hold). The last call to leave the hold releases the lock.
    entries: AtomicUsize,
    /// The queue in which nested calls wait for their turns, if they are nested directly in the call that began the
    /// hold.
    pub(crate) turns: Turns,
}

/// The call that began a hold.
struct Call {
    /// Makes a shutdown of the client wait for the hold. `None` once the hold has been released, or given back because its
    /// body did not begin in time.
    tracked: Option<TrackedTask>,
    /// Events about the hold are inside this span, also if the engine reports them. The span is disabled before the call
    /// has its locks, and after the release.
    span: Span,
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
    /// Creates a hold for a new grant. At first, only the call that acquired the lock is inside the hold. With `offer`, the
    /// lock is given back if the call does not begin its body by this moment.
    #[expect(clippy::too_many_arguments, reason = "the fields of a hold")]
    pub(crate) fn begin(
        host: Arc<dyn HoldHost>,
        key: LockKey,
        name: LockName,
        (label, function): (&'static str, &'static str),
        terms: LeaseTerms,
        (replicas, mode): (usize, Mode),
        grant: Grant,
        offer: Option<(Moment, Option<Polled>)>,
    ) -> Arc<Self> {
        let entered = host.backend().now();
        let hold = Arc::new(Self {
            key,
            name,
            token: grant.token,
            label,
            function,
            terms,
            replicas,
            mode,
            is_downgraded: AtomicBool::new(false),
            grant,
            is_taken: AtomicBool::new(false),
            due_entry: DueEntry::new(),
            retain_until: AtomicMoment::new(Some(Moment::new(Duration::ZERO))),
            host,
            call: Mutex::new(Call {
                tracked: None,
                span: Span::none(),
            }),
            lease: Mutex::new(Lease::granted(terms, &grant, entered)),
            lost: OnceLock::new(),
            lost_at: AtomicMoment::new(None),
            blocked_warned: AtomicBool::new(false),
            lost_now: Notify::new(),
            warned: AtomicBool::new(false),
            renewal_warned: AtomicBool::new(false),
            unused_until: AtomicMoment::new(offer.as_ref().map(|(until, _)| *until)),
            entries: AtomicUsize::new(1),
            turns: Turns::default(),
        });
        hold.host.begun(&hold);
        if let Some(until) = hold.unused_until() {
            let polled = offer.and_then(|(_, polled)| polled);
            hold.host.awaits_body(&hold, until, polled);
        }
        hold
    }

    /// Makes the engine give the lock back if the body has not begun by `until`. Without this limit, a call that is
    /// never polled again would keep the lock. A call that is polled after its lock was given back acquires the lock
    /// again.
    pub(crate) fn wait_for_body(self: &Arc<Self>, until: Moment) {
        let wait = |now| (now != Self::GIVEN_UP).then_some(AtomicMoment::nanos(until));
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        if self.unused_until.0.fetch_update(set, fetch, wait).is_err() {
            return;
        }
        if self.backend().maintains_leases() {
            // No scheduler watches the holds of this backend, so the backend itself has to end the grant at `until`, as
            // it ends a fixed lease.
            self.update_lease(|_| {});
        } else {
            self.host.awaits_body(self, until, None);
        }
    }

    /// Marks the body as begun. If the lock has already been given back, or its in-process lease has ended, marks the
    /// lease as not held instead, and returns `false`.
    pub(crate) fn begin_body(&self) -> bool {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let begin = |until| (until != Self::GIVEN_UP).then_some(AtomicMoment::NONE);
        let stands = match self.unused_until.0.fetch_update(set, fetch, begin) {
            Ok(AtomicMoment::NONE) => true,
            // For an in-process lock, `update_lease` returns `false` if the grant has ended.
            Ok(_) => self.update_lease(|_| {}) && !self.is_lost(),
            Err(_) => false,
        };
        if stands {
            self.take();
        } else {
            self.forget_lease();
        }
        stands
    }

    /// Called when a call takes the lock, which the engine has acquired for it. Counts and logs this the first time.
    pub(crate) fn take(&self) {
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return;
        }
        let counters = self.counters();
        count(&counters.acquired);
        if self.grant.queued {
            count(&counters.waited);
        }
        if let Some(time) = self.grant.handoff {
            let waited = self.backend().now().since(self.begun());
            metrics::handoff(self.label, time + waited);
        }
        tracing::debug!(target: TARGET, key = %self.key, token = %self.token, queued = self.grant.queued, "acquired");
    }

    /// Whether a call has taken the lock. A lock that no call has taken counts neither as acquired nor as released.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    const GIVEN_UP: u64 = 0;

    pub(crate) fn is_given_up(&self) -> bool {
        self.unused_until.0.load(Ordering::Acquire) == Self::GIVEN_UP
    }

    /// Whether the hold is in use. A hold that waits for its body to begin is not in use: if its lease ends, no loss is
    /// counted, because the call acquires the lock again.
    pub(crate) fn is_in_use(&self) -> bool {
        self.unused_until.get().is_none()
    }

    /// Returns the moment at which the lock is given back if the body has not begun; `None` if the hold does not wait
    /// for its body.
    pub(crate) fn unused_until(&self) -> Option<Moment> {
        self.unused_until.get().filter(|_| !self.is_given_up())
    }

    /// Gives the lock back if the body has not begun in time. Returns `true` if this method has given the lock back.
    pub(crate) fn give_up_unused(&self, now: Moment) -> bool {
        self.unused_until().is_some_and(|until| until <= now) && self.give_up()
    }

    /// Gives the lock back if the body has not begun. Returns `true` if this method has given the lock back. Giving the
    /// lock back and beginning the body change the same atomic value, so that only one of these two steps can succeed.
    pub(crate) fn give_up(&self) -> bool {
        let Some(until) = self.unused_until() else {
            return false;
        };
        let (until, order) = (AtomicMoment::nanos(until), Ordering::AcqRel);
        let given_up = self
            .unused_until
            .0
            .compare_exchange(until, Self::GIVEN_UP, order, Ordering::Acquire)
            .is_ok();
        if given_up {
            let ends = self.deadline().filter(|_| self.is_taken());
            self.backend().release_in_background(
                &self.name,
                self.token,
                None,
                ends,
                self.latest_end(),
            );
            // The call might never be polled again, so a shutdown must not wait for this hold.
            self.untrack();
            tracing::debug!(target: TARGET, key = %self.key, token = %self.token, "giving the lock back, because the call that holds it is not polled");
            self.forget_lease(); // this wakes callers, so it comes last
        }
        given_up
    }

    /// Marks the lease as not held, without counting a loss, because no body has begun.
    fn forget_lease(&self) {
        self.lost.get_or_init(|| LossReason::NotHeld);
        self.lost_now.notify_waiters();
    }

    /// Returns which other callers can be inside the lock.
    pub(crate) fn mode(&self) -> Mode {
        match self.is_downgraded.load(Ordering::Acquire) {
            true => Mode::Read,
            false => self.mode,
        }
    }

    /// Whether a nested call that has just entered may write.
    pub(crate) fn may_write(&self) -> bool {
        fence(Ordering::SeqCst);
        self.mode() != Mode::Read
    }

    /// Lets readers be inside the lock beside this hold. Returns `None` if a nested call is inside, which possibly writes.
    /// From the call on, nested calls only read, whatever the backend answers.
    pub(crate) async fn downgrade(self: &Arc<Self>) -> Option<Result<bool, BackendError>> {
        if self.mode() != Mode::Write {
            return Some(Ok(true));
        }
        // A nested call that enters counts itself, and then looks at the mode (`may_write`).
        self.is_downgraded.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.entries.load(Ordering::SeqCst) > 1 {
            self.is_downgraded.store(false, Ordering::SeqCst);
            return None;
        }
        let hold = self.clone();
        let asking = async move { hold.backend().downgrade(&hold.name, hold.token).await };
        if self.backend().maintains_leases() {
            return Some(asking.await);
        }
        let asked = self.host.context().run(asking).await;
        Some(asked.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string()))))
    }

    /// Returns the path of the annotated function, or the label of a lock of the explicit API; empty if there is neither.
    pub(crate) fn function(&self) -> &'static str {
        self.function
    }

    pub(crate) fn host(&self) -> &Arc<dyn HoldHost> {
        &self.host
    }

    pub(crate) fn track(&self, task: TrackedTask) {
        lock(&self.call).tracked = Some(task);
        metrics::holding(self.label, 1.0);
    }

    /// Stores the span of the call that began the hold.
    pub(crate) fn set_span(&self, span: Span) {
        lock(&self.call).span = span;
    }

    /// The span of the call that began the hold.
    fn span(&self) -> Span {
        lock(&self.call).span.clone()
    }

    pub(crate) fn untrack(&self) {
        let over = Call {
            tracked: None,
            span: Span::none(),
        };
        let Call { tracked, span } = std::mem::replace(&mut *lock(&self.call), over);
        // The last clone of a span closes it, which runs code of the user, so the mutex is unlocked before.
        drop(span);
        if tracked.is_some() {
            metrics::holding(self.label, -1.0);
        }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        self.host.backend()
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.host.counters()
    }

    /// Returns the local deadline; `None` while the backend itself maintains the lease until the release.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        lock(&self.lease).deadline()
    }

    /// Returns the latest end of the lease that was granted, or that a request of this hold has asked for. The server has
    /// possibly carried out requests whose answers were not read.
    pub(crate) fn latest_end(&self) -> Moment {
        lock(&self.lease).latest_end()
    }

    pub(crate) fn is_claim(&self) -> bool {
        lock(&self.lease).is_claim()
    }

    /// Returns the moment of the first renewal or check; `None` if the backend itself maintains the lease.
    pub(crate) fn first_due(&self, now: Moment) -> Option<Moment> {
        let lease = lock(&self.lease);
        let (renews, claim) = (lease.plan().is_some(), lease.is_claim());
        let deadline = lease.deadline()?;
        Some(policy::first_due(
            self.terms.time,
            deadline,
            renews,
            claim,
            now,
        ))
    }

    fn begun(&self) -> Moment {
        lock(&self.lease).begun()
    }

    /// Whether enough of the confirmed lease is left to start a body without a further confirmation.
    pub(crate) fn is_fresh(&self) -> bool {
        // The leases that a backend maintains itself need no confirmation.
        if self.backend().maintains_leases() {
            return self.loss().is_none();
        }
        !self.is_lost() && lock(&self.lease).is_fresh(self.backend().now())
    }

    /// Returns the end of the lease, from which the time of an extension counts.
    pub(crate) fn lease_ends(&self) -> Moment {
        lock(&self.lease).ends(self.backend().now())
    }

    /// Returns the renewal or check that is due at `now`. A hold that waits for its body is renewed for its whole lease, so
    /// that a caller which is polled rarely can still begin its body.
    pub(crate) fn step(&self, now: Moment) -> Extend {
        let step = lock(&self.lease).step(now);
        match self.unused_until() {
            Some(_) => Extend::To(step.lease().max(self.terms.time)),
            None => step,
        }
    }

    /// Registers a request that is sent to the backend at `now`.
    pub(crate) fn request(&self, extend: Extend, now: Moment) -> Requested {
        lock(&self.lease).request(extend, now)
    }

    /// Applies an answer of the backend to the lease. Returns the reason for the loss if the lease is lost. Only this
    /// method changes the deadline of a lease on a server. An answer that is read after the local deadline does not
    /// revive the lease, even if nobody has noticed the loss yet.
    pub(crate) fn apply(
        &self,
        requested: Requested,
        answer: Renewed,
    ) -> Result<Applied, LossReason> {
        let until = match answer {
            Renewed::Until(until) => until,
            // If every call has left the hold by now, the lease counts as released, not as lost.
            Renewed::NotHeld if self.has_ended() => return Err(LossReason::NotHeld),
            Renewed::NotHeld => return Err(self.lose(LossReason::NotHeld)),
        };
        if let Some(reason) = self.loss() {
            return Err(reason);
        }
        self.renewal_warned.store(false, Ordering::Release);
        let applied = lock(&self.lease).apply(requested, until, self.backend().now());
        match applied {
            Applied::Late if self.has_ended() => Err(LossReason::Expired),
            Applied::Late => Err(self.lose(LossReason::Expired)),
            applied => Ok(applied),
        }
    }

    /// Counts a renewal that failed, or that has had no answer within a second. The scheduler keeps trying until the
    /// local deadline, so only the first of several failures in a row is logged as a warning.
    pub(crate) fn renewal_failed(&self, error: &BackendError) {
        count(&self.counters().renewal_failed);
        metrics::renewal(self.label, "failed");
        let remaining = self.remaining();
        if !self.is_in_use() || self.renewal_warned.swap(true, Ordering::AcqRel) {
            tracing::debug!(target: TARGET, key = %self.key, token = %self.token, ?remaining, %error, "renewal failed");
        } else {
            self.span().in_scope(|| tracing::warn!(target: TARGET, key = %self.key, token = %self.token, ?remaining, %error, "renewal failed, trying again until the lease ends"));
        }
    }

    /// Sends a renewal to the backend, and applies the answer. For a lease on a server, the engine's thread sends the
    /// renewal and applies the answer, so the lease is up to date even if the caller is polled late.
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
            // An in-process backend answers at once.
            return asking.await;
        }
        let asked = self.host.context().run(asking).await;
        asked.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
    }

    /// Extends the lease so that it lasts at least `lease` from now.
    pub(crate) async fn renew(
        self: Arc<Self>,
        lease: Duration,
    ) -> Result<Result<Applied, LossReason>, BackendError> {
        self.ask(Extend::To(lease)).await
    }

    /// Extends the lease before a body begins, so that the whole lease time is left. `Ok` means only that the backend
    /// has answered: [`loss`](Self::loss) says whether the lease is lost.
    pub(crate) async fn confirm(self: Arc<Self>) -> Result<(), BackendError> {
        self.ask(Extend::To(self.terms.time)).await.map(drop)
    }

    /// Restarts a fixed lease, because the body begins only now: the whole time of the lease counts from now, even if
    /// the lock has already been held for a long time. `Ok` means only that the backend has answered:
    /// [`loss`](Self::loss) says whether the lease is lost.
    pub(crate) async fn restart(self: Arc<Self>) -> Result<(), BackendError> {
        self.ask(Extend::Restart(self.terms.time)).await.map(drop)
    }

    /// Makes a backend that itself maintains leases keep this lease valid at least until `until`, and for as long as
    /// calls inside the hold demand renewal. With any other backend, this method has no effect. Returns `false` if the
    /// lease is over, or if the backend no longer has the grant.
    pub(crate) fn promise(&self, until: Moment) -> bool {
        self.update_lease(|lease| lease.promise(until))
    }

    /// Makes the lease end at `end` at the latest, or lifts this limit if `end` is `None`. Only a test that pretends an
    /// outage of the in-process backend calls this method.
    pub(crate) fn end_by(&self, end: Option<Moment>) {
        self.update_lease(|lease| lease.end_by(end));
    }

    /// Changes the lease. If the backend itself maintains the lease, also passes the new end of the lease to the
    /// backend. Returns `false` if the lease is over, or if the backend no longer has the grant.
    fn update_lease(&self, change: impl FnOnce(&mut Lease)) -> bool {
        change(&mut lock(&self.lease));
        if !self.backend().maintains_leases() {
            return true;
        }
        let mut is_changed = false;
        loop {
            let (now, until) = {
                let lease = lock(&self.lease);
                let now = self.backend().now();
                if lease.is_over(now) {
                    return false;
                }
                let ends = [lease.backend_deadline(), self.unused_until()];
                let until = ends.into_iter().flatten().min();
                if until == lease.deadline() {
                    break;
                }
                (now, until)
            };
            // A waker can poll its caller at once, on this thread, so the mutex is unlocked. If another thread changes
            // the lease meanwhile, the thread that renews last finds a difference, and renews again.
            let time = until.map_or(Duration::MAX, |until| until.since(now));
            let kept = self
                .backend()
                .renew(&self.name, self.token, Extend::Restart(time));
            // An in-process backend answers at once. If the lock has been released, the answer is not `Until`.
            if !matches!(kept.now_or_never(), Some(Ok(Renewed::Until(_)))) {
                return false;
            }
            lock(&self.lease).set_deadline(until);
            is_changed = true;
        }
        if is_changed {
            self.lost_now.notify_waiters();
        }
        true
    }

    /// Ends the renewals of this hold, so that its lease runs out unless the hold is released before.
    pub(crate) fn stop_renewals(&self) {
        let now = self.backend().now();
        self.update_lease(|lease| lease.remove_all(now));
    }

    /// Makes the lock stay taken until `until`, even if the hold is released earlier.
    pub(crate) fn retain_until(&self, until: Moment) {
        self.retain_until
            .0
            .fetch_max(AtomicMoment::nanos(until), Ordering::AcqRel);
    }

    /// Returns the moment until which the lock stays taken after its release; `None` if that moment has passed or the
    /// lease is lost.
    pub(crate) fn retained_until(&self) -> Option<Moment> {
        self.retain_until
            .get()
            .filter(|until| *until > self.backend().now() && self.loss().is_none())
    }

    /// Whether every call has left the hold.
    pub(crate) fn has_ended(&self) -> bool {
        self.entries.load(Ordering::Acquire) == 0
    }

    /// Counts one call as having left the hold. Returns `true` if no call is inside the hold any more.
    pub(crate) fn count_out(&self) -> bool {
        let is_last = self.entries.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && metrics::ENABLED && self.is_in_use() {
            let time = self.backend().now().since(self.begun());
            metrics::held(self.label, self.lost.get().copied(), time);
        }
        is_last
    }

    /// Counts a renewal that extended the lease.
    pub(crate) fn renewed(&self) {
        count(&self.counters().renewed);
        metrics::renewal(self.label, "renewed");
    }

    /// Whether the lease has been marked as lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Counts one more call inside the hold. Returns `false` if the hold has ended.
    pub(crate) fn count_in(&self) -> bool {
        self.entries
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |entries| {
                (entries > 0).then_some(entries + 1)
            })
            .is_ok()
    }

    /// Returns the renewal plan that meets the demands of all calls inside the hold; `None` if the lease is fixed.
    pub(crate) fn plan(&self) -> Option<Plan> {
        lock(&self.lease).plan()
    }

    /// Returns the moment at which the call that began the hold stops demanding renewals; `None` if this call sets no
    /// limit.
    pub(crate) fn limit(&self) -> Option<Moment> {
        lock(&self.lease).limit()
    }

    pub(crate) fn set_limit(&self, limit: Option<Moment>) {
        lock(&self.lease).set_limit(limit);
    }
}
