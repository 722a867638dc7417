//! The checks of callers that wait for a lock that nobody holds.

use super::{
    CALM, CLAIM, LONE, Ledger,
    state::{Call, CallId, Inside, Key, State},
};

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
            // A call that waits for several keys may already hold this key.
            let keeps = |(id, call): (&CallId, &Call)| {
                call.waits
                    && call.wanted.keys.len() > 1
                    && call.wanted.keys.contains(key)
                    && !given_up.contains(id)
            };
            if this.inside.values().any(held) || state.calls.iter().any(keeps) {
                this.moved = now;
            }
        }
        for (key, this) in &state.keys {
            found.extend(self.lone_waiter(state, key, this, now));
            found.extend(forgotten_waiter(state, key, this, now));
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
            && state.disturbed + LONE < now;
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

/// Describes a caller that waits for this lock, if it is forgotten: callers that the server wakes enter soon.
fn forgotten_waiter(state: &State, key: &str, this: &Key, now: u64) -> Option<String> {
    let wants =
        |call: &Call| call.waits && call.wanted.keys.len() == 1 && call.wanted.keys[0] == *key;
    let patience = patience(state, wants);
    let quiet = match state.disturbed {
        0 => 0,
        disturbed => disturbed + state.longest_lease.max(CLAIM) + patience,
    };
    let stopped = state.stopped.map(|(host, _)| host);
    let (call, _) = state.calls.iter().find(|(_, call)| {
        wants(call)
            && call.wanted.prompt
            && call.wanted.woken
            && stopped != Some(call.wanted.host)
            && call.began.max(this.moved) + patience < now
            && quiet < now
    })?;
    Some(format!(
        "call {} waits for {key}, which nobody holds",
        call.0
    ))
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
    // Each other call can do so, too, before its turn passes on.
    let replicas = match state.replicated {
        true => 1_000 * state.calls.values().filter(|call| wants(call)).count() as u64,
        false => 0,
    };
    base + again + replicas + CLAIM * claims.sum::<u64>()
}
