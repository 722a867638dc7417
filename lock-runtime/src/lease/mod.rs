//! The lease of one hold, as the client's process knows it. This file decides how an answer of the backend changes the
//! lease, and does no I/O.

pub(crate) mod due_queue;
pub(crate) mod hold;
pub(crate) mod moment;
pub(crate) mod policy;
pub(crate) mod polling;
pub(crate) mod release;
pub(crate) mod scheduler;
pub(crate) mod shared;
pub(crate) mod siblings;

use std::time::Duration;

use lock_core::{
    backend::Extend,
    lease::{CLAIM, Grant, LeaseTerms, Moment},
};

use crate::lease::policy::Plan;

/// The properties of a renewal, check or restart that was sent to the backend. [`Lease::apply`] needs these properties
/// to apply the backend's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an answer is applied with the request that it answers"]
pub(crate) struct Requested {
    extend: Extend,
    /// The lease's [`term`](Lease::term) when the request was sent.
    term: u32,
    /// Whether the request asks for the whole lease time, counted from the start of the lease.
    is_whole: bool,
}

/// The effect that a backend's answer to a renewal, check or restart has on the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The backend has confirmed the lease.
    Renewed,
    /// The answer changed nothing, because the request was a check, or because a restart of the lease was sent or
    /// answered after the request was sent.
    Nothing,
    /// The local deadline has passed, so the lease is lost. No later answer revives the lease.
    Late,
}

/// The lease of one hold.
#[derive(Debug)]
pub(crate) struct Lease {
    time: Duration,
    /// The start of the lease: the moment of the grant, or of the restart after the call has waited for other locks.
    begun: Moment,
    /// A number that rises when a restart of the lease is sent, and again when the restart is answered. The answer to a
    /// request of an earlier term changes nothing, because the server may have handled that request before the restart.
    term: u32,
    /// The local deadline; `None` while the backend itself maintains the lease until the release. For a lease on a
    /// server, only a restart can make the deadline earlier.
    deadline: Option<Moment>,
    /// The latest end of the lease that was granted, or that a request has asked for.
    latest_end: Moment,
    /// The deadline that applies once no call inside the hold demands renewal. Used only if the backend itself
    /// maintains the lease.
    promised: Moment,
    /// The moment at which the lease ends at the latest, because a test pretends that the in-process backend is
    /// unreachable; `None` otherwise.
    end_by: Option<Moment>,
    /// The time that was left of the lease when the caller or the engine last read a confirmation of the whole lease.
    /// Before the first confirmation, the value is the validity of the grant.
    confirmed: Duration,
    /// Whether the grant lasts only for its claim (2 s), because the grant has not been confirmed yet.
    claim: bool,
    /// The renewals that the calls inside the hold demand.
    plans: Vec<Plan>,
    /// The moment at which the call that began the hold stops demanding renewals; `None` if this call sets no limit.
    /// The renewals for all calls nested in this call end at the same moment at the latest.
    limit: Option<Moment>,
}

impl Lease {
    /// Creates the lease of a grant that was read at `now`.
    pub(crate) fn granted(terms: LeaseTerms, grant: &Grant, now: Moment) -> Self {
        let plan = Plan::of(terms, None, now);
        Self {
            time: terms.time,
            begun: now,
            term: 0,
            deadline: grant.valid_until,
            latest_end: grant.valid_until.unwrap_or(now + terms.time),
            promised: grant.valid_until.unwrap_or(now + terms.time),
            end_by: None,
            // A member of a cohort can get a grant of which little is left.
            confirmed: grant.validity.max(terms.time.min(CLAIM)),
            claim: grant.validity + Duration::from_millis(1) < terms.time,
            limit: plan.and_then(|plan| plan.until),
            plans: plan.into_iter().collect(),
        }
    }

    /// Returns the moment at which the call that began the hold stops demanding renewals; `None` if this call sets no
    /// limit.
    pub(crate) fn limit(&self) -> Option<Moment> {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: Option<Moment>) {
        self.limit = limit;
    }

    pub(crate) fn begun(&self) -> Moment {
        self.begun
    }

    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Returns the latest end of the lease that was granted, or that a request of this hold has asked for. The server has
    /// possibly carried out requests whose answers were not read.
    pub(crate) fn latest_end(&self) -> Moment {
        self.latest_end
    }

