//! The registry of a process's cohorts, and the batches that queue several of its callers. The engine's [`Cohort`]
//! makes the decisions. This file drives [`Cohort`] in the same way as the runtime's `cohort_registry.rs` and
//! `grants.rs`.

use std::time::Duration;

use lock_core::{
    lease::{Moment, less_drift},
    owner::OwnerId,
};

use crate::{
    broken::Broken,
    cohort::{Cohort, Confirmation, Departure, Turn},
    few::Few,
    grant::{GrantSnapshot, Message},
    protocol::{Protocol, moment_of},
    server::{Found, Joined, Push, Token},
    state::{
        By, Caller, CallerId, Entry, Phase, ProcessId, Renewal, Request, Script, Stamp, State, Tick,
    },
};

/// The ID of every session. In the model, no process receives messages for another process's session, so all sessions
/// can have the same ID.
const SESSION: &str = "session";

/// The interval of the engine's heartbeat. At each heartbeat, the engine renews the grants of offers.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Whether a grant has to be released after a turn has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// The calling code must not release the grant, because the next member has an offer, the leaving member had
    /// already lost its turn, or the remaining members queue again.
    On,
    /// The grant with this token has to be released.
    Ended(Token),
}

/// An action of the heartbeat on a cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Suspends the cohort, because its local deadline has passed while members are waiting for their turns.
    Suspend,
    /// Passes on the offer, because its member has not taken it in time.
    PassOn,
    /// Renews the grant of the cohort's offer with this lease.
    Renew(Duration),
}

pub(crate) fn owner_id(id: CallerId) -> OwnerId {
    OwnerId::from_u128(id.into())
}

pub(crate) fn token_of(number: u64) -> Token {
    Token::try_from(number).expect("few grants are given")
}

fn owners_text(owners: Few<CallerId>) -> String {
    let owners: Vec<_> = owners.iter().map(|id| owner_id(id).to_string()).collect();
    owners.join(" ")
}

impl Protocol {
    pub(crate) fn caller_of(&self, owner: OwnerId) -> CallerId {
        let mut callers = (0..).zip(&self.scenario.terms.callers);
        let caller = callers.find(|(id, _)| owner_id(*id) == owner);
        caller.expect("an owner is a caller").0
    }

    /// Returns whether another caller of the caller's process waits for the lock or holds it. In this case, the caller
    /// queues in a batch.
    pub(crate) fn has_company(&self, state: &State, id: CallerId) -> bool {
        self.callers_of(self.process_of(id)).any(|other| {
            let other_phase = state.callers[usize::from(other)].phase;
            other != id
                && matches!(
                    other_phase,
                    Phase::Asking
                        | Phase::Answered { .. }
                        | Phase::Queued
                        | Phase::Confirming { .. }
                        | Phase::Inside(_)
                )
        })
    }

