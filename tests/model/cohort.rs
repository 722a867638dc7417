//! Cohorts and groups: a grant of one or several owners, whose turn the process passes on in memory, and several callers
//! that queue in one request.
//!
//! A turn is offered to one member, or that member is inside. A member enters by one step, when its future is polled, and
//! by nothing else; the engine renews offers, and passes on those that nobody takes.

use crate::{
    broken::Broken,
    few::Few,
    protocol::Protocol,
    server::{Found, Joined, Token},
    state::{
        By, Caller, CallerId, Claim, Cohort, End, Phase, ProcessId, Request, Script, State, Tick,
        Turn,
    },
};

/// What becomes of a grant when one of its holders leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Another one has the turn, or had it before.
    On,
    /// The grant is to be released.
    Ended,
}

impl Protocol {
    /// Whether another caller of its process is at the lock: then a caller queues with the group.
    pub(crate) fn has_company(&self, state: &State, id: CallerId) -> bool {
        self.callers_of(self.process_of(id)).any(|other| {
            let other_phase = state.callers[usize::from(other)].phase;
            other != id
                && matches!(
                    other_phase,
                    Phase::Asking
                        | Phase::Answered { .. }
                        | Phase::Queued
                        | Phase::Offered { .. }
                        | Phase::Confirming { .. }
                        | Phase::Inside(_)
                )
        })
    }

    /// Sends the next group's request, unless one is under way.
    pub(crate) fn group(&self, state: &mut State, process: ProcessId) {
        let link = &state.processes[process].main;
        if !link.up || link.grouping {
            return;
        }
        let asks =
            |caller: &Caller| caller.joins && matches!(caller.phase, Phase::Asking | Phase::Queued);
        let mut joins: Vec<CallerId> = self
            .callers_of(process)
            .filter(|id| asks(&state.callers[usize::from(*id)]))
            .collect();
        let Some(first) = joins.first().copied() else {
            return;
        };
        joins.sort_by_key(|id| {
            let place = state.callers[usize::from(*id)].place;
            (place.is_none(), place)
        });
        let mut members = Few::from_iter([]);
        for id in joins {
            let caller = state.caller(id);
            caller.joins = false;
            caller.carried = Some(true);
            // Its own request holds it by itself.
            caller.resending = caller.phase == Phase::Queued;
            members.push((id, caller.place));
        }
        let not_after = self.not_after(state, first);
        let sent = state.local(process);
        let this = &mut state.processes[process];
        this.main.grouping = true;
        this.main.requests.push(Request {
            caller: first,
            sent,
            script: Script::Queue { members, not_after },
        });
    }

    /// The answer to a group's request.
    pub(crate) fn joined(&self, state: &mut State, process: ProcessId, sent: Tick, joined: Joined) {
        if joined.late {
            self.break_main(state, process);
            return;
        }
        // Its members learn of their places first, so that they can be given their turn.
        for (id, place) in joined.members.iter() {
            let caller = state.caller(id);
            if place.is_some() {
                caller.place = place;
            }
            if caller.phase == Phase::Asking {
                self.queued(state, id);
            }
        }
        if let Some(found) = joined.found {
            self.take_up(state, process, sent, found, By::Resend);
        }
        for (id, _) in joined.members.iter() {
            if state.caller(id).resending {
                self.open_gate(state, id);
            }
        }
        state.processes[process].main.grouping = false;
        self.group(state, process);
    }

    /// A grant that a reply describes, valid from the sending of its request.
    pub(crate) fn take_up(
        &self,
        state: &mut State,
        process: ProcessId,
        sent: Tick,
        found: Found,
        by: By,
    ) {
        let Found {
            token,
            owners,
            left,
        } = found;
        let first = owners.iter().next().unwrap_or_default();
        let unread = matches!(
            state.caller(first).phase,
            Phase::Asking | Phase::Answered { .. }
        );
        if owners.len() == 1 && unread && !self.is(Broken::UnreadGrantOffered) {
            return; // its own reply tells it
        }
        let validity = left.min(self.scenario.terms.lease(first));
        let until = self.deadline(state, first, sent, validity);
        self.take_up_cohort(state, process, token, owners, (until, validity), by);
    }

