//! The checks that the ledger makes when a call enters its body, leaves it or ends.

use std::time::Duration;

use lock_runtime::{BusyWith, LockError};

use super::{
    HANDOFF, TRY, WAIT_SLACK,
    servers::SETTLED,
    state::{CallId, State, millis},
};
use crate::{
    faults::Fault,
    plan::{Plan, Store},
};

/// The longest time, in milliseconds, from the end of a body until its call ends, in addition to the time for which a
/// call waits for the confirmation of its release.
const RETURNED: u64 = 300;
/// The longest time, in milliseconds, from the end of a body until its call ends, if the call does not wait for the
/// confirmation of its release.
const UNCONFIRMED: u64 = 10;
/// The longest time, in milliseconds, for which a call waits for its last answer over a far line: four round trips, each
/// of which counts as one second at most.
const FAR: u64 = 4_000;
/// The longest time, in milliseconds, from the moment at which a call leaves the queue until it has ended. A writer that
/// leaves lets the readers behind it enter.
const LEAVES: u64 = 50;
/// The longest time, in milliseconds, from the end of a minimum hold until a probe finds the lock.
const PROBED: u64 = 250;
/// The time, in milliseconds, that a call needs at most for its replicas.
const REPLICATED: u64 = 1_500;
/// The longest time, in milliseconds, from the end of a fault at one node of a Redlock until the client uses this node
/// again.
const FOUND: u64 = 1_500;
/// The longest time, in milliseconds, from the end of a fault until calls reach their server again.
const RECOVERED: u64 = 4_000;

impl State {
    /// Checks that a call that enters or ends now has not waited for too long.
    pub(super) fn check_wait(&self, call: CallId, now: u64) -> Option<(&'static str, String)> {
        let this = self.calls.get(&call).filter(|call| call.waits)?;
        let wait = this.wait();
        let took = now - this.began;
        // A line that has stalled looks like a far one.
        let slack = if self.disturbed == 0 { 0 } else { FAR } + WAIT_SLACK;
        let late = this.wanted.prompt && took > wait.max(TRY) + slack;
        late.then(|| {
            let seen = format!("call {} has waited {took} ms, of {wait}", call.0);
            ("wait bounds the acquisition", seen)
        })
    }

    /// Checks that a caller enters soon after its lock is free, in a run without faults. `since` is the time at which
    /// the previous holder left.
    pub(super) fn check_handoff(
        &self,
        call: CallId,
        since: u64,
        now: u64,
    ) -> Option<(&'static str, String)> {
        let this = self.calls.get(&call)?;
        // Up to 200 ms after the end of a minimum hold, a probe finds the lock.
        let retained = this.wanted.keys.iter().filter_map(|key| self.keys.get(key));
        let retained = retained.map(|key| key.retained + PROBED).max();
        let since = since.max(retained.filter(|at| *at > since).unwrap_or(0));
        let took = now.saturating_sub(since.max(this.began));
        let late = self.ordered && this.waits && took > HANDOFF;
        late.then(|| {
            let seen = format!(
                "call {} has entered {took} ms after the lock was free",
                call.0
            );
            ("a free lock is taken at once", seen)
        })
    }

    /// Checks that a caller that enters now has overtaken nobody: no caller that still waits for this lock began its
    /// call more than 100 ms earlier. Callers that are polled late, and callers whose `wait` is over, do not count. After a
    /// fault, the order holds for calls that begin when each session is connected again.
    pub(super) fn check_order(
        &self,
        call: CallId,
        key: &str,
        now: u64,
    ) -> Option<(&'static str, String)> {
        let this = self.calls.get(&call)?;
        let is_settled = !self.in_fault && this.began > self.disturbed + SETTLED;
        let is_ordered = self.ordered || self.ordered_again && is_settled;
        if !is_ordered || !this.waits {
            return None;
        }
        let before = self.calls.iter().find(|(_, other)| {
            let are_readers = this.wanted.reads && other.wanted.reads;
            other.waits
                && !are_readers
                && other.wanted.queues
                && other.wanted.prompt
                && other.wanted.keys.len() == 1
                && other.wanted.keys[0] == key
                && other.began + 100 < this.began
                && other.began + other.wait() > now + LEAVES
        });
        before.map(|(other, _)| {
            let seen = format!("call {} enters {key} before call {}", call.0, other.0);
            ("waiters enter in order", seen)
        })
    }

