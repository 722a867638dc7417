//! The demands of the calls inside a hold that the engine renews its lease.

use super::*;

impl HoldState {
    /// Extends the lease, if necessary, for another call that enters the hold. Takes one round trip, or none if the
    /// lease already lasts long enough. Returns the entering call's demand for renewal, or `None` if this call asks for
    /// a fixed lease or the lease is lost. The deadline does not become earlier when the entering call leaves the hold.
    ///
    /// `limit` is the moment at which the renewals for the enclosing call end. The renewals for the entering call end
    /// at `limit` at the latest. If this method is called after `limit`, the time of the extension counts from `limit`.
    pub(crate) async fn extend_for(
        self: Arc<Self>,
        terms: LeaseTerms,
        limit: Option<Moment>,
    ) -> Result<Option<RenewalDemand>, BackendError> {
        let now = self.backend().now();
        let wanted = Plan::of(terms, limit, now);
        if self.backend().maintains_leases() {
            self.update_lease(|lease| {
                lease.promise(policy::wanted_until(terms, limit, now));
                wanted.into_iter().for_each(|plan| lease.add(plan));
            });
        } else {
            let deadline = self.deadline().unwrap_or(now);
            if let Some(lease) = policy::extension(self.plan(), deadline, terms, limit, now)
                && self.ask(Extend::To(lease)).await?.is_err()
            {
                return Ok(None); // the lease is lost
            }
            if let Some(plan) = wanted {
                lock(&self.lease).add(plan);
                // The answer may have been read late, when little of the lease is left.
                let now = self.backend().now();
                let deadline = self.deadline().unwrap_or(now);
                let due = policy::next_due(plan.lease, deadline, true, now);
                self.host.due_by(&self, due);
            }
        }
        Ok(wanted.map(|plan| RenewalDemand {
            hold: self,
            plan,
            own_end: plan.until,
        }))
    }
}

/// The demand of one call inside a hold that the engine renews the lease. Dropping this value ends the demand.
#[derive(Debug)]
pub(crate) struct RenewalDemand {
    hold: Arc<HoldState>,
    plan: Plan,
    /// The moment at which the demand ends without a further limit.
    own_end: Option<Moment>,
}

impl RenewalDemand {
    /// Returns the moment at which the demand ends by itself; `None` if the demand lasts until its call leaves the
    /// hold.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.own_end
    }

    /// Makes the demand end at `until` at the latest, because its call may never be polled again.
    pub(crate) fn limit(&mut self, until: Moment) {
        let until = self.own_end.map_or(until, |own| own.min(until));
        self.end_at(Some(until));
    }

    /// Lifts the limit, because the body of the call begins.
    pub(crate) fn lift_limit(&mut self) {
        self.end_at(self.own_end);
    }

    fn end_at(&mut self, until: Option<Moment>) {
        let plan = Plan { until, ..self.plan };
        self.hold
            .update_lease(|lease| lease.replace(self.plan, plan));
        self.plan = plan;
    }
}

impl Drop for RenewalDemand {
    fn drop(&mut self) {
        let now = self.hold.backend().now();
        self.hold.update_lease(|lease| lease.remove(self.plan, now));
    }
}
