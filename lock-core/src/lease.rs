//! Leases, grants and claims: how long a lock may be held, and how long a grant lasts until it is confirmed (2 s).

use std::{
    ops::{Add, Sub},
    time::Duration,
};

use crate::fencing::FencingToken;

/// The shortest lease. One slow round trip could use up a shorter lease.
pub const MIN_LEASE: Duration = Duration::from_millis(10);
/// The shortest lease that can be renewed. A lease is renewed after each third of its time, and a third has to be long
/// enough for a round trip.
pub const MIN_RENEWED_LEASE: Duration = Duration::from_secs(1);
/// The longest lease. Leases are limited because a crashed holder blocks its key until its lease ends.
pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a grant that is sent to a waiter lasts, unless the waiter confirms the grant by a renewal. If a waiter no
/// longer responds, but its connection is still open, the claim limits how long this waiter delays the other waiters.
pub const CLAIM: Duration = Duration::from_secs(2);

/// Returns how long an offer lasts for a waiter that has already missed `missed` offers.
///
/// The first offer lasts one claim (2 s), and each of the next three offers lasts a tenth of the offer before it. If a
/// waiter is polled too rarely, all offers to this waiter therefore last little more than one claim (2 s) in total.
#[must_use]
pub fn claim_after(missed: u32) -> Duration {
    CLAIM / 10_u32.pow(missed.min(3))
}

/// A point on a backend's local clock, which has to keep running while the machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the clock's origin plus `since_origin`.
    #[must_use]
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// Returns the time since the clock's origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
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
    /// The lease is never extended. If the lease ends before the body ends, the lease is lost.
    Fixed,
    /// The lease is extended after each third of its time, until the body ends or has run for `max_hold`.
    WhileHeld {
        /// How long after the grant the renewal stops, even if the body still runs; `None` sets no limit.
        max_hold: Option<Duration>,
    },
}

/// The lease that a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The length of the lease.
    pub time: Duration,
    /// Whether the lease is extended while the body runs.
    pub renewal: Renewal,
}

/// A backend's permission to hold a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token, which also identifies the grant.
    pub token: FencingToken,
    /// The local deadline: the backend admits nobody else before this moment of its local clock. `None` means that the
    /// backend itself keeps the lease from ending until the release, so the engine has nothing to renew.
    pub valid_until: Option<Moment>,
    /// The time for which the grant is valid, counted from a moment that is certainly before the grant, such as the
    /// sending of the request. A grant that is sent to a waiter lasts for at most a claim (2 s), even if the requested
    /// lease is longer. The first renewal extends the claim to the whole requested lease.
    pub validity: Duration,
    /// Whether the owner had to wait for the lock, in the queue or between two tries.
    pub queued: bool,
    /// The time from the moment at which this process learnt of the owner's turn until the owner took the lock. `None`
    /// if the owner got the lock in the answer to its own request.
    pub handoff: Option<Duration>,
}

impl Grant {
    /// Returns how long the grant is still valid at `now`; `None` if the backend itself keeps the lease from ending.
    #[must_use]
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.valid_until.map(|until| until.since(now))
    }
}

/// Returns the lease minus the possible drift between two clocks during the lease: 0.1 % of the lease, and 1 ms for the
/// granularity of the clocks.
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
            handoff: None,
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
