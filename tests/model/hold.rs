//! A hold: its local deadline, its keeper and its release: `hold.rs`, `renewal.rs` and `plan.rs` of the runtime.

use crate::{
    broken::Broken,
    protocol::Protocol,
    server::Token,
    state::{Behind, CallerId, Claim, End, Hold, Phase, Script, State, Tick},
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
        if state.caller(id).resending {
            state.caller(id).phase = Phase::Settling(claim);
            return;
        }
        let now = self.clock_of(state, id);
        let hold = Hold {
            token: claim.token,
            since: now,
            until: claim.until,
            claim: claim.validity < self.scenario.terms.lease,
            tended: now,
            tending: false,
            by: claim.by,
        };
        state.caller(id).early = None;
        state.caller(id).phase = Phase::Inside(hold);
        if now >= claim.until {
            self.lose(state, id);
        }
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
            (true, _, _) => Some(terms.lease),
            (false, true, _) => Some((hold.since + terms.lease - now).max(1)),
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
            let token = hold.token;
            self.send_from_home(state, id, Script::Renew(token, lease));
        }
    }

    pub(crate) fn renewed(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Tick,
        (token, lease, left): (Token, Tick, Option<Tick>),
    ) {
        let until = left.map(|left| self.deadline(state, id, sent, left));
        match &mut state.caller(id).phase {
            Phase::Confirming(claim) if claim.token == token => {
                let claim = *claim;
                match until {
                    Some(until) => self.enter(
                        state,
                        id,
                        Claim {
                            until,
                            validity: lease,
                            ..claim
                        },
                    ),
                    None => self.ask(state, id),
                }
            }
            Phase::Inside(hold) if hold.token == token && hold.tending => {
                hold.tending = false;
                match until {
                    Some(until) if lease > 0 => {
                        hold.until = hold.until.max(until);
                        hold.claim = false;
                    }
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
            self.end_inside(state, id, hold.token, hold.until, End::Lost);
        }
    }

    /// `EntryDuty::leave`
    pub(crate) fn finish(&self, state: &mut State, id: CallerId) {
        let since = self.clock_of(state, id);
        if let Phase::Inside(Hold { token, until, .. }) = state.caller(id).phase {
            state.caller(id).phase = Phase::Releasing {
                token,
                since,
                lease_ends: until,
            };
            self.send(state, id, Script::Release(token));
        }
    }

    /// Ends a call that has a grant; its release goes on in the background (`release_until`).
    pub(crate) fn end_inside(
        &self,
        state: &mut State,
        id: CallerId,
        token: Token,
        lease_ends: Tick,
        end: End,
    ) {
        let until = lease_ends.max(self.clock_of(state, id) + self.scenario.terms.claim);
        let caller = state.caller(id);
        caller.phase = Phase::Ended(end);
        caller.behind = Some(Behind::Release { token, until });
        self.send_from_home(state, id, Script::Release(token));
    }
}
