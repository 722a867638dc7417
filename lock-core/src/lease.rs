//! The time-bounded right to be inside.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

use crate::fencing::FencingToken;

/// The shortest lease: below it, one slow round trip is the whole lease.
pub const MIN_LEASE: Duration = Duration::from_millis(10);
/// The shortest lease that can be renewed: a third of it must leave room for a round trip.
pub const MIN_RENEWED_LEASE: Duration = Duration::from_secs(1);
/// The longest lease: a crashed holder blocks its key for that long.
pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a pushed grant stands before its owner confirms it by a renewal: it bounds the delay by a waiter that
/// only looks alive.
pub const CLAIM: Duration = Duration::from_secs(2);

/// How long an offer to a waiter stands that was queued so often before: each time it missed the offer that it then had.
/// All offers to one that is polled too rarely cost the others little more than one claim.
#[must_use]
pub fn claim_after(missed: u32) -> Duration {
    CLAIM / 10_u32.pow(missed.min(3))
}

/// A point on a backend's local clock, which must run while the machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The clock's origin plus `since_origin`.
    #[must_use]
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The time since the clock's origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to here, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

/// Whether a lease is extended while the body runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Never: the body is dropped at the lease's end.
    Fixed,
    /// Every third of the lease, until the body ends or has run for `max_hold`.
    WhileHeld {
        /// Renewal stops here; `None` is never.
        max_hold: Option<Duration>,
    },
}

/// What a caller asks of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The lease time.
    pub time: Duration,
    /// Whether it is extended.
    pub renewal: Renewal,
}

/// The right to be inside, as a backend gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Names the grant, and fences it.
    pub token: FencingToken,
    /// The local deadline: the backend lets nobody else in before this moment of its local clock. `None` means that
    /// the backend itself keeps the lease until the release, so nothing has to be renewed.
    pub valid_until: Option<Moment>,
    /// The validity counted from a moment known to lie before the grant. Less than the lease that was asked for when
    /// the grant is a claim, which a renewal turns into the whole lease.
    pub validity: Duration,
    /// Whether the owner had to queue.
    pub queued: bool,
}

impl Grant {
    /// What is left of the validity at `now`; `None` while the backend itself keeps the lease.
    #[must_use]
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.valid_until.map(|until| until.since(now))
    }
}

/// A lease time less what two clocks may drift apart in it: 0.1 %, and 1 ms for the clocks' granularity.
#[must_use]
pub fn less_drift(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 1000 + Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lasts_a_day_at_most() {
        assert_eq!(
            MAX_LEASE,
            crate::duration::parse("24h").expect("a duration")
        );
    }

    #[test]
    fn moments_saturate() {
        let moment = Moment::new(Duration::from_secs(1));
        assert_eq!(moment - Duration::from_secs(2), Moment::new(Duration::ZERO));
        assert_eq!(
            moment.since(moment + Duration::from_secs(1)),
            Duration::ZERO
        );
        assert_eq!(
            (moment + Duration::from_secs(3)).since(moment),
            Duration::from_secs(3)
        );
        assert_eq!((moment + Duration::MAX).since_origin(), Duration::MAX);
    }

    #[test]
    fn drift_shortens_a_lease() {
        assert_eq!(
            less_drift(Duration::from_secs(30)),
            Duration::from_millis(29_969)
        );
        assert_eq!(less_drift(Duration::from_micros(10)), Duration::ZERO);
    }

    #[test]
    fn what_remains_is_counted_from_now() {
        let grant = Grant {
            token: FencingToken::new(1),
            valid_until: Some(Moment::new(Duration::from_secs(10))),
            validity: Duration::from_secs(5),
            queued: false,
        };
        let at = |secs| grant.remaining(Moment::new(Duration::from_secs(secs)));
        assert_eq!(at(7), Some(Duration::from_secs(3)));
        assert_eq!(at(11), Some(Duration::ZERO));
        assert_eq!(
            Grant {
                valid_until: None,
                ..grant
            }
            .remaining(Moment::new(Duration::ZERO)),
            None
        );
    }
}
