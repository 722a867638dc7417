//! The checks that compare the holds and the calls in the ledger with the grants and queues on the servers.

use std::time::Duration;

use super::{
    CALM, CLAIM, LATEST, Ledger,
    state::{Call, CallId, Inside, Key, State, millis},
};
use crate::{
    callers::LONGEST_EXTENSION,
    faults::Fault,
    network::HostId,
    plan::Store,
    redis::{StoredGrant, StoredQueue},
};

/// The longest time, in milliseconds, between the loss of a lease and the moment at which its body is dropped.
const STOPPED: u64 = 100;
/// The longest time, in milliseconds, by which a third of a lease may pass before the client learns that its grant is
/// lost: the delays of messages, and the time until the next renewal.
const TOLD: u64 = 1_000;
/// The longest time, in milliseconds, by which a hold may end before the deadline that its client named. The clock of
/// the process may be too fast.
const EARLY: u64 = 20;
/// The longest time, in milliseconds, between the moment at which a renewal is due and its sending.
const SENT_LATE: u64 = 100;
/// The longest time, in milliseconds, from the end of a fault until each session has a connection to its server.
pub(super) const SETTLED: u64 = 3_000;
/// The longest time, in milliseconds, from the end of a fault until a client has replaced a connection that it knows to
/// be silent.
const RECONNECTED: u64 = 1_500;
/// The time, in milliseconds, after which all connections are made, in a run without faults.
const CONNECTED: u64 = 1_000;
/// The time, in milliseconds, between two comparisons of the ledger with the servers.
const COMPARED: u64 = 50;
/// The longest time, in milliseconds, for which no server has a grant of a lock although a caller waits for it.
const FREE: u64 = 100;
/// The same for a caller outside the queue, and after a minimum hold. A caller outside the queue pauses for up to 128 ms
/// between two tries or, with `notify`, for up to 200 ms if the lease of the holder ends without a release.
const FREE_FOR_TRIES: u64 = 250;
/// The same for a caller of a Redlock. Its rounds and those of other callers can delay each other, but each round
/// leaves grants for the time of a message and its answer.
const FREE_FOR_ROUNDS: u64 = 600;
/// The time, in milliseconds, for which a lock is free at the end of a `wait` if the call certainly takes the lock, in
/// addition to the delays of messages.
const LAST_TRY: u64 = 5;
/// The time, in milliseconds, that is left to a client of a Redlock, besides the lease of a hold, until a node has the
/// grant of the hold.
const REJOINED: u64 = 3_000;
/// The longest time, in milliseconds, for which the entry of a call stays in the queue after the call has ended.
const LEFT: u64 = 500;
/// The length of a claim, in milliseconds.
const CLAIM_TIME: u64 = 2_000;
/// The longest time, in milliseconds, by which a lease may last longer than its call asked for. While a call waits for
/// several locks, it prolongs short leases.
pub(super) const LONGER: u64 = 300;

