//! An acquisition, from its first request until the lock is granted or the acquisition is given up. The engine's
//! [`AttemptState`] makes the decisions. This file drives [`AttemptState`] in the same way as the runtime's
//! `attempt/mod.rs` and `cleanup.rs`.
//!
//! [`AttemptState`]: crate::attempt_state::AttemptState

use std::time::Duration;

use lock_core::{
    backend::Answer,
    fencing::FencingToken,
    lease::{Grant, Moment},
};

use crate::{
    attempt_state::{Event, Step},
    broken::Broken,
    cohort::{Cohort, Seat},
    cohorts::{Passed, token_of},
    protocol::Protocol,
    server::{Acquired, Found, Token},
    state::{Behind, By, Caller, CallerId, End, Hold, Phase, Script, Stamp, State, Tick},
};

/// The number of ticks for which a caller or its cleanup waits for a reply. Models the engine's `TRY_PATIENCE`,
/// `LEAVE_PATIENCE`, `RELEASE_PATIENCE` and `SAME_CONNECTION_PATIENCE`.
const PATIENCE: Tick = 1;
/// The number of ticks after the end of a caller's `wait` in which the server still executes the caller's requests.
/// Models the engine's `LATE_SLACK`.
const LATE_SLACK: Tick = 1;

pub(crate) fn queued_grant(token: Token, until: Moment, validity: Duration) -> Grant {
    Grant {
        token: FencingToken::new(token.into()),
        valid_until: Some(until),
        validity,
        queued: true,
        handoff: None,
    }
}

impl Protocol {
    /// Begins a call, and sends its first request for the lock.
    pub(crate) fn begin(&self, state: &mut State, id: CallerId) {
        let now = state.now;
        let wait = self.scenario.terms.wait(id).max(PATIENCE);
        let caller = state.caller(id);
        caller.began = now;
        caller.wait_until = now + wait;
        self.ask(state, id);
    }

    /// Requests the lock for an owner, as the engine's `RedisAttempt::ask` does. The request is part of a batch if the
    /// owner already had a place in the queue, or if another caller of its process waits for the lock or holds it. A
    /// caller that does not wait always sends its own request.
    pub(crate) fn ask(&self, state: &mut State, id: CallerId) {
        let now = state.now;
        if self.scenario.terms.is_slow(id) {
            state.caller(id).asked = now;
        }
        if self.scenario.terms.wait(id) > 0
            && (self.comes_back(state, id) || self.has_company(state, id))
        {
            state.caller(id).joins = true;
            self.on(state, id, Event::Joins);
            self.send_batch(state, self.process_of(id));
        } else {
            self.ask_alone(state, id);
        }
    }

    fn ask_alone(&self, state: &mut State, id: CallerId) {
        state.caller(id).phase = Phase::Asking;
        self.on(state, id, Event::Asks);
        self.send_acquire(state, id);
    }

    /// Reports an event to the acquisition, and carries out the acquisition's next step.
    pub(crate) fn on(&self, state: &mut State, id: CallerId, event: Event) {
        match state.caller(id).attempt.0.on(event) {
            Step::Ask => self.ask_alone(state, id),
            // `reconnect` sends the request over the session's next connection.
            Step::AskLater => state.caller(id).phase = Phase::Asking,
            Step::AwaitTurn => {
                state.caller(id).phase = Phase::Queued;
                self.poll_if_prompt(state, id);
            }
            Step::TakeTurn(token) => self.take_turn(state, id, token_of(token)),
            Step::Confirm(token) => self.confirm_offer(state, id, token_of(token)),
            Step::StartOver | Step::Miss => self.start_over(state, id),
            Step::Return(Answer::Granted(grant)) => self.enter(state, id, &grant),
            Step::Return(Answer::Busy | Answer::Missed) => {
                state.caller(id).phase = Phase::Ended(End::Busy)
            }
            Step::AskOnce => unreachable!("the model's connections skip no request"),
            Step::Fail(_) | Step::Nothing => {}
        }
    }

    /// Notifies a caller of its turn. If the caller is queued and not slow, polls the caller at once.
    pub(crate) fn tell(&self, state: &mut State, id: CallerId, token: Token) {
        let caller = state.caller(id);
        caller.told = Some(token);
        if caller.phase != Phase::Queued && self.is(Broken::EntersBesideItsRequest) {
            caller.phase = Phase::Queued;
        }
        if caller.phase == Phase::Queued {
            self.poll_if_prompt(state, id);
        }
    }

