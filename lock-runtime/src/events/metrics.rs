//! The metrics of the feature `metrics`, reported through the facade crate of the same name. Without the feature, the
//! functions of this module do nothing.

use std::{sync::Arc, time::Duration};

use lock_core::error::LossReason;

/// Whether the feature `metrics` is enabled.
pub(crate) const ENABLED: bool = cfg!(feature = "metrics");

/// The value of the label `kind` of every lock: `exclusive` is the only mode so far.
pub(crate) const EXCLUSIVE: &str = "exclusive";

const ACQUIRE: &str = "lock_acquire_seconds";
const HELD: &str = "lock_held_seconds";
const HANDOFF: &str = "lock_handoff_seconds";
const SCRIPT: &str = "lock_script_seconds";
const WAITING: &str = "lock_waiting";
const HOLDING: &str = "lock_holding";
const LEADER: &str = "lock_leader";
const TERMS: &str = "lock_leader_terms_total";
const LOST: &str = "lock_lost_total";
const LEASE_WARNINGS: &str = "lock_lease_warnings_total";
const RENEWALS: &str = "lock_renewals_total";
const MISSED_WAKEUPS: &str = "lock_wakeups_missed_total";
const RECONNECTS: &str = "lock_reconnects_total";
const CONNECTED: &str = "lock_connected";

/// Upper bounds of histogram buckets for the metrics whose names end in `_seconds`, from 0.1 ms to one minute.
#[cfg(feature = "metrics")]
pub const METRIC_BUCKETS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// Registers the units and the descriptions of all metrics with the installed recorder of the crate `metrics`, and
/// reports the counters without the label `name` with the value 0. Call this function after the recorder is installed.
/// Metrics are recorded even if this function is not called.
#[cfg(feature = "metrics")]
pub fn describe_metrics() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    let seconds = [
        (
            ACQUIRE,
            "The time of an acquisition, from its first poll to its outcome",
        ),
        (
            HELD,
            "The time from a grant until the last entry has left the hold",
        ),
        (
            HANDOFF,
            "The time from the offer of a lock to a waiter until the waiter has taken it",
        ),
        (SCRIPT, "The time from sending a script to its answer"),
    ];
    for (name, what) in seconds {
        describe_histogram!(name, Unit::Seconds, what);
    }
    describe_gauge!(WAITING, Unit::Count, "Calls that are acquiring their locks");
    describe_gauge!(
        HOLDING,
        Unit::Count,
        "Locks that are held, and not yet released"
    );
    describe_gauge!(LEADER, Unit::Count, "1 while this process leads");
    describe_gauge!(
        CONNECTED,
        Unit::Count,
        "1 while the client is connected to the lock server, 0 during an outage"
    );
    let counts = [
        (TERMS, "Terms in which this process led"),
        (LOST, "Leases that were lost while they were in use"),
        (
            LEASE_WARNINGS,
            "Bodies that have used 80 % of a fixed lease",
        ),
        (
            RENEWALS,
            "Answers to renewals, and renewals that had no answer within a second",
        ),
        (
            MISSED_WAKEUPS,
            "Grants that a probe found, because their message was lost or late",
        ),
        (RECONNECTS, "Connections that replaced a lost one"),
    ];
    for (name, what) in counts {
        describe_counter!(name, Unit::Count, what);
    }
    start_common();
}

/// The values of the label `reason` of [`LOST`].
const REASONS: [&str; 2] = ["expired", "not_held"];
/// The values of the label `outcome` of [`RENEWALS`].
const RENEWED: [&str; 2] = ["renewed", "failed"];

/// Reports the counters that have no name with the value 0. Prometheus computes no increase for a counter that first
/// appears with the value 1, so an alert would miss the first event.
pub(crate) fn start_common() {
    for counter in [MISSED_WAKEUPS, RECONNECTS] {
        add(counter, [], 0);
    }
}

/// Reports the counters of a name with the value 0, when the name is first acquired on this thread.
pub(crate) fn start(label: &'static str) {
    #[cfg(feature = "metrics")]
    {
        thread_local! {
            static STARTED: std::cell::RefCell<foldhash::HashSet<&'static str>> = std::cell::RefCell::default();
        }
        let is_first = STARTED.with_borrow_mut(|started| started.insert(label));
        if !is_first {
            return;
        }
    }
    add(LEASE_WARNINGS, [("name", label), ("kind", EXCLUSIVE)], 0);
    for reason in REASONS {
        let labels = [("name", label), ("kind", EXCLUSIVE), ("reason", reason)];
        add(LOST, labels, 0);
    }
    for outcome in RENEWED {
        let labels = [("name", label), ("kind", EXCLUSIVE), ("outcome", outcome)];
        add(RENEWALS, labels, 0);
    }
}

