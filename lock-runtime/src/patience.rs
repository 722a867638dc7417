//! How long the engine waits for an answer. This file has the one rule for all waits that depend on the line to the
//! server.
//!
//! Each such wait is a number that is right for a near server, such as 200 ms to leave a queue. A server that is far away
//! cannot answer within some of these numbers. So the wait lasts for the number, but at least for a few of the round trips
//! that the line has shown: [`ROUND_TRIPS`] for one command, [`CONNECT_ROUND_TRIPS`] for a connection. The line has shown
//! the shortest round trip of the four newest replies. A reply to a slow command, or one that the engine's thread reads late,
//! looks like a long round trip; the shortest of several replies, and [`limits::LONGEST_ROUND_TRIP`], bound the effect of such replies.

use crate::limits;
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

/// The number of round trips for which the engine waits at least for the answer to a command. A caller that leaves may need
/// three: it ends a try, and makes another one. The fourth is for delays.
const ROUND_TRIPS: u32 = 4;
/// The number of round trips for which a try to connect lasts at least. The try itself takes up to seven: one for TCP,
/// two for TLS, one for the login, and three for the commands that prepare a connection.
const CONNECT_ROUND_TRIPS: u32 = 10;
/// The number of replies that count.
const REPLIES: usize = 4;

/// Returns how long to wait for the answer to a command: `near`, but at least a few round trips.
pub(crate) fn for_answer(near: Duration, round_trip: Duration) -> Duration {
    near.max(ROUND_TRIPS * round_trip)
}

/// Returns how long a try to connect may last: `near`, but at least the round trips of a handshake.
pub(crate) fn for_connection(near: Duration, round_trip: Duration) -> Duration {
    near.max(CONNECT_ROUND_TRIPS * round_trip)
}

/// The round trip that the connections to one server have shown.
#[derive(Debug)]
pub(crate) struct Line {
    /// The times from the newest commands to their replies, in ns.
    newest: [AtomicU64; REPLIES],
    next: AtomicUsize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            newest: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            next: AtomicUsize::new(0),
        }
    }
}

impl Line {
    /// Records that a reply was read this long after its command was sent.
    pub(crate) fn note(&self, took: Duration) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % REPLIES;
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.newest[at].store(nanos, Ordering::Relaxed);
    }

    /// Returns the round trip that the line has shown, or zero before the first reply.
    pub(crate) fn round_trip(&self) -> Duration {
        let newest = self.newest.iter().map(|one| one.load(Ordering::Relaxed));
        let shortest = newest.min().filter(|nanos| *nanos != u64::MAX);
        Duration::from_nanos(shortest.unwrap_or_default()).min(limits::LONGEST_ROUND_TRIP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_far_line_lengthens_a_wait_and_a_near_one_does_not() {
        for (round_trip, answer, connection) in [
            (0, 200, 1000),
            (20, 200, 1000),
            (100, 400, 1000),
            (300, 1200, 3000),
            (600, 2400, 6000),
        ] {
            let round_trip = round_trip * MS;
            assert_eq!(for_answer(200 * MS, round_trip), answer * MS);
            assert_eq!(for_connection(1000 * MS, round_trip), connection * MS);
        }
    }

    /// Replies that are read late do not count while one of the newest was read in time. After a change, four replies
    /// show the new round trip.
    #[test]
    fn the_shortest_of_the_newest_replies_counts() {
        let line = Line::default();
        assert_eq!(line.round_trip(), Duration::ZERO);
        line.note(20 * MS);
        for _ in 0..3 {
            line.note(900 * MS);
        }
        assert_eq!(line.round_trip(), 20 * MS);
        line.note(300 * MS);
        assert_eq!(line.round_trip(), 300 * MS);
        for _ in 0..4 {
            line.note(5000 * MS);
        }
        assert_eq!(line.round_trip(), limits::LONGEST_ROUND_TRIP);
    }
}