    pub(crate) fn poll_if_prompt(&self, state: &mut State, id: CallerId) {
        if !self.scenario.terms.is_slow(id) {
            self.poll(state, id);
        }
    }

    /// Returns whether the caller is allowed to enter or leave. Neither is allowed while a batch that includes the
    /// caller is unanswered.
    fn is_gate_open(&self, caller: &Caller) -> bool {
        !caller.resending || self.is(Broken::EntersBesideItsRequest)
    }

    /// Returns whether polling a slow caller (one that is polled late or never) would change the state of the model.
    pub(crate) fn may_poll(&self, state: &State, id: CallerId) -> bool {
        let caller = &state.callers[usize::from(id)];
        let renewing = || {
            let entry = state.processes[self.process_of(id)].entry.as_ref();
            entry.is_some_and(|entry| {
                let token = caller.attempt.0.offer();
                entry.renewing && token.is_some_and(|token| entry.cohort.has_turn(token))
            })
        };
        match caller.phase {
            Phase::Answered { .. } | Phase::Revoked => true,
            Phase::Queued => {
                let offered = caller.told.is_some() || caller.turn().is_some() && !renewing();
                offered && self.is_gate_open(caller)
            }
            Phase::Confirming { answer, .. } => answer.is_some(),
            _ => false,
        }
    }

    /// Polls the caller's future.
    pub(crate) fn poll(&self, state: &mut State, id: CallerId) {
        let is_gate_open = self.is_gate_open(state.caller(id));
        let caller = state.caller(id);
        match caller.phase {
            Phase::Answered { reply, sent } => {
                caller.phase = Phase::Asking;
                self.read(state, id, sent, reply);
            }
            Phase::Revoked => self.on(state, id, Event::Revoked),
            Phase::Queued if is_gate_open => {
                if let Some(token) = caller.told.take() {
                    self.on(state, id, Event::Offered(token.into()));
                } else if let Some(token) = caller.turn() {
                    self.take_turn(state, id, token);
                }
            }
            Phase::Confirming {
                token,
                answer: Some(until),
            } => {
                // In the variant `AnswerSeats`, the caller enters without asking its cohort.
                caller.phase = Phase::Queued;
                let validity = until.since(self.clock_of(state, id));
                let grant = queued_grant(token, until, validity);
                self.on(state, id, Event::Inside(grant));
            }
            _ => {}
        }
    }

    /// Asks the cohort to let the caller take its turn. The cohort's answer and the caller's reaction to this answer
    /// are one atomic step.
    fn take_turn(&self, state: &mut State, id: CallerId, token: Token) {
        let process = self.process_of(id);
        let now = self.moment(state, process);
        let entry = &mut state.processes[process].entry;
        let seat = entry
            .as_mut()
            .map_or(Seat::Missed, |entry| entry.cohort.enter(token.into(), now));
        let event = match seat {
            Seat::Inside(grant) => {
                let in_time = grant.valid_until.is_some_and(|until| now < until);
                state.observed.seated_late |= !in_time;
                Event::Inside(grant)
            }
            Seat::Unconfirmed => Event::Unconfirmed,
            Seat::Missed => {
                let cohort = entry.as_ref().map(|entry| &entry.cohort);
                let stands = cohort.filter(|cohort| {
                    cohort.contains(token.into()) && !cohort.is_over() && cohort.until() > now
                });
                match stands.map(Cohort::until) {
                    Some(until) if self.is(Broken::EntersWithoutOffer) => {
                        Event::Inside(queued_grant(token, until, until.since(now)))
                    }
                    _ => Event::Missed,
                }
            }
        };
        self.on(state, id, event);
    }

    /// Renews the grant of an offer, because the grant has too little time left for the caller to enter. In the variant
    /// `AnswerSeats`, the caller itself sends the renewal.
    fn confirm_offer(&self, state: &mut State, id: CallerId, token: Token) {
        let process = self.process_of(id);
        let terms = &self.scenario.terms;
        let entry = state.processes[process].entry.as_ref();
        let renewing = entry.is_some_and(|entry| entry.renewing);
        if self.is(Broken::AnswerSeats) {
            state.caller(id).phase = Phase::Confirming {
                token,
                answer: None,
            };
            self.renew_by_itself(state, id, token);
        } else if !renewing {
            self.renew_offer(state, process, terms.time(terms.lease(id)));
        }
    }

