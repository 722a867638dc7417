//! The ledger of a run of the simulation. The ledger records which callers wait for a lock, and which callers hold a
//! lock with which token, compares these records with the state of the servers, and detects broken promises.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lock_runtime::{Hold, LockError, ReleaseOutcome};

use crate::{
    history::History,
    network::{HostId, Network, ServerId},
    plan::Plan,
};

mod checks;
mod servers;

/// The longest time between a grant and the entry of its owner, in milliseconds: a claim and half a second.
const GRANTED_BEFORE: u64 = 2_500;
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

/// The name by which [`Ledger::disturb`] records that a fault has ended.
pub const OVER: &str = "over";

/// A promise that was broken during the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Milliseconds since the beginning of the run.
    pub at: u64,
    /// The name of the promise.
    pub promise: &'static str,
    /// The event that broke the promise.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ms: {}: {}", self.at, self.promise, self.seen)
    }
}

/// Counters of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of entries into bodies, without nested entries.
    pub entered: u64,
    /// The number of failed calls for each error.
    pub errors: BTreeMap<&'static str, u64>,
    /// The number of faults of each kind. The kind `over` counts the faults that have ended.
    pub faults: BTreeMap<&'static str, u64>,
    /// The number of calls made in each way.
    pub ways: BTreeMap<&'static str, u64>,
    /// The number of entries into a lock that still had another holder, whose grant a server had lost.
    pub excused: u64,
    /// The number of grants of which a waiter learned from a probe instead of a message.
    pub missed_wakeups: u64,
    /// The number of polls that were delayed.
    pub late_polls: u64,
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.entered += other.entered;
        self.missed_wakeups += other.missed_wakeups;
        self.excused += other.excused;
        self.late_polls += other.late_polls;
        for (mine, others) in [
            (&mut self.errors, &other.errors),
            (&mut self.faults, &other.faults),
            (&mut self.ways, &other.ways),
        ] {
            for (name, count) in others {
                *mine.entry(name).or_default() += count;
            }
        }
    }
}

/// The number of a call in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(u64);

/// The options of a call.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The host of the calling process.
    pub host: HostId,
    /// The name of the way in which the call uses its lock, such as "guard" or "function" (see `Way`).
    pub way: &'static str,
    /// The keys of the locks that the call takes.
    pub keys: Vec<String>,
    /// The `wait` of the call.
    pub wait: Duration,
    /// The longest lease that the call asks for, including its extensions and its nested entries.
    pub lease: Duration,
    /// The `lease` of the call.
    pub own_lease: Duration,
    /// Whether the lease of the call is renewed.
    pub renewed: bool,
    /// The time after which the lease of the call is no longer renewed. `None` if there is none.
    pub max_hold: Option<Duration>,
    /// The minimum hold of the call. Zero if there is none.
    pub at_least: Duration,
    /// Whether the engine runs the body of the call, and drops the body if the lease is lost.
    pub runs: bool,
    /// The number of entries that the body makes into its own lock. If the lock is lost, these entries can queue.
    pub entries: usize,
    /// Whether the call is polled whenever it is woken.
    pub prompt: bool,
    /// Whether the call waits in the queue.
    pub queues: bool,
    /// Whether the call is woken when its lock is free.
    pub woken: bool,
}

#[derive(Debug)]
struct Call {
    wanted: Wanted,
    /// The time at which the call began.
    asked: u64,
    /// The time at which the call began, plus the time for which its process was stopped since then.
    began: u64,
    /// Whether the call still waits, because it has not entered its body.
    waits: bool,
    /// Whether the call will never be polled again.
    is_forgotten: bool,
    /// The time at which the call last left a lock.
    left: Option<u64>,
    /// Whether the body of the call has returned.
    is_finished: bool,
}

impl Call {
    /// Returns the longest lease in milliseconds that the call asks for.
    fn lease(&self) -> u64 {
        millis(self.wanted.lease)
    }

    /// Returns the call's `wait` in milliseconds.
    fn wait(&self) -> u64 {
        millis(self.wanted.wait)
    }
}

#[derive(Debug)]
struct Inside {
    call: CallId,
    host: HostId,
    token: u64,
    entered: u64,
    hold: Hold,
    /// The time since which no server has the grant of this hold, although the client counts on it.
    unbacked: Option<u64>,
    /// The time since which the client knows that the hold is lost.
    lost: Option<u64>,
    /// The end of the lease, as the client last knew it.
    deadline: u64,
}

