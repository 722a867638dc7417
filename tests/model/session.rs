//! A process's sessions: their messages, the heartbeat, and the effects of a broken connection.

use crate::{
    attempt_state,
    broken::Broken,
    protocol::Protocol,
    server::{Found, Grant, micros},
    state::{
        Behind, By, CallerId, End, Event, Phase, ProcessId, Reply, Request, Script, Stamp, State,
    },
};

impl Protocol {
    /// Sends a script over the session's connection. If the connection is broken, the script is dropped, and
    /// [`Self::reconnect`] later sends the scripts that are needed at that time.
    pub(crate) fn send(&self, state: &mut State, id: CallerId, script: Script) {
        let process = self.process_of(id);
        let sent = self.stamp(state, process);
        let session = &mut state.processes[process].main;
        if session.up {
            session.requests.push(Request {
                caller: id,
                sent,
                script,
            });
            if matches!(script, Script::Acquire { .. }) {
                state.caller(id).carried = Some(true);
            }
        }
    }

    /// Sends a script over the engine's home session.
    pub(crate) fn send_from_home(&self, state: &mut State, id: CallerId, script: Script) {
        let process = self.process_of(id);
        let sent = self.stamp(state, process);
        let request = Request {
            caller: id,
            sent,
            script,
        };
        state.processes[process].home.requests.push(request);
    }

    pub(crate) fn hear(&self, state: &mut State, process: ProcessId) {
        let session = &mut state.processes[process].main;
        match session.events.remove(0) {
            Event::Push(push) => self.take_up_pushed(state, process, push),
            Event::Reply {
                caller,
                sent,
                reply,
            } => {
                session.answered = session.answered.max(sent);
                self.hear_reply(state, caller, sent, reply);
            }
        }
    }

    pub(crate) fn hear_reply(&self, state: &mut State, id: CallerId, sent: Stamp, reply: Reply) {
        let process = self.process_of(id);
        match reply {
            Reply::Acquired(acquired) => self.acquired(state, id, sent, acquired),
            Reply::Joined(joined) => self.joined(state, process, sent, joined),
            Reply::Left(found) => {
                if let Phase::Leaving { .. } = state.caller(id).phase {
                    self.left(state, id, sent, found);
                } else if let Some(found) = found {
                    self.take_up_described(state, process, sent, found, By::Leave);
                }
            }
            Reply::Abandoned(found) => {
                if let Some(found) = found {
                    self.take_up_described(state, process, sent, found, By::Leave);
                }
                // If the process is not allowed to close the old connection with `CLIENT KILL`, the server can still
                // read the caller's request later. The cleanup therefore continues.
                let may_kill = self.scenario.terms.may_kill;
                let caller = state.caller(id);
                match caller.behind {
                    Some(Behind::Leave { .. }) => caller.behind = None,
                    Some(Behind::LeaveFromHome { .. }) if may_kill => caller.behind = None,
                    _ => {}
                }
            }
            Reply::Released(token) => {
                let letting_go = &mut state.processes[process].letting_go;
                letting_go.retain(|(first, _)| *first != token);
                self.forget(state, process, token);
                let caller = state.caller(id);
                match caller.phase {
                    Phase::Releasing { first, .. } if first == token => {
                        caller.phase = Phase::Ended(End::Left);
                    }
                    _ => {}
                }
                match caller.behind {
                    Some(Behind::Release { first, .. }) if first == token => caller.behind = None,
                    _ => {}
                }
            }
            Reply::Renewed(renewal, left) => self.renewed(state, id, sent, renewal, left),
            Reply::Probed(found, lost) => self.probed(state, id, sent, found, lost),
        }
    }

