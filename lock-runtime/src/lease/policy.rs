//! The renewal policy: whether a hold needs a renewal or a check next, and when.

use std::time::Duration;

use crate::limits;
use lock_core::{
    backend::Extend,
    lease::{LeaseTerms, Moment, Renewal},
};

/// The minimum number of equally spaced moments in a third of a lease. Due times are rounded down to these moments, so
/// that many holds are due at the same moment and share renewal commands.
const STEPS: u32 = 32;

/// How a lease is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// How long the lease lasts after each renewal.
    pub(crate) lease: Duration,
    /// The moment at which the renewals stop; `None` if they do not stop.
    pub(crate) until: Option<Moment>,
}

impl Plan {
    /// Returns the renewal plan for a call that enters the hold at `now`; `None` if this call asks for a fixed lease.
    /// The plan ends no later than `limit`, the moment at which the renewals for the enclosing call end.
    pub(crate) fn of(terms: LeaseTerms, limit: Option<Moment>, now: Moment) -> Option<Self> {
        match terms.renewal {
            Renewal::Fixed => None,
            Renewal::WhileHeld { max_hold } => Some(Self {
                lease: terms.time,
                until: max_hold
                    .map(|max_hold| now + max_hold)
                    .into_iter()
                    .chain(limit)
                    .min(),
            }),
        }
    }

    /// Whether this plan has at least as long a lease as the other plan, and ends at least as late.
    fn covers(&self, other: &Self) -> bool {
        self.lease >= other.lease
            && match (self.until, other.until) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(mine), Some(theirs)) => mine >= theirs,
            }
    }
}

/// Returns a plan that has the longest lease and the latest end of all `plans`; `None` if `plans` is empty.
pub(crate) fn most_demanding(plans: &[Plan]) -> Option<Plan> {
    plans.iter().copied().reduce(|a, b| Plan {
        lease: a.lease.max(b.lease),
        until: a.until.zip(b.until).map(|(a, b)| a.max(b)),
    })
}

/// Returns the moment until which the lease has to last for a nested call that enters the hold at `now`. The lease time
/// of the nested call counts from `now`, or from `limit` if the renewals for the enclosing call have already ended at
/// `limit`.
pub(crate) fn wanted_until(terms: LeaseTerms, limit: Option<Moment>, now: Moment) -> Moment {
    limit.map_or(now, |limit| limit.min(now)) + terms.time
}

/// Returns how long the lease has to last from `now` for a nested call. Returns `None` if the lease is already long
/// enough: the current plan covers the nested call or, without a plan, the local deadline is late enough. `limit` is
/// the moment at which the renewals for the enclosing call end.
pub(crate) fn extension(
    planned: Option<Plan>,
    deadline: Moment,
    terms: LeaseTerms,
    limit: Option<Moment>,
    now: Moment,
) -> Option<Duration> {
    let until = wanted_until(terms, limit, now);
    let end = Plan::of(terms, limit, now).unwrap_or(Plan {
        lease: terms.time,
        until: Some(until),
    });
    let covered = match planned {
        Some(planned) if planned.covers(&end) => true,
        // After `limit`, a nested call gets less than its lease time.
        _ if until < now + terms.time => deadline >= until,
        Some(_) => false,
        None => deadline >= until,
    };
    (!covered).then_some(until.since(now))
}

/// Returns the request that is due at `now`. A lease with a renewal plan is renewed until the plan ends. Without a
/// plan, or after its end, a grant that lasts only for its claim (2 s) is extended to the whole lease. Any other lease
/// is only checked.
pub(crate) fn step(plan: Option<Plan>, claim: bool, lease_ends: Moment, now: Moment) -> Extend {
    match plan {
        Some(plan) if plan.until.is_none_or(|until| now < until) => Extend::To(plan.lease),
        _ if claim => Extend::To(lease_ends.since(now)),
        _ => Extend::Check,
    }
}

/// Returns the moment at which the first renewal or check of a hold is due. This moment is early if the grant lasts
/// only for its claim (2 s) until a renewal confirms it.
pub(crate) fn first_due(
    lease: Duration,
    deadline: Moment,
    renews: bool,
    claim: bool,
    now: Moment,
) -> Moment {
    let due = next_due(lease, deadline, renews || claim, now);
    if claim {
        due.min(now + limits::CONFIRM_AFTER)
    } else {
        due
    }
}