    /// Checks that no other caller enters before the end of a minimum hold, in a run without faults.
    pub(super) fn check_retained(
        &self,
        call: CallId,
        key: &str,
        now: u64,
    ) -> Option<(&'static str, String)> {
        let until = self.keys.get(key)?.closed;
        let early = self.disturbed == 0 && now < until;
        early.then(|| {
            let seen = format!("call {} enters {key} before {until} ms", call.0);
            ("a lock is retained for its minimum hold", seen)
        })
    }

    /// Checks that a body begins only if enough of its lease is left: two thirds, or a third on a Redlock, whose grant
    /// counts if half of the lease is left. At first, a grant that was sent to a waiter lasts only for its claim (2 s).
    pub(super) fn check_fresh(
        &self,
        call: CallId,
        key: &str,
        number: u64,
        now: u64,
        plan: &Plan,
    ) -> Option<(&'static str, String)> {
        let this = self.calls.get(&call)?;
        // A call with several keys that is polled late can read the confirmation of a lease late.
        let is_late = this.wanted.keys.len() > 1 && !this.wanted.prompt;
        if is_late && self.disturbed > 0 {
            return None;
        }
        let left = millis(self.keys.get(key)?.inside.get(&number)?.hold.remaining());
        // The lease counts from the sending of the request. Two thirds of the time that the answer finds are enough.
        let lease = millis(this.wanted.own_lease).min(2_000);
        let lease = lease.saturating_sub(3 * plan.delay);
        let needed = match plan.store {
            Store::Redlock => lease / 3,
            // A fault can delay the answer.
            _ if self.in_fault || self.disturbed > 0 && now < self.disturbed + lease => {
                return None;
            }
            _ if self.disturbed > 0 => lease / 3,
            _ if is_late => lease * 4 / 9,
            _ => lease * 2 / 3,
        };
        // The engine shortens each lease by the possible drift of the clocks.
        let is_stale = left > 0 && left + lease / 50 + 20 < needed;
        is_stale.then(|| {
            let seen = format!(
                "call {} enters {key} with {left} ms left of {lease}",
                call.0
            );
            ("a body begins with most of its lease", seen)
        })
    }

    /// Checks that a call ends soon after its body.
    pub(super) fn check_return(
        &self,
        call: CallId,
        now: u64,
        delay: u64,
    ) -> Option<(&'static str, String)> {
        let this = self.calls.get(&call).filter(|call| call.wanted.prompt)?;
        let took = now - this.left?;
        let longest = match self.disturbed {
            _ if !this.wanted.confirmed => UNCONFIRMED,
            0 => RETURNED + 4 * delay,
            _ => 1_000 + RETURNED,
        };
        (took > longest).then(|| {
            let seen = format!("call {} ends {took} ms after its body", call.0);
            ("a call ends soon after its body", seen)
        })
    }

