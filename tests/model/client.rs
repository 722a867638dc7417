//! What a process does: the rules of `wait.rs`, `attempt.rs`, `link.rs`, `hold.rs` and `renewal.rs`.

use crate::{
    broken::Broken,
    protocol::Protocol,
    server::{Acquired, Found, Token, micros},
    state::{
        Behind, By, Caller, CallerId, Claim, End, Event, Hold, Phase, ProcessId, Reply, Request,
        Script, State, Tick,
    },
};

/// `TRY_PATIENCE`, `LEAVE_PATIENCE`, `RELEASE_PATIENCE` and `SAME_CONNECTION_PATIENCE`, `HEARTBEAT` and `CONFIRM_AFTER`.
const PATIENCE: Tick = 1;
/// `LATE_SLACK`
const LATE_SLACK: Tick = 1;

impl State {
    fn caller(&mut self, id: CallerId) -> &mut Caller {
        &mut self.callers[usize::from(id)]
    }
}

impl Protocol {
    fn process_of(&self, id: CallerId) -> ProcessId {
        self.scenario.terms.process_of(id)
    }

    fn clock_of(&self, state: &State, id: CallerId) -> Tick {
        state.local(self.process_of(id))
    }

    fn callers_of(&self, process: ProcessId) -> impl Iterator<Item = CallerId> {
        (0..)
            .zip(&self.scenario.terms.callers)
            .filter_map(move |(id, of)| (*of == process).then_some(id))
    }

