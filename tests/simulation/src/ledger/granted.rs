//! The checks of grants that are new: who is granted a lock, and who enters with which grant.

use super::{
    Ledger,
    servers::{Broken, LONGER, SETTLED},
    state::{Call, CallId, State, millis},
};
use crate::{
    callers::FUNCTION_LEASE,
    faults::Fault,
    network::ServerId,
    plan::Store,
    redis::{Redis, StoredGrant, StoredQueue},
};

/// The time, in milliseconds, after which a session that does not listen is granted no lock. Its requests that are
/// under way have arrived by then.
const DEAF: u64 = 250;
/// The longest time, in milliseconds, from the end of a fault until each session knows which of its grants are lost,
/// in addition to the delays of messages.
const ASKED: u64 = 400;

/// The longest time, in milliseconds, from the announcement of a new primary until no client uses the old one.
const ANNOUNCED: u64 = 1_100;
/// The longest time, in milliseconds, by which the computed place of a caller can be too late, in addition to the delays
/// of messages.
pub(super) const PLACE_SLACK: u64 = 10;
/// The shortest lease, in milliseconds, of a grant that names its session in the claim of the lock.
const SHORTEST_CLAIMED: u64 = 500;
/// The longest time, in milliseconds, from the beginning of a shutdown until a call that waits for replicas has ended, in
/// addition to the delays of messages.
const SHUTDOWN_SLACK: u64 = 50;
/// The longest time, in milliseconds, from the last answer of the server until a call with replicas enters, in addition to
/// the delays of messages.
const LAST_ANSWER: u64 = 10;
/// The number of digits that the ids of all sessions of one process have in common.
const PROCESS_DIGITS: usize = 16;
/// The key of the counter of fencing tokens on a node of a Redlock.
const COUNTER: &str = "lock:fence";

/// Returns whether this fault neither delays messages nor stops or resets anything that measures time.
pub(super) fn keeps_timing(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Break
            | Fault::HalfOpen
            | Fault::ForgetScripts
            | Fault::Restart
            | Fault::RestartEmpty
            | Fault::Flush
            | Fault::Delete
            | Fault::Crash
            | Fault::OutOfMemory
            | Fault::ReadOnly
            | Fault::Loading
    )
}

impl Ledger {
    /// Checks the grants of a lock that the servers have made since the last comparison.
    pub(super) fn check_new_grants(
        &self,
        state: &mut State,
        key: &str,
        grants: &[(ServerId, StoredGrant)],
        queues: &[(ServerId, StoredQueue)],
        now: u64,
    ) -> Option<Broken> {
        if !self.plan.store.has_queue() {
            return None;
        }
        let sessions = queues.iter().flat_map(|(server, queue)| {
            let waiters = queue.waiters.iter();
            waiters.map(move |waiter| (*server, waiter.session.clone()))
        });
        let mut replaced = None;
        for (server, session) in sessions {
            replaced = replaced.or_else(|| self.check_connection(state, server, &session));
            let hears = |redis: &Redis, _| Some(redis.hears(&session));
            if self.network.peek(server, hears) == Some(true) {
                if let Some(host) = self.network.host_of(server, &session) {
                    state.hosts.insert(session.clone(), host);
                }
                state.heard.insert((server, session), now);
            } else {
                state.heard.entry((server, session)).or_insert(now);
            }
        }
        let seen = &state.keys.get(key)?.seen;
        let is_new = |(server, grant): &&(ServerId, StoredGrant)| {
            !grant.session.is_empty()
                && seen
                    .get(server)
                    .is_none_or(|seen| seen.token != Some(grant.tokens.start))
        };
        let new: Vec<_> = grants.iter().filter(is_new).cloned().collect();
        let broken = new.iter().find_map(|(server, grant)| {
            self.check_members(state, key, *server, grant)
                .or_else(|| self.check_listener(state, key, *server, grant, now))
                .or_else(|| self.check_prolonged(state, key, *server, grant))
                .or_else(|| self.check_primary(state, key, *server, now))
        });
        let broken = broken.or_else(|| {
            grants
                .iter()
                .find_map(|(server, grant)| self.check_extensions(state, key, *server, grant))
        });
        let mut grants_of_stopped = new.iter();
        let broken = broken.or_else(|| {
            grants_of_stopped.find_map(|(server, grant)| {
                self.check_stopped_session(state, key, *server, grant, now)
            })
        });
        let broken = broken.or_else(|| self.check_old_place(state, key, queues));
        let broken = broken.or(replaced);
        let broken = broken.or_else(|| self.check_kept_place(state, key, queues, now));
        let broken = broken.or_else(|| self.check_new_place(state, key, queues, now));
        let broken = broken.or_else(|| self.check_queued(state, key, grants, queues, now));
        let seen = &mut state.keys.get_mut(key)?.seen;
        for (server, queue) in queues {
            let owners: Vec<String> = queue.waiters.iter().map(|w| w.owner.clone()).collect();
            let mut grants = grants.iter().filter(|(its, _)| its == server);
            let seen = seen.entry(*server).or_default();
            let grant = grants.next().map(|(_, grant)| grant);
            if let Some(grant) = grant {
                seen.session.clone_from(&grant.session);
            }
            let token = grant.map(|grant| grant.tokens.start);
            if seen.token != token {
                (seen.token, seen.changed) = (token, now);
            }
            let stays = |owner: &&String| seen.waiters.contains(*owner);
            seen.ahead = owners.iter().filter(stays).cloned().collect();
            seen.waiters = owners;
        }
        broken
    }