    /// A grant that a push or a reply describes. What is known of it stands.
    pub(crate) fn take_up_cohort(
        &self,
        state: &mut State,
        process: ProcessId,
        first: Token,
        owners: Few<CallerId>,
        (until, validity): (Tick, Tick),
        by: By,
    ) {
        let terms = &self.scenario.terms;
        let stands = |cohort: &Cohort| {
            let suspended = matches!(cohort.turn, Turn::Suspended(_));
            cohort.first > first || cohort.first == first && !suspended
        };
        let is_known = state.processes[process]
            .cohort
            .is_some_and(|known| stands(&known));
        if is_known && !self.is(Broken::KnownBlockTakenUpAnew) {
            state.observed.told_again = true;
            return;
        }
        let owner = owners.iter().next().unwrap_or_default();
        if owners.len() == 1 && !self.may_be_told(state, owner, first) {
            return; // an owner that has gone meanwhile gives the grant back by itself
        }
        let lost = self.supersede(state, process, first);
        state.processes[process].cohort = Some(Cohort {
            first,
            owners,
            tried: 0,
            turn: Turn::Nobody,
            until,
            confirmed: validity.max(terms.lease(owner).min(terms.claim)),
            renewing: false,
            by,
        });
        if !self.is_waited_for(state, process, owners) {
            state.observed.nobody_left |= owners.len() > 1;
            if self.is(Broken::EmptyBlockStays) {
                state.processes[process].cohort = None;
                return;
            }
        }
        if self.offer_next(state, process, first) == Passed::Ended {
            self.let_go(state, process, first);
        }
        let others = lost.into_iter().flat_map(|lost| lost.iter());
        let others = others.filter(|id| !owners.contains(*id)).collect();
        self.queue_again(state, process, others);
    }

    fn is_waited_for(&self, state: &State, process: ProcessId, owners: Few<CallerId>) -> bool {
        owners
            .iter()
            .any(|id| self.process_of(id) == process && state.callers[usize::from(id)].is_waiting())
    }

    /// Whether a caller still waits, also one that has its turn by an older grant, which the server has lost.
    fn may_be_told(&self, state: &State, id: CallerId, first: Token) -> bool {
        let caller = &state.callers[usize::from(id)];
        let is_newer = |older: Token| older < first && !self.is(Broken::OlderGrantStands);
        match caller.phase {
            Phase::Asking | Phase::Answered { .. } => {
                caller.early.is_none_or(|(older, _)| is_newer(older))
            }
            Phase::Queued => true,
            Phase::Offered { first: older, .. } => is_newer(older),
            _ => false,
        }
    }

    /// Offers the next member of a grant that still waits its turn.
    fn offer_next(&self, state: &mut State, process: ProcessId, first: Token) -> Passed {
        let now = state.local(process);
        let Some(mut cohort) = state.processes[process]
            .cohort
            .filter(|cohort| cohort.first == first)
        else {
            return Passed::Ended;
        };
        if now >= cohort.until && !self.is(Broken::PassIgnoresDeadline) {
            return if self.lose_cohort(state, process, first) {
                Passed::On
            } else {
                Passed::Ended
            };
        }
        for id in cohort.owners.iter().skip(usize::from(cohort.tried)) {
            let token = first + Token::from(cohort.tried);
            cohort.tried += 1;
            cohort.turn = Turn::Offered { to: id, since: now };
            cohort.renewing = false;
            if self.is(Broken::PassIgnoresDeadline) {
                let terms = &self.scenario.terms;
                cohort.until = now + terms.lease(id).min(terms.claim);
            }
            state.processes[process].cohort = Some(cohort);
            if self.process_of(id) != process || !self.may_be_told(state, id, first) {
                state.observed.passed_over |= cohort.tried > 1 || cohort.by == By::Pass;
                if self.is(Broken::SkippedTurnStays) {
                    return Passed::On;
                }
                continue;
            }
            self.tell(state, id, first, token);
            return Passed::On;
        }
        // What plays no part any longer would only tell equal states apart.
        state.processes[process].cohort = Some(Cohort {
            first,
            owners: Few::from_iter([]),
            tried: 0,
            turn: Turn::Over,
            until: 0,
            confirmed: 0,
            renewing: false,
            by: By::Pass,
        });
        Passed::Ended
    }

    /// The release of a grant is confirmed: it is known while somebody waits, who may be told of it late.
    pub(crate) fn forget_cohort(&self, state: &mut State, process: ProcessId, first: Token) {
        let waits = self.callers_of(process).any(|id| state.caller(id).waits());
        let over = |cohort: &mut Cohort| cohort.first == first && cohort.turn == Turn::Over;
        if !waits {
            state.processes[process].cohort.take_if(over);
        }
    }