    /// A local deadline: a validity counted from a moment known to lie before the grant.
    fn deadline(&self, state: &State, id: CallerId, sent: Tick, validity: Tick) -> Tick {
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

    /// Over the link's connection, if there is one; else the next connection carries it.
    fn send(&self, state: &mut State, id: CallerId, script: Script) {
        let (process, sent) = (self.process_of(id), self.clock_of(state, id));
        let link = &mut state.processes[process].main;
        if link.up {
            link.requests.push(Request {
                caller: id,
                sent,
                script,
            });
            if matches!(script, Script::Acquire { .. }) {
                state.caller(id).carried = Some(true);
            }
        }
    }

    /// Over the home link.
    fn send_from_home(&self, state: &mut State, id: CallerId, script: Script) {
        let (process, sent) = (self.process_of(id), self.clock_of(state, id));
        let request = Request {
            caller: id,
            sent,
            script,
        };
        state.processes[process].home.requests.push(request);
    }

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
    fn ask(&self, state: &mut State, id: CallerId) {
        state.caller(id).phase = Phase::Asking;
        self.send_acquire(state, id);
    }

    fn send_acquire(&self, state: &mut State, id: CallerId) {
        let terms = &self.scenario.terms;
        let end = self.clock_of(state, id) + terms.wait(id) + LATE_SLACK;
        let not_after = (!terms.may_kill && !self.is(Broken::LateAcquireAccepted)).then_some(end);
        let place = state.caller(id).place;
        self.send(state, id, Script::Acquire { place, not_after });
    }

    pub(crate) fn hear(&self, state: &mut State, process: ProcessId) {
        let link = &mut state.processes[process].main;
        match link.events.remove(0) {
            Event::Push(push) => {
                // `Link::granted`; the stamp lies before the push.
                let stamp = link.answered;
                let validity = self.scenario.terms.lease.min(self.scenario.terms.claim);
                let until = if self.is(Broken::DeadlineFromThePush) {
                    state.local(process) + validity
                } else {
                    self.deadline(state, push.owner, stamp, validity)
                };
                let token = push.token;
                self.deliver(
                    state,
                    push.owner,
                    Claim {
                        token,
                        validity,
                        until,
                        queued: true,
                        by: By::Push,
                    },
                );
            }
            Event::Reply {
                caller,
                sent,
                reply,
            } => {
                link.answered = link.answered.max(sent);
                self.hear_reply(state, caller, sent, reply);
            }
        }
    }

    pub(crate) fn hear_reply(&self, state: &mut State, id: CallerId, sent: Tick, reply: Reply) {
        match reply {
            Reply::Acquired(acquired) => self.acquired(state, id, sent, acquired),
            Reply::Left(held) => {
                if let Phase::Leaving { .. } = state.caller(id).phase {
                    match held {
                        Some((token, left)) => {
                            let claim = self.held(state, id, sent, token, left, By::Leave);
                            self.enter(
                                state,
                                id,
                                Claim {
                                    queued: false,
                                    ..claim
                                },
                            );
                        }
                        None => state.caller(id).phase = Phase::Ended(End::Busy),
                    }
                }
            }
            Reply::Abandoned => {
                // Where a late request cannot be stopped, it may still come.
                let may_kill = self.scenario.terms.may_kill;
                let caller = state.caller(id);
                match caller.behind {
                    Some(Behind::Leave { .. }) => caller.behind = None,
                    Some(Behind::LeaveFromHome { .. }) if may_kill => caller.behind = None,
                    _ => {}
                }
            }
            Reply::Released(_) => {
                let caller = state.caller(id);
                if let Phase::Releasing { .. } = caller.phase {
                    caller.phase = Phase::Ended(End::Left);
                }
                if let Some(Behind::Release { .. }) = caller.behind {
                    caller.behind = None;
                }
            }
            Reply::Renewed(token, lease, left) => {
                self.renewed(state, id, sent, (token, lease, left));
            }
            Reply::Looked(found, lost) => self.looked(state, id, sent, found, lost),
        }
    }

    /// `Args::held`
    fn held(
        &self,
        state: &State,
        id: CallerId,
        sent: Tick,
        token: Token,
        left: Tick,
        by: By,
    ) -> Claim {
        let validity = left.min(self.scenario.terms.lease);
        Claim {
            token,
            validity,
            until: self.deadline(state, id, sent, validity),
            queued: true,
            by,
        }
    }

    fn acquired(&self, state: &mut State, id: CallerId, sent: Tick, acquired: Acquired) {
        let lease = self.scenario.terms.lease;
        let caller = state.caller(id);
        let asked = caller.phase == Phase::Asking;
        let queued = caller.place.is_some();
        if caller.resending {
            // The link's request, not the caller's own.
            let claim = match acquired {
                Acquired::Taken(token) => Some((token, lease, By::Reply)),
                Acquired::Held(token, left) => Some((token, left, By::Resend)),
                Acquired::Queued(_) | Acquired::Busy | Acquired::Late => None,
            };
            if let Some((token, left, by)) = claim {
                let claim = self.held(state, id, sent, token, left, by);
                self.deliver(state, id, claim);
            }
            self.open_gate(state, id);
            return;
        }
        if !asked {
            return; // nobody awaits it any more
        }
        let claim = match acquired {
            Acquired::Taken(token) => self.held(state, id, sent, token, lease, By::Reply),
            Acquired::Held(token, left) => self.held(state, id, sent, token, left, By::Resend),
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
        self.granted(state, id, Claim { queued, ..claim });
    }

    /// `Link::deliver`
    fn deliver(&self, state: &mut State, id: CallerId, claim: Claim) {
        let caller = state.caller(id);
        match caller.phase {
            Phase::Asking if caller.early.is_none() => caller.early = Some(claim),
            Phase::Queued => self.granted(state, id, claim),
            _ => {} // an owner that has gone meanwhile gives the grant back by itself
        }
    }

    /// `RedisAttempt::confirm`
    fn granted(&self, state: &mut State, id: CallerId, claim: Claim) {
        let left = claim.until - self.clock_of(state, id);
        if !claim.queued || 3 * left >= 2 * claim.validity {
            self.enter(state, id, claim);
        } else {
            state.caller(id).phase = Phase::Confirming(claim);
            self.send(
                state,
                id,
                Script::Renew(claim.token, self.scenario.terms.lease),
            );
        }
    }

    /// The link's own request was answered, or its connection is gone.
    fn open_gate(&self, state: &mut State, id: CallerId) {
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

    fn send_leave(&self, state: &mut State, id: CallerId) {
        let (abandon, close) = (false, false);
        self.send(state, id, Script::Leave { abandon, close });
    }

    /// `RedisAttempt::settle`, `HoldState::begin`, and the first poll of the body
    fn enter(&self, state: &mut State, id: CallerId, claim: Claim) {
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

    fn renewed(
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

    /// `Link::look`, its second half
    fn looked(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Tick,
        found: Option<Found>,
        lost: bool,
    ) {
        state.processes[self.process_of(id)].looking = false;
        if let Some(Found { owner, token, left }) = found {
            let claim = self.held(state, owner, sent, token, left, By::Look);
            self.deliver(state, owner, claim);
        }
        if lost {
            self.resend(state, self.process_of(id));
        }
    }

    /// `Link::resend`
    fn resend(&self, state: &mut State, process: ProcessId) {
        let mut queued: Vec<_> = self
            .callers_of(process)
            .filter(|id| state.caller(*id).phase == Phase::Queued)
            .collect();
        queued.sort_by_key(|id| state.caller(*id).place);
        for id in queued {
            // Else the one under way goes first, and settles it.
            if !state.caller(id).resending {
                state.caller(id).resending = true;
                self.send_acquire(state, id);
            }
        }
    }

    /// Ends a call that has a grant; its release goes on in the background (`release_until`).
    fn end_inside(
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
                state.caller(id).phase = Phase::Ended(End::Cancelled);
                self.clean_up(state, id);
            }
        }
    }

    /// `clean_up`
    fn clean_up(&self, state: &mut State, id: CallerId) {
        let since = self.clock_of(state, id);
        if self.is(Broken::CancelWithoutLeave) {
            return;
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

    fn leave_from_home(&self, state: &mut State, id: CallerId) {
        let (terms, sent) = (&self.scenario.terms, self.clock_of(state, id));
        let until = sent + terms.wait(id) + terms.lease.max(terms.claim) + LATE_SLACK;
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
                token,
                since,
                lease_ends,
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

    /// One of each lock's waiters, whoever comes first in a table; nobody where this process holds, for it will release
    /// (`Link::awaited`).
    pub(crate) fn awaited(&self, state: &State, process: ProcessId) -> Vec<CallerId> {
        let holds = |id: &CallerId| {
            let now = self.clock_of(state, *id);
            match state.callers[usize::from(*id)].phase {
                Phase::Inside(hold) => now < hold.until,
                Phase::Releasing { lease_ends, .. } => now < lease_ends,
                _ => false,
            }
        };
        let this = &state.processes[process];
        if !this.alive
            || !this.main.up
            || this.looked
            || this.looking
            || self.is(Broken::NoLook)
            || self.callers_of(process).any(|id| holds(&id))
        {
            return Vec::new();
        }
        self.callers_of(process)
            .filter(|id| state.callers[usize::from(*id)].phase == Phase::Queued)
            .collect()
    }

    /// `beat`. What finds nothing is one step, for its parts would meet nobody.
    pub(crate) fn look(&self, state: &mut State, id: CallerId) {
        let process = self.process_of(id);
        let this = &mut state.processes[process];
        this.looked = true;
        this.looking = true;
        let at_once = this.main.requests.is_empty();
        self.send(state, id, Script::Look);
        if at_once {
            self.serve(state, process);
            let nothing = Reply::Looked(None, false);
            if let [Event::Reply { reply, .. }] = state.processes[process].main.events[..]
                && reply == nothing
            {
                self.hear(state, process);
            }
        }
    }

    /// The process finds its connection broken. The server may not have noticed.
    pub(crate) fn break_main(&self, state: &mut State, process: ProcessId) {
        let this = &mut state.processes[process];
        this.main.up = false;
        this.looking = false;
        this.main.events.clear();
        let unread = std::mem::take(&mut this.main.requests);
        this.old.get_or_insert_default().extend(unread);
        for id in self.callers_of(process) {
            let caller = state.caller(id);
            caller.carried = caller.carried.map(|_| false);
            if let Some(Behind::Leave { .. }) = caller.behind {
                self.leave_from_home(state, id);
            }
            // Else held until the connection is known to be closed on the server.
            if state.caller(id).resending && self.is(Broken::GateOpensWithTheBreak) {
                self.open_gate(state, id);
            }
        }
    }

    /// `Ending::supervise` has a new connection, and everything unanswered is sent again.
    pub(crate) fn reconnect(&self, state: &mut State, process: ProcessId) {
        let (floor, now) = (micros(state.server.clock), state.local(process));
        let this = &mut state.processes[process];
        if self.scenario.terms.may_kill && !self.is(Broken::LateAcquireAccepted) {
            this.old = None; // CLIENT KILL
        }
        this.main.up = true;
        this.main.floor = floor;
        this.main.answered = now;
        for id in self.callers_of(process) {
            if let Phase::Leaving { .. } = state.caller(id).phase {
                state.caller(id).resending = false; // it is sent below
            } else if state.caller(id).resending {
                self.open_gate(state, id);
            }
        }
        self.resend(state, process);
        for id in self.callers_of(process) {
            if self.is(Broken::WaitBeginsAnew) && state.caller(id).waits() {
                state.caller(id).wait_until = now + self.scenario.terms.wait(id);
            }
            match state.caller(id).phase {
                Phase::Asking => self.send_acquire(state, id),
                Phase::Confirming(claim) => {
                    self.send(
                        state,
                        id,
                        Script::Renew(claim.token, self.scenario.terms.lease),
                    );
                }
                Phase::Leaving { .. } => self.send_leave(state, id),
                Phase::Releasing { token, .. } => self.send(state, id, Script::Release(token)),
                Phase::Idle
                | Phase::Queued
                | Phase::Settling(_)
                | Phase::Inside(_)
                | Phase::Ended(_) => {}
            }
        }
    }

    /// The home link sends again what it got no answer to.
    pub(crate) fn answer_lost(&self, state: &mut State, id: CallerId, reply: Reply) {
        let caller = state.caller(id);
        match (reply, &mut caller.phase, caller.behind) {
            (Reply::Renewed(token, ..), Phase::Inside(hold), _) if hold.token == token => {
                hold.tending = false;
                hold.tended -= 1;
            }
            (Reply::Released(_), _, Some(Behind::Release { token, .. })) => {
                self.send_from_home(state, id, Script::Release(token));
            }
            (Reply::Abandoned, _, Some(Behind::LeaveFromHome { .. })) => {
                self.leave_from_home(state, id);
            }
            _ => {}
        }
    }

    /// Killed. What was sent may still be read.
    pub(crate) fn crash(&self, state: &mut State, process: ProcessId) {
        for id in self.callers_of(process) {
            let caller = state.caller(id);
            let inside = matches!(caller.phase, Phase::Inside(_));
            caller.behind = None;
            caller.early = None;
            caller.resending = false;
            if !matches!(caller.phase, Phase::Ended(_)) {
                caller.phase = Phase::Ended(End::Crashed { inside });
            }
        }
        self.break_main(state, process);
        let this = &mut state.processes[process];
        this.alive = false;
        this.home.events.clear();
        let unread = std::mem::take(&mut this.home.requests);
        this.old.get_or_insert_default().extend(unread);
    }
}
