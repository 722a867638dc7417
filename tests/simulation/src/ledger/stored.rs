//! The checks of what the servers store: the grants, and the queues.

use super::{
    Ledger,
    servers::Broken,
    state::{CallId, State, millis},
};
use crate::{
    plan::Store,
    redis::{Redis, StoredGrant, StoredQueue},
};

/// The longest time, in milliseconds, by which the stored time of a grant can be later than the server's time. The
/// client estimates the server's time, and errs by a handshake at most.
const ESTIMATED: u64 = 1_500;
/// The time, in milliseconds, within which a caller must confirm a grant that was sent to it.
const CLAIMED: u64 = 2_000;
/// The longest time, in milliseconds, by which a node of a Redlock may count again before the end of the grants that it
/// has lost: the clocks of the node and of the clients may differ.
const EARLY: u64 = 20;
/// The key of the mark that says whether a node of a Redlock has all of its state.
const MARK: &str = "lock:fence:whole";
/// The longest time, in milliseconds, by which a lock is taken beyond its minimum hold.
const RETAINED_LONGER: u64 = 300;

impl Ledger {
    /// Checks what the servers that grant locks store for one lock.
    pub(super) fn check_stored(
        &self,
        state: &State,
        key: &str,
        grants: &[(usize, StoredGrant)],
        queues: &[(usize, StoredQueue)],
        now: u64,
    ) -> Option<Broken> {
        let by_clock = self.check_clock(state, key, grants);
        by_clock
            .or_else(|| check_places(key, grants, queues))
            .or_else(|| self.check_distinct(state, key, queues))
            .or_else(|| self.check_retained_grant(state, key, grants, now))
    }

    /// Returns the queues of a lock on the servers that grant locks, with the numbers of these servers.
    pub(super) fn queues(&self, key: &str) -> Vec<(usize, StoredQueue)> {
        let name = self.plan.name_of(key);
        let read = |redis: &Redis, ms| redis.is_primary().then(|| redis.queue(&name, ms));
        let read = |server| {
            let queue = self.network.peek(server, read);
            Some((server, queue.filter(|_| !self.is_gone(server))?))
        };
        (0..self.plan.store.servers()).filter_map(read).collect()
    }

    /// Checks that the token of each grant is at least the time of the grant, where another server can replace the
    /// server.
    fn check_clock(
        &self,
        state: &State,
        key: &str,
        grants: &[(usize, StoredGrant)],
    ) -> Option<Broken> {
        let is_replaceable = matches!(self.plan.store, Store::Group { .. } | Store::Cluster { .. });
        if !is_replaceable || state.set_back > 0 {
            return None;
        }
        grants.iter().find_map(|(server, grant)| {
            let since = grant.since?;
            (grant.tokens.start + ESTIMATED * 1_000 < since).then(|| {
                let seen = format!("{key} on server {server}: {grant:?}");
                ("a token is at least the time of its grant", seen)
            })
        })
    }

    /// Checks that the callers of a batch have different places. Two callers of a session can have the same place if one
    /// of them has sent its own request, and both requests are repeated. After a clock was set back, each caller that is
    /// queued alone behind a place in the future gets the place after this one.
    fn check_distinct(
        &self,
        state: &State,
        key: &str,
        queues: &[(usize, StoredQueue)],
    ) -> Option<Broken> {
        if state.set_back > 0
            || self.plan.slow > 0
            || !self.plan.ways.iter().all(|way| way.is_prompt())
        {
            return None;
        }
        queues.iter().find_map(|(server, queue)| {
            let same = queue.waiters.windows(3).find(|waiters| {
                let first = (waiters[0].place, &waiters[0].session);
                waiters
                    .iter()
                    .all(|waiter| (waiter.place, &waiter.session) == first)
            })?;
            let seen = format!("{key} on server {server}: {same:?}");
            Some(("the callers of a batch have different places", seen))
        })
    }

