//! Callers that hold guards.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use lock_runtime::{Hold, LockError, LockGuard, ReleaseOutcome};
use tokio::time::{Instant, sleep, timeout};

use super::{Caller, Forgotten, LONGEST_EXTENSION, Process, Way, poll_only};
use crate::{late::Lateness, ledger::CallId};

impl Caller {
    pub(super) async fn guard(self: &Arc<Self>, way: Way) {
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
}