    pub(crate) fn is_claim(&self) -> bool {
        self.claim
    }

    /// Whether the local deadline has passed.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether at least two thirds of the confirmed lease time are left. A body does not start with less time.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.deadline
            .is_none_or(|deadline| deadline.since(now) >= self.confirmed * 2 / 3)
    }

    /// Returns the end of the lease, from which the time of an extension at `now` counts. A grant that lasts only for
    /// its claim (2 s) is treated as if it had been confirmed for the whole lease time.
    pub(crate) fn ends(&self, now: Moment) -> Moment {
        match self.deadline {
            Some(deadline) if self.claim => deadline.max(self.begun + self.time),
            Some(deadline) => deadline,
            None => self.promised.max(now + self.time),
        }
    }

    /// Returns the renewal or check that is due at `now`.
    pub(crate) fn step(&self, now: Moment) -> Extend {
        policy::step(self.plan(), self.claim, self.begun + self.time, now)
    }

    /// Registers a renewal, check or restart that is sent at `now`. A restart raises `term`.
    pub(crate) fn request(&mut self, extend: Extend, now: Moment) -> Requested {
        if let Extend::To(lease) | Extend::Restart(lease) = extend {
            self.latest_end = self.latest_end.max(now + lease);
        }
        let is_whole = match extend {
            Extend::Check => false,
            Extend::To(lease) => now + lease >= self.begun + self.time,
            Extend::Restart(_) => {
                self.term += 1;
                self.begun = now;
                true
            }
        };
        Requested {
            extend,
            term: self.term,
            is_whole,
        }
    }

    /// Applies the backend's answer to `requested`. The answer confirms the grant until `until`, and was read at `now`.
    pub(crate) fn apply(&mut self, requested: Requested, until: Moment, now: Moment) -> Applied {
        if self.is_over(now) {
            return Applied::Late;
        }
        if requested.term != self.term {
            return Applied::Nothing;
        }
        match requested.extend {
            Extend::Check => return Applied::Nothing,
            Extend::To(_) => {
                self.deadline = self.deadline.map(|deadline| deadline.max(until));
                self.promised = self.promised.max(until);
            }
            Extend::Restart(_) => {
                self.term += 1;
                self.deadline = Some(until);
                self.promised = until;
            }
        }
        if self.is_over(now) {
            return Applied::Late;
        }
        if requested.is_whole {
            self.claim = false;
            self.confirmed = until.since(now);
        }
        Applied::Renewed
    }

    /// Returns the renewal plan that meets the demands of all calls inside the hold; `None` if the lease is fixed.
    pub(crate) fn plan(&self) -> Option<Plan> {
        policy::most_demanding(&self.plans)
    }

    /// Adds the demand of a call inside the hold that the lease is renewed.
    pub(crate) fn add(&mut self, plan: Plan) {
        self.plans.push(plan);
    }

    /// Replaces a demand for renewal.
    pub(crate) fn replace(&mut self, plan: Plan, by: Plan) {
        if let Some(plan) = self.plans.iter_mut().find(|other| **other == plan) {
            *plan = by;
        }
    }

    /// Removes the demand for renewal of a call that leaves the hold. A lease that the backend itself maintains then
    /// lasts for at least the plan's lease time. The plan's lease time counts from `now`, or from the end of the plan
    /// if the plan has ended earlier.
    pub(crate) fn remove(&mut self, plan: Plan, now: Moment) {
        if let Some(index) = self.plans.iter().position(|other| *other == plan) {
            self.plans.swap_remove(index);
            let last = plan.until.map_or(now, |until| until.min(now));
            self.promise(last + plan.lease);
        }
    }

    /// Removes all demands for renewal, as [`remove`](Self::remove) removes one.
    pub(crate) fn remove_all(&mut self, now: Moment) {
        for plan in self.plans.clone() {
            self.remove(plan, now);
        }
    }

    /// Records that a backend which maintains leases itself has to keep this lease valid at least until `until`.
    pub(crate) fn promise(&mut self, until: Moment) {
        self.promised = self.promised.max(until);
    }

    /// Returns the moment until which a backend that maintains leases itself has to keep this lease valid; `None` means
    /// until the release.
    pub(crate) fn backend_deadline(&self) -> Option<Moment> {
        let deadline = match self.plan() {
            None => Some(self.promised),
            Some(Plan { lease, until }) => until.map(|until| self.promised.max(until + lease)),
        };
        deadline.into_iter().chain(self.end_by).min()
    }

    /// Makes the lease end at `end` at the latest, or lifts this limit if `end` is `None`.
    pub(crate) fn end_by(&mut self, end: Option<Moment>) {
        self.end_by = end;
    }

    /// Stores the deadline that a backend which maintains leases itself has accepted.
    pub(crate) fn set_deadline(&mut self, until: Option<Moment>) {
        self.deadline = until;
    }
}

