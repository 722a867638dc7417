//! The records of the ledger: calls, holds, locks, losses and counters.

use std::{collections::BTreeMap, fmt, time::Duration};

use lock_runtime::{Hold, LockError};

use super::GRANTED_BEFORE;
use crate::{
    network::{HostId, ServerId},
    plan::Plan,
    redis::ConnectionId,
};

/// The longest time, in milliseconds, from the end of a `wait` until the engine has given up a call that is not polled:
/// two claims, and the delays of messages.
const GIVEN_UP: u64 = 5_000;

/// The longest pause, in milliseconds, between two polls of a call that is certain to enter.
const LONGEST_PAUSE: u64 = 900;
/// The time, in milliseconds, by which the lease of such a call must be longer than the pause.
const LEASE_MARGIN: u64 = 50;
/// The `wait`, in milliseconds, that such a call needs.
const MANY_POLLS: u64 = 4_000;

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
    /// The number of entries into bodies, not counting nested entries.
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
pub struct CallId(pub(super) u64);

/// The options of a call.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The host of the calling process.
    pub host: HostId,
    /// The number of the runtime on which the call begins.
    pub runtime: u32,
    /// The name of the way in which the call uses its lock, such as "guard" or "function" (see `Way`).
    pub way: &'static str,
    /// The keys of the locks that the call takes.
    pub keys: Vec<String>,
    /// Whether the call can take several locks, even if it names only one key.
    pub is_multi: bool,
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
    /// Whether the call reads, or takes permits.
    pub reads: bool,
    /// The number of permits that the call takes.
    pub permits: u32,
    /// Whether the engine runs the body of the call, and drops the body if the lease is lost.
    pub runs: bool,
    /// The number of entries that the body makes into its own lock. If the lock is lost, these entries can queue.
    pub entries: usize,
    /// Whether the call is polled whenever it is woken.
    pub prompt: bool,
    /// Whether the caller polls the call without delay at first, and later stops polling it.
    pub forgets: bool,
    /// The length of the pause before each poll of the call, in milliseconds. `None` if the call is polled without delay
    /// or after pauses of different lengths.
    pub pause: Option<u64>,
    /// Whether the call waits in the queue.
    pub queues: bool,
    /// Whether the call is woken when its lock is free.
    pub woken: bool,
    /// Whether the call waits for the confirmation of its release.
    pub confirmed: bool,
}

impl Wanted {
    /// Returns whether the caller delays its polls. Returns false for a call that is polled without delay and then
    /// forgotten.
    pub(super) fn is_late(&self) -> bool {
        !self.prompt && !self.forgets
    }
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) wanted: Wanted,
    /// The time at which the call began.
    pub(super) asked: u64,
    /// The time at which the call began, plus the time for which its process was stopped since then.
    pub(super) began: u64,
    /// Whether the call still waits, which means that it has not entered its body.
    pub(super) waits: bool,
    /// Whether the call will never be polled again.
    pub(super) is_forgotten: bool,
    /// The time at which the call was last polled, if it will never be polled again.
    pub(super) forgotten_at: u64,
    /// The time at which the call last left a lock.
    pub(super) left: Option<u64>,
    /// The token of the hold that the call left without a loss.
    pub(super) token: Option<u64>,
    /// Whether a caller with a later grant was inside the lock when the call left it.
    pub(super) is_overtaken: bool,
    /// Whether the body of the call has returned.
    pub(super) is_finished: bool,
    /// Whether the body of the call can outlast a lease that is not renewed.
    pub(super) is_long: bool,
}

impl Call {
    /// Returns the longest lease that the call asks for, in milliseconds.
    pub(super) fn lease(&self) -> u64 {
        millis(self.wanted.lease)
    }

    /// Returns the call's `wait` in milliseconds.
    pub(super) fn wait(&self) -> u64 {
        millis(self.wanted.wait)
    }

    /// Returns whether nobody else wants the lock, and the call is polled so often that it enters.
    pub(super) fn is_certain_to_enter(&self, plan: &Plan) -> bool {
        let is_alone = plan.processes == 1 && plan.tasks == 1 && plan.faults.is_empty();
        let lease = millis(self.wanted.own_lease);
        let is_polled = |pause| pause <= LONGEST_PAUSE && pause + LEASE_MARGIN < lease;
        is_alone
            && self.wanted.pause.is_some_and(is_polled)
            && self.wanted.keys.len() == 1
            && self.wait() >= MANY_POLLS
            && plan.store.has_queue()
            && plan.replicas == 0
            && plan.delay <= 2
    }
}

