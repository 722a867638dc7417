//! One hold: an entered critical section, from its grant to its release.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lock_core::{
    backend::{Backend, BackendError, Released, Renewed},
    error::{LockError, LossReason},
    fencing::FencingToken,
    key::{LockKey, LockName},
    lease::{Grant, LeaseTerms, Moment, Renewal},
};
use tokio::sync::Notify;

use crate::{
    client::Shared,
    clock,
    plan::{self, Plan},
    stats::{Counters, count},
    sync::lock,
};

/// How long a caller waits for its release to be confirmed before that goes on in the background.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// A moment that threads share, or none.
#[derive(Debug)]
struct AtomicMoment(AtomicU64);

impl AtomicMoment {
    const NONE: u64 = u64::MAX;

    fn new(moment: Option<Moment>) -> Self {
        Self(AtomicU64::new(moment.map_or(Self::NONE, Self::nanos)))
    }

    fn nanos(moment: Moment) -> u64 {
        u64::try_from(moment.since_origin().as_nanos()).unwrap_or(Self::NONE - 1)
    }

    fn moment(nanos: u64) -> Option<Moment> {
        (nanos != Self::NONE).then(|| Moment::new(Duration::from_nanos(nanos)))
    }

    fn get(&self) -> Option<Moment> {
        Self::moment(self.0.load(Ordering::Acquire))
    }

    fn set(&self, moment: Option<Moment>) {
        let nanos = moment.map_or(Self::NONE, Self::nanos);
        self.0.store(nanos, Ordering::Release);
    }
}

/// Where a hold stands in the schedule of its keeper. Changed under the keeper's lock.
#[derive(Debug)]
pub(crate) struct KeptAt {
    /// None while it is not in the schedule.
    due: AtomicMoment,
    /// Its number among those that are due then.
    place: AtomicU32,
    ended: AtomicBool,
}