    /// Checks that a call does not give up before the end of its `wait`, and that only expected errors occur in a run
    /// without faults.
    pub(super) fn check_error(
        &self,
        call: CallId,
        error: &LockError,
        now: u64,
        plan: &Plan,
    ) -> Option<(&'static str, String)> {
        let this = self.calls.get(&call)?;
        let (wait, took) = (this.wait(), now - this.asked);
        if this.is_finished {
            let seen = format!("call {}: {error}", call.0);
            return Some(("a body that has returned decides the result", seen));
        }
        if matches!(error, LockError::NoClient) {
            return Some(("a call knows its client", format!("call {}", call.0)));
        }
        if let LockError::Busy { held_by, with, .. } = error {
            // Beside readers, a script removes a caller whose `wait` is over as soon as it is at the front of the queue.
            let is_ordered = self.ordered
                && this.waits
                && this.wanted.queues
                && wait >= 500
                && plan.readers == 0;
            if let Some(held_by) = held_by
                && held_by.ahead.is_none()
                && *with != BusyWith::ThisProcess // a member of a cohort has no place
                && is_ordered
                && this.wanted.keys.len() == 1
                // A grant at the end of the `wait` removes a caller whose `wait` is over for the server.
                && held_by.holder.held_for.is_some_and(|held| millis(held) > 20 + 4 * plan.delay)
            {
                let seen = format!("call {}: {error}", call.0);
                return Some(("a call that waited in the queue knows its place", seen));
            }
            if this.is_certain_to_enter(plan) {
                let seen = format!("call {}: {error}", call.0);
                return Some(("a call that is polled each second enters", seen));
            }
            // The clock of the process can be too fast.
            let error = millis(plan.clock_error(this.wanted.wait)).max(wait / 1000);
            let early = this.waits && took + 3 + error < wait;
            return early.then(|| {
                let seen = format!("call {} gives up after {took} ms, of {wait}", call.0);
                ("a call waits for its whole `wait`", seen)
            });
        }
        if matches!(error, LockError::Refused { .. }) && !plan.faults.contains(&Fault::OutOfMemory)
        {
            let seen = format!("call {}: {error}", call.0);
            return Some(("only a lasting refusal ends a call", seen));
        }
        let is_long = |lease: &Duration| millis(*lease) >= 1_000.max(10 * plan.body);
        let are_long = plan.leases.iter().all(is_long);
        let is_expected = match error {
            // Replicas that lag little acknowledge each grant in time, unless the `wait` of the call ends first.
            LockError::NotReplicated { .. } => {
                let is_short = |lease: &Duration| millis(*lease) < 1_000;
                plan.replicas > 0
                    && (plan.lag > 20
                        || plan.leases.iter().any(is_short)
                        || took + REPLICATED > wait
                        // A call that is polled late can read the first answer when little time is left for the next.
                        || !this.wanted.prompt && took + plan.lag + 4 * plan.delay >= 1_000)
            }
            // A node has a tenth of the lease to answer.
            LockError::Unreachable { .. } => {
                let is_short = |lease: &Duration| millis(*lease) < 40 * plan.delay;
                plan.store == Store::Redlock && plan.leases.iter().any(is_short)
                    // A call that is polled late may read no answer in a short `wait`.
                    || !this.wanted.prompt && this.wait() < 500
                    // The first call on a runtime may have to connect first.
                    || self.disturbed == 0 && this.wait() < 10 * plan.delay
            }
            LockError::Lost { .. } => {
                let is_renewed = this.wanted.renewed && this.wanted.max_hold.is_none();
                !(this.wanted.prompt && (is_renewed || are_long && !this.is_long))
            }
            _ => false,
        };
        let has_majority = plan.keeps_majority()
            && now > self.disturbed + FOUND
            && wait >= 2 * TRY
            && this.wanted.prompt
            && !matches!(error, LockError::Lost { .. });
        let has_recovered = match self.disturbed {
            0 => true,
            _ if has_majority => true,
            disturbed => {
                let is_outage = matches!(
                    error,
                    LockError::Unreachable { .. } | LockError::Refused { .. }
                );
                // A node of a Redlock that has lost its state counts only after the longest lease and its extensions.
                let quarantine = match plan.store {
                    Store::Redlock => self.longest_lease.max(2_000) + 2_000 + self.set_back,
                    _ => 0,
                };
                // If a majority of the nodes loses its state, the nodes can wait for more than one lease.
                let are_known = plan.store != Store::Redlock || !plan.loses_state();
                are_known
                    && is_outage
                    && !self.in_fault
                    && this.asked > disturbed + quarantine + RECOVERED
            }
        };
        (has_recovered && !is_expected).then(|| {
            let seen = format!("call {}: {error}", call.0);
            ("calls fail only after faults", seen)
        })
    }
}