/// Returns the moment at which the next renewal or check of a hold is due: after a third of the lease. If less than a
/// third of the lease is left, a renewal is due after half of the remaining time, and a check is due at the deadline.
pub(crate) fn next_due(lease: Duration, deadline: Moment, renews: bool, now: Moment) -> Moment {
    let third = lease / 3;
    let due = now + third;
    if due < deadline {
        rounded_down(due, third / STEPS)
    } else if renews {
        now + deadline.since(now) / 2
    } else {
        deadline
    }
}

/// Rounds a moment down by less than `within`, so that holds that are due at about the same time share one command.
fn rounded_down(due: Moment, within: Duration) -> Moment {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let within = nanos(within);
    // Each step is a power of two, so each multiple of a longer step is also a multiple of every shorter step. Holds
    // with different leases can therefore be due at the same moment.
    let step = within.checked_ilog2().map_or(1, |bits| 1 << bits);
    let due = nanos(due.since_origin());
    Moment::new(Duration::from_nanos(due - due % step))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Moment {
        Moment::new(SECOND * seconds)
    }

    fn plan(lease: u32, until: Option<u32>) -> Plan {
        Plan {
            lease: SECOND * lease,
            until: until.map(at),
        }
    }

    fn fixed(lease: u32) -> LeaseTerms {
        LeaseTerms {
            time: SECOND * lease,
            renewal: Renewal::Fixed,
        }
    }

    fn renewed(lease: u32, max_hold: Option<u32>) -> LeaseTerms {
        LeaseTerms {
            time: SECOND * lease,
            renewal: Renewal::WhileHeld {
                max_hold: max_hold.map(|seconds| SECOND * seconds),
            },
        }
    }

    #[test]
    fn an_entry_asks_for_its_lease_until_its_longest_hold() {
        assert_eq!(Plan::of(fixed(30), None, at(5)), None);
        assert_eq!(
            Plan::of(renewed(30, None), None, at(5)),
            Some(plan(30, None))
        );
        assert_eq!(
            Plan::of(renewed(30, Some(60)), None, at(5)),
            Some(plan(30, Some(65)))
        );
    }

    #[test]
    fn no_renewal_of_a_nested_entry_passes_the_limit() {
        let of = |max_hold, limit| Plan::of(renewed(30, max_hold), Some(at(limit)), at(5));
        assert_eq!(of(None, 20), Some(plan(30, Some(20))));
        assert_eq!(of(Some(60), 20), Some(plan(30, Some(20))));
        assert_eq!(of(Some(10), 20), Some(plan(30, Some(15))));
        assert_eq!(Plan::of(fixed(30), Some(at(20)), at(5)), None);
    }

    #[test]
    fn after_the_limit_a_nested_entry_gets_the_rest_of_its_lease() {
        let ended = Some(plan(2, Some(10)));
        let extended =
            |deadline, terms, now| extension(ended, at(deadline), terms, Some(at(10)), at(now));
        assert_eq!(extended(12, renewed(30, None), 9), Some(30 * SECOND));
        for terms in [fixed(30), renewed(30, None), renewed(30, Some(60))] {
            assert_eq!(extended(12, terms, 11), Some(29 * SECOND));
            assert_eq!(extended(40, terms, 11), None);
        }
        assert_eq!(extended(12, renewed(2, None), 11), None);
        assert_eq!(extended(12, fixed(1), 11), None);
    }

    #[test]
    fn the_longest_lease_and_the_latest_end_decide() {
        assert_eq!(most_demanding(&[]), None);
        let (short, long) = (plan(10, Some(100)), plan(30, Some(50)));
        assert_eq!(most_demanding(&[short]), Some(short));
        assert_eq!(most_demanding(&[short, long]), Some(plan(30, Some(100))));
        let endless = plan(1, None);
        assert_eq!(
            most_demanding(&[short, endless, long]),
            Some(plan(30, None))
        );
    }

    #[test]
    fn a_renewed_hold_covers_what_it_outlasts() {
        let extended =
            |planned, terms| extension(Some(planned), at(0), terms, None, at(0)).is_some();
        let endless = plan(30, None);
        assert!(!extended(endless, fixed(30)));
        assert!(!extended(endless, renewed(30, None)));
        assert!(!extended(endless, renewed(30, Some(1000))));
        assert!(extended(endless, fixed(31)));
        assert!(extended(endless, renewed(31, None)));
        let ending = plan(30, Some(60));
        assert!(!extended(ending, fixed(30)));
        assert!(!extended(ending, renewed(30, Some(60))));
        assert!(extended(ending, renewed(30, Some(61))));
        assert!(extended(ending, renewed(30, None)));
        // The last renewal, at 10 s, would keep the lease valid until 40 s, but the nested call does not rely on that
        // renewal.
        assert!(extended(plan(30, Some(10)), fixed(30)));
    }

    #[test]
    fn a_fixed_hold_covers_what_its_deadline_outlasts() {
        let extended = |deadline, terms| extension(None, at(deadline), terms, None, at(10));
        assert_eq!(extended(40, fixed(30)), None);
        assert_eq!(extended(39, fixed(30)), Some(30 * SECOND));
        assert_eq!(extended(39, renewed(30, None)), Some(30 * SECOND));
        assert_eq!(extended(40, renewed(30, None)), None);
    }

    #[test]
    fn a_plan_renews_until_its_end() {
        let (endless, ending) = (plan(30, None), plan(30, Some(100)));
        for claim in [false, true] {
            let step = |plan, now| step(Some(plan), claim, at(120), at(now));
            assert_eq!(step(endless, 1000), Extend::To(30 * SECOND));
            assert_eq!(step(ending, 99), Extend::To(30 * SECOND));
        }
        assert_eq!(step(Some(ending), false, at(120), at(100)), Extend::Check);
    }

    #[test]
    fn a_claim_becomes_the_rest_of_its_lease() {
        for plan in [None, Some(plan(30, Some(1)))] {
            assert_eq!(step(plan, true, at(30), at(1)), Extend::To(29 * SECOND));
            assert_eq!(step(plan, false, at(30), at(1)), Extend::Check);
        }
    }

    #[test]
    fn a_hold_is_due_each_third() {
        for renews in [true, false] {
            let due = next_due(30 * SECOND, at(40), renews, at(1));
            assert!(due <= at(11) && due > at(11) - 10 * SECOND / 32, "{due:?}");
        }
    }

    #[test]
    fn a_renewal_is_due_before_the_deadline_and_a_loss_at_it() {
        assert_eq!(next_due(30 * SECOND, at(31), true, at(25)), at(28));
        assert_eq!(next_due(30 * SECOND, at(11), true, at(1)), at(6));
        assert_eq!(next_due(30 * SECOND, at(11), true, at(20)), at(20));
        assert_eq!(next_due(30 * SECOND, at(30), false, at(25)), at(30));
        assert_eq!(next_due(30 * SECOND, at(11), false, at(1)), at(11));
    }

    #[test]
    fn holds_come_due_together() {
        let due_at = |millis: u64, lease| {
            let now = at(100) + Duration::from_millis(millis);
            next_due(lease, now + lease, true, now)
        };
        let moments = |lease: Duration| {
            let millis = u64::try_from((lease / 3).as_millis()).unwrap();
            let moments: BTreeSet<_> = (0..millis).map(|millis| due_at(millis, lease)).collect();
            moments.len()
        };
        assert!((33..=66).contains(&moments(30 * SECOND)));
        assert!((33..=66).contains(&moments(SECOND)));
        // Holds with different leases are often due at the same moment, too.
        let all = |lease| (0..3000).map(move |millis| due_at(millis, lease)).collect();
        let (long, short): (BTreeSet<_>, BTreeSet<_>) = (all(30 * SECOND), all(29 * SECOND));
        assert!(long.intersection(&short).count() > long.len() / 2);
        // The due time of a very short lease is not rounded.
        let now = at(1);
        assert_eq!(
            next_due(Duration::from_nanos(9), at(2), true, now),
            now + Duration::from_nanos(3)
        );
    }

    #[test]
    fn a_claim_is_due_soon() {
        let due = |deadline, claim| first_due(30 * SECOND, deadline, false, claim, at(5));
        assert_eq!(
            due(at(30), false),
            next_due(30 * SECOND, at(30), false, at(5))
        );
        assert_eq!(due(at(30), true), at(5) + Duration::from_millis(100));
        let soon = at(5) + Duration::from_millis(50);
        assert_eq!(due(soon, true), at(5) + Duration::from_millis(25));
    }
}
