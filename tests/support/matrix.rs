//! The fault matrix: its rows, and the times that a run has seen in them.

use std::{collections::BTreeMap, fmt::Write as _, fs, io::Write as _, time::Duration};

use crate::epsilon;

/// How often each scenario runs. The default is once, or three times if `CI` is set.
pub const RUNS_VARIABLE: &str = "FAULT_RUNS";
/// If set, the folder into which the rows write the times that they have seen.
pub const SEEN_VARIABLE: &str = "FAULTS_SEEN";

/// A fault, and the promise that holds for it.
#[derive(Debug)]
pub struct Row {
    /// Its number.
    pub number: u8,
    /// The fault.
    pub fault: &'static str,
    /// The promise.
    pub expected: &'static str,
}

/// The matrix. L is the lease.
pub const ROWS: &[Row] = &[
    row_of(
        1,
        "the holder is killed, waiters ask for leases of their own",
        "the next one enters when the holder's lease has ended; tokens rise",
    ),
    row_of(
        2,
        "the holder is stopped for longer than L, and continued",
        "others enter meanwhile, with higher tokens; it is told at its next await",
    ),
    row_of(
        3,
        "its machine is suspended for longer than L",
        "told at its next await: deadlines count on a clock that runs meanwhile",
    ),
    row_of(
        4,
        "the holder's runtime is blocked for 10 L",
        "a renewed lease is held, renewed every third",
    ),
    row_of(
        5,
        "a body hangs, `max_hold` is set",
        "the lock is free at `max_hold` + L at the latest",
    ),
    row_of(6, "a body panics", "one release, at once"),
    row_of(
        7,
        "a body's future is dropped at each of its awaits",
        "released at once",
    ),
    row_of(
        8,
        "5,000 calls are dropped at random instants",
        "neither key nor queue entry is left, at once",
    ),
    row_of(
        9,
        "the reply of a grant is lost with its connection",
        "the retry gets the same grant",
    ),
    row_of(
        10,
        "a request reaches the server after its caller gave up",
        "nobody is granted",
    ),
    row_of(
        11,
        "a release's reply is lost, and it is sent again",
        "the successor is not touched",
    ),
    row_of(
        12,
        "a release comes after the lease has ended",
        "the successor is not touched, and the loss is told",
    ),
    row_of(
        13,
        "the socket is half open",
        "not held past the local deadline; connected again in seconds",
    ),
    row_of(
        14,
        "Redis is killed, and has persisted nothing",
        "`Lost` at the next renewal, L/3 later at most; until then another may be inside; tokens rise; granted again within 1 s",
    ),
    row_of(
        15,
        "Redis is killed, with `appendfsync always`",
        "held over the restart, and nobody loses its place",
    ),
    row_of(16, "Redis is paused for half of L", "held, no error"),
    row_of(
        17,
        "Redis is paused for 2 L",
        "`Lost` at the local deadline; granted within 1 s after it goes on",
    ),
    row_of(
        18,
        "a line of 200 ms with jitter, its bytes split",
        "the validity shrinks by the round trip; everybody enters",
    ),
    row_of(
        19,
        "a push is lost, or the connection is cut at the grant",
        "the waiter enters within a heartbeat, at its old place",
    ),
    row_of(
        20,
        "1,000 waiters in 4 processes",
        "one at a time, in the order of their queueing, 2 scripts each",
    ),
    row_of(
        21,
        "a waiting process is killed in the queue",
        "skipped at once",
    ),
    row_of(
        22,
        "the scripts are flushed before every operation",
        "no error",
    ),
    row_of(
        23,
        "an operator deletes the key, or everything",
        "`Lost` at the next renewal; tokens rise; who waits queues again",
    ),
    row_of(
        24,
        "the server is out of memory",
        "an acquisition is refused with a typed error; renewals and releases work",
    ),
    row_of(
        25,
        "the server evicts keys",
        "refused at connect, unless that is allowed",
    ),
    row_of(
        26,
        "MISCONF, NOREPLICAS, READONLY, LOADING",
        "never reported held; an error within `wait`, or a grant as soon as the server can",
    ),
    row_of(
        27,
        "a Sentinel failover with the grant not replicated",
        "not supported yet",
    ),
    row_of(
        28,
        "a Cluster master is killed, a slot is migrated",
        "not supported yet",
    ),
    row_of(
        29,
        "Redlock: 2 of 5 nodes are down",
        "exclusive; a node that does not answer costs its patience at most",
    ),
    row_of(
        30,
        "Redlock: 3 of 5 nodes are down",
        "no grant; partial grants are given back at once",
    ),
    row_of(
        31,
        "Redlock: a node returns empty",
        "not counted for the longest lease",
    ),
    row_of(
        32,
        "Redis's clock goes forward by 2 L, and back by an hour",
        "forward: `Lost` within L/3, until then another may be inside; back: no lease lasts longer than L; tokens rise",
    ),
    row_of(
        33,
        "the runtime is shut down while it holds and waits",
        "drained within 1 s",
    ),
    row_of(
        34,
        "`join!` siblings on one key, with and without a holding ancestor",
        "they take turns",
    ),
    row_of(
        35,
        "wrong password, missing right, TLS mismatch, no Redis",
        "a typed error within `wait` that names what is missing, and no password",
    ),
    row_of(
        36,
        "a waiting process is stopped past its grant and L, and continued",
        "its body does not start on that grant; it queues again",
    ),
    row_of(
        37,
        "the waiter at the head is stopped, while a stray `PSUBSCRIBE *` listens",
        "the next one enters within 2 s",
    ),
    row_of(
        38,
        "a request stalls, its caller is granted over a new connection and releases, and the old bytes arrive",
        "nobody is granted by them",
    ),
    row_of(
        39,
        "the first, a middle, the last or every member of a cohort is cancelled, before, at and after the push",
        "the others have their turns, in order; then the lock is free at once",
    ),
    row_of(
        40,
        "a process with a cohort of 64 is killed while one of them is inside",
        "the next one enters when that lease has ended, and everybody in its place",
    ),
    row_of(
        41,
        "the connection of a cohort's process is cut or killed in the middle of the cohort",
        "who is inside goes on, the others enter in order, nobody queues twice",
    ),
    row_of(
        42,
        "the grant of a cohort is deleted, flushed, or expires while its process stands still",
        "the member inside is told; the others come back to their old places, before those who came later",
    ),
    row_of(
        43,
        "the push of a cohort is lost while the connection lives",
        "the next probe takes the cohort up, in order",
    ),
    row_of(
        44,
        "a member of a cohort blocks its runtime for longer than the claim and the lease",
        "a renewed lease is held; a fixed one is lost, and the others take their places again",
    ),
    row_of(
        45,
        "a member of a cohort enters again for longer, and its process is killed while the next member is inside",
        "free when that member's own lease has ended",
    ),
    row_of(
        46,
        "a member in the middle of a cohort keeps the lock for its least time",
        "the next member enters at its end",
    ),
    row_of(
        47,
        "neighbours of one client with leases and waits of their own",
        "a cohort has one lease; who has waited long enough is left out",
    ),
    row_of(
        48,
        "1,000 callers in 4 processes queue at once, in groups",
        "one at a time, in the order of the queue, a tenth of a command each",
    ),
    row_of(
        49,
        "a waiter is polled late, at any of its awaits, up to two claims, alone and in a cohort",
        "one at a time, with rising tokens; it queues again at its place, the others wait a claim and a heartbeat at most",
    ),
    row_of(
        50,
        "replies stall once for 1.5 to 3 s, around a grant, a confirmation, a renewal, a release",
        "one at a time, with rising tokens",
    ),
    row_of(
        51,
        "the future of a waiter, or of one that was granted the lock in a reply, is never polled again",
        "the others enter after a claim and a heartbeat, whatever the lease",
    ),
    row_of(
        52,
        "the server is gone when a process shuts down that holds and waits",
        "every call ends; shut down within 2 s of what waits, and for what is held when its lease has ended, 10 s at most",
    ),
    row_of(
        53,
        "the server restarts and numbers its connections from 1 again, over TCP and a unix socket",
        "no stranger's connection is closed",
    ),
    row_of(
        54,
        "a process waits for 6,000 keys over a line of 100 ms",
        "one connection, at most one probe of 100 keys each 15 ms",
    ),
    row_of(
        55,
        "a lease ends without a release",
        "the next one enters within 50 ms",
    ),
    row_of(
        56,
        "a stopped process with five waiters between those of others",
        "the others wait one claim in all; its waiters come back to their places",
    ),
    row_of(
        57,
        "500,000 entries of a queue are dead, by their deadlines or with their process",
        "no script takes 50 ms, and who is alive enters",
    ),
    row_of(
        58,
        "a forged push, with all rights of Pub/Sub and none on keys",
        "no body starts",
    ),
];