    /// Tells a caller of its turn. One that is polled whenever it is woken takes it at once.
    fn tell(&self, state: &mut State, id: CallerId, first: Token, token: Token) {
        let token = if self.is(Broken::MembersShareAToken) {
            first
        } else {
            token
        };
        let beside = self.is(Broken::EntersBesideItsRequest);
        let caller = state.caller(id);
        match caller.phase {
            Phase::Asking | Phase::Answered { .. } if !beside => {
                caller.early = Some((first, token));
            }
            _ => {
                caller.phase = Phase::Offered { first, token };
                self.poll_if_prompt(state, id);
            }
        }
    }

    pub(crate) fn poll_if_prompt(&self, state: &mut State, id: CallerId) {
        if !self.scenario.terms.is_slow(id) {
            self.poll(state, id);
        }
    }

    /// Whether polling a slow caller changes anything.
    pub(crate) fn may_poll(&self, state: &State, id: CallerId) -> bool {
        let caller = &state.callers[usize::from(id)];
        let renewing = || {
            let cohort = state.processes[self.process_of(id)].cohort;
            cohort.is_some_and(|cohort| cohort.holder() == Some(id) && cohort.renewing)
        };
        match caller.phase {
            Phase::Answered { .. } | Phase::Revoked => true,
            Phase::Offered { .. } => !caller.resending && !renewing(),
            Phase::Confirming { answer, .. } => answer.is_some(),
            _ => false,
        }
    }

    /// The caller's future is polled.
    pub(crate) fn poll(&self, state: &mut State, id: CallerId) {
        let Caller {
            phase, resending, ..
        } = *state.caller(id);
        match phase {
            Phase::Answered { reply, sent } => {
                state.caller(id).phase = Phase::Asking;
                self.read(state, id, sent, reply);
            }
            Phase::Revoked => self.begin_again(state, id),
            Phase::Offered { first, token } if !resending => {
                self.take_turn(state, id, first, token);
            }
            Phase::Confirming {
                first,
                token,
                answer: Some(until),
            } => self.be_seated(state, id, first, token, until),
            _ => {}
        }
    }

    /// Enters, if the offer still stands with enough time left; nothing lies between the look and the step.
    fn take_turn(&self, state: &mut State, id: CallerId, first: Token, token: Token) {
        let process = self.process_of(id);
        let now = state.local(process);
        let known = state.processes[process]
            .cohort
            .filter(|cohort| cohort.first == first);
        let offer = known.filter(|cohort| {
            matches!(cohort.turn, Turn::Offered { to, .. } if to == id)
                || self.is(Broken::EntersWithoutOffer)
        });
        let Some(offer) = offer else {
            self.begin_again(state, id);
            return;
        };
        let left = offer.until - now;
        if left > 0 && 3 * left >= 2 * offer.confirmed {
            self.be_seated(state, id, first, token, offer.until);
        } else if self.is(Broken::AnswerSeats) {
            state.caller(id).phase = Phase::Confirming {
                first,
                token,
                answer: None,
            };
            let lease = self.scenario.terms.lease(id);
            self.send(state, id, Script::Renew(first, lease));
        } else if !offer.renewing {
            self.renew_offer(state, process);
        }
    }

    fn be_seated(&self, state: &mut State, id: CallerId, first: Token, token: Token, until: Tick) {
        let process = self.process_of(id);
        let (mut validity, mut by) = (self.scenario.terms.lease(id), By::Pass);
        if let Some(cohort) = &mut state.processes[process].cohort
            && cohort.first == first
            && cohort.holder() == Some(id)
        {
            cohort.turn = Turn::Inside(id);
            cohort.renewing = false;
            cohort.until = cohort.until.max(until);
            validity = cohort.confirmed;
            if cohort.tried == 1 {
                by = cohort.by;
            }
            if cohort.owners.len() == 1 {
                (cohort.confirmed, cohort.by) = (0, By::Pass); // plays no part any longer
            }
        }
        let claim = Claim {
            token,
            first,
            validity,
            until,
            by,
        };
        self.enter(state, id, claim);
    }

