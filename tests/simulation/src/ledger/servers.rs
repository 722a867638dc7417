//! The checks that compare the holds and the calls in the ledger with the grants and queues on the servers.

use super::{
    Ledger,
    state::{Call, CallId, Inside, State, millis},
};
use crate::{
    callers::{LONGEST_EXTENSION, Way},
    faults::Fault,
    network::{HostId, ServerId},
    plan::Store,
    redis::{Redis, StoredGrant, StoredQueue, StoredWaiter},
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
/// be silent, and until it has checked its holds after a restart of the server.
pub(super) const RECONNECTED: u64 = 1_500;
/// The time, in milliseconds, after which all connections are made, in a run without faults.
pub(super) const CONNECTED: u64 = 1_000;
/// The time, in milliseconds, that is left to a client of a Redlock, besides the lease of a hold, until a node has the
/// grant of the hold.
const REJOINED: u64 = 3_000;
/// The longest time, in milliseconds, until a node has the grant of a hold, in addition to the time until the next renewal
/// and the delays of messages, if nobody else wants the lock and each client is connected to each node.
const REJOINED_ALONE: u64 = 1_500;
/// The longest time, in milliseconds, for which the entry of a call stays in the queue after the call has ended.
const LEFT: u64 = 500;
/// The longest time, in milliseconds, for which a client counts on a hold after it was granted the same lock again, in
/// addition to the delays of messages.
const ASKED: u64 = 100;
/// The longest time, in milliseconds, until a waiting session caps a grant that lasts longer than its lease.
const CAPPED: u64 = 500;
/// The time, in milliseconds, for which a grant at the end of a shutdown can be left, because its release came too late.
const GIVEN_BACK: u64 = 50;
/// The length of a claim, in milliseconds.
pub(super) const CLAIM_TIME: u64 = 2_000;
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

impl Ledger {
    /// Returns the grants of a lock on the servers that grant locks, with the numbers of these servers.
    pub(super) fn grants(&self, key: &str) -> Vec<(usize, StoredGrant)> {
        let name = self.plan.name_of(key);
        let read = |server| {
            let read = |redis: &crate::redis::Redis, ms| {
                redis.is_primary().then(|| redis.grant(&name, ms)).flatten()
            };
            let is_gone = self.is_gone(server);
            Some((
                server,
                self.network.peek(server, read).filter(|_| !is_gone)?,
            ))
        };
        (0..self.plan.store.servers()).filter_map(read).collect()
    }

    /// Returns whether this server is down, in a plan whose only fault is the death of primaries. The data of such a server
    /// counts no longer.
    pub(super) fn is_gone(&self, server: ServerId) -> bool {
        self.plan.stays_down && self.network.is_down(server)
    }

    /// Returns the server that has granted this lock with this token. `None` for a Redlock.
    pub(super) fn server_of(&self, key: &str, token: u64) -> Option<ServerId> {
        if self.plan.store == Store::Redlock {
            return None;
        }
        let mut grants = self.grants(key).into_iter();
        let (server, _) = grants.find(|(_, grant)| grant.tokens.contains(&token))?;
        Some(server)
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
        let now = self.history.now();
        let latest: Vec<(String, u64)> = {
            let state = self.state();
            let keys = state.keys.iter().filter_map(|(key, this)| {
                let (last, token) = this.latest?;
                // A shutdown does not wait for the release of a hold whose lease has ended for the client.
                let lasts = this.latest_end.is_none_or(|end| now < end);
                let is_over = |inside: &Inside| {
                    (inside.host, inside.token) == (last, token)
                        && inside.hold.remaining().is_zero()
                };
                let is_over = this.inside.values().any(is_over);
                (last == host && lasts && !is_over).then(|| (key.clone(), token))
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

    /// Checks that a shutdown gives back the turns that were offered to calls that are not polled when it began, in a run
    /// without other faults.
    pub fn check_given_back(&self, host: HostId) {
        let plan = &self.plan;
        let is_certain = plan.faults.iter().all(|fault| *fault == Fault::ShutDown)
            && plan.slow == 0
            && !plan.quirks
            && plan.replicas == 0
            && plan.store.has_queue()
            && plan
                .ways
                .iter()
                .all(|way| way.is_prompt() || *way == Way::Forgotten);
        if !is_certain {
            return;
        }
        let now = self.history.now();
        let found: Vec<String> = {
            let state = self.state();
            let grants = state.keys.iter().flat_map(|(key, this)| {
                let grants = self.grants(key).into_iter();
                grants.map(move |(server, grant)| (key, this, server, grant))
            });
            let since = now - state.closing.get(&host).copied().unwrap_or(now);
            let stays = grants.filter(|(_, this, server, grant)| {
                let mut inside = this.inside.values();
                // A call that is not polled can still be granted the lock while its client is shut down.
                let clock = |_: &Redis, ms: i64| Some(1_000 * ms.unsigned_abs());
                let clock = self.network.peek(*server, clock);
                let age = clock
                    .zip(grant.since)
                    .map(|(clock, at)| clock.saturating_sub(at));
                age.is_some_and(|age| age > 1_000 * since)
                    && grant.left > GIVEN_BACK + 4 * self.plan.delay
                    && state.hosts.get(&grant.session) == Some(&host)
                    && self.was_queued(*server, grant)
                    && !inside.any(|inside| grant.tokens.contains(&inside.token))
            });
            stays
                .map(|(key, _, server, grant)| format!("{key} on server {server}: {grant:?}"))
                .collect()
        };
        for seen in found {
            self.violated("a shutdown gives back the turns that nobody takes", seen);
        }
    }

    /// Compares all holds and calls with the state of the servers.
    pub fn compare(&self) {
        let now = self.history.now();
        let mut found = Vec::new();
        let mut guard = self.state();
        let state = &mut *guard;
        state.compared = (state.compared.1, now);
        if self.network.has_unnoticed_silence() {
            state.disturbed = now;
        }
        found.extend(self.check_silence(state, now));
        found.extend(self.check_marks(state));
        found.extend(self.check_quarantine(state, now));
        let keys: Vec<String> = match self.plan.readers {
            0 => state.keys.keys().cloned().collect(),
            _ => Vec::new(),
        };
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
            found.extend(self.check_capped(state, &key, &grants, now));
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
        state: &mut State,
        key: &str,
        grants: &[(usize, StoredGrant)],
        now: u64,
    ) -> Option<Broken> {
        let this = state.keys.get_mut(key)?;
        let is_inside = |id: &CallId| this.inside.values().any(|inside| inside.call == *id);
        let rivals = state.calls.iter().filter(|(id, _)| !is_inside(id));
        let rivals = rivals.filter(|(_, call)| call.wanted.keys.iter().any(|its| its == key));
        let rivals = rivals.count() as u64;
        if rivals > 0 {
            this.contended = now;
        }
        // The rounds of other callers keep the node taken meanwhile.
        let rejoined = REJOINED + 2 * self.plan.delay * rivals;
        if !self.plan.keeps_majority()
            || state.in_fault
            || grants.len() == self.plan.store.servers()
        {
            return None;
        }
        let this = state.keys.get(key)?;
        let mut faults = self.plan.faults.iter();
        let are_connected = faults.all(|fault| *fault == Fault::OutOfMemory);
        let inside = this.inside.values().find(|inside| {
            let call = state.calls.get(&inside.call);
            let is_renewed = |call: &&Call| {
                let renews = call.wanted.renewed && call.wanted.max_hold.is_none();
                // A nested call that asks for a longer lease lengthens the time between two renewals.
                let lease = call.lease();
                let since = inside.entered.max(state.disturbed);
                // The node can store the missing grant once no other caller tries to get the lock.
                let alone = lease / 3 + REJOINED_ALONE + 8 * self.plan.delay;
                let is_late = now > since + rejoined + lease
                    || are_connected && now > since.max(this.contended) + alone;
                renews && is_late
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
        // The client then asks for the older grant at once.
        let mut faults = self.plan.faults.iter();
        let answers = faults.all(|fault| {
            let deletes = matches!(fault, Fault::Flush | Fault::Delete);
            deletes || *fault == Fault::ForgetScripts
        });
        let replaced = inside
            .replaced
            .filter(|_| answers && self.plan.store.has_queue());
        // The client checks all its holds as soon as it has connected to a server that has restarted.
        let mut faults = self.plan.faults.iter();
        let only_restarts = faults.all(|fault| {
            let restarts = matches!(fault, Fault::Restart | Fault::RestartEmpty | Fault::Promote);
            restarts || *fault == Fault::ForgetScripts
        });
        let patience = match disturbed {
            _ if self.plan.keeps_grants() => 0,
            0 => 0,
            _ if in_fault || is_stopped || self.plan.store == Store::Redlock => return None,
            disturbed => {
                let since = disturbed.max(since);
                let at_next = since + lease / 3 + TOLD;
                let at_once = |at| since.max(at) + ASKED + 8 * self.plan.delay;
                let reconnected =
                    only_restarts.then_some(since + RECONNECTED + 8 * self.plan.delay);
                let earlier = replaced.map(at_once).into_iter().chain(reconnected);
                earlier.fold(at_next, u64::min)
            }
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

    /// Checks that a grant soon lasts at most for its lease after the server's clock was set back, if a caller waits for
    /// it.
    fn check_capped(
        &self,
        state: &mut State,
        key: &str,
        grants: &[(ServerId, StoredGrant)],
        now: u64,
    ) -> Option<Broken> {
        let is_certain = state.set_back > 0
            && !state.in_fault
            && state.disturbed + SETTLED < now
            && self.plan.store.has_queue();
        let probes = |call: &Call| {
            let wanted = &call.wanted;
            call.waits
                && wanted.prompt
                && wanted.queues
                && wanted.keys.len() == 1
                && wanted.keys[0] == key
                && !state.is_stopped(wanted.host)
        };
        let mut longer = grants
            .iter()
            .filter(|(_, grant)| grant.left > grant.lease + 1);
        let longer = longer.next().filter(|_| is_certain);
        let before = state.keys.get(key)?.overlong_since;
        let stays = before.filter(|(id, _)| state.calls.get(id).is_some_and(probes));
        let since = longer.and_then(|_| {
            stays.or_else(|| {
                let mut waiting = state.calls.iter().filter(|(_, call)| probes(call));
                waiting.next().map(|(id, _)| (*id, now))
            })
        });
        state.keys.get_mut(key)?.overlong_since = since;
        let ((id, since), (server, grant)) = (since?, longer?);
        (now > since + CAPPED + 8 * self.plan.delay).then(|| {
            let seen = format!(
                "{key} on server {server}, call {} waits since {since} ms: {grant:?}",
                id.0
            );
            ("a grant lasts at most for its lease", seen)
        })
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
        let calls = calls.filter(|call| call.wanted.keys.iter().any(|its| its == key));
        let entries = |call: &Call| usize::from(call.waits) + call.wanted.entries;
        let waiting: usize = calls.clone().map(entries).sum();
        // An entry whose `wait` is over stays until a script finds it.
        let alive = queues.iter().map(|(server, queue)| {
            let clock = self.network.peek(*server, |_, ms| Some(ms.unsigned_abs()));
            let lasts =
                |waiter: &&StoredWaiter| waiter.ends > 1_000 * clock.unwrap_or(u64::MAX / 1_000);
            queue.waiters.iter().filter(lasts).count()
        });
        let alive: usize = alive.sum();
        // A call that misses its turn at the end of its `wait` can be queued once more, at a new place.
        let may_wait =
            |call: &Call| now < call.wait() || !state.has_given_up(call, now - call.wait());
        let polled = calls.filter(|call| may_wait(call));
        let polled: usize = polled.map(entries).sum();
        let (queued, waiting) = match alive > polled {
            true => (alive, polled),
            false => (queued, waiting),
        };
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
}
