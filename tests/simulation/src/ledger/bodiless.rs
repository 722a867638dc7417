//! The checks of grants under which no body runs: how long a lock stays taken by a caller that is polled late, or no
//! longer.

use super::{
    CALM, CLAIM, LATEST, Ledger,
    servers::{Broken, CLAIM_TIME, SETTLED},
    state::{Call, Key, Missed, State},
};
use crate::{
    faults::Fault,
    network::ServerId,
    plan::{Plan, Store},
    redis::StoredGrant,
};

/// The time, in milliseconds, between two comparisons of the ledger with the servers.
const COMPARED: u64 = 50;
/// The longest time, in milliseconds, for which a call that has missed a turn keeps the next one, in addition to the
/// delays of messages: a tenth of a claim, the time until a heartbeat, and 300 ms of slack.
const SECOND_TURN: u64 = 700;
/// The longest time, in milliseconds, by which a grant that no caller has used lasts longer than a claim, in addition to
/// the delays of messages: the time until a heartbeat.
const UNUSED: u64 = 350;

impl Plan {
    /// Returns whether a process can crash whose connections the server still considers as open.
    fn has_unnoticed_crashes(&self) -> bool {
        self.faults.contains(&Fault::Crash) && self.faults.contains(&Fault::HalfOpen)
    }

    /// Returns whether a grant that no caller uses lasts as long as in a run without faults. When a runtime ends, the engine
    /// gives back what its callers leave, as after calls that are dropped.
    fn keeps_claims(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.all(|fault| matches!(fault, Fault::EndRuntime | Fault::ForgetScripts))
    }

    /// Returns whether each client connects again at once after a fault, and then finds its grants.
    fn reconnects_at_once(&self) -> bool {
        let breaks =
            |fault: &Fault| matches!(fault, Fault::Break | Fault::HalfOpen | Fault::ForgetScripts);
        self.replicas == 0 && self.store.has_queue() && self.faults.iter().all(breaks)
    }
}

impl Ledger {
    /// Checks that no lock stays taken although no body runs under its grant.
    pub(super) fn check_bodiless(
        &self,
        state: &mut State,
        key: &str,
        grants: &[(ServerId, StoredGrant)],
        now: u64,
    ) -> Option<Broken> {
        let is_of = |call: &Call| call.wanted.keys.iter().any(|its| its == key);
        let mut calls = state.calls.values().filter(|call| is_of(call));
        // A call for several locks keeps the locks that it has while it waits for the others. If such a call is not polled,
        // it keeps even a single lock until the end of its `wait`.
        let is_single = |call: &Call| {
            call.wanted.keys.len() == 1 && (call.wanted.prompt || !call.wanted.is_multi)
        };
        let mut kept = calls.clone().filter(|call| !state.has_given_up(call, now));
        let are_single = kept.all(is_single);
        let are_prompt = calls.clone().all(|call| call.wanted.prompt);
        let are_late = calls.any(|call| call.wanted.is_late());
        let this = state.keys.get_mut(key)?;
        // A call that has ended may have left the grant.
        if !are_prompt {
            this.not_prompt = now;
        }
        if are_late {
            this.late = now;
        }
        // A member of a cohort retains the lock with the cohort's grant.
        let is_retained = now <= this.retained;
        let has_body = |grant: &StoredGrant| {
            let mut inside = this.inside.values();
            is_retained || inside.any(|inside| grant.tokens.contains(&inside.token))
        };
        let bodiless: Vec<_> = grants
            .iter()
            .filter(|(_, grant)| are_single && !grant.tokens.is_empty() && !has_body(grant))
            .collect();
        let before = std::mem::take(&mut this.bodiless);
        this.bodiless = bodiless
            .iter()
            .map(|(server, grant)| {
                let token = grant.tokens.start;
                let seen = before.get(server).filter(|(its, _)| *its == token);
                (*server, seen.copied().unwrap_or((token, now)))
            })
            .collect();
        if let Some(broken) = self.check_missed(state, key, now) {
            return Some(broken);
        }
        let this = state.keys.get(key)?;
        bodiless.iter().find_map(|(server, grant)| {
            let (token, since) = *this.bodiless.get(server)?;
            let until = self.bodiless_until(state, this, *server, grant, since);
            (now > until && !state.in_fault).then(|| {
                let seen = format!("{key} on server {server} with token {token}, since {since} ms");
                ("no lock is taken without a body", seen)
            })
        })
    }

    /// Returns the time, in milliseconds, until which a grant can be without a body that has been without a body since
    /// the comparison at `since`.
    fn bodiless_until(
        &self,
        state: &State,
        key: &Key,
        server: ServerId,
        grant: &StoredGrant,
        since: u64,
    ) -> u64 {
        let owners = grant.tokens.end - grant.tokens.start;
        let before = since.saturating_sub(COMPARED);
        let messages = 4 * self.plan.delay;
        // Each owner that is polled late can miss its turn at the end of a claim, and begin its body at the end of
        // another one. It may release its guard only after its longest pause.
        let late = match (key.not_prompt >= before, key.late >= before) {
            (_, true) => 2 * CLAIM * owners + LATEST,
            (true, false) => CLAIM * owners,
            (false, false) => 0,
        };
        let is_undisturbed = state.disturbed == 0 || self.plan.keeps_claims();
        let is_unused = owners == 1
            && key
                .highest
                .is_none_or(|(highest, _)| grant.tokens.start > highest);
        if is_unused && is_undisturbed && !state.replicated {
            // However late its caller is polled, it has to begin its body or to confirm the grant within a claim. A queued
            // caller can need up to a claim to read that it is queued.
            let claims = match self.was_queued(server, grant) {
                true => CLAIM + CLAIM_TIME,
                false => CLAIM,
            };
            return since + (CALM + late).min(claims + UNUSED + messages);
        }
        let (patience, quiet) = self.patience(state, key, server, grant);
        // Each owner can hold the lock for a second while it waits for replicas, and then give it back.
        let replicas = if state.replicated { 1_000 * owners } else { 0 };
        quiet.max(since + patience + late + replicas)
    }

