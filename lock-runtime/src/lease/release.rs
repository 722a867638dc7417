//! Leaving a hold: the last entry out releases.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lock_core::{backend::Released, error::LossReason};

use crate::{
    events::{TARGET, count},
    lease::hold::{HoldState, UnconfirmedRelease},
};

/// How long a caller waits for its release to be confirmed before that goes on in the background.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// What became of a lock when its guard was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The lock was held until now, and is free, or kept as long as `hold_at_least` says.
    Released,
    /// An enclosing call of this key, or a task that was taken along, is still inside: the last one out releases.
    StillHeld,
    /// The server has not confirmed the release yet: it goes on in the background until the lease ends.
    InBackground,
    /// The lease was lost before: somebody else may have been inside meanwhile.
    Lost(LossReason),
}

/// One entry, which has to leave. Dropped, it leaves in the background.
#[derive(Debug)]
pub(crate) struct EntryTicket {
    /// `None` once it has left.
    hold: Option<Arc<HoldState>>,
    /// Whether it is counted among those inside.
    inside: bool,
}

impl EntryTicket {
    /// The entry that began a hold, or another one that it counts.
    pub(crate) fn counted(hold: Arc<HoldState>) -> Self {
        Self {
            hold: Some(hold),
            inside: true,
        }
    }

    /// One more entry, unless the hold has ended already.
    pub(crate) fn again(hold: &Arc<HoldState>) -> Option<Self> {
        hold.count_in().then(|| Self::counted(hold.clone()))
    }

    /// Steps out until its body begins: it does not keep the hold meanwhile.
    pub(crate) fn step_out(&mut self) {
        if std::mem::take(&mut self.inside) {
            drop(self.hold.clone().map(Self::counted));
        }
    }

    /// Steps in again. False if the hold has ended meanwhile.
    pub(crate) fn step_in(&mut self) -> bool {
        self.inside = self.inside || self.hold().count_in();
        self.inside
    }

    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.hold
            .as_ref()
            .expect("an entry has a hold until it leaves")
    }

    /// Leaves; the last one out releases, and waits for the confirmation, a second at most.
    pub(crate) async fn leave(mut self) -> ReleaseOutcome {
        let hold = self.hold().clone();
        let Some(releasing) = self.go() else {
            return hold
                .loss()
                .map_or(ReleaseOutcome::StillHeld, ReleaseOutcome::Lost);
        };
        if let Some(reason) = hold.loss() {
            // The lease is over; what is left of it on the server is given back behind the caller's back.
            return ReleaseOutcome::Lost(reason);
        }
        let retain_until = hold.retained_until();
        let mut release = pin!(hold.backend().release(&hold.name, hold.token, retain_until));
        // In process the answer is there at once: no timer, and no thread of the engine's.
        let answer = match std::future::poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx))).await {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => {
                let patience = hold.host().context().now() + RELEASE_PATIENCE;
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

    /// Counts this entry out. The last one has to release.
    fn go(&mut self) -> Option<Arc<Releasing>> {
        let hold = self.hold.take().filter(|_| self.inside)?;
        // What has passed by now is lost; what passes after the last one has left is not.
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

/// A release under way. Dropped before it was confirmed, it goes on in the background; so it does where its caller is not
/// polled.
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
                count(&hold.counters().released);
                tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, "released");
                ReleaseOutcome::Released
            }
            Released::NotHeld => ReleaseOutcome::Lost(hold.lose(LossReason::NotHeld)),
        };
        hold.host().released(hold);
        outcome
    }
}

impl UnconfirmedRelease for Releasing {
    fn go_on_in_background(&self) {
        if self.settled.swap(true, Ordering::AcqRel) {
            return;
        }
        let hold = &self.hold;
        if !hold.is_given_up() {
            tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, "releasing in the background");
            // A loss is counted already: what becomes of the rest of it is no release.
            let lease_ends = hold.deadline().filter(|_| !hold.is_lost());
            hold.backend().release_in_background(
                &hold.name,
                hold.token,
                hold.retained_until(),
                lease_ends,
            );
        }
        // Only now: shutting down waits for the release too, or for its going on in the background.
        hold.host().released(hold);
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.go_on_in_background();
    }
}
