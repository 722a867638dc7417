//! A process's connections: what it sends, what it hears, its heartbeat, and what a break costs: `link.rs` of the runtime.

use crate::{
    broken::Broken,
    protocol::Protocol,
    server::{Found, micros},
    state::{
        Behind, By, CallerId, Claim, End, Event, Phase, ProcessId, Reply, Request, Script, State,
        Tick,
    },
};

impl Protocol {
    /// Over the link's connection, if there is one; else the next connection carries it.
    pub(crate) fn send(&self, state: &mut State, id: CallerId, script: Script) {
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
    pub(crate) fn send_from_home(&self, state: &mut State, id: CallerId, script: Script) {
        let (process, sent) = (self.process_of(id), self.clock_of(state, id));
        let request = Request {
            caller: id,
            sent,
            script,
        };
        state.processes[process].home.requests.push(request);
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

    /// `Link::deliver`
    pub(crate) fn deliver(&self, state: &mut State, id: CallerId, claim: Claim) {
        let caller = state.caller(id);
        match caller.phase {
            Phase::Asking if caller.early.is_none() => caller.early = Some(claim),
            Phase::Queued => self.granted(state, id, claim),
            _ => {} // an owner that has gone meanwhile gives the grant back by itself
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

    /// `Link::look`, its second half
    pub(crate) fn looked(
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
    pub(crate) fn resend(&self, state: &mut State, process: ProcessId) {
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