    /// Returns the waiter on whose behalf the next probe is sent: the oldest waiter of the process. Returns no waiter
    /// if the process has sent a probe in this tick. Also returns no waiter if one of the process's callers holds the
    /// lock, because the process will release the lock itself.
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
            || this.probed
            || this.probing
            || self.is(Broken::NoProbe)
            || self.callers_of(process).any(|id| holds(&id))
        {
            return Vec::new();
        }
        let place = |id: &CallerId| state.callers[usize::from(*id)].place;
        let waiters = self.callers_of(process).filter(|id| {
            let caller = &state.callers[usize::from(*id)];
            caller.phase == Phase::Queued && caller.is_waiting() && caller.place.is_some()
        });
        if self.is(Broken::ProbeAsksForAnybody) {
            waiters.collect()
        } else {
            waiters.min_by_key(place).into_iter().collect()
        }
    }

    /// Sends a probe, as the engine's `beat` does. To keep the number of states small, one step of the model combines
    /// several steps: If no other request is unread, the server executes the probe at once. If the probe finds nothing
    /// and no other message is pending, the process also reads the reply at once.
    pub(crate) fn probe(&self, state: &mut State, id: CallerId) {
        let process = self.process_of(id);
        let this = &mut state.processes[process];
        this.probed = true;
        this.probing = true;
        let at_once = this.main.requests.is_empty();
        self.send(state, id, Script::Probe);
        if at_once {
            self.serve(state, process);
            let nothing = Reply::Probed(None, false);
            if let [Event::Reply { reply, .. }] = state.processes[process].main.events[..]
                && reply == nothing
            {
                self.hear(state, process);
            }
        }
    }

    /// Handles the reply to a probe.
    pub(crate) fn probed(
        &self,
        state: &mut State,
        id: CallerId,
        sent: Stamp,
        found: Option<Found>,
        lost: bool,
    ) {
        state.processes[self.process_of(id)].probing = false;
        if let Some(found) = found {
            self.take_up_described(state, self.process_of(id), sent, found, By::Probe);
        }
        if lost {
            let process = self.process_of(id);
            if let Some(first) = self.lost_member(state, id, sent) {
                self.lose_cohort(state, process, first);
            }
            self.resend(state, process);
        }
    }

    /// Queues all waiting callers of a process again in a batch, as the session does over a new connection. Callers
    /// that have an offer are left out.
    pub(crate) fn resend(&self, state: &mut State, process: ProcessId) {
        let mut queued: Vec<_> = self
            .callers_of(process)
            .filter(|id| state.caller(*id).phase == Phase::Queued && state.caller(*id).is_waiting())
            .collect();
        // A caller that is already in an unanswered batch does not queue again.
        queued.retain(|id| !state.caller(*id).resending);
        if self.is(Broken::ComesBackToAPlaceOnly) {
            queued.retain(|id| state.caller(*id).place.is_some());
        }
        for id in queued {
            state.caller(id).joins = true;
        }
        self.send_batch(state, process);
    }

    /// Breaks the session's connection on the side of the process. Until the server notices the break, the server may
    /// still read the requests that were sent before the break.
    pub(crate) fn break_main(&self, state: &mut State, process: ProcessId) {
        let this = &mut state.processes[process];
        this.main.up = false;
        this.main.sending_batch = false;
        this.probing = false;
        let lost = this.main.events.drain(..).filter_map(|event| match event {
            Event::Push(push) => Some(push.token),
            Event::Reply { .. } => None,
        });
        state.observed.lost_push = lost.max().max(state.observed.lost_push);
        let unread = std::mem::take(&mut this.main.requests);
        this.old.get_or_insert_default().extend(unread);
        for id in self.callers_of(process) {
            let caller = state.caller(id);
            caller.carried = caller.carried.map(|_| false);
            caller.joins |= caller.resending;
            if let Some(Behind::Leave { .. }) = caller.behind {
                self.leave_from_home(state, id);
            }
            // While a batch that includes a caller is unanswered, the caller can neither enter nor leave. The process
            // has to reconnect first and, if permitted, to close the old connection on the server. Only the variant
            // `GateOpensWithTheBreak` lets the caller enter or leave at once.
            if state.caller(id).resending && self.is(Broken::GateOpensWithTheBreak) {
                self.open_gate(state, id);
            }
        }
    }

    /// Connects again, and resends the requests whose replies callers still await.
    pub(crate) fn reconnect(&self, state: &mut State, process: ProcessId) {
        let (floor, now) = (micros(state.server.clock), self.stamp(state, process));
        let this = &mut state.processes[process];
        if self.scenario.terms.may_kill && !self.is(Broken::LateAcquireAccepted) {
            this.old = None; // CLIENT KILL
        }
        this.main.up = true;
        this.main.floor = floor;
        this.main.answered = now;
        for id in self.callers_of(process) {
            if let Phase::Leaving { .. } = state.caller(id).phase {
                state.caller(id).resending = false; // `send_leave` resends the `leave` below
            } else if state.caller(id).resending {
                self.open_gate(state, id);
            }
        }
        self.resend(state, process);
        for id in self.callers_of(process) {
            if self.is(Broken::WaitBeginsAgain) && state.caller(id).waits() {
                state.caller(id).wait_until = state.now + self.scenario.terms.wait(id);
            }
            match state.caller(id).phase {
                Phase::Asking => {
                    self.on(state, id, attempt_state::Event::Broken);
                }
                Phase::Queued if self.is(Broken::AloneAndInABatch) => self.send_acquire(state, id),
                Phase::Confirming {
                    token,
                    answer: None,
                } => self.renew_by_itself(state, id, token),
                Phase::Leaving { .. } => self.send_leave(state, id),
                Phase::Releasing { first, .. } => self.send(state, id, Script::Release(first)),
                Phase::Idle
                | Phase::Answered { .. }
                | Phase::Revoked
                | Phase::Queued
                | Phase::Confirming { .. }
                | Phase::Inside(_)
                | Phase::Ended(_) => {}
            }
        }
    }

    /// Handles the loss of a reply to a request of the engine's home session: resends the request if it is still
    /// needed.
    pub(crate) fn answer_lost(&self, state: &mut State, id: CallerId, reply: Reply) {
        if let Reply::Released(token) = reply {
            let letting_go = &state.processes[self.process_of(id)].letting_go;
            if letting_go.iter().any(|(first, _)| *first == token) {
                self.send_from_home(state, id, Script::Release(token));
                return;
            }
        }
        if let Reply::Renewed(renewal, _) = reply
            && let Some(entry) = &state.processes[self.process_of(id)].entry
            && entry.cohort.has_turn(renewal.token.into())
        {
            let lease = self.scenario.terms.time(renewal.lease);
            self.renew_offer(state, self.process_of(id), lease);
        }
        let caller = state.caller(id);
        match (reply, &mut caller.phase, caller.behind) {
            (Reply::Renewed(renewal, _), Phase::Inside(hold), _) if hold.token == renewal.token => {
                hold.tending = false;
                hold.tended -= 1;
            }
            (Reply::Released(_), _, Some(Behind::Release { first, .. })) => {
                self.send_from_home(state, id, Script::Release(first));
            }
            (Reply::Abandoned(_), _, Some(Behind::LeaveFromHome { .. })) => {
                self.leave_from_home(state, id);
            }
            _ => {}
        }
    }

    /// Kills a process. The server may later read requests that the process has sent.
    pub(crate) fn crash(&self, state: &mut State, process: ProcessId) {
        for id in self.callers_of(process) {
            let lease = self.scenario.terms.lease(id);
            let limit = state.server.clock + lease;
            let stands = |grant: Grant| grant.owners.contains(id) && grant.expires > limit;
            let outlives = state.server.grant.is_some_and(stands);
            let caller = state.caller(id);
            let inside = matches!(caller.phase, Phase::Inside(_));
            state.observed.outlived |= inside && outlives;
            let caller = state.caller(id);
            caller.behind = None;
            caller.told = None;
            caller.joins = false;
            caller.resending = false;
            if !matches!(caller.phase, Phase::Ended(_)) {
                caller.phase = Phase::Ended(End::Crashed { inside });
            }
        }
        self.break_main(state, process);
        let this = &mut state.processes[process];
        this.alive = false;
        this.entry = None;
        this.letting_go.clear();
        this.home.events.clear();
        let unread = std::mem::take(&mut this.home.requests);
        this.old.get_or_insert_default().extend(unread);
    }
}