    /// Returns the time, in milliseconds, for which a grant can be without a body if all callers are polled without
    /// delay, and the time until which it can be so because of a fault.
    fn patience(
        &self,
        state: &State,
        key: &Key,
        server: ServerId,
        grant: &StoredGrant,
    ) -> (u64, u64) {
        let disturbed = state.disturbed;
        let seen = key.seen.get(&server);
        let seen = seen.filter(|seen| seen.token == Some(grant.tokens.start));
        // A grant that was made after the effects of all faults is used as soon as in a run without faults.
        // After a clock was set back, an outdated server can give a token again, which the engine takes for the grant
        // that it knows.
        let repeats_tokens = state.set_back > 0
            && (self.plan.store.replicas() > 0 || self.plan.faults.contains(&Fault::Promote));
        let is_new = self.plan.store.has_queue()
            && !state.replicated
            && !repeats_tokens
            && !self.plan.has_unnoticed_crashes()
            && seen.is_some_and(|seen| seen.changed > disturbed + SETTLED);
        if (disturbed == 0 || self.plan.keeps_claims()) && !state.replicated {
            (CALM, 0)
        } else if disturbed == 0 {
            (1_000 + CLAIM, 0)
        } else if self.plan.reconnects_at_once() {
            (CALM, disturbed + CALM)
        } else if is_new {
            (CALM, disturbed + SETTLED)
        } else if self.plan.spares_servers() && self.plan.store != Store::Redlock {
            (1_000 + CLAIM, disturbed + SETTLED)
        } else {
            let patience = 1_000 + CLAIM;
            let lease = state.longest_lease.max(CLAIM);
            (patience, disturbed + lease + patience + LATEST)
        }
    }

    /// Returns whether the server granted the lock to a caller in the queue.
    pub(super) fn was_queued(&self, server: ServerId, grant: &StoredGrant) -> bool {
        let taken = |owner: &String| self.network.peek(server, |redis, _| redis.taken(owner));
        let taken = grant.owners.first().and_then(taken);
        taken.is_some_and(|(_, command)| command == grant.command)
    }

    /// Checks that a call that has missed its turn keeps the next one for less time, in a run without faults. The call is
    /// polled so rarely that it never reads within a claim that it has the lock.
    fn check_missed(&self, state: &mut State, key: &str, now: u64) -> Option<Broken> {
        let is_of = |call: &Call| call.wanted.keys.iter().any(|its| its == key);
        let calls = state.calls.iter().filter(|(_, call)| is_of(call));
        let (late, prompt): (Vec<_>, Vec<_>) = calls.partition(|(_, call)| !call.wanted.prompt);
        let are_single = prompt.iter().all(|(_, call)| call.wanted.keys.len() == 1);
        let rare = match late[..] {
            [(id, only)] => {
                let waits = |call: &Call| call.waits && call.wanted.queues;
                // A call sends its own request, and has a claim to read the answer, if no other caller of its session
                // waits. Between two comparisons, one of the other callers can have entered.
                let is_peer = |call: &Call| waits(call) && call.wanted.host == only.wanted.host;
                let peers = prompt.iter().filter(|(_, call)| is_peer(call)).count();
                // A round of a Redlock belongs to its caller alone.
                let is_alone = self.plan.store == Store::Redlock
                    && self.plan.processes == 1
                    && self.plan.tasks == 1
                    && only.waits;
                let is_among_peers =
                    waits(only) && are_single && peers >= 2 && self.plan.runtimes == 1;
                let is_certain = only.wanted.pause.is_some_and(|pause| pause > CLAIM_TIME)
                    && only.wanted.keys.len() == 1
                    && (is_alone || is_among_peers)
                    && now < only.began + only.wait()
                    && state.disturbed == 0
                    && !state.replicated;
                is_certain.then_some(*id)
            }
            _ => None,
        };
        let this = state.keys.get_mut(key)?;
        let before = this.missed.filter(|missed| Some(missed.call) == rare);
        this.missed = before;
        let call = rare?;
        let mut turns = this.bodiless.values();
        let long = SECOND_TURN + 4 * self.plan.delay;
        let (token, since) = *turns.find(|(_, since)| since + long < now)?;
        let turns = match before {
            Some(missed) if missed.token == token => return None,
            Some(missed) => missed.turns + 1,
            None => 1,
        };
        this.missed = Some(Missed { call, turns, token });
        (turns > 1).then(|| {
            let seen = format!("call {} keeps {key} since {since} ms", call.0);
            ("a call that has missed a turn has less time", seen)
        })
    }
}
