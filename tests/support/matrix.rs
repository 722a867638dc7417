//! The fault matrix: its rows, and the times that a run has measured for them.

use std::{collections::BTreeMap, fmt::Write as _, fs, io::Write as _, time::Duration};

use crate::{epsilon, slowness};

/// The environment variable that sets how often each scenario runs. The default is once.
pub const RUNS_VARIABLE: &str = "FAULT_RUNS";
/// The environment variable that names the folder into which [`row`] writes the measured times. If the variable is not
/// set, [`row`] writes no file.
pub const SEEN_VARIABLE: &str = "FAULTS_SEEN";

/// A fault, and the promise that holds for it.
#[derive(Debug)]
pub struct Row {
    /// The number of the row.
    pub number: u8,
    /// The fault.
    pub fault: &'static str,
    /// The promise that holds if the fault happens.
    pub expected: &'static str,
}

/// The rows of the matrix. L stands for the length of the lease.
pub const ROWS: &[Row] = &[
    row_of(
        1,
        "the holder is killed while callers with other leases wait",
        "the next caller enters when the holder's lease has ended; tokens rise",
    ),
    row_of(
        2,
        "the holder is stopped for longer than L, and continued",
        "other callers enter in the meantime, with higher tokens; the holder is notified at its next `.await`",
    ),
    row_of(
        3,
        "the holder's machine is suspended for longer than L",
        "the holder is notified at its next `.await`, because deadlines use a clock that includes the time of the suspension",
    ),
    row_of(
        4,
        "the holder's runtime is blocked for 10 L",
        "a lock with a renewed lease stays held; the lease is renewed after each third of L",
    ),
    row_of(
        5,
        "a body hangs, and `max_hold` is set",
        "the lock is free after `max_hold` + L at the latest",
    ),
    row_of(
        6,
        "a body panics",
        "a single release frees the lock at once",
    ),
    row_of(
        7,
        "a body's future is dropped at each of its awaits",
        "the lock is released at once",
    ),
    row_of(
        8,
        "5,000 calls are dropped at random instants",
        "no key and no queue entry is left",
    ),
    row_of(
        9,
        "the reply with a grant, or a place, is lost together with its connection, or the repeated request is long under way",
        "the retry gets the same grant, or the old place",
    ),
    row_of(
        10,
        "a request reaches the server after its caller has given up",
        "nobody is granted the lock",
    ),
    row_of(
        11,
        "the reply to a release is lost, and the release is sent again",
        "the next holder keeps its grant",
    ),
    row_of(
        12,
        "a release arrives after the lease has ended",
        "the next holder keeps its grant, and the late holder is notified of its loss",
    ),
    row_of(
        13,
        "a connection is half open",
        "no lock counts as held after its local deadline; the client is connected again within seconds",
    ),
    row_of(
        14,
        "Redis is killed, and has not persisted anything",
        "the holder gets `Lost` when its client has connected again, at most L/3 later; until then another caller can also hold the lock; tokens rise; the lock is granted again within 1 s",
    ),
    row_of(
        15,
        "Redis with `appendfsync always` is killed and restarted",
        "the lock stays held across the restart, and no waiter loses its place",
    ),
    row_of(
        16,
        "Redis is paused for half of L",
        "the lock stays held, and no call fails",
    ),
    row_of(
        17,
        "Redis is paused for 2 L",
        "the holder gets `Lost` at its local deadline; the lock is granted within 1 s after the pause",
    ),
    row_of(
        18,
        "a connection has a round trip of 200 ms with jitter, and delivers messages in pieces",
        "a lease counts from the moment at which it was requested, so the holder's deadline comes one round trip earlier; every caller enters",
    ),
    row_of(
        19,
        "the message about a grant is lost, or the connection is cut when the lock is granted",
        "the waiter enters within a heartbeat, and keeps its place in the queue",
    ),
    row_of(
        20,
        "1,000 callers wait in 4 processes",
        "callers enter one at a time, in the order of the queue; each caller sends 2 scripts",
    ),
    row_of(
        21,
        "a process is killed while it waits in the queue",
        "the waiters of the killed process are skipped at once",
    ),
    row_of(
        22,
        "the scripts are flushed before every operation",
        "no call fails",
    ),
    row_of(
        23,
        "an operator deletes the key, or all keys",
        "the holder gets `Lost` at its next renewal; tokens rise; waiters queue again",
    ),
    row_of(
        24,
        "the server is out of memory",
        "an acquisition returns a typed error; renewals and releases work",
    ),
    row_of(
        25,
        "the server evicts keys",
        "`connect` refuses the server, unless eviction is allowed",
    ),
    row_of(
        26,
        "the server answers MISCONF, NOREPLICAS, READONLY or LOADING",
        "the lock is never reported as held; a call returns an error within `wait`, or is granted the lock as soon as the server can grant it",
    ),
    row_of(
        27,
        "Sentinels promote a replica, before or after the grant is replicated",
        "another caller can enter with a greater token; the first holder is notified when its client has connected to the new primary, at most a third of the lease later; grants that were replicated stay, and callers that wait enter after the failover",
    ),
    row_of(
        28,
        "a Cluster primary is killed, or a slot is migrated",
        "holds whose grants were replicated or migrated stay, and their tokens rise; a holder whose grant was not replicated is notified when its client has learned of the new primary; callers that wait keep their order, except while their slot moves; each call ends within its `wait`",
    ),
    row_of(
        29,
        "Redlock: 2 of 5 nodes are down",
        "no two holds overlap; a node that does not answer delays a call by at most the time limit for an answer (a tenth of L, at most 500 ms)",
    ),
    row_of(
        30,
        "Redlock: 3 of 5 nodes are down",
        "no lock is granted; the grants of single nodes are given back at once",
    ),
    row_of(
        31,
        "Redlock: a node returns without its state",
        "the node does not count toward a majority until the longest lease in use has passed",
    ),
    row_of(
        32,
        "Redis's clock jumps forward by 2 L, or back by an hour",
        "forward: the holder gets `Lost` within L/3, and until then another caller can also hold the lock; back: no lease lasts longer than L; tokens rise",
    ),
    row_of(
        33,
        "the runtime is shut down while its calls hold locks and wait for locks",
        "nothing is left on the server after 1 s",
    ),
    row_of(
        34,
        "several calls in a `join!` (siblings) use one key, with and without an enclosing call that holds this key",
        "the siblings take turns",
    ),
    row_of(
        35,
        "the password is wrong, a right is missing, TLS does not match, or there is no Redis",
        "a call returns a typed error within `wait`, which names what is missing and shows no password",
    ),
    row_of(
        36,
        "a process that waits is stopped, is granted the lock in the meantime, and continues after L has passed",
        "the waiting call's body does not start on that grant; the call queues again",
    ),
    row_of(
        37,
        "the first waiter's process is stopped, but another client (with `PSUBSCRIBE *`) receives the message about the grant",
        "the next caller enters within 2 s",
    ),
    row_of(
        38,
        "a request stalls; its caller is granted the lock over a new connection and releases it; then the old request arrives",
        "the old request does not take the lock",
    ),
    row_of(
        39,
        "the first, a middle, the last or every member of a cohort is cancelled, before, at and after the message about the grant",
        "the other members have their turns, in order; then the lock is free at once",
    ),
    row_of(
        40,
        "a process with a cohort of 64 members is killed while one member holds the lock",
        "the next caller enters when that member's lease has ended; all callers enter in the order of the queue",
    ),
    row_of(
        41,
        "the connection of a cohort's process is cut or killed while a member holds the lock",
        "that member continues, the other members enter in order, and no caller queues twice",
    ),
    row_of(
        42,
        "the grant of a cohort is deleted or flushed, or expires while its process is stopped",
        "the member that holds the lock is notified of the loss; the other members return to their old places in the queue, ahead of callers that queued later",
    ),
    row_of(
        43,
        "the message about a cohort's grant is lost, but the connection stays up",
        "the next probe finds the cohort, and its members enter in order",
    ),
    row_of(
        44,
        "a member of a cohort blocks its runtime for longer than a claim and the lease",
        "a renewed lease is not lost; a fixed lease is lost, and the other members return to their places in the queue",
    ),
    row_of(
        45,
        "a member of a cohort re-enters the lock with a longer lease, and its process is killed while the next member holds the lock",
        "the lock is free when the next member's own lease has ended",
    ),
    row_of(
        46,
        "a member in the middle of a cohort sets `hold_at_least`",
        "the next member enters when this time is over",
    ),
    row_of(
        47,
        "neighbours in the queue, all of one client, have different leases and waits",
        "a cohort has one lease; a caller whose `wait` is over is left out",
    ),
    row_of(
        48,
        "1,000 callers in 4 processes queue at the same time; the callers of a process share requests",
        "callers enter one at a time, in the order of the queue; on average, each caller costs a tenth of a command",
    ),
    row_of(
        49,
        "a waiter is polled late, by up to two claims, at any of its awaits, alone and in a cohort",
        "callers enter one at a time, with rising tokens; the late caller returns to its place in the queue, and delays the others by at most a claim and a heartbeat",
    ),
    row_of(
        50,
        "replies stall once, for 1.5 to 3 s, at a grant, a confirmation, a renewal or a release",
        "callers enter one at a time, with rising tokens",
    ),
    row_of(
        51,
        "a waiter, or a caller that was granted the lock in a reply, is never polled again",
        "the other callers enter after a claim and a heartbeat, however long the lease is",
    ),
    row_of(
        52,
        "a process that holds locks and waits for locks shuts down while the server is killed or stopped",
        "every call ends; the shutdown waits for waiting calls for 2 s, and for holds until their leases have ended, but at most 10 s",
    ),
    row_of(
        53,
        "the server, which is reached over TCP or a unix socket, restarts and numbers its connections from 1 again",
        "no connection of another client is closed",
    ),
    row_of(
        54,
        "a process waits for 6,000 keys over a connection with a round trip of 100 ms",
        "the process uses one connection, and sends at most one probe of 100 keys every 15 ms",
    ),
    row_of(
        55,
        "a lease ends without a release",
        "the next caller enters within 50 ms",
    ),
    row_of(
        56,
        "in the queue, five waiters of a stopped process alternate with waiters of another process",
        "all waiters of the stopped process together delay the others by one claim; when the process continues, its waiters return to their places",
    ),
    row_of(
        57,
        "a queue has 500,000 dead entries: the wait of their callers is over, or their process is gone",
        "no script takes half a second, and a live waiter enters",
    ),
    row_of(
        58,
        "a user with all rights on channels, but none on keys, forges a message about a grant",
        "no body starts",
    ),
    row_of(
        59,
        "a process is killed while readers of it are inside, beside a reader of another process",
        "a writer enters when the lease of the killed readers has ended and the other reader has left",
    ),
    row_of(
        60,
        "a process is killed that has two of three permits",
        "a caller that needs all permits enters when the lease of these permits has ended",
    ),
    row_of(
        61,
        "the connection of a writer that becomes a reader is cut before the answer, and that of readers inside",
        "nobody loses its lease; the readers that are next enter, and a writer enters after all of them",
    ),
    row_of(
        62,
        "an operator changes the number of permits again and again, while many callers take permits",
        "after a change, no caller enters beside as many as the new number; after a raise, those who fit enter",
    ),
    row_of(
        63,
        "the leader is cut off from the server",
        "its body ends with its lease, and only then the next candidate leads, with a higher token",
    ),
    row_of(
        64,
        "the connections of those who wait for a latch are cut while its last part is counted",
        "all who wait continue; none of them waits for another message",
    ),
];

