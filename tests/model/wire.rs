//! The connections between the processes and the server. A session's connection keeps the order of requests, and the
//! order of pushes and replies. The engine's home session delivers messages in any order.

use crate::{
    protocol::Protocol,
    server::{Grant, Run, Token},
    state::{CallerId, Event, Process, ProcessId, Reply, Request, Script, State},
};

impl Protocol {
    /// The server reads the next request of a session.
    pub(crate) fn serve(&self, state: &mut State, process: ProcessId) {
        let session = &mut state.processes[process].main;
        let floor = session.floor;
        let request = session.requests.remove(0);
        let reply = self.carry_out(state, process, floor, request);
        let Request { caller, sent, .. } = request;
        let session = &mut state.processes[process].main;
        session.events.push(Event::Reply {
            caller,
            sent,
            reply,
        });
    }

    /// The server reads a request of the engine's home session.
    pub(crate) fn serve_home(&self, state: &mut State, process: ProcessId, index: usize) {
        let home = &mut state.processes[process].home;
        let floor = home.floor;
        let request = home.requests.remove(index);
        let reply = self.carry_out(state, process, floor, request);
        let Request { caller, sent, .. } = request;
        let home = &mut state.processes[process].home;
        home.events.push(Event::Reply {
            caller,
            sent,
            reply,
        });
    }

    /// The server reads an unread request of a connection that the process has closed. Nobody receives the reply.
    pub(crate) fn serve_old(&self, state: &mut State, process: ProcessId) {
        let this = &mut state.processes[process];
        let floor = this.main.floor;
        if let Some(old) = &mut this.old {
            let request = old.remove(0);
            self.carry_out(state, process, floor, request);
        }
    }

    fn carry_out(
        &self,
        state: &mut State,
        process: ProcessId,
        floor: Token,
        request: Request,
    ) -> Reply {
        if let Script::Leave { close: true, .. } = request.script {
            state.processes[process].old = None; // the home session sends `CLIENT KILL` before the script
        }
        let mut run = Run {
            terms: &self.scenario.terms,
            broken: self.broken,
            floor,
            heard: state.heard(),
            pushes: Vec::new(),
            granted: Vec::new(),
            skipped: false,
        };
        let had = state.server.grant;
        let (owner, server) = (request.caller, &mut state.server);
        let reply = match request.script {
            Script::Acquire { not_after } => {
                let caller = &mut state.callers[usize::from(owner)];
                if caller.place.is_none() && !server.is_queued(owner) {
                    // The caller may have had a place in the queue without learning it, so the caller cannot return to
                    // that place. The caller gets a new number in the order of joining.
                    caller.joined = None;
                }
                Reply::Acquired(server.acquire(&mut run, owner, not_after))
            }
            Script::Queue { members, not_after } => {
                for (owner, place) in members.iter() {
                    if place.is_none() && !server.is_queued(owner) {
                        state.callers[usize::from(owner)].joined = None;
                    }
                }
                Reply::Joined(server.queue(&mut run, members, not_after))
            }
            Script::Leave { abandon, .. } => {
                let held = server.leave(&mut run, owner, abandon);
                if abandon {
                    Reply::Abandoned(held)
                } else {
                    Reply::Left(held)
                }
            }
            Script::Release(token) => {
                server.release(&mut run, token);
                Reply::Released(token)
            }
            Script::Renew(renewal) => {
                let token = renewal.known.unwrap_or(renewal.token);
                let left = server.renew(&run, owner, token, renewal.lease);
                Reply::Renewed(renewal, left)
            }
            Script::Probe => {
                let (found, lost) = server.probe(&mut run, process, owner);
                Reply::Probed(found, lost)
            }
        };
        let Run {
            pushes,
            granted,
            skipped,
            ..
        } = run;
        state.observed.skipped |= skipped;
        for push in pushes {
            let Some(owner) = push.owners.iter().next() else {
                continue;
            };
            let Process { main, .. } = &mut state.processes[self.scenario.terms.process_of(owner)];
            if main.up {
                main.events.push(Event::Push(push));
            } else {
                // The server sends the push to a connection that the process has closed.
                state.observed.lost_push = state.observed.lost_push.max(Some(push.token));
            }
        }
        // Numbers the new waiters in the order of their places, including waiters that this script first queued and
        // then granted the lock.
        let mut places: Vec<_> = state
            .server
            .queue
            .iter()
            .map(|m| (m.place, m.owner))
            .collect();
        if let Reply::Joined(joined) = reply {
            let joined = joined.members.iter();
            places.extend(joined.filter_map(|(owner, place)| Some((place?, owner))));
        }
        places.sort_unstable();
        let mut newest = state
            .callers
            .iter()
            .filter_map(|caller| caller.joined)
            .max();
        for (_, owner) in places {
            let caller = &mut state.callers[usize::from(owner)];
            if caller.joined.is_none() {
                newest = Some(newest.map_or(0, |newest| newest + 1));
                caller.joined = newest;
            }
        }
        for grant in granted {
            self.observe(state, grant, had);
        }
        reply
    }

    /// Records three faults of a new grant: its token is not above all earlier tokens, one of its owners cannot be
    /// notified, or one of its owners overtook a waiting caller.
    fn observe(&self, state: &mut State, grant: Grant, had: Option<Grant>) {
        let terms = &self.scenario.terms;
        let heard = state.heard();
        let observed = &mut state.observed;
        let last = grant.token + Token::try_from(grant.owners.len()).unwrap_or(0) - 1;
        observed.token_fell |= grant.token <= observed.token;
        observed.token = observed.token.max(last);
        let is_heard = |owner: CallerId| heard[terms.process_of(owner)];
        observed.unheard |= grant.claimed_until.is_some() && !grant.owners.iter().all(is_heard);
        // Owners of the previous grant that have not had their turns yet also count as waiting.
        let passed_by = had.into_iter().flat_map(|had| had.owners.iter());
        let queued = state.server.queue.iter().filter_map(|member| {
            let lives = state.server.is_living(*member, terms);
            lives.then_some(member.owner)
        });
        let waiting: Vec<_> = queued.chain(passed_by).collect();
        for owner in grant.owners.iter() {
            if had.is_some_and(|had| had.owners.contains(owner)) {
                continue; // an owner of the previous grant overtakes nobody
            }
            if !state.processes[terms.process_of(owner)].alive {
                continue; // the process is dead; the promise `CLAIM` limits its pushed grant to a claim
            }
            let entered = state.callers[usize::from(owner)].joined;
            for other in waiting.iter().copied() {
                let caller = &state.callers[usize::from(other)];
                let is_before = match (caller.joined, entered) {
                    (Some(other), Some(entered)) => other < entered,
                    (other, _) => other.is_some(),
                };
                let waits = if state.server.is_queued(other) {
                    caller.waits()
                } else {
                    caller.is_waiting() && !grant.owners.contains(other)
                };
                // A caller whose wait is over cannot be overtaken, because it is about to leave.
                let may_still_enter = caller.wait_until > state.now;
                if is_before && waits && may_still_enter && is_heard(other) {
                    state.observed.overtaken.get_or_insert((owner, other));
                }
            }
        }
    }
}