impl KeptAt {
    fn new() -> Self {
        Self {
            due: AtomicMoment::new(None),
            place: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Notes a place in the schedule.
    pub(crate) fn move_to(&self, due: Moment, place: usize) {
        let place =
            u32::try_from(place).expect("a process has less than four thousand million holds");
        self.place.store(place, Ordering::Release);
        self.due.set(Some(due));
    }

    /// Notes that it is taken out of the schedule, and returns where it stood.
    pub(crate) fn take(&self) -> Option<(Moment, usize)> {
        let due = self.due.get()?;
        self.due.set(None);
        Some((due, self.place.load(Ordering::Acquire) as usize))
    }

    /// Ends the keeping.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        self.due.get()
    }

    pub(crate) fn is_kept(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }
}

/// What the engine knows of one hold.
pub(crate) struct HoldState {
    pub(crate) key: LockKey,
    pub(crate) name: LockName,
    pub(crate) token: FencingToken,
    pub(crate) terms: LeaseTerms,
    pub(crate) kept_at: KeptAt,
    /// When the lease began: with the grant, or with a body that had to wait for other locks too.
    begun: AtomicMoment,
    /// Released before, the lock stays taken until then; none if it is free at once.
    keep_until: AtomicMoment,
    shared: Arc<Shared>,
    /// The local deadline, which only moves on; none while the backend itself keeps the lease.
    deadline: AtomicMoment,
    lost: OnceLock<LossReason>,
    lost_now: Notify,
    /// Whether somebody was warned that a fixed lease runs out.
    warned: AtomicBool,
    /// Whether the lease stands for a claim only, until it is confirmed.
    claim: AtomicBool,
    /// How many entered calls are inside; the last one out releases.
    entries: AtomicUsize,
    /// The renewals that those inside ask for.
    plans: Mutex<Vec<Plan>>,
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

impl HoldState {
    /// A hold just granted, with one entry inside.
    pub(crate) fn begin(
        shared: Arc<Shared>,
        key: LockKey,
        name: LockName,
        terms: LeaseTerms,
        grant: Grant,
    ) -> EntryDuty {
        let entered = shared.backend.now();
        let hold = Arc::new(Self {
            key,
            name,
            token: grant.token,
            terms,
            kept_at: KeptAt::new(),
            begun: AtomicMoment::new(Some(entered)),
            keep_until: AtomicMoment::new(Some(Moment::new(Duration::ZERO))),
            shared,
            deadline: AtomicMoment::new(grant.valid_until),
            lost: OnceLock::new(),
            lost_now: Notify::new(),
            warned: AtomicBool::new(false),
            claim: AtomicBool::new(grant.validity + Duration::from_millis(1) < terms.time),
            entries: AtomicUsize::new(1),
            plans: Mutex::new(Plan::of(terms, entered).into_iter().collect()),
        });
        hold.shared.held.add(&hold);
        if !hold.backend().keeps_leases() {
            hold.shared.keeper.keep(&hold);
        }
        EntryDuty { hold: Some(hold) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.deadline.get()
    }

    pub(crate) fn extend_deadline(&self, until: Moment) {
        self.deadline
            .0
            .fetch_max(AtomicMoment::nanos(until), Ordering::AcqRel);
    }

    pub(crate) fn is_claim(&self) -> bool {
        self.claim.load(Ordering::Acquire)
    }

    pub(crate) fn confirm_claim(&self) {
        self.claim.store(false, Ordering::Release);
    }

    pub(crate) fn begun(&self) -> Moment {
        self.begun.get().expect("a hold has begun")
    }

    /// The body begins only now, and with it a fixed lease: it ends then, however long the lock was kept for the body.
    pub(crate) async fn begin_anew(self: Arc<Self>) -> Result<(), BackendError> {
        let begun = AtomicMoment::nanos(self.backend().now());
        self.begun.0.store(begun, Ordering::Release);
        let restarted = self
            .backend()
            .restart(&self.name, self.token, self.terms.time);
        match restarted.await? {
            Renewed::Until(until) => {
                let until = AtomicMoment::nanos(until);
                self.deadline.0.store(until, Ordering::Release);
                self.confirm_claim();
            }
            Renewed::NotHeld => {
                self.lose(LossReason::NotHeld);
            }
        }
        Ok(())
    }

    /// An entry that leaves wants the lock to stay taken until then.
    pub(crate) fn keep_until(&self, until: Moment) {
        self.keep_until
            .0
            .fetch_max(AtomicMoment::nanos(until), Ordering::AcqRel);
    }

    /// Until when the lock stays taken after its release, if that is still to come and the lock is not lost.
    fn kept_until(&self) -> Option<Moment> {
        self.keep_until
            .get()
            .filter(|until| *until > self.backend().now() && self.loss().is_none())
    }

    /// The loss as the error of a call inside, if the lease is lost by now.
    pub(crate) fn not_lost(&self) -> Result<(), LockError> {
        match self.loss() {
            None => Ok(()),
            Some(reason) => Err(LockError::Lost {
                key: self.key.clone(),
                token: self.token,
                reason,
            }),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match (self.loss(), self.deadline()) {
            (Some(_), _) => Duration::ZERO,
            (None, Some(until)) => until.since(self.backend().now()),
            (None, None) => self.terms.time,
        }
    }

    /// Whether the lease is lost by now, and how.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if let Some(reason) = self.lost.get() {
            return Some(*reason);
        }
        let passed = self
            .deadline()
            .is_some_and(|until| self.backend().now() >= until);
        passed.then(|| self.lose(LossReason::Expired))
    }

    /// Marks the lease as lost. The first reason stands, is logged and counted.
    pub(crate) fn lose(&self, reason: LossReason) -> LossReason {
        let mut first = false;
        let reason = *self.lost.get_or_init(|| {
            first = true;
            reason
        });
        if first {
            count(&self.counters().lost);
            tracing::warn!(key = %self.key, token = %self.token, ?reason, "lease lost while held");
            self.lost_now.notify_waiters();
        }
        reason
    }

