//! The ledger of a run of the simulation. The ledger records which callers wait for a lock, and which callers hold a
//! lock with which token, compares these records with the state of the servers, and detects broken promises.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lock_runtime::{Hold, LockError, ReleaseOutcome};

use crate::{
    history::History,
    network::Network,
    plan::{Plan, Store},
};

mod bodiless;
mod checks;
mod faults;
mod granted;
mod kept;
mod servers;
mod state;
mod stored;
mod waiters;

use servers::RECONNECTED;
use state::{Call, Inside, State, millis, name_of};
pub use state::{CallId, Counts, Violation, Wanted};

/// The longest time between a grant and the entry of its owner, in milliseconds: a claim and half a second.
const GRANTED_BEFORE: u64 = 2_500;
/// The time, in milliseconds, by which a minimum hold can end earlier than the ledger expects if its call is polled late.
/// The minimum hold counts from the grant, and such a call enters some time after the grant.
const GRANTED_LATE: u64 = 300;
/// The longest time by which a call that is polled without delay may exceed its `wait`, in milliseconds: 200 ms to
/// leave the queue, and 500 ms for the delays of messages.
const WAIT_SLACK: u64 = 700;
/// The longest time that a single attempt waits for its answer, in milliseconds.
const TRY: u64 = 1_000;
/// The longest time, in milliseconds, from the moment at which a lock is free until a caller that waits for it enters,
/// in a run without faults, in which each message takes at most 10 ms. A probe may find the lock only after 200 ms.
const HANDOFF: u64 = 150;
/// The longest time, in milliseconds, for which nobody is inside although callers wait, before the first fault, and if
/// all waiting callers are polled without delay. `hold_at_least` retains a lock for up to 800 ms. A probe may find the
/// lock only after 200 ms, and the messages may take 80 ms.
const CALM: u64 = 1_500;
/// The longest time, in milliseconds, for which a lock is free although a single caller waits for it, in a run without
/// faults: the longest pause between two tries (128 ms) or between two probes (200 ms), the time until a connection is
/// made, and the time for which a node of a Redlock may answer.
const LONE: u64 = 1_000;
/// The longest pause before a late poll, in milliseconds.
const LATEST: u64 = 4_000;
/// The longest time, in milliseconds, until an offer that is not taken passes to the next waiter, or until a probe
/// finds a grant whose message was lost.
const CLAIM: u64 = 2_300;

/// The time, in milliseconds, for which the ledger watches a released hold beyond the end of its lease.
const LOST_LATER: u64 = 1_000;

/// The name by which [`Ledger::disturb`] records that a fault has ended.
pub const OVER: &str = "over";

/// The ledger of one run. All clones share one ledger.
#[derive(Clone)]
pub struct Ledger {
    state: Arc<Mutex<State>>,
    history: History,
    network: Network,
    plan: Arc<Plan>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

/// A caller inside its body. When this value is dropped, the ledger records that the caller leaves.
#[derive(Debug)]
pub struct Presence {
    ledger: Ledger,
    key: String,
    number: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.ledger.leave(&self.key, self.number);
    }
}