/// The numbers of the rows whose features do not exist yet.
pub const NOT_YET: [u8; 0] = [];

const fn row_of(number: u8, fault: &'static str, expected: &'static str) -> Row {
    Row {
        number,
        fault,
        expected,
    }
}

/// The times that were measured in all runs of one scenario.
#[derive(Debug, Default)]
pub struct Seen {
    times: BTreeMap<&'static str, (Duration, Vec<Duration>)>,
}

impl Seen {
    /// Records a measured time. Asserts that the time is at most `at_most` plus ε, the tolerance for a loaded machine.
    /// On a busy machine, `at_most` is multiplied by [`slowness`].
    ///
    /// # Panics
    /// If `took` is longer.
    pub fn within(&mut self, what: &'static str, at_most: Duration, took: Duration) {
        let limit = at_most.mul_f64(slowness()) + epsilon();
        assert!(
            took <= limit,
            "{what}: {took:?}, but at most {limit:?} is allowed"
        );
        let (_, times) = self.times.entry(what).or_insert((at_most, Vec::new()));
        times.push(took);
    }
}

/// Returns how often a scenario runs.
fn runs() -> u32 {
    let asked = std::env::var(RUNS_VARIABLE).ok();
    asked.and_then(|runs| runs.parse().ok()).unwrap_or(1)
}

/// Runs the scenario of a row as often as [`RUNS_VARIABLE`] demands, and prints the measured times. Also writes the
/// times to a file if [`SEEN_VARIABLE`] is set.
///
/// # Panics
/// If the scenario panics.
pub async fn row(number: u8, scenario: impl AsyncFn(&mut Seen)) {
    let mut seen = Seen::default();
    for _ in 0..runs() {
        scenario(&mut seen).await;
    }
    let mut text = String::new();
    for (what, (at_most, times)) in &mut seen.times {
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        let ms = |time: Duration| time.as_millis();
        let line = format!(
            "{what}: median {} ms, worst {} ms, limit {} ms + ε",
            ms(median),
            ms(worst),
            ms(*at_most)
        );
        println!("row {number}: {line}");
        let _ = writeln!(text, "{line}");
    }
    if let Some(folder) = std::env::var_os(SEEN_VARIABLE) {
        let file = std::path::Path::new(&folder).join(format!("row_{number:02}"));
        let file = fs::OpenOptions::new().create(true).append(true).open(file);
        let mut file = file.expect("the measured times can be written");
        file.write_all(text.as_bytes())
            .expect("the measured times can be written");
    }
}
