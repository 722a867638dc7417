//! A hold: its local deadline, its keeper and its release: `hold.rs`, `renewal.rs` and `plan.rs` of the runtime.

use crate::{
    broken::Broken,
    cohort::Passed,
    protocol::Protocol,
    server::Token,
    state::{Behind, By, CallerId, Claim, End, Hold, Phase, Script, State, Tick},
};

impl Protocol {
    /// A local deadline: a validity counted from a moment known to lie before the grant.
    pub(crate) fn deadline(&self, state: &State, id: CallerId, sent: Tick, validity: Tick) -> Tick {
        let from = if self.is(Broken::DeadlineFromTheReply) {
            self.clock_of(state, id)
        } else {
            sent
        };
        from + if self.is(Broken::NoDrift) {
            validity
        } else {
            self.scenario.terms.less_drift(validity)
        }
    }

    /// `RedisAttempt::settle`, `HoldState::begin`, and the first poll of the body
    pub(crate) fn enter(&self, state: &mut State, id: CallerId, claim: Claim) {
        let now = self.clock_of(state, id);
        let hold = Hold {
            token: claim.token,
            first: claim.first,
            since: now,
            until: claim.until,
            // A member of a block is sure of what is left of it, and no more.
            claim: claim.validity < self.scenario.terms.lease(id) || claim.by == By::Pass,
            tended: now,
            tending: false,
            by: claim.by,
        };
        state.caller(id).early = None;
        state.caller(id).phase = Phase::Inside(hold);
        if now >= claim.until {
            self.lose(state, id);
            return;
        }
        let observed = &mut state.observed;
        observed.begun_fell |= claim.token <= observed.begun;
        observed.begun = observed.begun.max(claim.token);
    }

    /// What the keeper has to do for a hold (`plan::step`): the lease that it asks for, 0 for a check.
    pub(crate) fn tending(&self, state: &State, id: CallerId) -> Option<Tick> {
        let (terms, faults) = (&self.scenario.terms, &self.scenario.faults);
        let now = self.clock_of(state, id);
        let Phase::Inside(hold) = state.callers[usize::from(id)].phase else {
            return None;
        };
        if hold.tending || now >= hold.until || now < hold.tended + 1 {
            return None;
        }
        // A check finds nothing where the server neither loses its state nor its clock jumps.
        let checks =
            faults.state_losses + faults.restarts + faults.jumps_ahead + faults.jumps_back > 0;
        match (terms.renewed, hold.claim, checks) {
            (true, _, _) => Some(terms.lease(id)),
            (false, true, _) => Some((hold.since + terms.lease(id) - now).max(1)),
            (false, false, true) => Some(0),
            (false, false, false) => None,
        }
    }

    /// `tend`
    pub(crate) fn tend(&self, state: &mut State, id: CallerId) {
        let now = self.clock_of(state, id);
        let lease = self.tending(state, id);
        if let (Some(lease), Phase::Inside(hold)) = (lease, &mut state.caller(id).phase) {
            hold.tending = true;
            hold.tended = now;
            let first = hold.first;
            self.send_from_home(state, id, Script::Renew(first, lease));
        }
    }

    pub(crate) fn renewed(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Tick,
        (first, lease, left): (Token, Tick, Option<Tick>),
    ) {
        let now = self.clock_of(state, id);
        let until = left.map(|left| self.deadline(state, id, sent, left));
        if let Phase::Confirming {
            first: of, answer, ..
        } = &mut state.caller(id).phase
        {
            if *of == first {
                *answer = Some(until.unwrap_or(now));
                self.poll_if_prompt(state, id);
            }
            return;
        }
        let counts = self.confirm(state, id, first, until);
        match &mut state.caller(id).phase {
            Phase::Offered { first: of, .. } if *of == first => self.poll_if_prompt(state, id),
            Phase::Inside(hold) if hold.first == first && hold.tending => {
                hold.tending = false;
                let stands = counts || hold.by == By::Reply;
                // An answer that arrives after the local deadline does not extend the hold.
                let in_time = now < hold.until || self.is(Broken::AnswerRevives);
                match until {
                    Some(until) if stands && in_time || self.is(Broken::AnswerRevives) => {
                        if lease > 0 {
                            hold.until = hold.until.max(until);
                            hold.claim = false;
                        }
                    }
                    Some(_) if in_time => self.lose(state, id),
                    Some(_) => {}
                    None => self.lose(state, id),
                }
            }
            _ => {}
        }
    }

    /// `HoldState::lose`: the body is dropped.
    pub(crate) fn lose(&self, state: &mut State, id: CallerId) {
        if let Phase::Inside(hold) = state.caller(id).phase {
            self.end_inside(state, id, hold.first, hold.until, End::Lost);
        }
    }

    /// `EntryDuty::leave`. Only the last member of a block sends anything.
    pub(crate) fn finish(&self, state: &mut State, id: CallerId) {
        let since = self.clock_of(state, id);
        if let Phase::Inside(Hold { first, until, .. }) = state.caller(id).phase {
            state.caller(id).phase = Phase::Ended(End::Left);
            if self.pass(state, id, first) == Passed::On {
                return;
            }
            state.caller(id).phase = Phase::Releasing {
                first,
                since,
                lease_ends: until,
            };
            self.send(state, id, Script::Release(first));
        }
    }

    /// Ends a call that has a grant; its release goes on in the background (`release_until`).
    pub(crate) fn end_inside(
        &self,
        state: &mut State,
        id: CallerId,
        first: Token,
        lease_ends: Tick,
        end: End,
    ) {
        let until = lease_ends.max(self.clock_of(state, id) + self.scenario.terms.claim);
        state.caller(id).phase = Phase::Ended(end);
        if self.pass(state, id, first) == Passed::On {
            return;
        }
        state.caller(id).behind = Some(Behind::Release { first, until });
        self.send_from_home(state, id, Script::Release(first));
    }
}