    /// Continues an acquisition whose caller has missed its turn, or has not read its reply in time. The acquisition
    /// keeps its place but uses another owner name, so no late message for the old name can let the caller enter.
    fn start_over(&self, state: &mut State, id: CallerId) {
        let caller = state.caller(id).clone();
        let next = self.scenario.terms.next_owner(id);
        let goes_on = state.now < caller.wait_until;
        let mut attempt = caller.attempt;
        attempt.0.start_over(caller.place.map(u64::from));
        match next.filter(|_| goes_on) {
            Some(next) => {
                self.give_up(state, id, End::Missed);
                let other = state.caller(next);
                other.wait_until = caller.wait_until;
                other.began = caller.began;
                other.place = attempt.0.place().and_then(|place| place.try_into().ok());
                other.attempt = attempt;
                other.joined = caller.joined;
                self.ask(state, next);
            }
            // The scenario provides no second owner name for this caller. No grant contains the caller's present owner
            // name, so no late message can let the caller enter. The caller can therefore continue under its present
            // owner name.
            None if goes_on && !state.server.holds(id) && caller.behind.is_none() => {
                state.caller(id).attempt = attempt;
                self.ask(state, id);
            }
            None => self.give_up(state, id, End::Busy),
        }
    }

    /// Ends the acquisition of an owner. If the owner was granted the lock, the grant is given back in the background.
    fn give_up(&self, state: &mut State, id: CallerId, end: End) {
        let caller = state.caller(id);
        let revoked = caller.phase == Phase::Revoked;
        let offer = caller.turn();
        caller.phase = Phase::Ended(end);
        caller.told = None;
        if revoked {
            return; // `revoke` is already giving back the grant
        }
        if offer.is_some() && caller.resending {
            caller.behind = Some(Behind::Gate(offer));
        } else {
            self.give_back(state, id, offer);
        }
    }

    /// Gives back the owner's offer, if it has one, and removes what other requests of the owner may have left on the
    /// server.
    fn give_back(&self, state: &mut State, id: CallerId, offer: Option<Token>) {
        if let Some(token) = offer
            && let Passed::Ended(first) = self.pass(state, id, token)
        {
            self.let_go(state, self.process_of(id), first);
        }
        if offer.is_none() || !self.is(Broken::OfferGivenBackAlone) {
            self.clean_up(state, id);
        }
    }

    /// Returns whether the caller knows a place that it has had in the queue. A caller that knows an old place queues
    /// in a batch, because only a batch can pass an old place to the server.
    pub(crate) fn comes_back(&self, state: &State, id: CallerId) -> bool {
        state.callers[usize::from(id)].place.is_some() && !self.is(Broken::HeadBeforeWhoComesBack)
    }

    pub(crate) fn not_after(&self, state: &State, id: CallerId) -> Option<Tick> {
        let terms = &self.scenario.terms;
        let end = state.now + terms.wait(id) + LATE_SLACK;
        (!terms.may_kill && !self.is(Broken::LateAcquireAccepted)).then_some(end)
    }

    pub(crate) fn send_acquire(&self, state: &mut State, id: CallerId) {
        let not_after = self.not_after(state, id);
        self.send(state, id, Script::Acquire { not_after });
    }

    pub(crate) fn send_leave(&self, state: &mut State, id: CallerId) {
        let (abandon, close) = (false, false);
        self.send(state, id, Script::Leave { abandon, close });
    }

    pub(crate) fn acquired(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Stamp,
        acquired: Acquired,
    ) {
        if state.caller(id).phase != Phase::Asking {
            return; // the caller no longer awaits this reply
        }
        let late = acquired == Acquired::Late; // the session resends the request without polling the caller
        if self.scenario.terms.is_slow(id) && !late {
            state.caller(id).phase = Phase::Answered {
                reply: acquired,
                sent,
            };
        } else {
            self.read(state, id, sent, acquired);
        }
    }

