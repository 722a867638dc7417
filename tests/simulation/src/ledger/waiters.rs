//! The checks of callers that wait for a lock that nobody holds, or that fail although nobody holds it.

use super::{
    CALM, CLAIM, LONE, Ledger,
    servers::{Broken, CLAIM_TIME, CONNECTED, SETTLED},
    state::{Call, CallId, Inside, Key, State, millis},
};
use crate::plan::Store;

/// The longest time, in milliseconds, for which no server has a grant of a lock although a caller waits for it.
const FREE: u64 = 100;
/// The same for a caller outside the queue, and after a minimum hold. A caller outside the queue pauses for up to 128 ms
/// between two tries or, with `notify`, for up to 200 ms if the lease of the holder ends without a release.
const FREE_FOR_TRIES: u64 = 250;
/// The same for a caller of a Redlock. Its rounds and those of other callers can delay each other, but each round
/// leaves grants for the time of a message and its answer.
const FREE_FOR_ROUNDS: u64 = 600;
/// The time, in milliseconds, for which a caller that is not polled can delay other callers outside the queue, each time
/// the lock is free: the time for which a turn is offered, and the pause of the other callers.
const UNPOLLED_DELAY: u64 = 300;
/// The time, in milliseconds, that a call needs for the two rounds of messages to the nodes of a Redlock, in addition to
/// the delays of messages.
const ROUNDS: u64 = 20;
/// The time, in milliseconds, for which a lock is free at the end of a `wait` if the call certainly takes the lock, in
/// addition to the delays of messages.
const LAST_TRY: u64 = 5;
/// The pauses of a call that is polled often, in milliseconds, are shorter than this.
const FREQUENT_POLL: u64 = 1_000;
/// The time, in milliseconds, for which the last answer to a call that is polled late can be older than the pause
/// before its last poll.
const TOLD_LATE: u64 = 150;

impl Ledger {
    /// Records a violation for each lock that nobody holds although a caller has waited for it too long.
    pub fn look(&self) {
        let now = self.history.now();
        let mut found = Vec::new();
        let mut guard = self.state();
        let state = &mut *guard;
        let calls = state.calls.iter();
        let given_up = calls.filter(|(_, call)| state.has_given_up(call, now));
        let given_up: Vec<CallId> = given_up.map(|(id, _)| *id).collect();
        for (key, this) in &mut state.keys {
            let held = |inside: &Inside| !inside.hold.remaining().is_zero();
            // A call that waits for several keys may already hold this key. A call whose pauses are longer than a claim
            // misses each of its turns, and returns to its old place until its wait is over.
            let keeps = |(id, call): (&CallId, &Call)| {
                let misses_all = call.wanted.pause.is_some_and(|pause| pause >= CLAIM);
                call.waits
                    && (call.wanted.keys.len() > 1 || misses_all)
                    && call.wanted.keys.contains(key)
                    && !given_up.contains(id)
            };
            if this.inside.values().any(held) || state.calls.iter().any(keeps) {
                this.moved = now;
            }
        }
        for (key, this) in &state.keys {
            found.extend(self.lone_waiter(state, key, this, now));
            found.extend(self.forgotten_waiter(state, key, this, now));
        }
        let lost = self.check_after_release(state, now);
        drop(guard);
        if let Some((promise, seen)) = lost {
            self.violated(promise, seen);
        }
        for seen in found {
            self.violated("no waiter is forgotten beside a free lock", seen);
        }
    }