    /// Sends one batch with all callers of the process that have to queue, unless the session is not connected or an
    /// earlier batch is unanswered.
    pub(crate) fn send_batch(&self, state: &mut State, process: ProcessId) {
        let session = &state.processes[process].main;
        if !session.up || session.sending_batch {
            return;
        }
        let asks = |caller: &Caller| caller.joins && caller.is_waiting();
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
            caller.resending = true;
            members.push((id, caller.place));
        }
        let not_after = self.not_after(state, first);
        let sent = self.stamp(state, process);
        let this = &mut state.processes[process];
        this.main.sending_batch = true;
        this.main.requests.push(Request {
            caller: first,
            sent,
            script: Script::Queue { members, not_after },
        });
    }

    /// Handles the answer to a batch.
    pub(crate) fn joined(
        &self,
        state: &mut State,
        process: ProcessId,
        sent: Stamp,
        joined: Joined,
    ) {
        if joined.late {
            self.break_main(state, process);
            return;
        }
        // The members learn their places before the function `take_up_described` offers them turns.
        for (id, place) in joined.members.iter() {
            let caller = state.caller(id);
            if place.is_some() {
                caller.place = place;
            }
        }
        if let Some(found) = joined.found {
            self.take_up_described(state, process, sent, found, By::Resend);
        }
        for (id, _) in joined.members.iter() {
            if state.caller(id).resending {
                self.open_gate(state, id);
            }
        }
        state.processes[process].main.sending_batch = false;
        self.send_batch(state, process);
    }

    /// Begins the cohort of a grant that a reply describes. The validity of the grant counts from the moment when the
    /// request was sent.
    pub(crate) fn take_up_described(
        &self,
        state: &mut State,
        process: ProcessId,
        sent: Stamp,
        found: Found,
        by: By,
    ) {
        let owners = found.owners;
        let first = owners.iter().next().unwrap_or_default();
        let unread = matches!(
            state.caller(first).phase,
            Phase::Asking | Phase::Answered { .. }
        );
        if owners.len() == 1 && unread && !self.is(Broken::UnreadGrantOffered) {
            return; // the owner reads the grant in its own reply
        }
        let grant = self.described(state, process, sent, found);
        self.take_up(state, process, &grant, by);
    }

    /// Converts the description of a grant in a reply into the engine's type.
    pub(crate) fn described(
        &self,
        state: &State,
        process: ProcessId,
        sent: Stamp,
        found: Found,
    ) -> GrantSnapshot {
        let Found {
            token,
            owners,
            left,
        } = found;
        let terms = &self.scenario.terms;
        let lease = terms.millis(terms.lease(owners.iter().next().unwrap_or_default()));
        let text = format!("{token}|{lease}|{SESSION}|{}", owners_text(owners));
        let asked = self.counted_from(state, process, sent);
        GrantSnapshot::parse(&text, terms.millis(left), asked)
            .expect("the engine can parse every reply of the model")
    }

    /// Begins the cohort of a grant that a push describes.
    pub(crate) fn take_up_pushed(&self, state: &mut State, process: ProcessId, push: Push) {
        let Push { owners, token } = push;
        let terms = &self.scenario.terms;
        let lease = terms.millis(terms.lease(owners.iter().next().unwrap_or_default()));
        let told = format!("{token}|{lease}|{}|lock", owners_text(owners));
        let signed = format!("{SESSION}{told}{SESSION}");
        let signature = sha1_smol::Sha1::from(signed).digest();
        // The validity counts from the moment when the newest answered command was sent. The server read that command
        // before it granted the lock, so the validity counts from a moment before the grant.
        let stamp = state.processes[process].main.answered;
        let after = if self.is(Broken::DeadlineFromThePush) {
            self.moment(state, process)
        } else {
            self.counted_from(state, process, stamp)
        };
        let message = format!("{signature}|{told}");
        let Some(Message::Granted(_, grant)) = Message::read(&message, SESSION, after) else {
            panic!("the engine can parse every push of the model");
        };
        self.take_up(state, process, &grant, By::Push);
    }

    /// Begins the cohort of a grant that the server reports, unless the process knows this grant or a newer one. A
    /// suspended cohort (one whose local deadline has passed) begins again if a reply describes its grant.
    pub(crate) fn take_up(
        &self,
        state: &mut State,
        process: ProcessId,
        grant: &GrantSnapshot,
        by: By,
    ) {
        let now = self.moment(state, process);
        let Some(cohort) = Cohort::new(grant, now) else {
            return;
        };
        let first = token_of(grant.first);
        if let Some(Entry { cohort: known, .. }) = &state.processes[process].entry {
            let newer = known.first() > grant.first;
            let again = grant.is_pushed || !known.is_suspended();
            let is_known = newer || known.first() == grant.first && again;
            if is_known && !self.is(Broken::KnownCohortTakenUpAgain) {
                state.observed.told_again = true;
                return;
            }
        }
        if let [owner] = grant.owners[..]
            && !self.may_be_told(state, self.caller_of(owner), first)
        {
            return; // the cleanup of a single owner that no longer waits gives back the grant
        }
        let replaced = state.processes[process].entry.replace(Entry {
            cohort,
            renewing: false,
            since: state.now,
            by,
        });
        if !self.has_waiting(state, process) {
            state.observed.nobody_left |= grant.owners.len() > 1;
            if self.is(Broken::EmptyCohortStays) {
                state.processes[process].entry = None;
                return;
            }
        }
        if !self.offer_next(state, process) {
            // No member was offered a turn, because no member is waiting or because the local deadline has passed.
            let waits = self.has_waiting(state, process);
            if !(waits && self.queue_again_late(state, process, first)) {
                self.end(state, process);
                self.let_go(state, process, first);
            }
        }
        if let Some(replaced) = replaced.filter(|replaced| !replaced.cohort.is_over()) {
            // The server has granted the lock again, so it has lost the grant of the replaced cohort. Members that the
            // new grant does not include queue again.
            let others = replaced.cohort.to_come().iter();
            let others = others.filter(|owner| !grant.owners.contains(owner));
            let others: Vec<_> = others.map(|owner| self.caller_of(*owner)).collect();
            self.queue_again(state, process, &others);
        }
    }

    /// Returns the members of the process's cohort whose turns are still to come.
    fn to_come(&self, state: &State, process: ProcessId) -> Vec<CallerId> {
        let entry = state.processes[process].entry.as_ref();
        let owners = entry.into_iter().flat_map(|entry| entry.cohort.to_come());
        owners.map(|owner| self.caller_of(*owner)).collect()
    }

    /// Returns whether any member that has not had its turn yet is waiting.
    pub(crate) fn has_waiting(&self, state: &State, process: ProcessId) -> bool {
        let to_come = self.to_come(state, process).into_iter();
        to_come
            .filter(|id| self.process_of(*id) == process)
            .any(|id| state.callers[usize::from(id)].is_waiting())
    }

    /// Returns whether the cohort whose first member has the token `first` can offer a turn to a caller. A waiting
    /// caller can get an offer if it has none, or if its offer is from an older grant, which the server has lost.
    fn may_be_told(&self, state: &State, id: CallerId, first: Token) -> bool {
        let caller = &state.callers[usize::from(id)];
        let is_newer = |older: Token| older < first && !self.is(Broken::OlderGrantStands);
        let waits = matches!(
            caller.phase,
            Phase::Asking | Phase::Answered { .. } | Phase::Queued
        );
        waits && caller.turn().is_none_or(is_newer)
    }

    /// Offers the turn to the next member that is waiting. Returns `false` if no member is waiting or if the local
    /// deadline has passed.
    fn offer_next(&self, state: &mut State, process: ProcessId) -> bool {
        let now = self.moment(state, process);
        while let Some(entry) = &mut state.processes[process].entry {
            let next = if self.is(Broken::PassIgnoresDeadline) {
                entry.cohort.next(Moment::new(Duration::ZERO))
            } else {
                entry.cohort.next(now)
            };
            let Some(turn) = next else {
                return false;
            };
            let first = token_of(entry.cohort.first());
            let (token, id) = (token_of(turn.token), self.caller_of(turn.owner));
            let waits = self.process_of(id) == process && self.may_be_told(state, id, first);
            state.observed.passed_over |= !waits && token > first;
            if !waits && !self.is(Broken::SkippedTurnStays) {
                continue;
            }
            self.offer(state, process, turn, now);
            if waits {
                self.tell(state, id, token);
            }
            return true;
        }
        false
    }

    fn offer(&self, state: &mut State, process: ProcessId, turn: Turn, now: Moment) {
        let id = self.caller_of(turn.owner);
        let (since, missed) = (state.now, state.caller(id).attempt.0.missed());
        let Some(entry) = &mut state.processes[process].entry else {
            return;
        };
        entry.cohort.offer(turn, missed, now);
        entry.renewing = false;
        entry.since = since;
        if self.is(Broken::PassIgnoresDeadline) {
            let terms = &self.scenario.terms;
            let claim = terms.time(terms.lease(id).min(terms.claim));
            let answer = Confirmation {
                asked: now,
                until: now + claim,
                restarted: true,
            };
            entry.cohort.confirm(turn.token, answer, now);
        }
    }

    /// Marks the cohort of a grant as released, after the release was confirmed or given up. If no caller of the
    /// process is waiting, also forgets the cohort. While callers are waiting, a late message that describes the grant
    /// could make the process begin a forgotten cohort again.
    pub(crate) fn forget(&self, state: &mut State, process: ProcessId, token: Token) {
        let at_lock = self.callers_of(process).any(|id| state.caller(id).waits());
        let known = &mut state.processes[process].entry;
        if let Some(Entry { cohort, .. }) = known
            && cohort.is_over()
            && [cohort.first(), cohort.turn().token].contains(&token.into())
        {
            cohort.mark_released();
            known.take_if(|_| !at_lock);
        }
    }

    /// Forgets a released cohort if no caller of the process is waiting, as the heartbeat does.
    pub(crate) fn forget_released(&self, state: &mut State, process: ProcessId) {
        if !self.callers_of(process).any(|id| state.caller(id).waits()) {
            let known = &mut state.processes[process].entry;
            known.take_if(|entry| entry.cohort.is_released());
        }
    }

    /// Sends a renewal on behalf of a caller, in the variant `Broken::AnswerSeats`.
    pub(crate) fn renew_by_itself(&self, state: &mut State, id: CallerId, token: Token) {
        let renewal = Renewal {
            token,
            known: self.known_by(state, self.process_of(id), token),
            lease: self.scenario.terms.lease(id),
        };
        self.send(state, id, Script::Renew(renewal));
    }

    /// Returns the token by which the server identifies the grant of the member with this token, or `None` if no cohort
    /// contains the member.
    pub(crate) fn known_by(
        &self,
        state: &State,
        process: ProcessId,
        token: Token,
    ) -> Option<Token> {
        let entry = state.processes[process].entry.as_ref();
        let cohort = entry.map(|entry| &entry.cohort);
        let cohort = cohort.filter(|cohort| cohort.contains(token.into()));
        cohort.map(|cohort| token_of(cohort.first()))
    }

    /// Returns the token by which the server identifies the grant of the member with this token, `Ok(None)` if no
    /// cohort contains the member, or `Err` if the member does not have the turn of its cohort.
    pub(crate) fn known(
        &self,
        state: &State,
        process: ProcessId,
        token: Token,
    ) -> Result<Option<Token>, ()> {
        let known = self.known_by(state, process, token);
        let entry = state.processes[process].entry.as_ref();
        let has_turn = entry.is_some_and(|entry| entry.cohort.has_turn(token.into()));
        match known {
            Some(_) if !has_turn => Err(()),
            known => Ok(known),
        }
    }

    /// Sends a renewal for the grant of an offer, as the engine does.
    pub(crate) fn renew_offer(&self, state: &mut State, process: ProcessId, lease: Duration) {
        if let Some(entry) = &mut state.processes[process].entry
            && entry.cohort.is_offered()
        {
            entry.renewing = true;
            let turn = entry.cohort.turn();
            let renewal = Renewal {
                token: token_of(turn.token),
                known: Some(token_of(entry.cohort.first())),
                lease: self.scenario.terms.ticks(lease),
            };
            self.send_from_home(state, self.caller_of(turn.owner), Script::Renew(renewal));
        }
    }

    /// Returns the heartbeat's next action for the cohort of a process, if one is due.
    pub(crate) fn chore(&self, state: &State, process: ProcessId) -> Option<Chore> {
        let now = self.moment(state, process);
        let entry = state.processes[process].entry.as_ref()?;
        let cohort = &entry.cohort;
        if cohort.is_over() {
            return None;
        }
        if cohort.is_late(now)
            && !self.is(Broken::LostCohortStaysAway)
            && self.has_waiting(state, process)
        {
            return Some(Chore::Suspend);
        }
        if self.is(Broken::AnswerSeats) {
            return None;
        }
        if cohort.is_overdue(now) && !self.is(Broken::OfferStands) {
            return Some(Chore::PassOn);
        }
        let lease = cohort.renewal_of_offer(now + HEARTBEAT);
        lease.filter(|_| !entry.renewing).map(Chore::Renew)
    }

    /// Passes an offer that its member has not taken to the next member, as the engine does. Releases the grant if no
    /// other member is waiting.
    pub(crate) fn pass_on(&self, state: &mut State, process: ProcessId) {
        let Some(entry) = &state.processes[process].entry else {
            return;
        };
        let (first, missed) = (token_of(entry.cohort.first()), entry.cohort.turn());
        state.observed.missed = true;
        if !self.offer_next(state, process) {
            self.end(state, process);
            self.let_go(state, process, first);
        }
        self.poll_if_prompt(state, self.caller_of(missed.owner));
    }

    /// Suspends the cohort: the members whose turns are still to come queue again. If the reply to their batch
    /// describes the grant of the suspended cohort, the members share that grant again.
    pub(crate) fn suspend(&self, state: &mut State, process: ProcessId) {
        let to_come = self.to_come(state, process);
        if let Some(Entry { cohort, .. }) = &mut state.processes[process].entry {
            let had = cohort.turn();
            cohort.suspend();
            state.observed.lost_cohort = true;
            self.queue_again(state, process, &to_come);
            self.poll_if_prompt(state, self.caller_of(had.owner));
        }
    }

    /// Returns the token of the first member of the cohort in which this owner awaits or has its turn. Call this
    /// function only after a probe has reported that the owner is neither in the queue nor in a grant. The server has
    /// then lost the cohort's grant. Returns `None` if the owner is in no cohort, or if the process learned of the
    /// cohort only after the moment `sent` at which the probe was sent.
    pub(crate) fn lost_member(&self, state: &State, id: CallerId, sent: Stamp) -> Option<Token> {
        let entry = state.processes[self.process_of(id)].entry.as_ref()?;
        let cohort = &entry.cohort;
        let lost = !cohort.is_over() && cohort.was_known_at(moment_of(sent));
        // While the reply to the probe was under way, the owner may have got its turn. The function therefore also
        // compares the member that has the turn.
        let owner = owner_id(id);
        let is_its = lost && (cohort.to_come().contains(&owner) || cohort.turn().owner == owner);
        is_its.then(|| token_of(cohort.first()))
    }

    fn end(&self, state: &mut State, process: ProcessId) {
        if let Some(Entry { cohort, .. }) = &mut state.processes[process].entry {
            cohort.end();
        }
    }

    /// Ends the turn of the member with this token. Offers the next turn to a waiting member, or returns the token of
    /// the grant that the calling code has to release.
    pub(crate) fn pass(&self, state: &mut State, id: CallerId, token: Token) -> Passed {
        let process = self.process_of(id);
        let entry = &mut state.processes[process].entry;
        let cohort = entry.as_mut().map(|entry| &mut entry.cohort);
        let Some(cohort) = cohort.filter(|cohort| cohort.contains(token.into())) else {
            return Passed::Ended(token); // the token belongs to no cohort, or to one that was replaced
        };
        let first = token_of(cohort.first());
        match cohort.leave(token.into()) {
            Departure::Stale => return Passed::On,
            Departure::Ended => return Passed::Ended(first),
            Departure::Suspended => {
                *entry = None;
                return Passed::On;
            }
            Departure::Free => {}
        }
        if self.offer_next(state, process) {
            return Passed::On;
        }
        if self.has_waiting(state, process) && self.queue_again_late(state, process, first) {
            return Passed::On;
        }
        self.end(state, process);
        Passed::Ended(first)
    }

    /// Makes the waiting members of a cohort queue again, because the cohort's local deadline has passed. Returns
    /// `false` and does nothing in the variant `LostCohortStaysAway`.
    fn queue_again_late(&self, state: &mut State, process: ProcessId, first: Token) -> bool {
        state.observed.lost_cohort = true;
        if self.is(Broken::LostCohortStaysAway) {
            return false;
        }
        let to_come = self.to_come(state, process);
        state.processes[process].entry = None;
        self.release_before(state, &to_come, first);
        self.queue_again(state, process, &to_come);
        true
    }

    fn release_before(&self, state: &mut State, members: &[CallerId], first: Token) {
        if self.is(Broken::LostCohortReleasedFirst)
            && let Some(id) = members.first()
        {
            self.send(state, *id, Script::Release(first));
        }
    }

    /// Ends a cohort whose grant the server has lost. The members that are waiting for their turns queue again.
    pub(crate) fn lose_cohort(&self, state: &mut State, process: ProcessId, first: Token) {
        let to_come = self.to_come(state, process);
        let waited_for = self.has_waiting(state, process);
        let Some(entry) = &mut state.processes[process].entry else {
            return;
        };
        if token_of(entry.cohort.first()) != first {
            return;
        }
        let offered = entry.cohort.is_offered().then(|| entry.cohort.turn());
        entry.cohort.end();
        if let Some(Turn { owner, .. }) = offered {
            self.poll_if_prompt(state, self.caller_of(owner));
        }
        state.observed.lost_cohort |= waited_for;
        if !self.is(Broken::LostCohortStaysAway) {
            self.release_before(state, &to_come, first);
            self.queue_again(state, process, &to_come);
        }
    }

    pub(crate) fn queue_again(&self, state: &mut State, process: ProcessId, members: &[CallerId]) {
        for id in members {
            let caller = state.caller(*id);
            if caller.phase == Phase::Queued
                && caller.is_waiting()
                && (caller.place.is_some() || !self.is(Broken::ComesBackToAPlaceOnly))
            {
                caller.joins = true;
            }
        }
        self.send_batch(state, process);
    }

    /// Releases the grant of a cohort in the background, unless this release is already under way.
    pub(crate) fn let_go(&self, state: &mut State, process: ProcessId, first: Token) {
        let terms = &self.scenario.terms;
        let until: Tick = state.now + terms.longest_lease().max(terms.claim);
        let letting_go = &mut state.processes[process].letting_go;
        if letting_go.iter().any(|(other, _)| *other == first) {
            return;
        }
        letting_go.push((first, until));
        if let Some(id) = self.callers_of(process).next() {
            self.send_from_home(state, id, Script::Release(first));
        }
    }

    /// Handles the server's answer to a renewal for the member with this token. Returns whether the answer extends the
    /// member's hold. An answer extends the hold only if the member has the turn.
    pub(crate) fn confirm(
        &self,
        state: &mut State,
        process: ProcessId,
        token: Token,
        (sent, until): (Stamp, Moment),
    ) -> bool {
        let now = self.moment(state, process);
        let Some(entry) = &mut state.processes[process].entry else {
            return false;
        };
        if token_of(entry.cohort.turn().token) == token {
            entry.renewing = false;
        }
        let answer = Confirmation {
            asked: moment_of(sent),
            until,
            restarted: false,
        };
        let has_turn = entry.cohort.has_turn(token.into());
        let counts = entry.cohort.confirm(token.into(), answer, now);
        state.observed.answered_astray |= counts && !has_turn;
        counts
    }

    /// Returns the moment from which the validity of a grant counts.
    fn counted_from(&self, state: &State, process: ProcessId, sent: Stamp) -> Moment {
        if self.is(Broken::DeadlineFromTheReply) {
            self.moment(state, process)
        } else {
            moment_of(sent)
        }
    }

    /// Returns the local deadline of a grant: the moment when the request was sent, plus the validity, minus the
    /// allowance for drift. The server grants the lock only after the request was sent.
    pub(crate) fn deadline(
        &self,
        state: &State,
        process: ProcessId,
        sent: Stamp,
        validity: Tick,
    ) -> Moment {
        let time = self.scenario.terms.time(validity);
        let from = self.counted_from(state, process, sent);
        from + if self.is(Broken::NoDrift) {
            time
        } else {
            less_drift(time)
        }
    }
}