/// Records the time and the outcome of an acquisition.
pub(crate) fn acquisition(label: &'static str, outcome: &'static str, took: Duration) {
    let labels = [("name", label), ("kind", EXCLUSIVE), ("outcome", outcome)];
    seconds(ACQUIRE, labels, took);
}

/// Records how long a waiter needed to take a lock that was offered to it.
pub(crate) fn handoff(label: &'static str, time: Duration) {
    seconds(HANDOFF, [("name", label), ("kind", EXCLUSIVE)], time);
}

/// Changes the number of calls that are acquiring locks with this label.
pub(crate) fn waiting(label: &'static str, change: f64) {
    gauge(WAITING, [("name", label), ("kind", EXCLUSIVE)], change);
}

/// Changes the number of held locks with this label.
pub(crate) fn holding(label: &'static str, change: f64) {
    gauge(HOLDING, [("name", label), ("kind", EXCLUSIVE)], change);
}

/// Records that this process leads (`change` is 1), or leads no longer (-1).
pub(crate) fn leads(label: &'static str, change: f64) {
    gauge(LEADER, [("name", label)], change);
    add(TERMS, [("name", label)], u64::from(change > 0.0));
}

/// Records how long a lock was held. `loss` says why the lease was lost; `None` if the lock was released.
pub(crate) fn held(label: &'static str, loss: Option<LossReason>, time: Duration) {
    let outcome = if loss.is_some() { "lost" } else { "released" };
    let labels = [("name", label), ("kind", EXCLUSIVE), ("outcome", outcome)];
    seconds(HELD, labels, time);
}

/// Counts a lease that was lost while it was in use.
pub(crate) fn lost(label: &'static str, reason: LossReason) {
    let reason = match reason {
        LossReason::Expired => REASONS[0],
        LossReason::NotHeld => REASONS[1],
        _ => "other",
    };
    let labels = [("name", label), ("kind", EXCLUSIVE), ("reason", reason)];
    add(LOST, labels, 1);
}

/// Counts a body that has used most of its fixed lease.
pub(crate) fn lease_warning(label: &'static str) {
    add(LEASE_WARNINGS, [("name", label), ("kind", EXCLUSIVE)], 1);
}

/// Counts a renewal by its outcome.
pub(crate) fn renewal(label: &'static str, outcome: &'static str) {
    let labels = [("name", label), ("kind", EXCLUSIVE), ("outcome", outcome)];
    add(RENEWALS, labels, 1);
}

/// Counts a grant whose message did not reach the waiter.
pub(crate) fn missed_wakeup() {
    add(MISSED_WAKEUPS, [], 1);
}

/// Counts a connection that replaced a lost connection.
pub(crate) fn reconnect() {
    add(RECONNECTS, [], 1);
}

/// Records whether a client is connected to its server.
pub(crate) fn connected(server: &str, is_connected: bool) {
    #[cfg(feature = "metrics")]
    metrics::gauge!(CONNECTED, "server" => server.to_owned())
        .set(f64::from(u8::from(is_connected)));
    #[cfg(not(feature = "metrics"))]
    let _ = (CONNECTED, server, is_connected);
}

/// Records the time from sending a script to its answer.
pub(crate) fn script(name: &Arc<str>, took: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(SCRIPT, "script" => name.clone()).record(took);
    #[cfg(not(feature = "metrics"))]
    let _ = (SCRIPT, name, took);
}

#[cfg(feature = "metrics")]
fn labelled<const N: usize>(labels: [(&'static str, &'static str); N]) -> Vec<metrics::Label> {
    let labels = labels.iter();
    labels
        .map(|(key, value)| metrics::Label::from_static_parts(key, value))
        .collect()
}

#[cfg(feature = "metrics")]
fn seconds<const N: usize>(
    name: &'static str,
    labels: [(&'static str, &'static str); N],
    time: Duration,
) {
    metrics::histogram!(name, labelled(labels)).record(time);
}

#[cfg(feature = "metrics")]
fn gauge<const N: usize>(
    name: &'static str,
    labels: [(&'static str, &'static str); N],
    change: f64,
) {
    metrics::gauge!(name, labelled(labels)).increment(change);
}

#[cfg(feature = "metrics")]
fn add<const N: usize>(name: &'static str, labels: [(&'static str, &'static str); N], count: u64) {
    metrics::counter!(name, labelled(labels)).increment(count);
}

#[cfg(not(feature = "metrics"))]
fn seconds<const N: usize>(_: &'static str, _: [(&'static str, &'static str); N], _: Duration) {}

#[cfg(not(feature = "metrics"))]
fn gauge<const N: usize>(_: &'static str, _: [(&'static str, &'static str); N], _: f64) {}

#[cfg(not(feature = "metrics"))]
fn add<const N: usize>(_: &'static str, _: [(&'static str, &'static str); N], _: u64) {}