    /// Checks that the quarantine of a node of a Redlock begins once after each loss of its state.
    pub(super) fn check_marks(&self, state: &mut State) -> Option<Broken> {
        if self.plan.store != Store::Redlock {
            return None;
        }
        (0..self.plan.store.servers()).find_map(|server| {
            let mark = |redis: &Redis, ms| redis.text(MARK, ms);
            let mark = self.network.peek(server, mark)?;
            let mut fields = mark.strip_prefix("lost|")?.split('|');
            let new = (fields.next()?.to_owned(), fields.next()?.to_owned());
            let (since, run) = new;
            let old = state.marks.insert((server, run.clone()), since.clone())?;
            (old != since).then(|| {
                let seen = format!("server {server}, run {run}: {old:?}, and then {since:?}");
                ("a quarantine begins once", seen)
            })
        })
    }

    /// Checks that a node of a Redlock that has lost its state counts again only after the grants that it has lost.
    pub(super) fn check_quarantine(&self, state: &State, now: u64) -> Option<Broken> {
        if self.plan.faults.iter().any(|fault| !fault.keeps_clocks()) || self.plan.drift > 400 {
            return None;
        }
        state.lost_until.iter().find_map(|(server, until)| {
            let mark = self
                .network
                .peek(*server, |redis: &Redis, ms| redis.text(MARK, ms))?;
            let is_early = mark.starts_with("whole|") && now + EARLY < *until;
            is_early.then(|| {
                let seen = format!("server {server}, {} ms before the end", until - now);
                ("a node counts again only after its lost grants", seen)
            })
        })
    }

    /// Checks that a lock that is only retained stays taken for little longer than the minimum hold.
    fn check_retained_grant(
        &self,
        state: &State,
        key: &str,
        grants: &[(usize, StoredGrant)],
        now: u64,
    ) -> Option<Broken> {
        let this = state.keys.get(key)?;
        let is_known = this.inside.is_empty()
            && now < this.closed
            && state.set_back == 0
            && state.disturbed == 0
            && self.plan.store != Store::Redlock;
        if !is_known {
            return None;
        }
        let longest = this.kept.max(this.retained - now) + RETAINED_LONGER;
        let (server, grant) = grants.iter().find(|(_, grant)| grant.left > longest)?;
        let until = this.retained;
        let seen = format!("{key} on server {server}, to be free at {until} ms: {grant:?}");
        Some((
            "a retained lock is taken little longer than its minimum hold",
            seen,
        ))
    }

    /// Checks that a grant that was sent to its caller lasts only for its claim until the caller confirms it. A caller
    /// that is polled at once has not confirmed the grant when its body begins.
    pub(super) fn check_claim(
        &self,
        state: &State,
        call: CallId,
        key: &str,
        token: u64,
        left: u64,
    ) -> Option<Broken> {
        let this = state.calls.get(&call)?;
        let is_plain = this.wanted.prompt
            && this.wanted.keys.len() == 1
            && millis(this.wanted.own_lease) > CLAIMED + 500
            && state.disturbed == 0
            && !state.replicated
            && self.plan.store.has_queue();
        if !is_plain || left > CLAIMED {
            return None;
        }
        // Only the first member of a cohort enters with the grant that was sent.
        let mut grants = self.grants(key).into_iter();
        let (server, grant) = grants.find(|(_, grant)| grant.tokens.start == token)?;
        (grant.left > CLAIMED + 10).then(|| {
            let seen = format!("call {} enters {key} on server {server}: {grant:?}", call.0);
            ("an unconfirmed grant lasts for a claim", seen)
        })
    }
}

/// Checks that no owner has a grant and a place in the queue at the same time.
fn check_places(
    key: &str,
    grants: &[(usize, StoredGrant)],
    queues: &[(usize, StoredQueue)],
) -> Option<Broken> {
    grants.iter().find_map(|(server, grant)| {
        let (_, queue) = queues.iter().find(|(its, _)| its == server)?;
        let twice = grant
            .owners
            .iter()
            .find(|owner| queue.waiters.iter().any(|waiter| waiter.owner == **owner))?;
        let seen = format!("{key} on server {server}: {twice} of {grant:?}");
        Some(("an owner with a grant has no place", seen))
    })
}