#[cfg(test)]
mod tests {
    use lock_core::{fencing::FencingToken, lease::Renewal};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Moment {
        Moment::new(SECOND * seconds)
    }

    fn terms(lease: u32, renewal: Renewal) -> LeaseTerms {
        LeaseTerms {
            time: SECOND * lease,
            renewal,
        }
    }

    /// Returns a fixed lease of 30 s that was granted at 100 s. The grant is valid for `validity` seconds.
    fn fixed(validity: u32) -> Lease {
        let grant = Grant {
            token: FencingToken::new(1),
            valid_until: Some(at(100 + validity)),
            validity: SECOND * validity,
            queued: false,
            handoff: None,
        };
        Lease::granted(terms(30, Renewal::Fixed), &grant, at(100))
    }

    const RENEWED: Renewal = Renewal::WhileHeld { max_hold: None };

    /// A backend that maintains leases itself keeps this lease until the last demand for its renewal has ended, and then for
    /// one lease more.
    #[test]
    fn a_maintained_lease_ends_after_its_last_demand() {
        let grant = Grant {
            token: FencingToken::new(1),
            valid_until: None,
            validity: 30 * SECOND,
            queued: false,
            handoff: None,
        };
        let mut lease = Lease::granted(terms(30, RENEWED), &grant, at(100));
        assert_eq!(
            (lease.latest_end(), lease.backend_deadline()),
            (at(130), None)
        );
        lease.set_limit(Some(at(500)));
        assert_eq!(lease.limit(), Some(at(500)));
        lease.remove_all(at(110));
        assert_eq!(lease.backend_deadline(), Some(at(140)));
        let fixed = Lease::granted(terms(30, Renewal::Fixed), &grant, at(100));
        assert_eq!(fixed.backend_deadline(), Some(at(130)));
    }

    #[test]
    fn an_answer_read_in_time_moves_the_deadline_on_and_never_back() {
        let mut lease = fixed(30);
        let asked = lease.request(Extend::To(40 * SECOND), at(110));
        assert_eq!(lease.apply(asked, at(150), at(129)), Applied::Renewed);
        assert_eq!(lease.deadline(), Some(at(150)));
        let asked = lease.request(Extend::To(SECOND), at(111));
        assert_eq!(lease.apply(asked, at(112), at(129)), Applied::Renewed);
        assert_eq!(lease.deadline(), Some(at(150)));
        let asked = lease.request(Extend::Check, at(111));
        assert_eq!(lease.apply(asked, at(160), at(129)), Applied::Nothing);
        assert_eq!(lease.deadline(), Some(at(150)));
    }

    #[test]
    fn an_answer_read_at_the_deadline_revives_nothing() {
        for request in [
            Extend::Check,
            Extend::To(100 * SECOND),
            Extend::Restart(30 * SECOND),
        ] {
            let mut lease = fixed(30);
            let asked = lease.request(request, at(101));
            assert_eq!(lease.apply(asked, at(200), at(130)), Applied::Late);
            assert_eq!(lease.deadline(), Some(at(130)));
        }
    }

    #[test]
    fn a_restart_may_shorten_and_its_late_answer_ends_the_lease() {
        let mut lease = fixed(30);
        let asked = lease.request(Extend::To(90 * SECOND), at(101));
        assert_eq!(lease.apply(asked, at(191), at(101)), Applied::Renewed);
        let restart = lease.request(Extend::Restart(30 * SECOND), at(110));
        assert_eq!(lease.begun(), at(110));
        assert_eq!(lease.apply(restart, at(140), at(111)), Applied::Renewed);
        assert_eq!(lease.deadline(), Some(at(140)));

        let restart = lease.request(Extend::Restart(30 * SECOND), at(111));
        assert_eq!(lease.apply(restart, at(112), at(112)), Applied::Late);
        assert!(lease.is_over(at(112)));
    }

