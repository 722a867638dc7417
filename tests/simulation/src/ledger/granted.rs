//! The checks of grants that are new: who is granted a lock, and who enters with which grant.

use super::{
    Ledger,
    servers::{Broken, LONGER, SETTLED},
    state::{CallId, State, millis},
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
/// The key of the counter of fencing tokens on a node of a Redlock.
const COUNTER: &str = "lock:fence";

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
        for (server, session) in sessions {
            let hears = |redis: &Redis, _| Some(redis.hears(&session));
            if self.network.peek(server, hears) == Some(true) {
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
        let broken = grants.iter().filter(is_new).find_map(|(server, grant)| {
            self.check_members(state, key, *server, grant)
                .or_else(|| self.check_listener(state, key, *server, grant, now))
                .or_else(|| self.check_prolonged(state, key, *server, grant))
                .or_else(|| self.check_primary(state, key, *server, now))
        });
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
            let (taken, by) = self.network.peek(server, |redis, _| redis.taken(owner))?;
            // The first owner can have been removed from the queue before, and can have asked for the lock again.
            let is_of_it = number > 0 || by == grant.by;
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
        let is_calm = state.disturbed == 0 || !state.in_fault && state.disturbed + SETTLED < now;
        let waited = state.keys.get(key)?.seen.get(&server)?;
        if !is_calm || !waited.waiters.contains(grant.owners.first()?) {
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
        // The server skips the waiters of a session whose holder has overrun its lease.
        let stays = |session: &String| *session != seen.session;
        let waiter =
            waiters.find(|w| stays(&w.session) && seen.ahead.contains(&w.owner) && w.ends > now)?;
        let seen = format!("call {} enters {key} before {waiter:?}", call.0);
        Some(("a call outside the queue overtakes nobody", seen))
    }

    /// Checks that a majority of the nodes of a Redlock has given no higher token than that of a call that enters.
    pub(super) fn check_agreed(
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
        let is_certain = this.wanted.prompt
            && this.wanted.keys.len() == 1
            && self.plan.store != Store::Redlock
            && self.plan.store.replicas() == 0
            && state.set_back == 0
            && state.disturbed > 0
            && !state.in_fault
            && now > state.disturbed + ASKED + 8 * self.plan.delay
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
