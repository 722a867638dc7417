//! An attempt to acquire, from its first request to its grant or its leaving: `attempt.rs` and `wait.rs` of the runtime.

use crate::{
    broken::Broken,
    cohorts::token_of,
    protocol::Protocol,
    server::{Acquired, Found, Token},
    state::{Behind, By, CallerId, Claim, End, Hold, Phase, Script, Stamp, State, Tick},
};

/// `TRY_PATIENCE`, `LEAVE_PATIENCE`, `RELEASE_PATIENCE` and `SAME_CONNECTION_PATIENCE`.
const PATIENCE: Tick = 1;
/// `LATE_SLACK`
const LATE_SLACK: Tick = 1;

impl Protocol {
    /// `Budget::of`, then `enter()`
    pub(crate) fn begin(&self, state: &mut State, id: CallerId) {
        let now = state.now;
        let wait = self.scenario.terms.wait(id).max(PATIENCE);
        let caller = state.caller(id);
        caller.began = now;
        caller.wait_until = now + wait;
        self.ask(state, id);
    }

    /// `RedisAttempt::request`
    pub(crate) fn ask(&self, state: &mut State, id: CallerId) {
        let now = state.now;
        let caller = state.caller(id);
        caller.phase = Phase::Asking;
        if self.scenario.terms.is_slow(id) {
            state.caller(id).asked = now;
        }
        if self.scenario.terms.wait(id) > 0
            && (self.comes_back(state, id) || self.has_company(state, id))
        {
            state.caller(id).joins = true;
            self.group(state, self.process_of(id));
        } else {
            self.send_acquire(state, id);
        }
    }

    /// Whether it has had a place, which only a group's request can tell the server.
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

    /// `Args::held`
    pub(crate) fn held(&self, state: &State, id: CallerId, sent: Stamp, token: Token) -> Claim {
        let lease = self.scenario.terms.lease(id);
        Claim {
            token,
            validity: self.scenario.terms.time(lease),
            until: self.deadline(state, self.process_of(id), sent, lease),
            by: By::Reply,
        }
    }

    pub(crate) fn acquired(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Stamp,
        acquired: Acquired,
    ) {
        if state.caller(id).phase != Phase::Asking {
            return; // nobody awaits it any more
        }
        let late = acquired == Acquired::Late; // noticed where the replies are read
        if self.scenario.terms.is_slow(id) && !late {
            state.caller(id).phase = Phase::Answered {
                reply: acquired,
                sent,
            };
        } else {
            self.read(state, id, sent, acquired);
        }
    }

    /// It waits for its turn, or has been told of it already.
    pub(crate) fn queued(&self, state: &mut State, id: CallerId) {
        let caller = state.caller(id);
        caller.phase = Phase::Queued;
        if let Some(token) = caller.early.take() {
            caller.phase = Phase::Offered { token };
            self.poll_if_prompt(state, id);
        }
    }

    /// The caller's future reads the reply to its request.
    pub(crate) fn read(&self, state: &mut State, id: CallerId, sent: Stamp, acquired: Acquired) {
        let process = self.process_of(id);
        let claim = match acquired {
            Acquired::Taken(token) => self.held(state, id, sent, token),
            Acquired::Held(found) => {
                // It is its turn now, or it waits for that.
                self.queued(state, id);
                self.take_up_described(state, process, sent, found, By::Resend);
                return;
            }
            Acquired::Queued(place) => {
                state.caller(id).place = Some(place);
                self.queued(state, id);
                return;
            }
            Acquired::Busy => {
                state.caller(id).phase = Phase::Ended(End::Busy);
                return;
            }
            Acquired::Late => {
                self.break_main(state, self.process_of(id));
                return;
            }
        };
        let lost = self.supersede(state, process, claim.token);
        self.enter(state, id, claim);
        self.queue_again(state, process, &lost);
    }

    /// Whether a slow caller has left a reply unread, or its request unanswered, for a claim.
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

    /// The engine gives up what the reply may have granted: one step against the caller's reading of it.
    pub(crate) fn revoke(&self, state: &mut State, id: CallerId) {
        state.observed.revoked = true;
        let caller = state.caller(id);
        caller.early = None;
        if !self.is(Broken::RevokedEnters) {
            caller.phase = Phase::Revoked;
        } else {
            caller.asked = Tick::MAX / 2; // not again
        }
        self.clean_up(state, id);
    }

    /// The link's own request was answered, or its connection is gone.
    pub(crate) fn open_gate(&self, state: &mut State, id: CallerId) {
        let caller = state.caller(id);
        caller.resending = false;
        if caller.behind == Some(Behind::Gate) {
            caller.behind = None;
            self.clean_up(state, id);
            return;
        }
        match caller.phase {
            Phase::Offered { .. } => self.poll_if_prompt(state, id),
            Phase::Leaving { .. } => self.send_leave(state, id),
            _ => {}
        }
    }

    /// Whether the end of `wait` is due.
    pub(crate) fn waited_enough(&self, state: &State, id: CallerId) -> bool {
        let caller = &state.callers[usize::from(id)];
        matches!(
            caller.phase,
            Phase::Asking
                | Phase::Answered { .. }
                | Phase::Revoked
                | Phase::Queued
                | Phase::Offered { .. }
                | Phase::Confirming { .. }
        ) && state.now >= caller.wait_until
    }

    /// `acquire` in `wait.rs`, its second half
    pub(crate) fn stop_waiting(&self, state: &mut State, id: CallerId) {
        let since = state.now;
        let once = self.scenario.terms.wait(id) == 0;
        let caller = state.caller(id);
        if let Some(turn) = caller.turn() {
            // Its last poll enters, if it may.
            self.poll(state, id);
            if state.caller(id).turn() == Some(turn) {
                self.cancel(state, id);
                state.caller(id).phase = Phase::Ended(End::Busy);
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

    /// What leaving has found: a grant is a cohort's, and if it is its own turn it enters.
    pub(crate) fn left(&self, state: &mut State, id: CallerId, sent: Stamp, found: Option<Found>) {
        if let Some(found) = found {
            state.caller(id).phase = Phase::Queued;
            self.take_up_described(state, self.process_of(id), sent, found, By::Leave);
            if state.caller(id).turn().is_some() {
                self.poll(state, id);
            }
        }
        let turn = state.caller(id).turn();
        match state.caller(id).phase {
            Phase::Inside(_) | Phase::Ended(_) => {}
            _ if turn.is_some() => {
                self.cancel(state, id);
                state.caller(id).phase = Phase::Ended(End::Busy);
            }
            _ => {
                state.caller(id).phase = Phase::Ended(End::Busy);
                if found.is_some() {
                    self.clean_up(state, id);
                }
            }
        }
    }

    /// The call's future is dropped.
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
            _ => {
                let turn = state.caller(id).turn();
                let revoked = state.caller(id).phase == Phase::Revoked;
                state.caller(id).phase = Phase::Ended(End::Cancelled);
                if !revoked {
                    self.clean_up(state, id);
                }
                if let Some(turn) = turn {
                    self.give_up_turn(state, id, turn);
                }
            }
        }
    }

    /// `clean_up`
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
            state.caller(id).behind = Some(Behind::Gate);
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

    /// Whether something has gone unanswered for too long.
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
            Some(Behind::Gate) | None => false,
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
            // Of no use to anybody else either: the home link goes on.
            Some(Behind::Leave { .. }) => self.break_main(state, self.process_of(id)),
            Some(Behind::LeaveFromHome { until, .. }) if now < until => {
                self.leave_from_home(state, id);
            }
            Some(_) => state.caller(id).behind = None,
            None => {}
        }
    }
}
