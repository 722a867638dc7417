//! The checks of grants that are new: who is granted a lock, and who enters with which grant.

use super::{
    Ledger,
    servers::{Broken, LONGER, SETTLED},
    state::{CallId, State, millis},
};
use crate::{
    callers::{FUNCTION_LEASE, Way},
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
        });
        let seen = &mut state.keys.get_mut(key)?.seen;
        for (server, queue) in queues {
            let owners: Vec<String> = queue.waiters.iter().map(|w| w.owner.clone()).collect();
            let mut grants = grants.iter().filter(|(its, _)| its == server);
            let seen = seen.entry(*server).or_default();
            seen.token = grants.next().map(|(_, grant)| grant.tokens.start);
            let stays = |owner: &&String| seen.waiters.contains(*owner);
            seen.ahead = owners.iter().filter(stays).cloned().collect();
            seen.waiters = owners;
        }
        broken
    }

    /// Checks that the `wait` of no member of a cohort was over when the server granted the lock.
    fn check_members(
        &self,
        state: &State,
        key: &str,
        server: ServerId,
        grant: &StoredGrant,
    ) -> Option<Broken> {
        let since = grant.since.filter(|_| state.set_back == 0)?;
        grant.owners.iter().skip(1).find_map(|owner| {
            let taken = self.network.peek(server, |redis, _| redis.taken(owner))?;
            (taken.ends <= since).then(|| {
                let seen = format!("{key} on server {server}: {taken:?} in {grant:?}");
                ("a grant has no member whose `wait` is over", seen)
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
        // The server removes the waiters of a session that does not take its turn, or whose holder overruns its lease.
        let stays = |way: &Way| way.is_prompt() && *way != Way::LeakedGuard;
        let are_prompt =
            self.plan.slow == 0 && self.plan.ways.iter().all(stays) && self.plan.has_short_bodies();
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
        let waiter = waiters.find(|w| seen.ahead.contains(&w.owner) && w.ends > now)?;
        let seen = format!("call {} enters {key} before {waiter:?}", call.0);
        Some(("a call outside the queue overtakes nobody", seen))
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