    /// Ends when the lease is lost.
    pub(crate) async fn wait_for_loss(&self) -> LossReason {
        loop {
            let mut told = pin!(self.lost_now.notified());
            told.as_mut().enable();
            if let Some(reason) = self.loss() {
                return reason;
            }
            match self.deadline() {
                Some(until) => tokio::select! {
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
                reason = loss => return reason,
                () = self.backend().sleep_until(late) => {}
            }
            if self.plan().is_none() && !self.warned.swap(true, Ordering::AcqRel) {
                tracing::warn!(
                    key = %self.key,
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

    /// One more entry, unless the hold has ended already.
    pub(crate) fn enter_again(self: &Arc<Self>) -> Option<EntryDuty> {
        self.entries
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |entries| {
                (entries > 0).then_some(entries + 1)
            })
            .is_ok()
            .then(|| EntryDuty {
                hold: Some(self.clone()),
            })
    }

    /// How the hold is renewed, `None` if its lease is fixed. The most demanding of those inside decides.
    pub(crate) fn plan(&self) -> Option<Plan> {
        plan::most_demanding(&lock(&self.plans))
    }

    /// Makes the lease last as long as a nested entry asks for: one round trip, or none if a renewal covers it
    /// already.
    pub(crate) async fn cover(
        self: Arc<Self>,
        terms: LeaseTerms,
    ) -> Result<Option<Cover>, BackendError> {
        let Some(until) = self.deadline() else {
            return Ok(None);
        };
        let now = self.backend().now();
        let wanted = Plan::of(terms, now);
        let keeps_leases = self.backend().keeps_leases();
        if let Some(lease) = plan::extension(self.plan(), until, terms, keeps_leases, now) {
            match self.backend().renew(&self.name, self.token, lease).await? {
                Renewed::Until(until) => self.extend_deadline(until),
                Renewed::NotHeld => {
                    self.lose(LossReason::NotHeld);
                }
            }
        }
        Ok(wanted.map(|plan| {
            lock(&self.plans).push(plan);
            if !keeps_leases {
                self.shared.keeper.hurry(&self, plan.lease);
            }
            Cover {
                hold: self.clone(),
                plan,
            }
        }))
    }
}

/// A nested entry's demand for renewal; dropped, it ends.
#[derive(Debug)]
pub(crate) struct Cover {
    hold: Arc<HoldState>,
    plan: Plan,
}

impl Drop for Cover {
    fn drop(&mut self) {
        let mut plans = lock(&self.hold.plans);
        if let Some(index) = plans.iter().position(|plan| *plan == self.plan) {
            plans.swap_remove(index);
        }
    }
}

/// One entry's duty to leave. Dropped, it leaves in the background.
#[derive(Debug)]
pub(crate) struct EntryDuty {
    /// `None` once it has left.
    hold: Option<Arc<HoldState>>,
}

impl EntryDuty {
    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.hold
            .as_ref()
            .expect("an entry has a hold until it leaves")
    }

    /// Leaves; the last one out releases, and waits for the confirmation, a second at most.
    pub(crate) async fn leave(mut self) {
        let Some(releasing) = self.go() else { return };
        if releasing.hold.loss().is_some() {
            // The lease is over; what is left of it on the server is given back behind the caller's back.
            return;
        }
        let answer = {
            let hold = &releasing.hold;
            let keep_until = hold.kept_until();
            let mut release = pin!(hold.backend().release(&hold.name, hold.token, keep_until));
            // In process the answer is there at once: no timer, and no thread of the engine's.
            match std::future::poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx))).await {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => {
                    let patience = clock::boot::now() + RELEASE_PATIENCE;
                    clock::boot::timeout_at(patience, release).await
                }
            }
        };
        if let Some(Ok(released)) = answer {
            releasing.confirm(released);
        }
    }

    /// Counts this entry out. The last one has to release.
    fn go(&mut self) -> Option<Releasing> {
        let hold = self.hold.take()?;
        if hold.entries.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        hold.shared.keeper.forget(&hold);
        Some(Releasing {
            hold,
            confirmed: false,
        })
    }
}

impl Drop for EntryDuty {
    fn drop(&mut self) {
        drop(self.go());
    }
}

/// A release under way. Dropped before it was confirmed, it goes on in the background.
struct Releasing {
    hold: Arc<HoldState>,
    confirmed: bool,
}

impl Releasing {
    fn confirm(mut self, released: Released) {
        self.confirmed = true;
        let hold = &self.hold;
        match released {
            Released::Released => {
                count(&hold.counters().released);
                tracing::debug!(key = %hold.key, token = %hold.token, "released");
            }
            Released::NotHeld => {
                hold.lose(LossReason::NotHeld);
            }
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if !self.confirmed {
            let hold = &self.hold;
            tracing::debug!(key = %hold.key, token = %hold.token, "releasing in the background");
            hold.backend().release_in_background(
                &hold.name,
                hold.token,
                hold.kept_until(),
                hold.deadline(),
            );
        }
        // Only now: shutting down waits for the release too, or for its going on in the background.
        self.hold.shared.held.remove(&self.hold);
    }
}
