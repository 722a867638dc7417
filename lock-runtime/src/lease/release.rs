//! Leaving a hold: the last call to leave the hold releases its lock.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use lock_core::{backend::Released, error::LossReason};

use crate::{
    events::{TARGET, count},
    lease::hold::{HoldState, UnconfirmedRelease},
    limits,
};

/// The outcome of releasing a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The lock was held until the release. The release passes the lock to the next waiter, frees it, or keeps it taken
    /// for the rest of `hold_at_least`.
    ///
    /// If the next waiter belongs to the same client and shares the grant, the engine passes the lock on without asking
    /// the server. The loss of a lock whose key was deleted in the last 0.2 s can then be unknown.
    Released,
    /// Another call is still inside the same hold, such as an enclosing call or a task spawned with `in_current_hold`.
    /// The last call to leave the hold releases the lock.
    StillHeld,
    /// The server has not confirmed the release yet. The release is retried in the background until the lease ends.
    InBackground,
    /// The lease had been lost before the release. Another caller may have held the lock in the meantime.
    Lost(LossReason),
    /// The lock is no longer held, and it is not known whether it was held until the release. The connection broke before
    /// the server's answer arrived, so the engine sent the release again, and the second copy found no grant. Usually,
    /// the first copy has released the lock. But the lease may also have been lost before, for instance because the
    /// break was a restart of a server without persistence, or a failover. Then another caller may have held the lock
    /// in the meantime.
    Unknown,
}

/// The entry of one call into a hold. Dropping this value makes the call leave the hold. If no call is left inside the
/// hold, dropping this value also releases the lock in the background.
#[derive(Debug)]
pub(crate) struct EntryTicket {
    /// The hold; `None` once the call has left it.
    hold: Option<Arc<HoldState>>,
    /// Whether the hold counts this entry as a call inside it. The hold ends when its count falls to zero.
    inside: bool,
}

impl EntryTicket {
    /// Creates the entry of a call that the hold has already counted.
    pub(crate) fn counted(hold: Arc<HoldState>) -> Self {
        Self {
            hold: Some(hold),
            inside: true,
        }
    }

    /// Lets another call enter a hold. Returns `None` if the hold has ended.
    pub(crate) fn again(hold: &Arc<HoldState>) -> Option<Self> {
        hold.count_in().then(|| Self::counted(hold.clone()))
    }

    /// Makes the hold not count this entry until [`step_in`](Self::step_in) is called. In the meantime, the entry does
    /// not keep the hold alive.
    pub(crate) fn step_out(&mut self) {
        if std::mem::take(&mut self.inside) {
            drop(self.hold.clone().map(Self::counted));
        }
    }

    /// Makes the hold count this entry again. Returns `false` if the hold has ended in the meantime.
    pub(crate) fn step_in(&mut self) -> bool {
        self.inside = self.inside || self.hold().count_in();
        self.inside
    }

    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.hold
            .as_ref()
            .expect("an entry has a hold until it leaves")
    }

    /// Leaves the hold. The last call to leave releases the lock, and waits up to one second for the server to confirm
    /// the release.
    pub(crate) async fn leave(mut self) -> ReleaseOutcome {
        let hold = self.hold().clone();
        let Some(releasing) = self.go() else {
            return hold
                .loss()
                .map_or(ReleaseOutcome::StillHeld, ReleaseOutcome::Lost);
        };
        if let Some(reason) = hold.loss() {
            // If the server still has the grant of the lost lease, dropping `releasing` gives the grant back in the
            // background.
            return ReleaseOutcome::Lost(reason);
        }
        let retain_until = hold.retained_until();
        let mut release = pin!(hold.backend().release(&hold.name, hold.token, retain_until));
        // An in-process backend answers the first poll, so a release in this process needs neither a timer nor the
        // engine's thread.
        let answer = match std::future::poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx))).await {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => {
                let patience = hold.host().context().now() + limits::RELEASE_PATIENCE;
                let release_behind: Weak<Releasing> = Arc::downgrade(&releasing);
                hold.host().awaits_release(release_behind, patience);
                hold.host().context().timeout_at(patience, release).await
            }
        };
        match answer {
            Some(Ok(released)) => releasing.confirm(released),
            _ => ReleaseOutcome::InBackground,
        }
    }

    /// Makes the hold no longer count this entry. Returns the release to be carried out if no call is inside the hold
    /// any more, otherwise `None`.
    fn go(&mut self) -> Option<Arc<Releasing>> {
        let hold = self.hold.take().filter(|_| self.inside)?;
        // If the deadline has passed, `loss` marks the lease as lost. `loss` has to be called before `count_out`,
        // because a deadline that passes after the last call has left the hold is not a loss.
        hold.loss();
        if !hold.count_out() {
            return None;
        }
        hold.host().left(&hold);
        Some(Arc::new(Releasing {
            hold,
            settled: AtomicBool::new(false),
        }))
    }
}

impl Drop for EntryTicket {
    fn drop(&mut self) {
        drop(self.go());
    }
}

/// A release in progress. The release continues in the background if this value is dropped before the release is
/// confirmed, or if the caller is not polled in time to read the confirmation.
#[derive(Debug)]
pub(crate) struct Releasing {
    hold: Arc<HoldState>,
    settled: AtomicBool,
}

impl Releasing {
    fn confirm(&self, released: Released) -> ReleaseOutcome {
        if self.settled.swap(true, Ordering::AcqRel) {
            return ReleaseOutcome::InBackground;
        }
        let hold = &self.hold;
        let outcome = match released {
            Released::Released => {
                if hold.is_taken() {
                    count(&hold.counters().released);
                }
                ReleaseOutcome::Released
            }
            Released::NotHeld => ReleaseOutcome::Lost(hold.lose(LossReason::NotHeld)),
            Released::Unknown => {
                count(&hold.counters().release_unknown);
                ReleaseOutcome::Unknown
            }
        };
        hold.host().released(hold);
        match outcome {
            ReleaseOutcome::Released => {
                tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, "released");
            }
            ReleaseOutcome::Unknown => {
                tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, "the release was sent again, and found no grant");
            }
            _ => {}
        }
        outcome
    }
}

impl UnconfirmedRelease for Releasing {
    fn go_on_in_background(&self) {
        if self.settled.swap(true, Ordering::AcqRel) {
            return;
        }
        let hold = &self.hold;
        let releases = !hold.is_given_up();
        if releases {
            // `lease_ends` is `None` for a lost lease, and for a lock that no call has taken, because giving back such a
            // grant must not be counted as a release.
            let now = hold.backend().now();
            let ends = hold.deadline().unwrap_or(now + hold.terms.time);
            let lease_ends = (!hold.is_lost() && hold.is_taken()).then_some(ends);
            hold.backend().release_in_background(
                &hold.name,
                hold.token,
                hold.retained_until(),
                lease_ends,
                hold.latest_end(),
            );
        }
        // `released` is called after that, so that a shutdown always waits either for the hold or for its background
        // release.
        hold.host().released(hold);
        if releases {
            tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, "releasing in the background");
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.go_on_in_background();
    }
}
