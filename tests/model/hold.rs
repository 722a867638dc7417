//! A hold with its local deadline, its renewals and its release, as in the runtime's `lease/`.

use std::time::Duration;

use lock_core::lease::{CLAIM, Grant, Moment};

use crate::{
    broken::Broken,
    cohorts::{Passed, token_of},
    protocol::Protocol,
    server::Token,
    state::{Behind, By, CallerId, End, Hold, Phase, Renewal, Script, Stamp, State, Tick},
};

impl Protocol {
    /// Begins a hold, as `HoldState::begin` does. If the local deadline has not passed, the body is polled for the
    /// first time. If the deadline has passed, the hold is lost at once.
    pub(crate) fn enter(&self, state: &mut State, id: CallerId, grant: &Grant) {
        let (terms, process) = (&self.scenario.terms, self.process_of(id));
        let token = token_of(grant.token.get());
        let until = grant.valid_until.expect("every lease on Redis has an end");
        let (mut by, mut fencing) = (By::Reply, token);
        if grant.queued
            && let Some(entry) = &mut state.processes[process].entry
            && entry.cohort.contains(token.into())
        {
            let first = token_of(entry.cohort.first());
            entry.renewing = false;
            by = By::Pass;
            if first == token {
                by = std::mem::replace(&mut entry.by, By::Pass);
            }
            if self.is(Broken::MembersShareAToken) {
                fencing = first;
            }
        }
        let now = state.now;
        state.caller(id).told = None;
        state.caller(id).phase = Phase::Inside(Hold {
            token,
            since: now,
            until,
            claim: grant.validity + Duration::from_millis(1) < terms.time(terms.lease(id)),
            tended: now,
            tending: false,
            by,
        });
        if self.clock_of(state, id) >= until {
            self.lose(state, id);
            return;
        }
        let observed = &mut state.observed;
        observed.begun_fell |= fencing <= observed.begun;
        observed.begun = observed.begun.max(fencing);
    }

    /// If a renewal of a hold is due, returns the lease that the renewal requests. Returns 0 if a check is due, or
    /// `None` if neither is due.
    pub(crate) fn tending(&self, state: &State, id: CallerId) -> Option<Tick> {
        let (terms, faults) = (&self.scenario.terms, &self.scenario.faults);
        let now = state.now;
        let Phase::Inside(hold) = state.callers[usize::from(id)].phase else {
            return None;
        };
        if hold.tending || self.clock_of(state, id) >= hold.until || now < hold.tended + 1 {
            return None;
        }
        // A check can find a loss only if the server loses its state or its clock jumps. Scenarios without these faults
        // therefore leave out the checks.
        let checks =
            faults.state_losses + faults.restarts + faults.jumps_ahead + faults.jumps_back > 0;
        match (terms.renewed, hold.claim, checks) {
            (true, _, _) => Some(terms.lease(id)),
            (false, true, _) => Some((hold.since + terms.lease(id) - now).max(1)),
            (false, false, true) => Some(0),
            (false, false, false) => None,
        }
    }

    /// Sends the renewal or the check that is due, as the engine's `renew_together` does.
    pub(crate) fn tend(&self, state: &mut State, id: CallerId) {
        let now = state.now;
        let (Some(lease), Phase::Inside(mut hold)) =
            (self.tending(state, id), state.caller(id).phase)
        else {
            return;
        };
        let token = hold.token;
        let Ok(known) = self.known(state, self.process_of(id), token) else {
            self.lose(state, id);
            return;
        };
        (hold.tending, hold.tended) = (true, now);
        state.caller(id).phase = Phase::Inside(hold);
        let renewal = Renewal {
            token,
            known,
            lease,
        };
        self.send_from_home(state, id, Script::Renew(renewal));
    }

    pub(crate) fn renewed(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Stamp,
        renewal: Renewal,
        left: Option<Tick>,
    ) {
        let Renewal {
            token,
            known,
            lease,
        } = renewal;
        let (now, process) = (self.clock_of(state, id), self.process_of(id));
        let until = left.map(|left| self.deadline(state, process, sent, left));
        if let Phase::Confirming { token: of, answer } = &mut state.caller(id).phase {
            if *of == token {
                *answer = Some(until.unwrap_or(now));
                self.poll_if_prompt(state, id);
            }
            return;
        }
        let stands = match (known, until) {
            (Some(_), Some(until)) => self.confirm(state, process, token, (sent, until)),
            (Some(first), None) => {
                self.lose_cohort(state, process, first);
                false
            }
            (None, until) => until.is_some(),
        };
        match &mut state.caller(id).phase {
            Phase::Queued => self.poll_if_prompt(state, id),
            Phase::Inside(hold) if hold.token == token && hold.tending => {
                hold.tending = false;
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

    /// Drops the body of a lost hold, as the engine does after `HoldState::lose`.
    pub(crate) fn lose(&self, state: &mut State, id: CallerId) {
        if let Phase::Inside(hold) = state.caller(id).phase {
            self.end_inside(state, id, hold.token, hold.until, End::Lost);
        }
    }

    /// Completes the body and ends the hold, as `EntryTicket::leave` does. In a cohort, the caller sends a release
    /// only if [`pass`](Self::pass) returns [`Passed::Ended`].
    pub(crate) fn finish(&self, state: &mut State, id: CallerId) {
        let since = state.now;
        if let Phase::Inside(Hold { token, until, .. }) = state.caller(id).phase {
            state.caller(id).phase = Phase::Ended(End::Left);
            let Passed::Ended(first) = self.pass(state, id, token) else {
                return;
            };
            state.caller(id).phase = Phase::Releasing {
                token,
                first,
                since,
                lease_ends: until,
            };
            self.send(state, id, Script::Release(first));
        }
    }

    /// Ends a call that holds the lock or awaits its release. If the grant has to be released, the release continues in
    /// the background, as in the engine's `release_until`.
    pub(crate) fn end_inside(
        &self,
        state: &mut State,
        id: CallerId,
        token: Token,
        lease_ends: Moment,
        end: End,
    ) {
        let until = lease_ends.max(self.clock_of(state, id) + CLAIM);
        state.caller(id).phase = Phase::Ended(end);
        let Passed::Ended(first) = self.pass(state, id, token) else {
            return;
        };
        state.caller(id).behind = Some(Behind::Release { first, until });
        self.send_from_home(state, id, Script::Release(first));
    }
}
