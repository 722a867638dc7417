//! An attempt to acquire, from its first request to its grant or its leaving: `attempt.rs` and `wait.rs` of the runtime.

use crate::{
    broken::Broken,
    protocol::Protocol,
    server::{Acquired, Token},
    state::{Behind, By, CallerId, Claim, End, Hold, Phase, Script, State, Tick},
};

/// `TRY_PATIENCE`, `LEAVE_PATIENCE`, `RELEASE_PATIENCE` and `SAME_CONNECTION_PATIENCE`.
const PATIENCE: Tick = 1;
/// `LATE_SLACK`
const LATE_SLACK: Tick = 1;

impl Protocol {
    /// `Budget::of`, then `enter()`
    pub(crate) fn begin(&self, state: &mut State, id: CallerId) {
        let now = self.clock_of(state, id);
        let wait = self.scenario.terms.wait(id).max(PATIENCE);
        let caller = state.caller(id);
        caller.began = now;
        caller.wait_until = now + wait;
        self.ask(state, id);
    }

    /// `RedisAttempt::request`
    pub(crate) fn ask(&self, state: &mut State, id: CallerId) {
        state.caller(id).phase = Phase::Asking;
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
        let end = self.clock_of(state, id) + terms.wait(id) + LATE_SLACK;
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
    pub(crate) fn held(
        &self,
        state: &State,
        id: CallerId,
        sent: Tick,
        token: Token,
        left: Tick,
        by: By,
    ) -> Claim {
        let validity = left.min(self.scenario.terms.lease(id));
        Claim {
            token,
            first: token,
            validity,
            until: self.deadline(state, id, sent, validity),
            queued: true,
            by,
        }
    }

    pub(crate) fn acquired(&self, state: &mut State, id: CallerId, sent: Tick, acquired: Acquired) {
        let lease = self.scenario.terms.lease(id);
        let process = self.process_of(id);
        if state.caller(id).phase != Phase::Asking {
            return; // nobody awaits it any more
        }
        let claim = match acquired {
            Acquired::Taken(token) => Claim {
                queued: false,
                ..self.held(state, id, sent, token, lease, By::Reply)
            },
            Acquired::Held(found) if found.owners.len() > 1 => {
                // Of a block: it is its turn now, or it waits for that.
                let caller = state.caller(id);
                caller.phase = Phase::Queued;
                if let Some(early) = caller.early.take() {
                    self.granted(state, id, early);
                }
                self.take_up(state, process, sent, found, By::Resend);
                return;
            }
            Acquired::Held(found) => {
                self.held(state, id, sent, found.token, found.left, By::Resend)
            }
            Acquired::Queued(place) => {
                let caller = state.caller(id);
                caller.place = Some(place);
                caller.phase = Phase::Queued;
                if let Some(early) = caller.early.take() {
                    self.granted(state, id, early);
                }
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
        let lost = self.supersede(state, process, claim.first);
        self.granted(state, id, claim);
        if let Some(lost) = lost {
            self.queue_again(state, process, lost);
        }
    }

    /// `RedisAttempt::confirm`
    pub(crate) fn granted(&self, state: &mut State, id: CallerId, claim: Claim) {
        let left = claim.until - self.clock_of(state, id);
        if !claim.queued || 3 * left >= 2 * claim.validity {
            self.enter(state, id, claim);
        } else {
            state.caller(id).phase = Phase::Confirming(claim);
            self.send(
                state,
                id,
                Script::Renew(claim.first, self.scenario.terms.lease(id)),
            );
        }
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
            Phase::Settling(claim) => self.enter(state, id, claim),
            Phase::Leaving { .. } => self.send_leave(state, id),
            _ => {}
        }
    }

    /// Whether the end of `wait` is due.
    pub(crate) fn waited_enough(&self, state: &State, id: CallerId) -> bool {
        let caller = &state.callers[usize::from(id)];
        matches!(
            caller.phase,
            Phase::Asking | Phase::Queued | Phase::Confirming(_) | Phase::Settling(_)
        ) && self.clock_of(state, id) >= caller.wait_until
    }

    /// `acquire` in `wait.rs`, its second half
    pub(crate) fn stop_waiting(&self, state: &mut State, id: CallerId) {
        let since = self.clock_of(state, id);
        let once = self.scenario.terms.wait(id) == 0;
        let turn = state.caller(id).turn();
        let caller = state.caller(id);
        if once || caller.carried.is_none() {
            caller.phase = Phase::Ended(End::Unreachable);
            self.clean_up(state, id);
        } else {
            caller.phase = Phase::Leaving { since };
            if !caller.resending {
                self.send_leave(state, id);
            }
        }
        if let Some(turn) = turn {
            self.give_up_turn(state, id, turn);
        }
    }

    /// The call's future is dropped.
    pub(crate) fn cancel(&self, state: &mut State, id: CallerId) {
        match state.caller(id).phase {
            Phase::Inside(Hold {
                first,
                until: lease_ends,
                ..
            })
            | Phase::Releasing {
                first, lease_ends, ..
            } => {
                self.end_inside(state, id, first, lease_ends, End::Cancelled);
            }
            _ => {
                let turn = state.caller(id).turn();
                state.caller(id).phase = Phase::Ended(End::Cancelled);
                self.clean_up(state, id);
                if let Some(turn) = turn {
                    self.give_up_turn(state, id, turn);
                }
            }
        }
    }

    /// `clean_up`
    pub(crate) fn clean_up(&self, state: &mut State, id: CallerId) {
        let since = self.clock_of(state, id);
        if self.is(Broken::CancelWithoutLeave) {
            return;
        }
        if self.is(Broken::LastWaiterReleases)
            && let Some(block) = state.processes[self.process_of(id)].block
            && !block.owners.iter().any(|id| state.caller(id).is_waiting())
        {
            self.let_go(state, self.process_of(id), block.first);
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
        let (terms, sent) = (&self.scenario.terms, self.clock_of(state, id));
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
        let now = self.clock_of(state, id);
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
            Some(Behind::Release { until, .. }) => now >= until,
            Some(Behind::Gate) | None => false,
        };
        call || behind
    }

    pub(crate) fn lose_patience(&self, state: &mut State, id: CallerId) {
        let now = self.clock_of(state, id);
        match state.caller(id).phase {
            Phase::Leaving { since } if now >= since + PATIENCE => {
                state.caller(id).phase = Phase::Ended(End::Unreachable);
                self.clean_up(state, id);
                return;
            }
            Phase::Releasing {
                first,
                since,
                lease_ends,
            } if now >= since + PATIENCE => {
                self.end_inside(state, id, first, lease_ends, End::Left);
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