    /// Checks that a caller that was removed from the queue returns to its old place.
    fn check_old_place(
        &self,
        state: &State,
        key: &str,
        queues: &[(ServerId, StoredQueue)],
    ) -> Option<Broken> {
        let is_certain = self.plan.replicas == 0 && self.plan.faults.iter().all(keeps_timing);
        let seen = &state.keys.get(key)?.seen;
        // A place that the caller does not know is its own estimate of the server's time of its first request. The
        // estimate errs by up to one round trip, and the first request itself needed one message.
        let late = 1_000 * (PLACE_SLACK + 3 * self.plan.delay);
        let mut waiters = queues.iter().flat_map(|(server, queue)| {
            let waiters = queue.waiters.iter();
            waiters.map(move |waiter| (*server, waiter))
        });
        waiters.find_map(|(server, waiter)| {
            let before = seen.get(&server);
            if !is_certain || before.is_some_and(|seen| seen.waiters.contains(&waiter.owner)) {
                return None;
            }
            let (old, _) = self
                .network
                .peek(server, |redis, _| redis.taken(&waiter.owner))?;
            (waiter.place > old.place + late && old.ends > waiter.place).then(|| {
                let seen = format!("{key} on server {server}: {old:?}, and then {waiter:?}");
                ("a caller returns to its old place", seen)
            })
        })
    }

    /// Checks that a stopped process is granted the lock at most once while a caller of another process waits, on however
    /// many runtimes its own callers wait.
    fn check_stopped_session(
        &self,
        state: &mut State,
        key: &str,
        server: ServerId,
        grant: &StoredGrant,
        now: u64,
    ) -> Option<Broken> {
        let (host, since) = state.stopped?;
        let mut faults = self.plan.faults.iter();
        let is_certain = faults.all(|fault| *fault == Fault::StopProcess)
            && self.plan.store == Store::Redis
            && state.calm > SETTLED
            && grant.lease >= SHORTEST_CLAIMED
            && now > since + DEAF + 2 * self.plan.delay
            && self.network.host_of(server, &grant.session) == Some(host);
        if !is_certain {
            return None;
        }
        let seen = state.granted_while_stopped.entry(key.to_owned());
        let seen = seen.or_insert((since, now));
        if seen.0 != since {
            *seen = (since, now);
        }
        let at = seen.1;
        let probes = |call: &Call| {
            let wanted = &call.wanted;
            call.waits
                && wanted.prompt
                && wanted.woken
                && wanted.host != host
                && wanted.keys.len() == 1
                && wanted.keys[0] == key
                && call.began < at
        };
        let mut calls = state.calls.iter();
        let (call, _) = calls.find(|(_, call)| now > at && probes(call))?;
        let seen = format!(
            "{key} on server {server}: {grant:?} of the stopped host {host}, while call {} waits; the first grant came at {at} ms",
            call.0
        );
        Some(("a stopped process delays others by one claim", seen))
    }