    #[test]
    fn a_renewal_sent_before_a_restart_is_answered_changes_nothing_after_it() {
        for restart_first in [true, false] {
            let mut lease = fixed(30);
            let before = lease.request(Extend::To(90 * SECOND), at(101));
            let restart = lease.request(Extend::Restart(30 * SECOND), at(102));
            let beside = lease.request(Extend::To(90 * SECOND), at(103));
            if restart_first {
                assert_eq!(lease.apply(restart, at(132), at(104)), Applied::Renewed);
            }
            assert_eq!(lease.apply(before, at(191), at(105)), Applied::Nothing);
            let beside = lease.apply(beside, at(193), at(105));
            if restart_first {
                assert_eq!(beside, Applied::Nothing);
            } else {
                // The answer to the restart comes last, and sets the deadline.
                assert_eq!(lease.apply(restart, at(132), at(106)), Applied::Renewed);
            }
            assert_eq!(lease.deadline(), Some(at(132)));
        }
    }

    #[test]
    fn a_request_without_an_answer_counts_for_the_latest_end() {
        let mut lease = fixed(30);
        assert_eq!(lease.latest_end(), at(130));
        let _unanswered = lease.request(Extend::Check, at(110));
        let _unanswered = lease.request(Extend::To(60 * SECOND), at(110));
        let _unanswered = lease.request(Extend::Restart(30 * SECOND), at(120));
        assert_eq!(lease.latest_end(), at(170));
        assert_eq!(lease.deadline(), Some(at(130)));
    }

    #[test]
    fn a_lease_is_fresh_while_two_thirds_of_it_are_left() {
        let mut lease = fixed(30);
        assert!(lease.is_fresh(at(110)));
        assert!(!lease.is_fresh(at(111)));
        // A slow connection used up half of the lease before the answer was read. The lease is fresh only while
        // two thirds of the remaining 15 s are left, because the next request could take just as long.
        let asked = lease.request(Extend::To(30 * SECOND), at(111));
        assert_eq!(lease.apply(asked, at(141), at(126)), Applied::Renewed);
        assert!(lease.is_fresh(at(131)));
        assert!(!lease.is_fresh(at(132)));
    }

    #[test]
    fn a_claim_becomes_the_whole_lease_and_is_extended_as_such() {
        let mut lease = fixed(2);
        assert!(lease.is_claim());
        assert_eq!(lease.ends(at(101)), at(130));
        // An extension for a nested call confirms only the time that this call needs, so `is_claim` is still true.
        let asked = lease.request(Extend::To(5 * SECOND), at(101));
        assert_eq!(lease.apply(asked, at(106), at(101)), Applied::Renewed);
        assert!(lease.is_claim());
        assert_eq!(lease.step(at(102)), Extend::To(28 * SECOND));
        let asked = lease.request(lease.step(at(102)), at(102));
        assert_eq!(lease.apply(asked, at(130), at(102)), Applied::Renewed);
        assert!(!lease.is_claim());
        assert_eq!(lease.step(at(102)), Extend::Check);
    }

    #[test]
    fn a_fixed_lease_kept_by_its_backend_is_fixed_again_when_a_renewed_entry_has_left() {
        let mut lease = fixed(30);
        let nested = Plan::of(terms(5, RENEWED), None, at(110)).unwrap();
        lease.add(nested);
        lease.promise(at(115));
        assert_eq!(lease.backend_deadline(), None);
        lease.remove(nested, at(112));
        // The end of a demand for renewal does not shorten the lease.
        assert_eq!(lease.backend_deadline(), Some(at(130)));
        lease.add(nested);
        lease.remove(nested, at(128));
        assert_eq!(lease.backend_deadline(), Some(at(133)));
        // The `max_hold` of this nested call ends at 130 s, so its last renewal is at 130 s, even if the call leaves
        // the hold much later.
        let limited = Renewal::WhileHeld {
            max_hold: Some(10 * SECOND),
        };
        let nested = Plan::of(terms(5, limited), None, at(120)).unwrap();
        lease.add(nested);
        assert_eq!(lease.backend_deadline(), Some(at(135)));
        lease.remove(nested, at(200));
        assert_eq!(lease.backend_deadline(), Some(at(135)));
    }
}
