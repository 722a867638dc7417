//! Blocks and groups: a grant of several owners is handed on between them in memory, and several callers queue in one
//! request.

use crate::{
    broken::Broken,
    few::Few,
    protocol::Protocol,
    server::{Found, Joined, Token},
    state::{Block, By, Caller, CallerId, Claim, Phase, ProcessId, Request, Script, State, Tick},
};

impl Protocol {
    /// Whether another caller of its process is at the lock: then a caller queues with the group.
    pub(crate) fn has_company(&self, state: &State, id: CallerId) -> bool {
        self.callers_of(self.process_of(id)).any(|other| {
            let other_phase = state.callers[usize::from(other)].phase;
            other != id
                && matches!(
                    other_phase,
                    Phase::Asking
                        | Phase::Queued
                        | Phase::Confirming(_)
                        | Phase::Settling(_)
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
                caller.phase = Phase::Queued;
                if let Some(early) = caller.early.take() {
                    self.granted(state, id, early);
                }
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
        if owners.len() == 1 {
            let claim = self.held(state, first, sent, token, left, by);
            self.deliver(state, first, claim);
        } else {
            let until = self.deadline(
                state,
                first,
                sent,
                left.min(self.scenario.terms.lease(first)),
            );
            self.take_up_block(state, process, token, owners, until, by);
        }
    }

    /// A block that a push or a reply describes. What is known of it stands.
    pub(crate) fn take_up_block(
        &self,
        state: &mut State,
        process: ProcessId,
        first: Token,
        owners: Few<CallerId>,
        until: Tick,
        by: By,
    ) {
        let this = &mut state.processes[process];
        let is_known = this.block.is_some_and(|block| block.first >= first);
        if is_known && !self.is(Broken::KnownBlockTakenUpAnew) {
            state.observed.told_again = true;
            return;
        }
        let lost = self.supersede(state, process, first);
        state.processes[process].block = Some(Block {
            first,
            owners,
            tried: 0,
            until,
        });
        if !self.is_waited_for(state, process, owners) {
            state.observed.nobody_left = true;
            if self.is(Broken::EmptyBlockStays) {
                state.processes[process].block = None;
                return;
            }
        }
        if !self.pass(state, process, first, by) {
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

    /// Gives the next member of a block that still waits its turn. `false` if the grant is to be released.
    pub(crate) fn pass(&self, state: &mut State, process: ProcessId, first: Token, by: By) -> bool {
        let now = state.local(process);
        let Some(mut block) = state.processes[process]
            .block
            .filter(|block| block.first == first)
        else {
            return false; // a grant of one owner, or lost meanwhile
        };
        if now >= block.until && !self.is(Broken::PassIgnoresDeadline) {
            return self.lose_block(state, process, first);
        }
        let untried = block.owners.iter().skip(usize::from(block.tried));
        for id in untried {
            let token = first + Token::from(block.tried);
            block.tried += 1;
            state.processes[process].block = Some(block);
            if self.process_of(id) != process || !state.caller(id).is_waiting() {
                state.observed.passed_over |= block.tried > 1 || by != By::Pass;
                if self.is(Broken::SkippedTurnStays) {
                    return true;
                }
                continue;
            }
            let terms = &self.scenario.terms;
            let validity = terms.lease(id).min(terms.claim);
            let claim = Claim {
                token: if self.is(Broken::MembersShareAToken) {
                    first
                } else {
                    token
                },
                first,
                validity,
                until: if self.is(Broken::PassIgnoresDeadline) {
                    now + validity
                } else {
                    block.until
                },
                queued: true,
                by,
            };
            self.deliver(state, id, claim);
            return true;
        }
        state.processes[process].block = None;
        false
    }

    /// The server has given the lock anew: a block that was given before is lost. Who of it still waits afterwards has
    /// to queue again.
    pub(crate) fn supersede(
        &self,
        state: &mut State,
        process: ProcessId,
        token: Token,
    ) -> Option<Few<CallerId>> {
        let block = &mut state.processes[process].block;
        let lost = block.take_if(|block| block.first < token)?;
        Some(lost.owners)
    }

    /// The block is not held any more, or not known to be: who still waits queues again, and is told whether it is.
    /// `false` if nobody does, and the grant is to be released.
    pub(crate) fn lose_block(&self, state: &mut State, process: ProcessId, first: Token) -> bool {
        let Some(block) = state.processes[process]
            .block
            .filter(|block| block.first == first)
        else {
            return false;
        };
        state.processes[process].block = None;
        if !self.is_waited_for(state, process, block.owners) {
            return false;
        }
        state.observed.lost_block = true;
        if self.is(Broken::LostBlockStaysAway) {
            return false;
        }
        if self.is(Broken::LostBlockReleasedFirst) {
            let id = block.owners.iter().next().unwrap_or_default();
            self.send(state, id, Script::Release(first));
        }
        self.queue_again(state, process, block.owners);
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

    /// A caller that has its turn gives it up before it is inside: another member of its block goes on.
    pub(crate) fn give_up_turn(&self, state: &mut State, id: CallerId, claim: Claim) {
        let process = self.process_of(id);
        let block = state.processes[process].block;
        if block.is_some_and(|block| block.first == claim.first)
            && !self.pass(state, process, claim.first, By::Pass)
        {
            self.let_go(state, process, claim.first);
        }
    }

    /// A renewal of a grant says until when it is held.
    pub(crate) fn block_renewed(
        &self,
        state: &mut State,
        process: ProcessId,
        first: Token,
        until: Tick,
    ) {
        let block = &mut state.processes[process].block;
        if let Some(block) = block.as_mut().filter(|block| block.first == first) {
            block.until = block.until.max(until);
        }
    }
}