    /// Checks that a waiter is granted the lock only if its `wait` is not over.
    fn check_members(
        &self,
        state: &State,
        key: &str,
        server: ServerId,
        grant: &StoredGrant,
    ) -> Option<Broken> {
        let since = grant.since.filter(|_| state.set_back == 0)?;
        let mut owners = grant.owners.iter().enumerate();
        owners.find_map(|(number, owner)| {
            let (taken, command) = self.network.peek(server, |redis, _| redis.taken(owner))?;
            // The first owner can have been removed from the queue before, and can have asked for the lock again.
            let is_of_it = number > 0 || command == grant.command;
            (is_of_it && taken.ends <= since).then(|| {
                let seen = format!("{key} on server {server}: {taken:?} in {grant:?}");
                ("no waiter whose `wait` is over is granted the lock", seen)
            })
        })
    }

    /// Checks that a waiter whose session does not listen is granted no lock.
    fn check_listener(
        &self,
        state: &State,
        key: &str,
        server: ServerId,
        grant: &StoredGrant,
        now: u64,
    ) -> Option<Broken> {
        // The sessions of a killed process never listen again, and this concerns no other session.
        let are_crashes = self.plan.faults.iter().all(|fault| *fault == Fault::Crash);
        let is_calm = state.disturbed == 0
            || are_crashes
            || !state.in_fault && state.disturbed + SETTLED < now;
        let waited = state.keys.get(key)?.seen.get(&server)?;
        // When the callers begin no further calls, the comparisons pause.
        let has_paused = now > state.compared.0 + DEAF;
        if !is_calm || has_paused || !waited.waiters.contains(grant.owners.first()?) {
            return None;
        }
        let heard = *state.heard.get(&(server, grant.session.clone()))?;
        (heard + DEAF < now).then(|| {
            let seen = format!("{key} on server {server}, silent since {heard} ms: {grant:?}");
            ("a lock is granted only to a session that listens", seen)
        })
    }

    /// Checks that clients leave a primary whose successor all Sentinels have announced.
    fn check_primary(
        &self,
        state: &State,
        key: &str,
        server: ServerId,
        now: u64,
    ) -> Option<Broken> {
        let (replaced, since) = state.replaced?;
        let hears = |fault: &Fault| {
            !fault.concerns_messages()
                && !matches!(
                    fault,
                    Fault::SentinelsDown
                        | Fault::SentinelsStop
                        | Fault::SentinelErrs
                        | Fault::StopProcess
                        | Fault::ShutDown
                )
        };
        let is_certain = matches!(self.plan.store, Store::Group { .. })
            && replaced == server
            && self.plan.faults.iter().all(hears);
        (is_certain && since + ANNOUNCED < now).then(|| {
            let seen = format!("{key} on server {server}, replaced at {since} ms");
            ("clients leave a primary that is replaced", seen)
        })
    }

    /// Checks that a call that waits for further locks prolongs the leases of its locks only a little.
    fn check_prolonged(
        &self,
        state: &State,
        key: &str,
        server: ServerId,
        grant: &StoredGrant,
    ) -> Option<Broken> {
        let highest = state.keys.get(key)?.highest.map_or(0, |(token, _)| token);
        if self.plan.extras || state.disturbed > 0 || grant.tokens.start <= highest {
            return None;
        }
        let leases = self.plan.leases.iter().copied().chain([FUNCTION_LEASE]);
        let leases = leases.map(millis).filter(|lease| *lease <= grant.lease);
        let lease = leases.max()?;
        (grant.lease > lease + LONGER).then(|| {
            let seen = format!("{key} on server {server}: {grant:?}");
            ("a call that waits prolongs its leases little", seen)
        })
    }