#[derive(Debug)]
pub(super) struct Inside {
    pub(super) call: CallId,
    pub(super) reads: bool,
    pub(super) permits: u32,
    pub(super) host: HostId,
    pub(super) token: u64,
    pub(super) entered: u64,
    pub(super) hold: Hold,
    /// The time since which no server has the grant of this hold, although the client counts on it.
    pub(super) unbacked: Option<u64>,
    /// The time since which the client knows that the hold is lost.
    pub(super) lost: Option<u64>,
    /// The end of the lease, as the client last knew it.
    pub(super) deadline: u64,
    /// The server that granted the lock. `None` for a Redlock.
    pub(super) server: Option<ServerId>,
    /// The time at which another call of the same process entered with a newer grant.
    pub(super) replaced: Option<u64>,
}

impl Inside {
    /// Describes this hold of the lock `key`.
    pub(super) fn name(&self, key: &str) -> String {
        format!("call {} with token {} of {key}", self.call.0, self.token)
    }
}

#[derive(Debug, Default)]
pub(super) struct Key {
    pub(super) inside: BTreeMap<u64, Inside>,
    /// The host of the latest holder, and the token of its hold.
    pub(super) latest: Option<(HostId, u64)>,
    /// The end of the latest holder's lease, as the client last knew it. Set when the body ends.
    pub(super) latest_end: Option<u64>,
    /// The highest token of the lock, and the time at which its holder entered.
    pub(super) highest: Option<(u64, u64)>,
    /// The same for the writers.
    pub(super) highest_writer: Option<(u64, u64)>,
    /// The latest time at which a caller entered, left, or may have held the lock.
    pub(super) moved: u64,
    /// For each server, the token of a grant under which no body runs, and the time at which the ledger first saw it.
    pub(super) bodiless: BTreeMap<ServerId, (u64, u64)>,
    /// The latest comparison at which a call for the lock was not polled after each wake-up, and the latest one at which
    /// such a call was polled late.
    pub(super) not_prompt: u64,
    pub(super) late: u64,
    /// The time since which the queue has more entries than callers wait.
    pub(super) surplus: Option<u64>,
    /// A call that has waited since this time for a grant that lasts longer than its lease.
    pub(super) overlong_since: Option<(CallId, u64)>,
    /// The latest call that misses its turns, and the number of turns that it has missed.
    pub(super) missed: Option<Missed>,
    /// The end of the minimum hold of the last caller.
    pub(super) retained: u64,
    /// The longest lease of the last caller.
    pub(super) kept: u64,
    /// The time before which no other caller may enter, because of this minimum hold.
    pub(super) closed: u64,
    /// The token of the last hold whose body has ended, and the time at which the body ended. `None` if its call is
    /// polled late, or if the lock is retained.
    pub(super) released: Option<(u64, u64)>,
    /// The grant and the queue of the lock on each server, at the last comparison.
    pub(super) seen: BTreeMap<ServerId, Seen>,
    /// The latest time at which a call ended that may have had the lock and has not entered. Zero if there was none.
    pub(super) withdrawn: u64,
    /// The latest comparison at which a call outside the lock wanted it.
    pub(super) contended: u64,
    /// The latest time at which a server had a grant of the lock.
    pub(super) taken: u64,
    /// The first comparison since then at which no server had a grant. `None` if there was none.
    pub(super) seen_free: Option<u64>,
}

/// The turns that a call has missed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missed {
    pub(super) call: CallId,
    /// The number of turns that lasted long.
    pub(super) turns: u32,
    /// The token of the last of these turns.
    pub(super) token: u64,
}

/// The grant and the queue of a lock on one server, at the last comparison.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The first token of the grant.
    pub(super) token: Option<u64>,
    /// The first comparison that saw this token.
    pub(super) changed: u64,
    /// The session of the last grant that a comparison saw.
    pub(super) session: String,
    /// The owners in the queue.
    pub(super) waiters: Vec<String>,
    /// The owners that were in the queue at the comparison before, too.
    pub(super) ahead: Vec<String>,
    /// The command that stored the grant, the time for which the grant was last extended, and how often each extension
    /// was a little shorter than the one before.
    pub(super) extended: Option<(u64, u64)>,
    pub(super) shorter: u32,
}

/// An event after which a grant that the ledger knows may be unknown to the server.
#[derive(Debug, Clone)]
pub(super) struct Loss {
    /// The lock; `None` if the event concerns all locks.
    pub(super) key: Option<String>,
    /// The time from which another caller may enter while the holder is still inside.
    pub(super) from: u64,
    /// The time of the newest grant that may be lost.
    pub(super) at: u64,
}

impl Loss {
    /// Returns whether a grant of this lock, whose holder entered at `entered`, may be lost at `now`.
    pub(super) fn excuses(&self, key: &str, entered: u64, now: u64) -> bool {
        self.from <= now && self.concerns(key, entered)
    }