#[derive(Debug, Default)]
struct Key {
    inside: BTreeMap<u64, Inside>,
    /// The host of the latest holder, and the token of its hold.
    latest: Option<(HostId, u64)>,
    /// The highest token of the lock, and the time at which its holder entered.
    highest: Option<(u64, u64)>,
    /// The latest time at which a caller entered, left, or may have held the lock.
    moved: u64,
    /// For each server, the token of a grant under which no body runs, and the time at which the ledger first saw it.
    bodiless: BTreeMap<ServerId, (u64, u64)>,
    /// The time since which the queue has more entries than callers wait.
    surplus: Option<u64>,
    /// The end of the minimum hold of the last caller.
    retained: u64,
}

/// An event after which a grant that the ledger knows may be unknown to the server.
#[derive(Debug, Clone)]
struct Loss {
    /// The lock; `None` if the event concerns all locks.
    key: Option<String>,
    /// The time from which another caller may enter while the holder is still inside.
    from: u64,
    /// The time of the newest grant that may be lost.
    at: u64,
}

impl Loss {
    /// Returns whether a grant of this lock, whose holder entered at `entered`, may be lost at `now`.
    fn excuses(&self, key: &str, entered: u64, now: u64) -> bool {
        self.from <= now && self.concerns(key, entered)
    }

    /// Returns whether a grant of this lock, whose holder entered at `entered`, may be lost or may end early, now or
    /// later.
    fn concerns(&self, key: &str, entered: u64) -> bool {
        self.key.as_deref().is_none_or(|lost| lost == key)
            && self.at.saturating_add(GRANTED_BEFORE) >= entered
    }
}