    /// Checks that a call that does not queue is granted no lock while others wait for it in the queue.
    pub(super) fn check_overtaken(
        &self,
        state: &State,
        call: CallId,
        key: &str,
        token: u64,
    ) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        let ways = &self.plan.ways;
        let are_prompt = self.plan.slow == 0
            && ways.iter().all(|way| way.is_prompt())
            && self.plan.has_short_bodies();
        if this.wanted.queues || this.wanted.keys.len() > 1 || !are_prompt || state.disturbed > 0 {
            return None;
        }
        let (server, _) = self
            .grants(key)
            .into_iter()
            .find(|(_, grant)| grant.tokens.start == token)?;
        let seen = state.keys.get(key)?.seen.get(&server)?;
        if seen.token == Some(token) {
            return None; // the waiters may have come later
        }
        let (queue, now) = self.network.peek(server, |redis, ms| {
            Some((redis.queue(&self.plan.name_of(key), ms), ms))
        })?;
        let now = 1_000 * now.unsigned_abs();
        let mut waiters = queue.waiters.iter();
        // The server skips the waiters of a process whose holder has overrun its lease.
        let stays = |session: &String| !is_of_process(session, &seen.session);
        let waiter =
            waiters.find(|w| stays(&w.session) && seen.ahead.contains(&w.owner) && w.ends > now)?;
        let seen = format!("call {} enters {key} before {waiter:?}", call.0);
        Some(("a call outside the queue overtakes nobody", seen))
    }

    /// Checks that a majority of the nodes of a Redlock has given no higher token than that of a call that enters.
    pub(super) fn check_majority_tokens(
        &self,
        state: &State,
        call: CallId,
        key: &str,
        number: u64,
    ) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        let inside = state.keys.get(key)?.inside.get(&number)?;
        let token = inside.token;
        // The locks of a Redlock share one counter on each node.
        let is_certain = self.plan.keeps_majority()
            && self.plan.keys == 1
            && this.wanted.prompt
            && !inside.hold.remaining().is_zero();
        if !is_certain {
            return None;
        }
        let counted = |server: &ServerId| {
            let counter = |redis: &Redis, ms| redis.text(COUNTER, ms);
            let counter = self.network.peek(*server, counter);
            counter
                .and_then(|counter| counter.parse().ok())
                .unwrap_or(0)
        };
        let servers = self.plan.store.servers();
        let agree = (0..servers)
            .filter(|server| counted(server) <= token)
            .count();
        (2 * agree < servers).then(|| {
            let counters: Vec<u64> = (0..servers).map(|server| counted(&server)).collect();
            let seen = format!("{}, counters of the nodes: {counters:?}", inside.name(key));
            ("a majority of the nodes has given no higher token", seen)
        })
    }

    /// Checks that a shutdown ends the calls that wait for replicas.
    pub(super) fn check_replica_wait_ends(
        &self,
        state: &State,
        call: CallId,
        key: &str,
        now: u64,
    ) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        let since = *state.closing.get(&this.wanted.host)?;
        let is_certain = self.plan.replicas > 0
            && self
                .plan
                .faults
                .iter()
                .all(|fault| *fault == Fault::ShutDown)
            && this.wanted.prompt
            && this.wanted.keys.len() == 1;
        // A grant of which too little is left is confirmed afterwards.
        (is_certain && now > since + SHUTDOWN_SLACK + 4 * self.plan.delay).then(|| {
            let seen = format!(
                "call {} enters {key}, the shutdown began at {since} ms",
                call.0
            );
            ("a shutdown ends the calls that wait for replicas", seen)
        })
    }

    /// Checks that nobody enters with a grant that the server has lost, once each session has asked for its grants.
    pub(super) fn check_lost_grant(
        &self,
        state: &State,
        call: CallId,
        key: &str,
        number: u64,
        now: u64,
    ) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        let inside = state.keys.get(key)?.inside.get(&number)?;
        // In a cluster, a call that waits for replicas finally asks the server whether it still has the grant.
        let mut faults = self.plan.faults.iter();
        let asks_again = matches!(self.plan.store, Store::Cluster { .. })
            && self.plan.replicas > 0
            && faults.all(|fault| matches!(fault, Fault::Delete | Fault::Flush));
        let asked = match asks_again {
            true => LAST_ANSWER + 2 * self.plan.delay,
            false => ASKED + 8 * self.plan.delay,
        };
        let is_certain = this.wanted.prompt
            && this.wanted.keys.len() == 1
            && self.plan.store != Store::Redlock
            && (asks_again || self.plan.store.replicas() == 0)
            && state.set_back == 0
            && state.disturbed > 0
            && !state.in_fault
            && now > state.disturbed + asked
            && !state.is_stopped(inside.host)
            && !inside.hold.remaining().is_zero();
        // If the server has an earlier grant of the session, it describes this grant, and not the loss.
        let hides =
            |grant: &StoredGrant| !grant.session.is_empty() && grant.tokens.start < inside.token;
        let is_known = || {
            let mut grants = self.grants(key).into_iter();
            grants.any(|(_, grant)| grant.tokens.contains(&inside.token) || hides(&grant))
        };
        (is_certain && !is_known()).then(|| {
            let seen = format!("{} has no grant", inside.name(key));
            ("nobody enters with a lost grant", seen)
        })
    }
}

/// Returns whether two sessions belong to the same process: their ids begin with the same digits.
fn is_of_process(session: &str, other: &str) -> bool {
    session.get(..PROCESS_DIGITS) == other.get(..PROCESS_DIGITS)
}
