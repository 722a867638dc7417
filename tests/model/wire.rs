//! The wire between the processes and the server: requests are read in the order of their connection, and pushes and
//! replies are heard in that order.

use crate::{
    protocol::Protocol,
    server::{Grant, Run, Token},
    state::{CallerId, Event, Process, ProcessId, Reply, Request, Script, State},
};

impl Protocol {
    /// The server reads the next request of a link.
    pub(crate) fn serve(&self, state: &mut State, process: ProcessId) {
        let link = &mut state.processes[process].main;
        let floor = link.floor;
        let request = link.requests.remove(0);
        let reply = self.carry_out(state, process, floor, request);
        let Request { caller, sent, .. } = request;
        let link = &mut state.processes[process].main;
        link.events.push(Event::Reply {
            caller,
            sent,
            reply,
        });
    }

    /// The server reads a request of the home link.
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

    /// The server reads what an old connection has left behind. Nobody hears the reply.
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
            state.processes[process].old = None; // CLIENT KILL, a command before
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
        let had = state.server.grant.map(|grant| grant.owner);
        let (owner, server) = (request.caller, &mut state.server);
        let reply = match request.script {
            Script::Acquire { place, not_after } => {
                if place.is_none() && !server.is_queued(owner) {
                    // Whatever place it may have had, it has not been told of it.
                    state.callers[usize::from(owner)].joined = None;
                }
                Reply::Acquired(server.acquire(&mut run, owner, place, not_after))
            }
            Script::Leave { abandon, .. } => {
                let held = server.leave(&mut run, owner, abandon);
                if abandon {
                    Reply::Abandoned
                } else {
                    Reply::Left(held)
                }
            }
            Script::Release(token) => Reply::Released(server.release(&mut run, token)),
            Script::Renew(token, lease) => {
                Reply::Renewed(token, lease, server.renew(&run, owner, token, lease))
            }
            Script::Look => {
                let (found, lost) = server.look(&mut run, process, owner);
                Reply::Looked(found, lost)
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
            let Process { main, .. } =
                &mut state.processes[self.scenario.terms.process_of(push.owner)];
            // Else it goes to a connection that is no more.
            if main.up {
                main.events.push(Event::Push(push));
            }
        }
        let newest = state
            .callers
            .iter()
            .filter_map(|caller| caller.joined)
            .max();
        for member in &state.server.queue {
            let caller = &mut state.callers[usize::from(member.owner)];
            caller
                .joined
                .get_or_insert(newest.map_or(0, |newest| newest + 1));
        }
        for grant in granted {
            self.observe(state, grant, had);
        }
        reply
    }

    /// Notes whether tokens rise, and whether somebody who waits was overtaken.
    fn observe(&self, state: &mut State, grant: Grant, had: Option<CallerId>) {
        let heard = state.heard();
        let observed = &mut state.observed;
        observed.token_fell |= grant.token <= observed.token;
        observed.token = observed.token.max(grant.token);
        observed.unheard |=
            grant.claimed_until.is_some() && !heard[self.scenario.terms.process_of(grant.owner)];
        let entered = state.callers[usize::from(grant.owner)].joined;
        if had == Some(grant.owner) {
            return; // was inside already
        }
        let terms = &self.scenario.terms;
        for member in &state.server.queue {
            let other = &state.callers[usize::from(member.owner)];
            let is_before = match (other.joined, entered) {
                (Some(other), Some(entered)) => other < entered,
                (other, _) => other.is_some(),
            };
            let lives = state.server.is_living(*member, terms)
                && heard[terms.process_of(member.owner)]
                && other.waits();
            if is_before && lives {
                observed
                    .overtaken
                    .get_or_insert((grant.owner, member.owner));
            }
        }
    }
}