    /// Reads the reply to the caller's request.
    pub(crate) fn read(&self, state: &mut State, id: CallerId, sent: Stamp, acquired: Acquired) {
        let process = self.process_of(id);
        let event = match acquired {
            Acquired::Taken(token) => {
                let lease = self.scenario.terms.lease(id);
                let until = self.deadline(state, process, sent, lease);
                let grant = Grant {
                    queued: false,
                    handoff: None,
                    ..queued_grant(token, until, self.scenario.terms.time(lease))
                };
                Event::Granted(grant)
            }
            Acquired::Held(found) if self.scenario.terms.wait(id) == 0 => {
                Event::Granted(self.described(state, process, sent, found).sole())
            }
            Acquired::Held(found) => {
                // The caller becomes a waiter before `take_up` registers the grant. If the local deadline of the grant
                // has passed, `take_up` can then make the caller queue again.
                self.on(state, id, Event::Queued);
                let grant = self.described(state, process, sent, found);
                return self.take_up(state, process, &grant, By::Resend);
            }
            Acquired::Queued(place) => {
                state.caller(id).place = Some(place);
                Event::Queued
            }
            Acquired::Busy => Event::Busy,
            Acquired::Late => {
                self.break_main(state, process);
                Event::NotReady
            }
        };
        self.on(state, id, event);
    }

    /// Returns whether the request of a slow caller (one that is polled late or never) has been unanswered for the
    /// length of a claim (2 s), or the reply has been unread for this time.
    pub(crate) fn is_unread(&self, state: &State, id: CallerId) -> bool {
        let caller = &state.callers[usize::from(id)];
        let unread = matches!(caller.phase, Phase::Asking | Phase::Answered { .. });
        unread
            && !caller.joins
            && caller.carried.is_some()
            && self.scenario.terms.is_slow(id)
            && !self.is(Broken::DirectGrantStands)
            && !self.is(Broken::AnswerSeats)
            && state.now >= caller.asked + self.scenario.terms.claim
    }

    /// Revokes a request whose reply was not read in time, and gives back the grant that the reply may contain, as the
    /// engine does. The revocation is one atomic step: after this step, the caller can no longer use the reply.
    pub(crate) fn revoke(&self, state: &mut State, id: CallerId) {
        state.observed.revoked = true;
        let caller = state.caller(id);
        caller.told = None;
        if !self.is(Broken::RevokedEnters) {
            caller.phase = Phase::Revoked;
        } else {
            caller.asked = Tick::MAX / 2; // so that the request is revoked only once
        }
        self.clean_up(state, id);
    }

    /// Allows a caller to enter or leave, because its batch was answered or the connection of the batch was replaced.
    pub(crate) fn open_gate(&self, state: &mut State, id: CallerId) {
        let caller = state.caller(id);
        caller.resending = false;
        if let Some(Behind::Gate(offer)) = caller.behind {
            caller.behind = None;
            self.give_back(state, id, offer);
            return;
        }
        match caller.phase {
            Phase::Queued => self.poll_if_prompt(state, id),
            Phase::Leaving { .. } => self.send_leave(state, id),
            _ => {}
        }
    }

    /// Returns whether the caller is still waiting although its `wait` is over.
    pub(crate) fn waited_enough(&self, state: &State, id: CallerId) -> bool {
        let caller = &state.callers[usize::from(id)];
        matches!(
            caller.phase,
            Phase::Asking
                | Phase::Answered { .. }
                | Phase::Revoked
                | Phase::Queued
                | Phase::Confirming { .. }
        ) && state.now >= caller.wait_until
    }

    /// Ends the wait of a caller. A caller with an offer is polled once more, and can enter in this poll. A caller that
    /// may be in the queue leaves the queue. The call of any other caller ends at once.
    pub(crate) fn stop_waiting(&self, state: &mut State, id: CallerId) {
        let since = state.now;
        let once = self.scenario.terms.wait(id) == 0;
        let caller = state.caller(id);
        if let Some(turn) = caller.turn() {
            // The caller leaves after this last poll, unless the caller enters in this poll.
            self.poll(state, id);
            if state.caller(id).turn() == Some(turn) {
                self.give_up(state, id, End::Busy);
            }
        } else if caller.phase == Phase::Revoked {
            caller.phase = Phase::Ended(End::Busy);
        } else if once || caller.carried.is_none() {
            caller.phase = Phase::Ended(End::Unreachable);
            self.clean_up(state, id);
        } else {
            caller.phase = Phase::Leaving { since };
            if !caller.resending {
                self.send_leave(state, id);
            }
        }
    }