impl Ledger {
    /// Creates an empty ledger.
    #[must_use]
    pub fn new(history: History, network: Network, plan: &Arc<Plan>) -> Self {
        let state = State {
            longest_lease: millis(plan.longest_lease()),
            ordered: plan.is_ordered(),
            ordered_again: plan.is_ordered_again(),
            replicated: plan.replicas > 0,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            history,
            network,
            plan: plan.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a broken promise.
    pub fn violated(&self, promise: &'static str, seen: String) {
        let at = self.history.now();
        self.history
            .add(|| "judge".into(), || format!("{promise}: {seen}"));
        self.state()
            .violations
            .push(Violation { at, promise, seen });
    }

    /// Adds `count` grants of which a process learned only from probes.
    pub fn missed_wakeups(&self, count: u64) {
        self.state().counts.missed_wakeups += count;
    }

    /// Records that a poll is delayed.
    pub fn polled_late(&self) {
        self.state().counts.late_polls += 1;
    }

    /// Records that a call begins.
    pub fn begin(&self, wanted: Wanted) -> CallId {
        let began = self.history.now();
        let mut state = self.state();
        let call = CallId(state.next);
        state.next += 1;
        *state.counts.ways.entry(wanted.way).or_default() += 1;
        for key in &wanted.keys {
            state.keys.entry(key.clone()).or_default();
        }
        self.history.add(
            || format!("host {}", wanted.host),
            || {
                let Wanted {
                    way, keys, wait, ..
                } = &wanted;
                format!("call {} begins: {way} {keys:?}, wait {wait:?}", call.0)
            },
        );
        let wanted = Call {
            wanted,
            asked: began,
            began,
            waits: true,
            is_forgotten: false,
            forgotten_at: 0,
            left: None,
            token: None,
            is_overtaken: false,
            is_finished: false,
            is_long: false,
        };
        state.calls.insert(call, wanted);
        call
    }

    /// Records that a call has entered its body with this hold.
    #[must_use]
    pub fn enter(&self, call: CallId, hold: Hold) -> Presence {
        let now = self.history.now();
        let key = hold.key().to_string();
        let token = hold.token().get();
        let mut found = Vec::new();
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let wanted = state.calls.get(&call).map(|call| &call.wanted);
        let wanted = wanted.map(|wanted| (wanted.host, wanted.reads, wanted.permits));
        let Some((host, reads, permits)) = wanted else {
            // The call belongs to a process that was killed.
            return Presence {
                ledger: self.clone(),
                key,
                number,
            };
        };
        self.history.add(
            || format!("host {host}"),
            || format!("call {} enters {key} with token {token}", call.0),
        );
        state.counts.entered += 1;
        let losses = std::mem::take(&mut state.losses);
        let (longest_lease, has_set_back) = (state.longest_lease, state.set_back > 0);
        let counters_lost = state.counters_lost;
        let mut excused = 0;
        let this = state.keys.entry(key.clone()).or_default();
        for other in this.inside.values() {
            // After a clock was set back, two primaries may give the same token, and the engine then takes each of the
            // two grants for the other.
            let is_repeated = has_set_back && counters_lost.is_some() && other.token == token;
            let lost = is_repeated
                || losses
                    .iter()
                    .any(|loss| loss.excuses(&key, other.entered, now));
            let are_readers = reads && other.reads;
            if are_readers || other.hold.remaining().is_zero() || hold.remaining().is_zero() {
                continue;
            }
            if lost {
                excused += 1;
            } else {
                found.push((
                    "two holds never overlap",
                    format!(
                        "call {} of host {host} enters {key} with token {token} beside call {} of host {}, token {}, which has {:?} left",
                        call.0, other.call.0, other.host, other.token, other.hold.remaining()
                    ),
                ));
            }
        }
        if let Some(of) = self.plan.permits
            && !hold.remaining().is_zero()
        {
            let lost = |other: &Inside| {
                let mut losses = losses.iter();
                losses.any(|loss| loss.excuses(&key, other.entered, now))
            };
            let others = this.inside.values();
            let others = others.filter(|other| !other.hold.remaining().is_zero() && !lost(other));
            let taken = permits + others.map(|other| other.permits).sum::<u32>();
            if taken > of {
                let seen = format!("call {} makes it {taken} of {of} of {key}", call.0);
                found.push(("no more permits are taken than there are", seen));
            }
        }
        // The tokens of readers rise in the order of their grants, and not in the order in which they enter.
        let before = if reads {
            this.highest_writer
        } else {
            this.highest
        };
        if let Some((highest, at)) = before
            && token <= highest
            // In two cases, an entry may have a lower token than the previous entry. First, the owner of a grant that
            // was given before a loss of state may enter after the owner of a later grant. Second, if a server has lost
            // its token counter and its clock was set back, the next tokens continue from a lower number.
            && !(has_set_back
                && counters_lost.is_some_and(|lost| lost + GRANTED_BEFORE + longest_lease >= at))
            && !losses.iter().any(|loss| {
                let is_of_it = loss.key.as_ref().is_none_or(|lost| *lost == key);
                let until = loss.at.saturating_add(GRANTED_BEFORE + longest_lease);
                is_of_it && (loss.from.min(loss.at) <= at && until >= at || has_set_back && loss.at >= at)
            })
        {
            found.push((
                "tokens rise",
                format!("{key} with token {token} after {highest}"),
            ));
        }
        this.highest = this.highest.max(Some((token, now)));
        if !reads {
            this.highest_writer = this.highest_writer.max(Some((token, now)));
        }
        this.latest = Some((host, token));
        this.latest_end = None;
        let free_since = this.inside.is_empty().then_some(this.moved);
        this.moved = now;
        let inside = Inside {
            call,
            reads,
            permits,
            host,
            token,
            entered: now,
            hold,
            unbacked: None,
            lost: None,
            deadline: 0,
            server: self.server_of(&key, token),
            replaced: None,
        };
        let older = |other: &&mut Inside| {
            other.host == host && other.token < token && !(reads && other.reads)
        };
        for other in this.inside.values_mut().filter(older) {
            other.replaced = other.replaced.or(Some(now));
        }
        this.inside.insert(number, inside);
        state.losses = losses;
        state.counts.excused += excused;
        found.extend(state.check_wait(call, now));
        found.extend(state.check_order(call, &key, now));
        found.extend(free_since.and_then(|since| state.check_handoff(call, since, now)));
        found.extend(state.check_fresh(call, &key, number, now, &self.plan));
        if self.plan.readers == 0 {
            found.extend(state.check_retained(call, &key, now));
            found.extend(self.check_replicated(&state, call, &key, token));
            let left = state.keys[&key].inside.get(&number);
            let left = left.map_or(0, |inside| millis(inside.hold.remaining()));
            found.extend(self.check_claim(&state, call, &key, token, left));
            found.extend(self.check_overtaken(&state, call, &key, token));
            found.extend(self.check_lost_grant(&state, call, &key, number, now));
            found.extend(self.check_majority_tokens(&state, call, &key, number));
            found.extend(self.check_replica_wait_ends(&state, call, &key, now));
            found.extend(self.check_hold(&mut state, &key, number, now));
        }
        if let Some(call) = state.calls.get_mut(&call) {
            call.waits = false;
        }
        drop(state);
        for (promise, seen) in found {
            self.violated(promise, seen);
        }
        Presence {
            ledger: self.clone(),
            key,
            number,
        }
    }

    fn leave(&self, key: &str, number: u64) {
        let now = self.history.now();
        let mut guard = self.state();
        let state = &mut *guard;
        let lost = match self.plan.readers {
            0 => self.check_cause(state, key, number),
            _ => None,
        };
        if let Some(this) = state.keys.get_mut(key) {
            this.moved = now;
            this.released = None;
            if let Some(inside) = this.inside.remove(&number) {
                // If an extension is under way when a lease is lost, its grant is given back afterwards.
                let latest = Some((inside.host, inside.token));
                if inside.hold.loss().is_some() && this.latest == latest {
                    this.latest = None;
                }
                this.latest_end = Some(now + millis(inside.hold.remaining()));
                if let Some(call) = state.calls.get_mut(&inside.call) {
                    call.left = Some(now);
                    let mut others = this.inside.values();
                    // If a server whose clock was set back loses its state, a later grant can have a lower token. A
                    // process that has lost its connection learns only over the next one that the server has lost a
                    // grant. Until then, it passes the turn on in memory.
                    call.is_overtaken = others.any(|other| {
                        !(inside.reads && other.reads)
                            && other.token > inside.token
                            && other.entered > inside.entered
                            && other.entered + RECONNECTED < now
                    });
                    if inside.hold.loss().is_none() {
                        call.token = Some(inside.token);
                        let before = if inside.reads { this.retained } else { 0 };
                        let retained = inside.entered + millis(call.wanted.at_least);
                        this.retained = before.max(retained);
                        this.kept = millis(call.wanted.lease);
                        // The minimum hold counts from the grant.
                        let grant = match call.wanted.prompt {
                            // On a Redlock, the rounds of several callers can delay each other.
                            true if self.plan.store == Store::Redlock => 50 + 8 * self.plan.delay,
                            true => 20 + 4 * self.plan.delay,
                            false => GRANTED_LATE,
                        };
                        let error = millis(self.plan.clock_error(call.wanted.at_least));
                        this.closed = this.retained.saturating_sub(grant + error);
                    }
                }
                // A call that is polled late releases its lock only at its next poll.
                let call = state.calls.get(&inside.call);
                if call.is_some_and(|call| !call.wanted.prompt) {
                    this.moved = now + LATEST;
                }
                let releases = |call: &Call| {
                    call.wanted.prompt
                        && call.wanted.keys.len() == 1
                        && call.wanted.at_least.is_zero()
                };
                // A lease that has ended on the server ends without a message.
                if inside.hold.loss().is_none() && call.is_some_and(releases) {
                    this.released = Some((inside.token, now));
                }
                self.history.add(
                    || format!("host {}", inside.host),
                    || format!("call {} leaves {key}", inside.call.0),
                );
            }
        }
        drop(guard);
        if let Some((promise, seen)) = lost {
            self.violated(promise, seen);
        }
    }

    /// Records that a call has ended with this result.
    pub fn end(&self, call: CallId, error: Option<&LockError>) {
        let now = self.history.now();
        let mut state = self.state();
        let Some(host) = state.calls.get(&call).map(|call| call.wanted.host) else {
            return; // the process was killed
        };
        self.history.add(
            || format!("host {host}"),
            || match error {
                Some(error) => format!("call {} ends: {error}", call.0),
                None => format!("call {} ends", call.0),
            },
        );
        if let Some(error) = error {
            *state.counts.errors.entry(name_of(error)).or_default() += 1;
            // The call held its locks while it waited for the replicas. A call that was polled too late to read their
            // answers fails as if the lock were busy.
            let was_late = state.replicated && !state.calls[&call].wanted.prompt;
            if was_late || matches!(error, LockError::NotReplicated { .. }) {
                state.held_until_now(call, now);
            }
        }
        let mut found: Vec<_> = state.check_wait(call, now).into_iter().collect();
        found.extend(state.check_return(call, now, self.plan.delay));
        if error.is_none() && self.plan.readers == 0 {
            found.extend(self.check_confirmed(&state, call));
        }
        if let Some(error) = error {
            found.extend(state.check_error(call, error, now, &self.plan));
            if matches!(error, LockError::Busy { .. }) && self.plan.readers == 0 {
                found.extend(self.check_busy(&state, call, now));
            }
        }
        if let Some(ended) = state.calls.remove(&call)
            && ended.waits
            && ended.wanted.keys.len() > 1
        {
            state.withdraw(&ended.wanted.keys, now);
        }
        drop(state);
        for (promise, seen) in found {
            self.violated(promise, seen);
        }
    }

    /// Records that a runtime of this host has ended, and with it the calls that were made on it, except those that callers
    /// have forgotten.
    pub fn end_runtime(&self, host: crate::network::HostId, runtime: u32) {
        let ended: Vec<CallId> = {
            let state = self.state();
            let of_runtime = |call: &Call| {
                let wanted = &call.wanted;
                wanted.host == host && wanted.runtime == runtime && !call.is_forgotten
            };
            let calls = state.calls.iter();
            calls
                .filter(|(_, call)| of_runtime(call))
                .map(|(id, _)| *id)
                .collect()
        };
        for call in ended {
            self.give_up(call);
        }
    }

    /// Records that a call was dropped.
    pub fn give_up(&self, call: CallId) {
        let mut state = self.state();
        if let Some(call) = state.calls.remove(&call) {
            if call.waits {
                state.withdraw(&call.wanted.keys, self.history.now());
            }
            self.history.add(
                || format!("host {}", call.wanted.host),
                || format!("gives up a call of {:?}", call.wanted.keys),
            );
        }
    }

    /// Records that the body of this call returns now.
    pub fn finish(&self, call: CallId) {
        if let Some(call) = self.state().calls.get_mut(&call) {
            call.is_finished = true;
        }
    }

    /// Checks the outcome of a release. In a run without faults, a server confirms the release, or the lease is lost. On a
    /// single server, the grant of a call is gone once a caller with a later grant is inside for some time.
    pub fn released(&self, call: CallId, outcome: ReleaseOutcome) {
        let state = self.state();
        let is_single = matches!(self.plan.store, Store::Redis | Store::Redisson);
        let is_overtaken = state.calls.get(&call).is_some_and(|call| call.is_overtaken);
        let is_prompt = state
            .calls
            .get(&call)
            .is_some_and(|call| call.wanted.prompt);
        let is_calm = state.disturbed == 0;
        drop(state);
        if is_single && is_overtaken && outcome == ReleaseOutcome::Released {
            let seen = format!("call {}", call.0);
            self.violated("a release does not claim a grant that was gone", seen);
        }
        let is_expected = matches!(outcome, ReleaseOutcome::Released | ReleaseOutcome::Lost(_));
        if is_prompt && is_calm && !is_expected {
            let seen = format!("call {}: {outcome:?}", call.0);
            self.violated("a release is confirmed", seen);
        }
    }

    /// Records that this hold was released. From now on, the hold must not report a loss.
    pub fn keep_released(&self, hold: Hold) {
        let at = self.history.now();
        if hold.loss().is_none() {
            self.state().released.push((at, hold));
        }
    }

    /// Stops watching released holds. A hold keeps its client.
    pub fn forget_released(&self) {
        let released = std::mem::take(&mut self.state().released);
        drop(released);
    }

    /// Returns a violation if a hold reports a loss after its release.
    fn check_after_release(&self, state: &mut State, now: u64) -> Option<(&'static str, String)> {
        let kept = state.longest_lease.max(CLAIM) + LOST_LATER;
        state.released.retain(|(at, _)| at + kept > now);
        let (at, lost) = state
            .released
            .iter()
            .find(|(_, hold)| hold.loss().is_some())?;
        let seen = format!(
            "{} with token {}, released at {at} ms: {:?}",
            lost.key(),
            lost.token(),
            lost.loss()
        );
        Some(("a hold is not lost after its release", seen))
    }

    /// Returns whether a fault has happened.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.state().disturbed > 0
    }

    /// Records that the body of this call continues if its lease is lost.
    pub fn continues(&self, call: CallId) {
        if let Some(call) = self.state().calls.get_mut(&call) {
            call.wanted.runs = false;
        }
    }

    /// Records that the release of this call is no longer polled, so the call ends before its release is confirmed.
    pub fn forget_release(&self, call: CallId) {
        if let Some(call) = self.state().calls.get_mut(&call) {
            call.wanted.confirmed = false;
        }
    }

    /// Records that the body of this call can outlast a lease that is not renewed.
    pub fn lasts_long(&self, call: CallId) {
        if let Some(call) = self.state().calls.get_mut(&call) {
            call.is_long = true;
        }
    }

    /// Returns the `lease` of this call, and whether it can become longer: because it is renewed, or because another reader
    /// of the same grant extends it. Returns `None` if the call's process was killed.
    #[must_use]
    pub fn lease_of(&self, call: CallId) -> Option<(Duration, bool)> {
        let state = self.state();
        let wanted = &state.calls.get(&call)?.wanted;
        Some((wanted.own_lease, wanted.renewed || wanted.reads))
    }

    /// Returns whether this call has begun and has not ended.
    #[must_use]
    pub fn knows(&self, call: CallId) -> bool {
        self.state().calls.contains_key(&call)
    }

    /// Records that a call will not be polled again but is not dropped. Returns whether the call waits.
    #[must_use]
    pub fn forget(&self, call: CallId) -> bool {
        let now = self.history.now();
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(&call) else {
            return false;
        };
        call.is_forgotten = true;
        call.forgotten_at = now;
        call.waits
    }

    /// Returns the calls that have not ended, except those that are never polled again.
    #[must_use]
    pub fn unended(&self) -> Vec<String> {
        let state = self.state();
        let calls = state.calls.iter().filter(|(_, call)| !call.is_forgotten);
        calls
            .map(|(id, call)| {
                format!(
                    "call {} of host {}: {:?}",
                    id.0, call.wanted.host, call.wanted
                )
            })
            .collect()
    }

    /// Returns the counts and the violations.
    #[must_use]
    pub fn results(&self) -> (Counts, Vec<Violation>) {
        let state = self.state();
        (state.counts.clone(), state.violations.clone())
    }

    /// Returns the number of bodies that have started.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.state().counts.entered
    }

    /// Returns whether a promise was broken.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        !self.state().violations.is_empty()
    }
}