    /// Checks that callers who wait for a lock take it soon after the servers have no grant of it.
    pub(super) fn check_free(
        &self,
        state: &mut State,
        key: &str,
        is_taken: bool,
        now: u64,
    ) -> Option<Broken> {
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
        // A caller outside the queue that is not polled loses its turn.
        let has_no_turn = |call: &Call| {
            call.is_forgotten
                && !call.wanted.queues
                && call.wanted.keys.len() == 1
                && call.wait() > 0
                && call.forgotten_at + CLAIM < now
                && self.plan.store != Store::Redlock
                && !state.is_stopped(call.wanted.host)
        };
        let all = state.calls.values();
        let unpolled = all.filter(|call| is_of(call) && has_no_turn(call)).count() as u64;
        let mut waiting = state.calls.iter().filter(|(_, call)| {
            is_of(call) && !state.has_given_up(call, now) && !has_no_turn(call)
        });
        let is_plain = |call: &Call| {
            call.wanted.prompt && call.wanted.keys.len() == 1 && !state.is_stopped(call.wanted.host)
        };
        // A session that has probed the lock before it was retained does not know when the minimum hold ends.
        let was_retained = retained + FREE_FOR_TRIES + 4 * self.plan.delay >= now;
        let are_plain = waiting.clone().all(|(_, call)| is_plain(call));
        let (id, _) = waiting.find(|(_, call)| {
            // A release wakes the callers with `notify`.
            let is_told = call.wanted.woken
                && released > 0
                && since <= released + FREE / 2 + 4 * self.plan.delay;
            let free = match self.plan.store {
                Store::Redlock => FREE_FOR_ROUNDS,
                _ if (call.wanted.queues || is_told) && !was_retained => FREE,
                _ => FREE_FOR_TRIES,
            };
            let from = since.max(call.began);
            let until = from + free + unpolled * UNPOLLED_DELAY + 4 * self.plan.delay;
            call.wait() > 0 && until < now && call.began + call.wait() > now
        })?;
        are_plain.then(|| {
            let seen = format!("call {} waits for {key}, free since {since} ms", id.0);
            ("a waiter takes a free lock", seen)
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
        // The answer to the last try of a call that is polled late is as old as the pause before the poll. A call whose
        // lease ends before its second poll can miss its turn, and then needs another poll for its last try.
        let lease = millis(this.wanted.own_lease);
        let late = match this.wanted.pause {
            _ if this.wanted.prompt => Some(0),
            Some(pause)
                if pause < FREQUENT_POLL
                    && 2 * pause + TOLD_LATE < lease
                    && state.disturbed == 0 =>
            {
                Some(pause + TOLD_LATE)
            }
            _ => None,
        };
        let is_free = this.waits
            && late.is_some()
            && this.wait() >= 500
            && is_settled
            && !state.in_fault
            && state.set_back == 0
            && !state.replicated
            && self.plan.store != Store::Redlock
            && since + LAST_TRY + 4 * self.plan.delay + late.unwrap_or(0) < now
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

    /// Describes a caller that waits for this lock, if it is forgotten: callers that the server wakes enter soon.
    fn forgotten_waiter(&self, state: &State, key: &str, this: &Key, now: u64) -> Option<String> {
        let wants =
            |call: &Call| call.waits && call.wanted.keys.len() == 1 && call.wanted.keys[0] == *key;
        // Readers that have queued together share the longest of their leases, also one whose guard is leaked.
        let shared = match self.plan.readers {
            0 => 0,
            _ => state.longest_lease,
        };
        let patience = patience(state, wants) + shared;
        let quiet = match state.disturbed {
            0 => 0,
            disturbed => disturbed + state.longest_lease.max(CLAIM) + patience,
        };
        // While the keys of a slot move slowly, the servers refuse the requests for its locks.
        let is_moving = self.plan.slow_moves && state.in_fault;
        let stopped = state.stopped.map(|(host, _)| host);
        let (call, _) = state.calls.iter().find(|(_, call)| {
            wants(call)
                && call.wanted.prompt
                && call.wanted.woken
                && stopped != Some(call.wanted.host)
                && call.began.max(this.moved) + patience < now
                && quiet < now
                && !is_moving
        })?;
        Some(format!(
            "call {} waits for {key}, which nobody holds",
            call.0
        ))
    }

    /// Describes the only caller that waits for this lock, if it should have taken the lock by now, in a run without
    /// faults. The strategy of the caller does not matter.
    fn lone_waiter(&self, state: &State, key: &str, this: &Key, now: u64) -> Option<String> {
        let mut waiting = state
            .calls
            .iter()
            .filter(|(_, call)| call.waits && call.wanted.keys.iter().any(|its| its == key))
            .filter(|(_, call)| !state.has_given_up(call, now));
        let (id, only) = waiting.next()?;
        let has_majority = self.plan.keeps_majority()
            && !state.is_stopped(only.wanted.host)
            && state.disturbed + LONE < now
            // A body begins only with two thirds of its lease. The two rounds of messages to the nodes must be shorter than
            // the other third.
            && millis(only.wanted.lease) > 3 * (4 * self.plan.delay + ROUNDS);
        let is_late = waiting.next().is_none()
            && only.wanted.prompt
            && (state.disturbed == 0 || has_majority)
            && !state.replicated
            && only.wait() > 0
            && only.began.max(this.moved) + LONE + 4 * self.plan.delay < now
            && only.began + only.wait() > now
            && self.is_obtainable(key);
        is_late.then(|| format!("call {} is the only one that waits for {key}", id.0))
    }
}

/// Returns the longest time, in milliseconds, for which nobody is inside a lock although callers wait for it.
fn patience(state: &State, wants: impl Fn(&Call) -> bool) -> u64 {
    // A call that is polled late can take its turn just before one claim ends, and begin its body just before a second
    // claim ends.
    let claims = state.calls.values().filter(|call| wants(call)).map(|call| {
        match (call.wanted.prompt, call.is_forgotten) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    });
    // A call that waits for replicas can hold the lock for a second, and then give it back.
    let base = if state.disturbed == 0 && !state.replicated {
        CALM
    } else {
        1_000 + CLAIM
    };
    // After a clock was set back, a grant lasts for its lease from the first try of a caller.
    let again = if state.set_back > 0 {
        state.longest_lease
    } else {
        0
    };
    // Each waiting call can hold the lock for a second while it waits for its replicas, and then give it back.
    let replicas = match state.replicated {
        true => 1_000 * state.calls.values().filter(|call| wants(call)).count() as u64,
        false => 0,
    };
    base + again + replicas + CLAIM * claims.sum::<u64>()
}