    /// Handles the reply to the script `leave`, which a caller sends at the end of its wait. If the server granted the
    /// caller the lock before it ran `leave`, and the caller has the turn, the caller enters.
    pub(crate) fn left(&self, state: &mut State, id: CallerId, sent: Stamp, found: Option<Found>) {
        let Some(found) = found else {
            self.on(state, id, Event::Left { was_queued: true });
            state.caller(id).phase = Phase::Ended(End::Busy);
            return;
        };
        state.caller(id).phase = Phase::Queued;
        let process = self.process_of(id);
        let grant = self.described(state, process, sent, found);
        self.take_up(state, process, &grant, By::Leave);
        self.poll(state, id);
        if state.caller(id).phase == Phase::Queued {
            // The caller does not have the turn of its cohort: its turn has yet to come or was passed on.
            self.give_up(state, id, End::Busy);
        }
    }

    /// Drops the call's future.
    pub(crate) fn cancel(&self, state: &mut State, id: CallerId) {
        match state.caller(id).phase {
            Phase::Inside(Hold {
                token,
                until: lease_ends,
                ..
            })
            | Phase::Releasing {
                token, lease_ends, ..
            } => {
                self.end_inside(state, id, token, lease_ends, End::Cancelled);
            }
            _ => self.give_up(state, id, End::Cancelled),
        }
    }

    /// Removes the queue entry or the grant that an ended owner may have left on the server, as the engine's `clean_up`
    /// does.
    pub(crate) fn clean_up(&self, state: &mut State, id: CallerId) {
        let since = state.now;
        if self.is(Broken::CancelWithoutLeave) {
            return;
        }
        if self.is(Broken::LastWaiterReleases)
            && let process = self.process_of(id)
            && let Some(entry) = &state.processes[process].entry
            && !self.has_waiting(state, process)
        {
            let first = token_of(entry.cohort.first());
            self.let_go(state, process, first);
        }
        if state.caller(id).resending {
            state.caller(id).behind = Some(Behind::Gate(None));
            return;
        }
        match state.caller(id).carried {
            None => {}
            Some(true) => {
                state.caller(id).behind = Some(Behind::Leave { since });
                self.send(
                    state,
                    id,
                    Script::Leave {
                        abandon: true,
                        close: false,
                    },
                );
            }
            Some(false) => self.leave_from_home(state, id),
        }
    }

    pub(crate) fn leave_from_home(&self, state: &mut State, id: CallerId) {
        let (terms, sent) = (&self.scenario.terms, state.now);
        let until = sent + terms.wait(id) + terms.lease(id).max(terms.claim) + LATE_SLACK;
        let caller = state.caller(id);
        let until = match caller.behind {
            Some(Behind::LeaveFromHome { until, .. }) => until,
            _ => until,
        };
        caller.behind = Some(Behind::LeaveFromHome { until, sent });
        let close = terms.may_kill;
        self.send_from_home(
            state,
            id,
            Script::Leave {
                abandon: true,
                close,
            },
        );
    }

    /// Returns whether the server has left a request unanswered for too long. The request is a `leave` or a release,
    /// which the call or its background work has sent.
    pub(crate) fn is_impatient(&self, state: &State, id: CallerId) -> bool {
        let now = state.now;
        let caller = &state.callers[usize::from(id)];
        let call = match caller.phase {
            Phase::Leaving { since } | Phase::Releasing { since, .. } => now >= since + PATIENCE,
            _ => false,
        };
        let behind = match caller.behind {
            Some(Behind::Leave { since }) => now >= since + PATIENCE,
            Some(Behind::LeaveFromHome { until, sent }) => {
                now >= until || (!self.scenario.terms.may_kill && now > sent)
            }
            Some(Behind::Release { until, .. }) => self.clock_of(state, id) >= until,
            Some(Behind::Gate(_)) | None => false,
        };
        call || behind
    }

    pub(crate) fn lose_patience(&self, state: &mut State, id: CallerId) {
        let now = state.now;
        match state.caller(id).phase {
            Phase::Leaving { since } if now >= since + PATIENCE => {
                state.caller(id).phase = Phase::Ended(End::Unreachable);
                self.clean_up(state, id);
                return;
            }
            Phase::Releasing {
                token,
                since,
                lease_ends,
                ..
            } if now >= since + PATIENCE => {
                self.end_inside(state, id, token, lease_ends, End::Left);
                return;
            }
            _ => {}
        }
        match state.caller(id).behind {
            // A connection that does not answer this caller does not answer other callers either, so the process closes
            // the connection. The engine's home session takes over the cleanup.
            Some(Behind::Leave { .. }) => self.break_main(state, self.process_of(id)),
            Some(Behind::LeaveFromHome { until, .. }) if now < until => {
                self.leave_from_home(state, id);
            }
            Some(_) => state.caller(id).behind = None,
            None => {}
        }
    }
}