/// Rows of features that do not exist yet.
pub const NOT_YET: [u8; 2] = [27, 28];

const fn row_of(number: u8, fault: &'static str, expected: &'static str) -> Row {
    Row {
        number,
        fault,
        expected,
    }
}

/// The times that one scenario has seen.
#[derive(Debug, Default)]
pub struct Seen {
    times: BTreeMap<&'static str, (Duration, Vec<Duration>)>,
}

impl Seen {
    /// Records a time that may be `at_most` and ε.
    ///
    /// # Panics
    /// If the time is longer.
    pub fn within(&mut self, what: &'static str, at_most: Duration, took: Duration) {
        assert!(
            took <= at_most + epsilon(),
            "{what}: {took:?}, where {at_most:?} and {:?} are allowed",
            epsilon()
        );
        let (_, times) = self.times.entry(what).or_insert((at_most, Vec::new()));
        times.push(took);
    }
}

/// The number of runs of a scenario.
fn runs() -> u32 {
    let asked = std::env::var(RUNS_VARIABLE).ok();
    let asked = asked.and_then(|runs| runs.parse().ok());
    let ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    asked.unwrap_or(if ci { 3 } else { 1 })
}

/// Runs the scenario of a row as often as requested. Writes the times that it has seen if [`SEEN_VARIABLE`] is set.
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
            "{what}: {} ms, {} at worst, of {} and ε",
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
        let mut file = file.expect("what was seen can be written");
        file.write_all(text.as_bytes())
            .expect("what was seen can be written");
    }
}