#[derive(Default)]
struct State {
    next: u64,
    calls: BTreeMap<CallId, Call>,
    keys: BTreeMap<String, Key>,
    /// The events that end leases early or lose grants.
    losses: Vec<Loss>,
    /// The latest time until which a server that was replaced may have raised token counters that its successor lacks.
    counters_lost: Option<u64>,
    /// The total time by which the server's clock was set back.
    set_back: u64,
    /// The time at which a fault last began or ended.
    disturbed: u64,
    /// Whether a fault has begun and has not ended.
    in_fault: bool,
    counts: Counts,
    violations: Vec<Violation>,
    /// The longest lease in use, in milliseconds.
    longest_lease: u64,
    /// Whether callers have to enter in the order in which they began.
    ordered: bool,
    /// Whether calls wait for replicas before they enter.
    replicated: bool,
    /// The host of the stopped process, and the time at which the process was stopped.
    stopped: Option<(HostId, u64)>,
}

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
            left: None,
            is_finished: false,
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
        let Some(host) = state.calls.get(&call).map(|call| call.wanted.host) else {
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
            if other.hold.remaining().is_zero() || hold.remaining().is_zero() {
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
        if let Some((highest, at)) = this.highest
            && token <= highest
            // In two cases, an entry may have a lower token than the previous entry. First, the owner of a grant that
            // was given before a loss of state may enter after the owner of a later grant. Second, if a server has lost
            // its token counter and its clock was set back, the next tokens continue from a lower number.
            && !(has_set_back && counters_lost.is_some_and(|lost| lost >= at))
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
        this.latest = Some((host, token));
        let free_since = this.inside.is_empty().then_some(this.moved);
        this.moved = now;
        let inside = Inside {
            call,
            host,
            token,
            entered: now,
            hold,
            unbacked: None,
            lost: None,
            deadline: 0,
        };
        this.inside.insert(number, inside);
        state.losses = losses;
        state.counts.excused += excused;
        found.extend(state.check_wait(call, now));
        found.extend(state.check_order(call, &key, now));
        found.extend(free_since.and_then(|since| state.check_handoff(call, since, now)));
        found.extend(state.check_retained(call, &key, now));
        found.extend(state.check_fresh(call, &key, number, &self.plan));
        found.extend(self.check_hold(&mut state, &key, number, now));
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
        if let Some(this) = state.keys.get_mut(key) {
            this.moved = now;
            if let Some(inside) = this.inside.remove(&number) {
                if let Some(call) = state.calls.get_mut(&inside.call) {
                    call.left = Some(now);
                    if inside.hold.loss().is_none() {
                        this.retained = inside.entered + millis(call.wanted.at_least);
                    }
                }
                // A call that is polled late releases its lock only at its next poll.
                let call = state.calls.get(&inside.call);
                if call.is_some_and(|call| !call.wanted.prompt) {
                    this.moved = now + LATEST;
                }
                self.history.add(
                    || format!("host {}", inside.host),
                    || format!("call {} leaves {key}", inside.call.0),
                );
            }
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
        if let Some(error) = error {
            found.extend(state.check_error(call, error, now, &self.plan));
            if matches!(error, LockError::Busy { .. }) {
                found.extend(self.check_busy(&state, call, now));
            }
        }
        state.calls.remove(&call);
        drop(state);
        for (promise, seen) in found {
            self.violated(promise, seen);
        }
    }

    /// Records that a call was dropped.
    pub fn give_up(&self, call: CallId) {
        let mut state = self.state();
        if let Some(call) = state.calls.remove(&call) {
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

    /// Checks the outcome of a release: in a run without faults, a server confirms the release, or the lease is lost.
    pub fn released(&self, call: CallId, outcome: ReleaseOutcome) {
        let state = self.state();
        let is_prompt = state
            .calls
            .get(&call)
            .is_some_and(|call| call.wanted.prompt);
        let is_calm = state.disturbed == 0;
        drop(state);
        let is_expected = matches!(outcome, ReleaseOutcome::Released | ReleaseOutcome::Lost(_));
        if is_prompt && is_calm && !is_expected {
            let seen = format!("call {}: {outcome:?}", call.0);
            self.violated("a release is confirmed", seen);
        }
    }

    /// Records that the body of this call continues if its lease is lost.
    pub fn continues(&self, call: CallId) {
        if let Some(call) = self.state().calls.get_mut(&call) {
            call.wanted.runs = false;
        }
    }

    /// Returns the `lease` of this call, and whether it is renewed. Returns `None` if the call's process was killed.
    #[must_use]
    pub fn lease_of(&self, call: CallId) -> Option<(Duration, bool)> {
        let state = self.state();
        let wanted = &state.calls.get(&call)?.wanted;
        Some((wanted.own_lease, wanted.renewed))
    }

    /// Returns whether this call has begun and has not ended.
    #[must_use]
    pub fn knows(&self, call: CallId) -> bool {
        self.state().calls.contains_key(&call)
    }

    /// Records that a call will not be polled again but is not dropped.
    pub fn forget(&self, call: CallId) {
        if let Some(call) = self.state().calls.get_mut(&call) {
            call.is_forgotten = true;
        }
    }

    /// Records that a fault begins or ends now.
    pub fn disturb(&self, fault: &'static str) {
        let now = self.history.now();
        self.history.add(|| "world".into(), || fault.to_owned());
        let mut state = self.state();
        state.disturbed = now;
        state.in_fault = fault != OVER;
        *state.counts.faults.entry(fault).or_default() += 1;
    }

    /// Records that a process is stopped.
    pub fn stop(&self, host: HostId) {
        let now = self.history.now();
        self.state().stopped = Some((host, now));
    }

    /// Records that a process continues. The time for which the process was stopped does not count towards the `wait`
    /// of its calls.
    pub fn go_on(&self, host: HostId) {
        let now = self.history.now();
        let mut state = self.state();
        let since = state.stopped.take().map_or(now, |(_, since)| since);
        for call in state.calls.values_mut() {
            if call.wanted.host == host {
                call.began += now - since.max(call.began);
                call.left = None;
            }
        }
    }

    /// Records that the server has lost state.
    pub fn lose_state(&self) {
        let now = self.history.now();
        self.state().losses.push(Loss {
            key: None,
            from: now,
            at: now,
        });
    }

    /// Records that the server's clock is set ahead, so leases end early. The members of a cohort whose grant ends early
    /// can still enter, until the client learns that the grant has ended.
    pub fn set_ahead(&self) {
        let now = self.history.now();
        let mut state = self.state();
        let at = now + state.longest_lease;
        state.losses.push(Loss {
            key: None,
            from: now,
            at,
        });
    }

    /// Records that a promoted server lacks the grant of this lock, or that it has this grant only until `from`.
    pub fn lose_grant(&self, key: &str, from: u64) {
        let at = self.history.now();
        self.history.add(
            || "judge".into(),
            || format!("from {from} ms on, a second caller may hold {key}"),
        );
        self.state().losses.push(Loss {
            key: Some(key.to_owned()),
            from,
            at,
        });
    }

    /// Records that until now, a server may have raised token counters that its successor lacks.
    pub fn lose_counters(&self) {
        let now = self.history.now();
        self.state().counters_lost = Some(now);
    }

    /// Records that from now on, two servers grant the same locks.
    pub fn split(&self) {
        let now = self.history.now();
        self.state().losses.push(Loss {
            key: None,
            from: now,
            at: u64::MAX,
        });
    }

    /// Records that from now on, only one server grants each lock.
    pub fn reunite(&self) {
        let now = self.history.now();
        for loss in &mut self.state().losses {
            loss.at = loss.at.min(now);
        }
    }

    /// Records that the server's clock is set back.
    pub fn set_back(&self, by: Duration) {
        self.state().set_back += millis(by);
    }

    /// Returns the total time by which the server's clock was set back.
    #[must_use]
    pub fn was_set_back(&self) -> Duration {
        Duration::from_millis(self.state().set_back)
    }

    /// Records that a process has crashed, and removes its calls.
    pub fn crash(&self, host: HostId) {
        let mut state = self.state();
        state.calls.retain(|_, call| call.wanted.host != host);
        for key in state.keys.values_mut() {
            key.inside.retain(|_, inside| inside.host != host);
        }
    }

    /// Records a violation for each lock that nobody holds although a caller has waited for it too long.
    pub fn look(&self) {
        let now = self.history.now();
        let mut found = Vec::new();
        let mut guard = self.state();
        let state = &mut *guard;
        let stopped = state.stopped.map(|(host, _)| host);
        for (key, this) in &mut state.keys {
            let held = |inside: &Inside| !inside.hold.remaining().is_zero();
            if this.inside.values().any(held) {
                this.moved = now;
                continue;
            }
            // A call that waits for several keys may already hold this key.
            let keeps = |call: &Call| {
                call.waits && call.wanted.keys.len() > 1 && call.wanted.keys.contains(key)
            };
            if state.calls.values().any(keeps) {
                this.moved = now;
                continue;
            }
            let wants = |call: &&Call| {
                call.waits && call.wanted.keys.len() == 1 && call.wanted.keys[0] == *key
            };
            // A call that is polled late can take its turn at the end of a claim, and begin its body at the end of
            // another one.
            let claims = state.calls.values().filter(wants).map(|call| {
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
            let patience = base + again + CLAIM * claims.sum::<u64>();
            let quiet = match state.disturbed {
                0 => 0,
                disturbed => disturbed + state.longest_lease.max(CLAIM) + patience,
            };
            // In a run without faults, the only waiter takes a free lock, whatever its strategy is.
            let mut waiting = state
                .calls
                .iter()
                .filter(|(_, call)| call.waits && call.wanted.keys.contains(key));
            if let (Some((id, only)), None) = (waiting.next(), waiting.next())
                && only.wanted.prompt
                && state.disturbed == 0
                && !state.replicated
                && only.wait() > 0
                && only.began.max(this.moved) + LONE + 4 * self.plan.delay < now
                && only.began + only.wait() > now
                && self.is_free(key)
            {
                found.push(format!(
                    "call {} is the only one that waits for {key}",
                    id.0
                ));
            }
            let forgotten = state.calls.iter().find(|(_, call)| {
                wants(call)
                    && call.wanted.prompt
                    && call.wanted.woken
                    && stopped != Some(call.wanted.host)
                    && call.began.max(this.moved) + patience < now
                    && quiet < now
            });
            if let Some((call, _)) = forgotten {
                found.push(format!(
                    "call {} waits for {key}, which nobody holds",
                    call.0
                ));
            }
        }
        drop(guard);
        for seen in found {
            self.violated("no waiter is forgotten beside a free lock", seen);
        }
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

impl State {
    /// Records that the call may have held each of its locks until now.
    fn held_until_now(&mut self, call: CallId, now: u64) {
        let keys = self.calls.get(&call).map(|call| call.wanted.keys.clone());
        for key in keys.unwrap_or_default() {
            self.keys.entry(key).or_default().moved = now;
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn name_of(error: &LockError) -> &'static str {
    match error {
        LockError::Busy { .. } => "busy",
        LockError::Lost { .. } => "lost",
        LockError::Unreachable { .. } => "unreachable",
        LockError::Refused { .. } => "refused",
        LockError::WrongLayout { .. } => "wrong layout",
        LockError::ShutDown => "shut down",
        LockError::NotReplicated { .. } => "not replicated",
        _ => "other",
    }
}