    /// Returns whether a grant of this lock, whose holder entered at `entered`, may be lost or may end early, now or
    /// later.
    pub(super) fn concerns(&self, key: &str, entered: u64) -> bool {
        self.key.as_deref().is_none_or(|lost| lost == key)
            && self.at.saturating_add(GRANTED_BEFORE) >= entered
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) next: u64,
    pub(super) calls: BTreeMap<CallId, Call>,
    pub(super) keys: BTreeMap<String, Key>,
    /// The holds that were released lately, each with the time of its release.
    pub(super) released: Vec<(u64, Hold)>,
    /// The events that end leases early or lose grants.
    pub(super) losses: Vec<Loss>,
    /// The latest time at which a server that was replaced later may have raised token counters whose increments its
    /// successor lacks.
    pub(super) counters_lost: Option<u64>,
    /// The total time by which the server's clock was set back.
    pub(super) set_back: u64,
    /// The time at which a fault last began or ended. Zero before the first fault.
    pub(super) disturbed: u64,
    /// Whether a fault has begun and has not ended.
    pub(super) in_fault: bool,
    pub(super) counts: Counts,
    pub(super) violations: Vec<Violation>,
    /// The longest lease in use, in milliseconds.
    pub(super) longest_lease: u64,
    /// The times of the last two comparisons with the servers.
    pub(super) compared: (u64, u64),
    /// Whether callers have to enter in the order in which they began.
    pub(super) ordered: bool,
    /// Whether new callers have to enter in the order in which they begin once the effects of a fault are over.
    pub(super) ordered_again: bool,
    /// Whether calls wait for replicas before they enter.
    pub(super) replicated: bool,
    /// For each node of a Redlock and each run of its server, the time at which a client noticed that the node had lost its
    /// state, as the newest mark says.
    pub(super) marks: BTreeMap<(ServerId, String), String>,
    /// For each node of a Redlock that has lost its state: when the last of the lost grants ends.
    pub(super) lost_until: BTreeMap<ServerId, u64>,
    /// For each session that waits in a queue of a server, the last time at which the session listened at this server.
    pub(super) heard: BTreeMap<(ServerId, String), u64>,
    /// For each session that has listened at a server, the host of its process.
    pub(super) hosts: BTreeMap<String, HostId>,
    /// For each call that was seen in a queue as the only call of its process, the place at which it was first seen, in µs
    /// of the server's clock.
    pub(super) places: BTreeMap<CallId, u64>,
    /// For each lock and each host that has more waiting callers than entries in the queue, the time since then.
    pub(super) absent: BTreeMap<(String, HostId), u64>,
    /// For each session that waits in a queue of a server, the connection over which it listens there.
    pub(super) listeners: BTreeMap<(ServerId, String), ConnectionId>,
    /// For each server that was stopped, the latest time at which it continued. The maximum while the server is stopped.
    pub(super) silent: BTreeMap<ServerId, u64>,
    /// The host that is cut off from its only server (`None` if this is true of all hosts), and the time since then.
    pub(super) cut_off: Option<(Option<HostId>, u64)>,
    /// For each lock, the time at which a process was stopped, and the comparison that saw the first grant to it since then.
    pub(super) granted_while_stopped: BTreeMap<String, (u64, u64)>,
    /// The time from the end of the fault before until the last fault began. The maximum if there was no fault before.
    pub(super) calm: u64,
    /// The times at which the shutdowns of the hosts' clients began.
    pub(super) closing: BTreeMap<HostId, u64>,
    /// A primary that runs although all Sentinels have announced its successor, and the time of the last announcement.
    pub(super) replaced: Option<(ServerId, u64)>,
    /// The host of the stopped process, and the time at which the process was stopped.
    pub(super) stopped: Option<(HostId, u64)>,
}

impl State {
    /// Returns whether an event may have ended this hold, or shortened its lease.
    pub(super) fn may_lose(&self, key: &str, inside: &Inside) -> bool {
        let mut losses = self.losses.iter();
        losses.any(|loss| loss.concerns(key, inside.entered))
    }

    /// Returns whether the engine has given this call up by now, because the call is not polled and its `wait` is over.
    pub(super) fn has_given_up(&self, call: &Call, now: u64) -> bool {
        call.is_forgotten
            && call.waits
            && call.began + call.wait() + GIVEN_UP < now
            && !self.is_stopped(call.wanted.host)
    }

    pub(super) fn is_stopped(&self, host: HostId) -> bool {
        self.stopped.is_some_and(|(stopped, _)| stopped == host)
    }

    /// Records that the call ends without having entered, and may have had each of its locks.
    pub(super) fn withdraw(&mut self, keys: &[String], now: u64) {
        for key in keys {
            self.keys.entry(key.clone()).or_default().withdrawn = now;
        }
    }

    /// Records that the call may have held each of its locks until now.
    pub(super) fn held_until_now(&mut self, call: CallId, now: u64) {
        let keys = self.calls.get(&call).map(|call| call.wanted.keys.clone());
        for key in keys.unwrap_or_default() {
            self.keys.entry(key).or_default().moved = now;
        }
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn name_of(error: &LockError) -> &'static str {
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