    /// A member that has missed its turn goes on as another owner, with the place that it had: nothing that is under way
    /// for the one before lets it in.
    pub(crate) fn begin_again(&self, state: &mut State, id: CallerId) {
        let now = self.clock_of(state, id);
        let caller = state.caller(id).clone();
        let next = self.scenario.terms.next_owner(id);
        let goes_on = now < caller.wait_until;
        match next.filter(|_| goes_on) {
            Some(next) => {
                state.caller(id).phase = Phase::Ended(End::Missed);
                self.give_up_as(state, id, &caller);
                let other = state.caller(next);
                other.wait_until = caller.wait_until;
                other.began = caller.began;
                other.place = caller.place;
                other.joined = caller.joined;
                self.ask(state, next);
            }
            // No grant has this owner: it may as well go on itself.
            None if goes_on && !state.server.holds(id) && caller.behind.is_none() => {
                self.ask(state, id);
            }
            None => {
                state.caller(id).phase = Phase::Ended(End::Busy);
                self.give_up_as(state, id, &caller);
            }
        }
    }

    /// What the owner before may still have is given back, unless the engine has done so.
    fn give_up_as(&self, state: &mut State, id: CallerId, before: &Caller) {
        if before.phase != Phase::Revoked {
            self.clean_up(state, id);
        }
    }

    /// The engine renews the grant of an offer.
    pub(crate) fn renew_offer(&self, state: &mut State, process: ProcessId) {
        if let Some(cohort) = &mut state.processes[process].cohort
            && let Turn::Offered { to, .. } = cohort.turn
        {
            cohort.renewing = true;
            let first = cohort.first;
            let lease = self.scenario.terms.lease(to);
            self.send_from_home(state, to, Script::Renew(first, lease));
        }
    }

    /// Whether an offer would be too old for a member that takes it at the next tick.
    pub(crate) fn is_offer_short(&self, state: &State, process: ProcessId) -> bool {
        let now = state.local(process);
        let cohort = state.processes[process].cohort;
        !self.is(Broken::AnswerSeats)
            && cohort.is_some_and(|cohort| {
                let offered = cohort.offered_since().is_some();
                offered && !cohort.renewing && 3 * (cohort.until - now) < 2 * cohort.confirmed
            })
    }

    /// Whether an offer has stood for as long as it may.
    pub(crate) fn is_offer_overdue(&self, state: &State, process: ProcessId) -> bool {
        let now = state.local(process);
        let cohort = state.processes[process].cohort;
        !self.is(Broken::AnswerSeats)
            && !self.is(Broken::OfferStands)
            && cohort.is_some_and(|cohort| {
                let patience = self.patience(cohort.holder());
                cohort
                    .offered_since()
                    .is_some_and(|since| now >= since + patience)
            })
    }

    /// How long an offer stands.
    pub(crate) fn patience(&self, to: Option<CallerId>) -> Tick {
        let terms = &self.scenario.terms;
        to.map_or(terms.claim, |to| terms.lease(to).min(terms.claim))
    }

    /// The engine passes on an offer that nobody takes.
    pub(crate) fn pass_on(&self, state: &mut State, process: ProcessId) {
        let Some(cohort) = state.processes[process].cohort else {
            return;
        };
        let Some(missed) = cohort.holder() else {
            return;
        };
        state.observed.missed = true;
        if self.offer_next(state, process, cohort.first) == Passed::Ended {
            self.let_go(state, process, cohort.first);
        }
        self.poll_if_prompt(state, missed);
    }

    /// Whether the local deadline has passed while a member has the turn and others are to come.
    pub(crate) fn is_cohort_late(&self, state: &State, process: ProcessId) -> bool {
        let now = state.local(process);
        state.processes[process].cohort.is_some_and(|cohort| {
            cohort.holder().is_some()
                && now >= cohort.until
                && !self.is(Broken::LostBlockStaysAway)
                && self.is_waited_for(state, process, cohort.owners)
        })
    }

    /// Those to come queue again: where the server still has the grant, they share it again.
    pub(crate) fn suspend(&self, state: &mut State, process: ProcessId) {
        if let Some(cohort) = &mut state.processes[process].cohort
            && let Some(had) = cohort.holder()
        {
            let owners = cohort.owners;
            cohort.turn = Turn::Suspended(had);
            state.observed.lost_block = true;
            self.queue_again(state, process, owners);
            self.poll_if_prompt(state, had);
        }
    }