/// A broken promise, and what was seen.
pub(super) type Broken = (&'static str, String);

/// Checks that a body does not run on after its hold is lost.
fn check_stopped(state: &mut State, key: &str, number: u64, now: u64) -> Option<Broken> {
    let inside = state.keys.get(key)?.inside.get(&number)?;
    let call = state.calls.get(&inside.call);
    let is_run = call.is_some_and(|call| call.wanted.runs && call.wanted.prompt);
    let may_run = !is_run || state.is_stopped(inside.host);
    let inside = state.keys.get_mut(key)?.inside.get_mut(&number)?;
    if may_run {
        inside.lost = None;
        return None;
    }
    let since = *inside.lost.get_or_insert(now);
    (now > since + STOPPED).then(|| {
        let name = inside.name(key);
        let seen = format!("{name} still runs its body {} ms later", now - since);
        ("a lost lease stops its body", seen)
    })
}

/// The longest time, in milliseconds, by which a grant that no caller has used lasts longer than a claim, in addition to
/// the delays of messages: the time until a heartbeat.
const UNUSED: u64 = 350;

impl Ledger {
    /// Returns the grants of a lock on the servers that grant locks, with the numbers of these servers.
    pub(super) fn grants(&self, key: &str) -> Vec<(usize, StoredGrant)> {
        let name = self.plan.name_of(key);
        let read = |server| {
            let read = |redis: &crate::redis::Redis, ms| {
                redis.is_primary().then(|| redis.grant(&name, ms)).flatten()
            };
            Some((server, self.network.peek(server, read)?))
        };
        (0..self.plan.store.servers()).filter_map(read).collect()
    }

    /// Returns whether no server has a grant of this lock.
    pub(super) fn is_free(&self, key: &str) -> bool {
        self.grants(key).is_empty()
    }

    /// Returns whether no server has a grant of this lock. On a Redlock, a minority of the nodes can have grants.
    pub(super) fn is_obtainable(&self, key: &str) -> bool {
        match self.plan.store {
            Store::Redlock => 2 * self.grants(key).len() < self.plan.store.servers(),
            _ => self.is_free(key),
        }
    }

    /// Checks that no server has a grant of a process whose shutdown has ended, in a run without other faults.
    pub fn check_shut_down(&self, host: HostId) {
        let undisturbed = self
            .plan
            .faults
            .iter()
            .all(|fault| *fault == Fault::ShutDown);
        // The lock of a call that is not polled can stay taken until the end of its lease.
        let are_prompt = self.plan.slow == 0 && self.plan.ways.iter().all(|way| way.is_prompt());
        if !undisturbed || !are_prompt {
            return;
        }
        let latest: Vec<(String, u64)> = {
            let state = self.state();
            let keys = state.keys.iter().filter_map(|(key, this)| {
                let (last, token) = this.latest?;
                (last == host).then(|| (key.clone(), token))
            });
            keys.collect()
        };
        for (key, token) in latest {
            for (server, grant) in self.grants(&key) {
                // A lease that the client has lost ends a little later on the server.
                if grant.tokens.contains(&token)
                    && grant.left > grant.lease / 50 + 2 * self.plan.delay + 5
                {
                    let seen = format!("{key} on server {server}: {grant:?} of host {host}");
                    self.violated("a shutdown waits for the releases", seen);
                }
            }
        }
    }

    /// Compares all holds and calls with the state of the servers.
    pub fn compare(&self) {
        let now = self.history.now();
        let mut found = Vec::new();
        let mut guard = self.state();
        let state = &mut *guard;
        if self.network.has_unnoticed_silence() {
            state.disturbed = now;
        }
        found.extend(self.check_silence(state, now));
        found.extend(self.check_marks(state));
        let keys: Vec<String> = state.keys.keys().cloned().collect();
        for key in keys {
            let inside: Vec<u64> = state.keys[&key].inside.keys().copied().collect();
            for number in inside {
                found.extend(self.check_hold(state, &key, number, now));
            }
            let grants = self.grants(&key);
            found.extend(self.check_free(state, &key, !grants.is_empty(), now));
            for (server, grant) in &grants {
                // A lease is counted in whole milliseconds, and a key exists up to the end of its last one.
                if state.set_back == 0 && grant.left > grant.lease + 1 {
                    let seen = format!("{key} on server {server}: {grant:?}");
                    found.push(("a grant lasts at most for its lease", seen));
                }
                found.extend(self.check_released(state, &key, grant, now));
            }
            let queues = self.queues(&key);
            found.extend(self.check_stored(state, &key, &grants, &queues, now));
            found.extend(self.check_nodes(state, &key, &grants, now));
            found.extend(self.check_bodiless(state, &key, &grants, now));
            found.extend(self.check_queue(state, &key, &queues, now));
            found.extend(self.check_new_grants(state, &key, &grants, &queues, now));
        }
        drop(guard);
        for (promise, seen) in found {
            self.violated(promise, seen);
        }
    }

    /// Checks that a hold ends for its client before its grant ends on the servers, that a lost hold stops its body,
    /// and that the client learns of a lost grant.
    pub(super) fn check_hold(
        &self,
        state: &mut State,
        key: &str,
        number: u64,
        now: u64,
    ) -> Option<Broken> {
        let inside = state.keys.get(key)?.inside.get(&number)?;
        let left = millis(inside.hold.remaining());
        let early = EARLY + millis(self.plan.clock_error(self.plan.longest_lease()));
        if left == 0 && inside.lost.is_none() && now + early < inside.deadline {
            let broken = self.check_loss(state, key, inside);
            state.keys.get_mut(key)?.inside.get_mut(&number)?.deadline = 0;
            return broken;
        }
        let broken = if left == 0 {
            None
        } else {
            self.check_length(state, key, inside, now)
        };
        let grants = self.grants(key);
        let backed = self.backed(&grants, inside.token);
        let inside = state.keys.get_mut(key)?.inside.get_mut(&number)?;
        inside.deadline = now + left;
        if left == 0 {
            inside.unbacked = None;
            return check_stopped(state, key, number, now);
        }
        inside.lost = None;
        if backed.is_some() {
            inside.unbacked = None;
        }
        broken.or_else(|| self.check_grant(state, key, number, backed, now))
    }

    /// Checks that the grant of a hold is gone if the client counts the hold as lost.
    fn check_loss(&self, state: &State, key: &str, inside: &Inside) -> Option<Broken> {
        let has_token = |(_, grant): &(usize, StoredGrant)| grant.tokens.contains(&inside.token);
        let is_real = state.may_lose(key, inside)
            || state.set_back > 0
            || self.has_old_primary(state)
            // A minority of the nodes can still have the grant.
            || self.plan.store == Store::Redlock && state.disturbed > 0
            || !self.grants(key).iter().any(has_token);
        (!is_real).then(|| {
            let seen = format!("{} is lost before {} ms", inside.name(key), inside.deadline);
            ("a hold is lost only if its grant is", seen)
        })
    }

    /// Checks that neither a hold nor its grant lasts longer than its call asked for.
    fn check_length(&self, state: &State, key: &str, inside: &Inside, now: u64) -> Option<Broken> {
        let call = state.calls.get(&inside.call);
        let left = millis(inside.hold.remaining());
        // The guard of a call that has ended is leaked.
        let lease = call.map_or(state.longest_lease, Call::lease);
        // If the answer to an extension is lost with the connection, the grant that the server describes after the
        // reconnection still has the longer lease.
        let extended = state.longest_lease + millis(LONGEST_EXTENSION);
        let is_calm = state.disturbed == 0
            || !state.in_fault && state.disturbed + SETTLED + extended < inside.entered;
        let lease = if is_calm { lease } else { lease.max(extended) };
        let may_lose = state.may_lose(key, inside);
        // After a clock was set back, the server keeps a grant for longer, and says so.
        if left > lease + LONGER && !may_lose && state.set_back == 0 {
            let seen = format!("{} has {left} ms left of {lease}", inside.name(key));
            return Some(("a lease lasts as long as its call asked for", seen));
        }
        let max_hold = call.and_then(|call| call.wanted.max_hold);
        // A renewal that is due just before the end of `max_hold` can be sent a little later.
        let late = SENT_LATE + 2 * self.plan.delay;
        let end = max_hold.map(|max_hold| inside.entered + millis(max_hold) + lease + late);
        // A renewal that a fault has delayed can be sent again after `max_hold`.
        if let Some(end) = end.filter(|end| now + left > *end && state.disturbed == 0) {
            let seen = format!(
                "{} has {left} ms left, and is to end at {end} ms",
                inside.name(key)
            );
            return Some(("`max_hold` bounds the hold", seen));
        }
        let stored = self.backed(&self.grants(key), inside.token)?;
        // A promoted replica can have missed that the member of a cohort shortened the lease.
        let is_known = state.set_back == 0 && !self.has_old_primary(state) && !may_lose;
        (is_known && stored > lease + LONGER).then(|| {
            let seen = format!(
                "{}: {stored} ms on the server, of {lease}",
                inside.name(key)
            );
            ("a grant lasts as long as its call asked for", seen)
        })
    }

    /// Checks that each node of a Redlock gets the grant of a renewed hold, even if the node missed the grant at first.
    fn check_nodes(
        &self,
        state: &State,
        key: &str,
        grants: &[(usize, StoredGrant)],
        now: u64,
    ) -> Option<Broken> {
        if !self.plan.keeps_majority()
            || state.in_fault
            || grants.len() == self.plan.store.servers()
        {
            return None;
        }
        let mut inside = state.keys.get(key)?.inside.values();
        let inside = inside.find(|inside| {
            let call = state.calls.get(&inside.call);
            let is_renewed = |call: &&Call| {
                let renews = call.wanted.renewed && call.wanted.max_hold.is_none();
                // A nested call that asks for a longer lease lengthens the time between two renewals.
                let lease = call.lease();
                renews && now > inside.entered.max(state.disturbed) + REJOINED + lease
            };
            call.filter(is_renewed).is_some() && !state.is_stopped(inside.host)
        })?;
        let seen = format!("{} is stored on {} nodes", inside.name(key), grants.len());
        Some(("a node that missed a grant gets it later", seen))
    }

    /// Checks that the replicas have the grant of a hold, and keep it for most of its lease, when its body begins.
    pub(super) fn check_replicated(
        &self,
        state: &State,
        call: CallId,
        key: &str,
        token: u64,
    ) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        // A call with several keys can wait for the replicas of several primaries, one longer than the other.
        let is_plain = this.wanted.prompt && this.wanted.keys.len() == 1;
        if self.plan.replicas == 0 || state.disturbed > 0 || !is_plain {
            return None;
        }
        let lease = millis(this.wanted.own_lease);
        self.check_on_replicas(call, key, token, lease)
    }

    /// Checks that the replicas have the lease that a nested call asks for when the body of the nested call begins.
    pub fn check_nested(&self, call: CallId, token: u64, lease: Duration) {
        let state = self.state();
        let Some(this) = state.calls.get(&call) else {
            return;
        };
        let is_plain = this.wanted.max_hold.is_none() && this.wanted.keys.len() == 1;
        if self.plan.replicas == 0 || state.disturbed > 0 || !is_plain {
            return;
        }
        let key = this.wanted.keys[0].clone();
        drop(state);
        if let Some((promise, seen)) = self.check_on_replicas(call, &key, token, millis(lease)) {
            self.violated(promise, seen);
        }
    }

    /// Checks that enough replicas have this token, and keep it for two thirds of the lease.
    fn check_on_replicas(&self, call: CallId, key: &str, token: u64, lease: u64) -> Option<Broken> {
        // A grant may be confirmed after its replicas have answered.
        let needed = (lease * 2 / 3).saturating_sub(lease / 50 + EARLY + 4 * self.plan.delay);
        let name = self.plan.name_of(key);
        let read = |redis: &crate::redis::Redis, ms| {
            let grant = (!redis.is_primary())
                .then(|| redis.grant(&name, ms))
                .flatten();
            grant
                .filter(|grant| grant.tokens.contains(&token))
                .map(|grant| grant.left)
        };
        let left: Vec<u64> = (0..self.plan.store.servers())
            .filter_map(|server| self.network.peek(server, read))
            .collect();
        let have = left.iter().filter(|left| **left >= needed).count();
        (have < self.plan.replicas).then(|| {
            let seen = format!(
                "call {} enters {key} with {left:?} ms left on the replicas, of {lease}",
                call.0
            );
            ("the replicas have the grant before the body begins", seen)
        })
    }

    /// Checks that the server has the grant of a hold for as long as the client counts on it. `backed` is the time that
    /// is left of the grant.
    fn check_grant(
        &self,
        state: &mut State,
        key: &str,
        number: u64,
        backed: Option<u64>,
        now: u64,
    ) -> Option<Broken> {
        if self.plan.loses_state() && self.plan.store == Store::Redlock || state.set_back > 0 {
            return None;
        }
        let inside = state.keys.get(key)?.inside.get(&number)?;
        let left = millis(inside.hold.remaining());
        let name = inside.name(key);
        if let Some(backed) = backed {
            // On a Redlock, a lease leaves room for clocks that drift: a hundredth of the lease.
            let room = match self.plan.store {
                Store::Redlock => backed / 100,
                _ => 0,
            };
            let outlasts = left + room > backed + 1 && !state.may_lose(key, inside);
            return outlasts.then(|| {
                let grants = self.grants(key);
                let seen =
                    format!("{name} counts on {left} ms, the server on {backed}: {grants:?}");
                ("a hold ends before its grant", seen)
            });
        }
        let lease = state.calls.get(&inside.call);
        let lease = lease.map_or(state.longest_lease, Call::lease);
        let is_stopped = state.is_stopped(inside.host);
        let (disturbed, in_fault) = (state.disturbed, state.in_fault);
        let inside = state.keys.get_mut(key)?.inside.get_mut(&number)?;
        let since = *inside.unbacked.get_or_insert(now);
        let patience = match disturbed {
            _ if self.plan.keeps_grants() => 0,
            0 => 0,
            _ if in_fault || is_stopped || self.plan.store == Store::Redlock => return None,
            disturbed => disturbed.max(since) + lease / 3 + TOLD,
        };
        (now > patience).then(|| {
            let seen = format!("{name} has no grant since {since} ms, and {left} ms left");
            ("a holder is told of its loss", seen)
        })
    }

    /// Returns the time, in milliseconds, for which the servers keep the grant with this token: on a Redlock, the time
    /// for which a majority keeps it. `None` if they do not have it.
    fn backed(&self, grants: &[(usize, StoredGrant)], token: u64) -> Option<u64> {
        let mut stored: Vec<u64> = grants
            .iter()
            .filter(|(_, grant)| grant.tokens.contains(&token))
            .map(|(_, grant)| grant.left)
            .collect();
        stored.sort_unstable_by(|a, b| b.cmp(a));
        let needed = match self.plan.store {
            Store::Redlock => self.plan.store.servers() / 2 + 1,
            _ => 1,
        };
        stored.get(needed - 1).copied()
    }

    /// Returns whether an old primary may still run, which can have an outdated grant.
    fn has_old_primary(&self, state: &State) -> bool {
        self.plan.store.replicas() > 0 && state.disturbed > 0
    }

    /// Checks that no lock stays taken although no body runs under its grant.
    fn check_bodiless(
        &self,
        state: &mut State,
        key: &str,
        grants: &[(usize, StoredGrant)],
        now: u64,
    ) -> Option<Broken> {
        let is_of = |call: &Call| call.wanted.keys.iter().any(|its| its == key);
        let mut calls = state.calls.values().filter(|call| is_of(call));
        // A call for several locks keeps the locks that it has while it waits for the others.
        let mut kept = calls.clone().filter(|call| !state.has_given_up(call, now));
        let are_single = kept.all(|call| call.wanted.keys.len() == 1);
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
        let (not_prompt, last_late) = (this.not_prompt, this.late);
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
        let highest = this.highest.map_or(0, |(token, _)| token);
        let this = &mut this.bodiless;
        this.retain(|server, (token, _)| {
            let mut bodiless = bodiless.iter();
            bodiless.any(|(number, grant)| number == server && grant.tokens.start == *token)
        });
        let patience = match state.disturbed {
            0 if !state.replicated => CALM,
            _ => 1_000 + CLAIM,
        };
        let quiet = match state.disturbed {
            0 => 0,
            disturbed if self.plan.spares_servers() && self.plan.store != Store::Redlock => {
                disturbed + SETTLED
            }
            disturbed => disturbed + state.longest_lease.max(CLAIM) + patience + LATEST,
        };
        // After a connection breaks, the client connects again at once, and finds its grants.
        let reconnects =
            |fault: &Fault| matches!(fault, Fault::Break | Fault::HalfOpen | Fault::ForgetScripts);
        let reconnects = !state.replicated
            && self.plan.store.has_queue()
            && self.plan.faults.iter().all(reconnects);
        let (patience, quiet) = match state.disturbed {
            disturbed if disturbed > 0 && reconnects => (CALM, disturbed + CALM),
            _ => (patience, quiet),
        };
        bodiless.iter().find_map(|(server, grant)| {
            let (token, since) = this.entry(*server).or_insert((grant.tokens.start, now));
            // Each owner that is polled late can miss its turn at the end of a claim, and begin its body at the end of
            // another one. It may release its guard only after its longest pause.
            let owners = grant.tokens.end - grant.tokens.start;
            let before = since.saturating_sub(COMPARED);
            let late = match (not_prompt >= before, last_late >= before) {
                (_, true) => 2 * CLAIM * owners + LATEST,
                (true, false) => CLAIM * owners,
                (false, false) => 0,
            };
            // Each owner can hold the lock for a second while it waits for replicas, and then give it back.
            let replicas = if state.replicated { 1_000 * owners } else { 0 };
            let is_unused = owners == 1 && grant.tokens.start > highest;
            let patience = if is_unused && state.disturbed == 0 && !state.replicated {
                // However late its caller is polled, it has to begin its body or to confirm the grant within a claim.
                (patience + late).min(CLAIM + UNUSED + 4 * self.plan.delay)
            } else {
                patience + late + replicas
            };
            (now > *since + patience && now > quiet && !state.in_fault).then(|| {
                let seen = format!("{key} on server {server} with token {token}, since {since} ms");
                ("no lock is taken without a body", seen)
            })
        })
    }

    /// Checks that a client replaces a silent connection. A client does not replace the connections of a server that
    /// it no longer needs, and a client that was shut down replaces none.
    fn check_silence(&self, state: &State, now: u64) -> Option<Broken> {
        let needs_all = match self.plan.store {
            Store::Redis | Store::Redisson | Store::Redlock => {
                !self.plan.faults.contains(&Fault::ShutDown)
            }
            Store::Group { .. } | Store::Cluster { .. } => false,
        };
        if !needs_all || state.in_fault || state.disturbed + RECONNECTED >= now {
            return None;
        }
        let (host, server) = self.network.endured_silence()?;
        let seen = format!("host {host} and server {server}");
        Some(("a silent connection is replaced", seen))
    }

    /// Checks in a run without faults that a release is sent at once: soon after the body, the server has no grant whose
    /// last owner is the caller.
    fn check_released(
        &self,
        state: &State,
        key: &str,
        grant: &StoredGrant,
        now: u64,
    ) -> Option<Broken> {
        let (token, at) = state.keys.get(key)?.released?;
        let is_last = grant.tokens.end == token + 1 && grant.tokens.contains(&token);
        // At first, a release can have to wait for a connection. Long delays hide when a message was sent.
        let is_plain = self.plan.store != Store::Redlock
            && state.disturbed == 0
            && at > CONNECTED
            && self.plan.delay <= 2;
        let is_late = is_last && is_plain && now > at + 1 + 2 * self.plan.delay;
        is_late.then(|| {
            let seen = format!("{key} with token {token}, whose body has ended at {at} ms");
            ("a release is sent at once", seen)
        })
    }

    /// Checks in a run without faults that a call ends only after the server has carried out its release, if the call
    /// waits for the confirmation.
    pub(super) fn check_confirmed(&self, state: &State, call: CallId) -> Option<Broken> {
        let wanted = &state.calls.get(&call)?.wanted;
        let [key] = &wanted.keys[..] else {
            return None;
        };
        let token = state.calls.get(&call)?.token?;
        let is_plain = wanted.confirmed
            && wanted.prompt
            && wanted.at_least.is_zero()
            && state.disturbed == 0
            && self.plan.store != Store::Redlock;
        if !is_plain {
            return None;
        }
        let mut grants = self.grants(key).into_iter();
        let (server, grant) = grants
            .find(|(_, grant)| grant.tokens.contains(&token) && grant.tokens.end == token + 1)?;
        let seen = format!("call {} ends, {key} on server {server}: {grant:?}", call.0);
        Some(("a call ends after its release", seen))
    }

    /// Checks that callers who wait for a lock take it soon after the servers have no grant of it.
    fn check_free(&self, state: &mut State, key: &str, is_taken: bool, now: u64) -> Option<Broken> {
        let this = state.keys.get_mut(key)?;
        let (since, retained) = (this.taken.max(this.moved), this.retained);
        let is_held = |inside: &Inside| !inside.hold.remaining().is_zero();
        if is_taken || state.in_fault || this.inside.values().any(is_held) {
            this.taken = now;
            this.seen_free = None;
            return None;
        }
        this.seen_free.get_or_insert(now);
        let released = this.released.map_or(0, |(_, at)| at);
        let is_settled = state.disturbed == 0 || state.disturbed + SETTLED < now;
        let is_calm = match self.plan.store {
            Store::Redlock => state.disturbed == 0 && now > CONNECTED,
            _ => is_settled,
        };
        if !is_calm || state.set_back > 0 || state.replicated {
            return None;
        }
        let is_of = |call: &Call| call.waits && call.wanted.keys.iter().any(|its| its == key);
        let mut waiting = state
            .calls
            .iter()
            .filter(|(_, call)| is_of(call) && !state.has_given_up(call, now));
        let is_plain = |call: &Call| {
            call.wanted.prompt && call.wanted.keys.len() == 1 && !state.is_stopped(call.wanted.host)
        };
        // A session that has probed the lock before it was retained does not know when the minimum hold ends.
        let was_retained = retained + FREE_FOR_TRIES + 4 * self.plan.delay >= now;
        let are_plain = waiting.clone().all(|(_, call)| is_plain(call));
        let (id, _) = waiting.find(|(_, call)| {
            // A release wakes the callers with `notify`.
            let is_told = call.wanted.woken && since <= released + FREE / 2 + 4 * self.plan.delay;
            let free = match self.plan.store {
                Store::Redlock => FREE_FOR_ROUNDS,
                _ if (call.wanted.queues || is_told) && !was_retained => FREE,
                _ => FREE_FOR_TRIES,
            };
            let from = since.max(call.began);
            let until = from + free + 4 * self.plan.delay;
            call.wait() > 0 && until < now && call.began + call.wait() > now
        })?;
        are_plain.then(|| {
            let seen = format!("call {} waits for {key}, free since {since} ms", id.0);
            ("a waiter takes a free lock", seen)
        })
    }

    /// Checks that the queue has no entry of a call that has ended.
    fn check_queue(
        &self,
        state: &mut State,
        key: &str,
        queues: &[(usize, StoredQueue)],
        now: u64,
    ) -> Option<Broken> {
        let queued: usize = queues.iter().map(|(_, queue)| queue.waiters.len()).sum();
        let calls = state.calls.values();
        let waiting = calls.filter(|call| call.wanted.keys.iter().any(|its| its == key));
        let waiting: usize = waiting
            .map(|call| usize::from(call.waits) + call.wanted.entries)
            .sum();
        let this = state.keys.get_mut(key)?;
        let is_settled = state.disturbed == 0
            || self.plan.spares_servers() && !state.in_fault && state.disturbed + SETTLED < now;
        if queued <= waiting || !is_settled {
            this.surplus = None;
            return None;
        }
        let since = *this.surplus.get_or_insert(now);
        (now > since + LEFT + 4 * self.plan.delay).then(|| {
            let seen = format!("{queued} entries for {waiting} callers of {key} since {since} ms");
            ("an ended call leaves no entry in the queue", seen)
        })
    }

    /// Checks in a run without faults that a call for a lock that nobody has or wants is not refused.
    pub(super) fn check_busy(&self, state: &State, call: CallId, now: u64) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        let [key] = &this.wanted.keys[..] else {
            return None;
        };
        let others = state.calls.iter().filter(|(id, _)| **id != call);
        let mut others = others.map(|(_, other)| other);
        let is_free = |key: &Key| {
            // A call that ended without entering may have had the lock between two comparisons.
            let touched = key.withdrawn + 4 * self.plan.delay + LAST_TRY;
            let is_touched = key.withdrawn > 0 && touched >= this.began;
            key.inside.is_empty() && key.moved + CALM < this.began && !is_touched
        };
        // With a short `wait`, a call may get its answer, or that of its replicas, too late.
        let is_patient = match this.wait() {
            0 => true,
            wait if state.replicated => wait >= 2_000,
            wait => wait >= 500,
        };
        let is_alone = this.waits
            && this.wanted.prompt
            && is_patient
            && state.disturbed == 0
            && self.plan.store != Store::Redlock
            && state.keys.get(key).is_none_or(is_free)
            && others.all(|other| !other.wanted.keys.contains(key))
            && self.is_free(key);
        if is_alone {
            let seen = format!("call {} at {now} ms, nobody has {key}", call.0);
            return Some(("a free lock is not busy", seen));
        }
        let is_cut_off = state.cut_off.is_some_and(|(host, since)| {
            host.is_none_or(|host| host == this.wanted.host) && since < this.asked
        });
        let is_here =
            |other: &Call| other.wanted.host == this.wanted.host && other.wanted.keys.contains(key);
        let is_inside = |key: &Key| {
            let mut inside = key.inside.values();
            inside.any(|inside| inside.host == this.wanted.host)
        };
        let others = state.calls.iter().filter(|(id, _)| **id != call);
        // The engine gives up a request that is not answered within a claim, and the client then gives up the connection.
        let is_asking = this.wanted.prompt || now < this.asked + CLAIM_TIME;
        let is_unanswered = is_cut_off
            && is_asking
            && !others.map(|(_, other)| other).any(is_here)
            && !state.keys.get(key).is_some_and(is_inside);
        if is_unanswered {
            let seen = format!("call {} at {now} ms", call.0);
            return Some(("a call without an answer is not busy", seen));
        }
        let lock = state.keys.get(key)?;
        let since = lock.seen_free.filter(|at| lock.moved <= *at)?;
        let calls = state.calls.iter().filter(|(id, _)| **id != call);
        let mut calls = calls.map(|(_, other)| other);
        let shares = |other: &Call| {
            other.waits && other.wanted.keys.len() > 1 && other.wanted.keys.contains(key)
        };
        let touched = lock.withdrawn + 4 * self.plan.delay + LAST_TRY;
        if lock.withdrawn > 0 && touched >= now || calls.any(shares) {
            return None;
        }
        let is_settled = state.disturbed == 0 || state.disturbed + SETTLED < this.began;
        let is_free = this.waits
            && this.wanted.prompt
            && this.wait() >= 500
            && is_settled
            && !state.in_fault
            && state.set_back == 0
            && !state.replicated
            && self.plan.store != Store::Redlock
            && since + LAST_TRY + 4 * self.plan.delay < now
            && this.began + 500 < now
            && self.is_free(key);
        is_free.then(|| {
            let seen = format!("call {}: {key} is free since {since} ms", call.0);
            (
                "a call takes a lock that is free at the end of its `wait`",
                seen,
            )
        })
    }
}