    /// The owner leaves, which was inside by this grant.
    pub(crate) fn pass(&self, state: &mut State, id: CallerId, first: Token) -> Passed {
        let process = self.process_of(id);
        let cohort = state.processes[process].cohort;
        let Some(cohort) = cohort.filter(|cohort| cohort.first == first) else {
            return Passed::Ended; // a grant in a reply, or lost meanwhile
        };
        if cohort.turn == Turn::Suspended(id) {
            state.processes[process].cohort = None;
            return Passed::On;
        }
        if cohort.turn == Turn::Over {
            return Passed::Ended; // once more, because the release was not confirmed
        }
        if cohort.holder() != Some(id) {
            return Passed::On; // it had lost its turn
        }
        self.offer_next(state, process, first)
    }

    /// The server has given the lock again: a grant that was given before is lost. Who of it still waits afterwards has
    /// to queue again.
    pub(crate) fn supersede(
        &self,
        state: &mut State,
        process: ProcessId,
        token: Token,
    ) -> Option<Few<CallerId>> {
        let cohort = &mut state.processes[process].cohort;
        let lost = cohort.take_if(|cohort| cohort.first < token)?;
        Some(lost.owners)
    }

    /// The grant is not held any more, or not known to be: who still waits queues again, and is told whether it is.
    /// `false` if nobody does, and the grant is to be released.
    pub(crate) fn lose_cohort(&self, state: &mut State, process: ProcessId, first: Token) -> bool {
        let Some(cohort) = state.processes[process]
            .cohort
            .filter(|cohort| cohort.first == first)
        else {
            return false;
        };
        state.processes[process].cohort = None;
        if let Turn::Offered { to, .. } = cohort.turn {
            self.poll_if_prompt(state, to);
        }
        if !self.is_waited_for(state, process, cohort.owners) {
            return false;
        }
        state.observed.lost_block = true;
        if self.is(Broken::LostBlockStaysAway) {
            return false;
        }
        if self.is(Broken::LostBlockReleasedFirst) {
            let id = cohort.owners.iter().next().unwrap_or_default();
            self.send(state, id, Script::Release(first));
        }
        self.queue_again(state, process, cohort.owners);
        true
    }

    pub(crate) fn queue_again(&self, state: &mut State, process: ProcessId, owners: Few<CallerId>) {
        for id in owners.iter() {
            let caller = state.caller(id);
            if caller.phase == Phase::Queued
                && (caller.place.is_some() || !self.is(Broken::ComesBackToAPlaceOnly))
            {
                caller.joins = true;
            }
        }
        self.group(state, process);
    }

    /// Releases a block in the background.
    pub(crate) fn let_go(&self, state: &mut State, process: ProcessId, first: Token) {
        let terms = &self.scenario.terms;
        let until = state.local(process) + terms.longest_lease().max(terms.claim);
        let letting_go = &mut state.processes[process].letting_go;
        if letting_go.iter().any(|(other, _)| *other == first) {
            return;
        }
        letting_go.push((first, until));
        if let Some(id) = self.callers_of(process).next() {
            self.send_from_home(state, id, Script::Release(first));
        }
    }

    /// A caller that has its turn gives it up before it is inside: another member goes on.
    pub(crate) fn give_up_turn(&self, state: &mut State, id: CallerId, first: Token) {
        let process = self.process_of(id);
        let cohort = state.processes[process].cohort;
        let is_its = |cohort: Cohort| cohort.first == first && cohort.holder() == Some(id);
        if cohort.is_some_and(is_its) && self.offer_next(state, process, first) == Passed::Ended {
            self.let_go(state, process, first);
        }
    }

    /// The server's answer to a renewal counts for the member that had the turn when it was asked, while that still has
    /// it: it corrects what is known of the grant, and seats nobody. Whether it counts.
    pub(crate) fn confirm(
        &self,
        state: &mut State,
        id: CallerId,
        first: Token,
        until: Option<Tick>,
    ) -> bool {
        let process = self.process_of(id);
        let now = state.local(process);
        let Some(cohort) = state.processes[process].cohort.as_mut() else {
            return false;
        };
        if cohort.first != first || cohort.holder() != Some(id) {
            return false;
        }
        cohort.renewing = false;
        let is_late = cohort.offered_since().is_none() && now >= cohort.until;
        match until {
            Some(_) if is_late && !self.is(Broken::AnswerRevives) => return false,
            Some(until) => {
                if until > cohort.until {
                    cohort.until = until;
                    cohort.confirmed = until - now;
                }
            }
            None => {
                self.lose_cohort(state, process, first);
            }
        }
        true
    }
}
