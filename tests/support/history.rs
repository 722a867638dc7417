//! Records when each holder was inside a lock. Checks that a lock has one holder at a time, that its tokens rise, and
//! that callers enter in the order in which they queued.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A record of the visits to each lock: when each holder entered the lock, and when it left. All clones share one
/// record.
///
/// Each holder records its entry while it holds the lock, between the grant and the release, so that the order of the
/// record is the order of the grants.
#[derive(Debug, Clone, Default)]
pub struct History {
    tracks: Arc<Mutex<BTreeMap<String, Track>>>,
    strict: bool,
}

/// The visits to one key.
#[derive(Debug, Default)]
struct Track {
    /// The visits in the order in which the holders entered.
    visits: Vec<Visit>,
    inside: usize,
    /// The waiting callers in the order in which they queued.
    queue: Vec<u64>,
    order: Vec<OrderFault>,
}

#[derive(Debug)]
struct Visit {
    token: u64,
    entered: Instant,
    left: Option<Instant>,
    /// The number of other holders that were inside the lock when this holder entered. The number is stored because the
    /// clock can be too coarse to show that two visits overlapped.
    met: usize,
}

/// A visit that is under way. The visit ends when this value is dropped.
#[derive(Debug)]
#[must_use = "dropping this value ends the visit"]
pub struct Inside {
    history: History,
    key: String,
    visit: usize,
}

impl History {
    /// Creates an empty record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty record that panics as soon as two holders of one lock overlap.
    #[must_use]
    pub fn strict() -> Self {
        Self {
            strict: true,
            ..Self::default()
        }
    }

    fn tracks(&self) -> MutexGuard<'_, BTreeMap<String, Track>> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a holder with this token has entered the lock `key`.
    ///
    /// # Panics
    /// If the record is [strict](Self::strict) and another holder of `key` has not left yet.
    pub fn enter(&self, key: &str, token: u64) -> Inside {
        self.note_entry(key, token, None)
    }

    /// Like [`enter`](Self::enter), but for a caller that has [queued](Self::queued). If the caller is not the first in
    /// the queue, also records an [`OrderFault`].
    ///
    /// # Panics
    /// See [`enter`](Self::enter).
    pub fn enter_from_queue(&self, key: &str, caller: u64, token: u64) -> Inside {
        self.note_entry(key, token, Some(caller))
    }

    fn note_entry(&self, key: &str, token: u64, caller: Option<u64>) -> Inside {
        let mut tracks = self.tracks();
        let track = tracks.entry(key.to_owned()).or_default();
        if let Some(caller) = caller {
            track.take_turn(key, caller);
        }
        let met = track.inside;
        track.inside += 1;
        track.visits.push(Visit {
            token,
            entered: Instant::now(),
            left: None,
            met,
        });
        let inside = Inside {
            history: self.clone(),
            key: key.to_owned(),
            visit: track.visits.len() - 1,
        };
        drop(tracks);
        assert!(
            met == 0 || !self.strict,
            "`{key}` was entered with token {token} while {met} were inside"
        );
        inside
    }

    /// Records that a caller has joined the queue of a key, behind all earlier callers.
    pub fn queued(&self, key: &str, caller: u64) {
        let mut tracks = self.tracks();
        tracks.entry(key.to_owned()).or_default().queue.push(caller);
    }

    /// Records that a caller has left the queue without a turn. Afterwards, the callers behind this caller are allowed
    /// to enter.
    pub fn gave_up(&self, key: &str, caller: u64) {
        if let Some(track) = self.tracks().get_mut(key) {
            track.leave_queue(caller);
        }
    }

    /// Adds a visit whose times the calling code has measured. [`check`](Self::check) expects tokens to rise in the
    /// order in which visits are added.
    pub fn record(&self, key: &str, token: u64, entered: Instant, left: Instant) {
        let mut tracks = self.tracks();
        tracks
            .entry(key.to_owned())
            .or_default()
            .visits
            .push(Visit {
                token,
                entered,
                left: Some(left),
                met: 0,
            });
    }

    /// Checks the visits that were recorded so far.
    #[must_use]
    pub fn check(&self) -> Report {
        let mut report = Report::default();
        for (key, track) in self.tracks().iter() {
            report.holds += track.visits.len();
            track.check_overlaps(key, &mut report.overlaps);
            track.check_tokens(key, &mut report.tokens);
            report.order.extend(track.order.iter().cloned());
        }
        report
    }
}

impl Track {
    fn leave_queue(&mut self, caller: u64) -> Option<usize> {
        let place = self.queue.iter().position(|waiting| *waiting == caller)?;
        self.queue.remove(place);
        Some(place)
    }

    fn take_turn(&mut self, key: &str, caller: u64) {
        let place = self.leave_queue(caller);
        if place != Some(0) {
            let overtaken = self.queue[..place.unwrap_or(0)].to_vec();
            self.order.push(OrderFault {
                key: key.to_owned(),
                entered: caller,
                overtaken,
            });
        }
    }

    fn check_overlaps(&self, key: &str, overlaps: &mut Vec<Overlap>) {
        let mut by_time: Vec<&Visit> = self.visits.iter().collect();
        by_time.sort_by_key(|visit| visit.entered);
        // The visit that ends last among the visits that began before `visit`. A visit that has not ended counts as
        // endless.
        let mut longest: Option<&Visit> = None;
        for visit in by_time {
            let stays_longer = |other: &Visit| other.left.is_none_or(|left| left > visit.entered);
            if let Some(first) = longest
                && (visit.met > 0 || stays_longer(first))
            {
                overlaps.push(Overlap {
                    key: key.to_owned(),
                    first: first.token,
                    second: visit.token,
                });
            }
            longest = match longest {
                Some(first)
                    if first.left.is_none()
                        || visit.left.is_some_and(|left| Some(left) <= first.left) =>
                {
                    Some(first)
                }
                _ => Some(visit),
            };
        }
    }

    fn check_tokens(&self, key: &str, faults: &mut Vec<TokenFault>) {
        let mut highest: Option<u64> = None;
        for visit in &self.visits {
            if let Some(before) = highest
                && visit.token <= before
            {
                faults.push(TokenFault {
                    key: key.to_owned(),
                    before,
                    token: visit.token,
                });
            }
            highest = highest.max(Some(visit.token));
        }
    }
}

impl Inside {
    /// Ends the visit, as dropping it does.
    pub fn exit(self) {}
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut tracks = self.history.tracks();
        if let Some(track) = tracks.get_mut(&self.key) {
            track.inside -= 1;
            track.visits[self.visit].left = Some(Instant::now());
        }
    }
}

/// The result of [`History::check`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of visits.
    pub holds: usize,
    /// Pairs of visits that overlap.
    pub overlaps: Vec<Overlap>,
    /// Tokens that are not above all earlier tokens of their key.
    pub tokens: Vec<TokenFault>,
    /// Callers that entered before callers that had queued earlier.
    pub order: Vec<OrderFault>,
}

/// A second holder that entered before the first holder had left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The key of the lock.
    pub key: String,
    /// The token of the holder that entered first.
    pub first: u64,
    /// The token of the holder that entered second.
    pub second: u64,
}

/// A token that is not above the highest earlier token of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFault {
    /// The key of the lock.
    pub key: String,
    /// The highest earlier token.
    pub before: u64,
    /// The token that is not above `before`.
    pub token: u64,
}

/// A caller that entered a lock before its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderFault {
    /// The key of the lock.
    pub key: String,
    /// The caller that entered.
    pub entered: u64,
    /// The callers that had queued before `entered` and were still waiting. The list is empty if `entered` was not in
    /// the queue.
    pub overtaken: Vec<u64>,
}

impl Report {
    /// Returns whether the report contains no faults.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.overlaps.is_empty() && self.tokens.is_empty() && self.order.is_empty()
    }

    /// Checks that the report contains no faults, and that the number of visits is `holds`.
    ///
    /// # Panics
    /// If either check fails.
    #[track_caller]
    pub fn assert_clean(&self, holds: usize) {
        assert!(self.is_clean(), "{self}");
        assert_eq!(self.holds, holds, "so many visits were recorded");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} visits", self.holds)?;
        for Overlap { key, first, second } in &self.overlaps {
            write!(
                f,
                "\n`{key}`: token {second} entered while {first} was inside"
            )?;
        }
        for TokenFault { key, before, token } in &self.tokens {
            write!(f, "\n`{key}`: token {token} after {before}")?;
        }
        for OrderFault {
            key,
            entered,
            overtaken,
        } in &self.order
        {
            write!(
                f,
                "\n`{key}`: caller {entered} entered before {overtaken:?}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(intervals: &[(u64, u32, u32)]) -> Report {
        let (history, origin) = (History::new(), Instant::now());
        for (token, entered, left) in intervals {
            history.record("k", *token, origin + *entered * MS, origin + *left * MS);
        }
        history.check()
    }

    fn overlap(first: u64, second: u64) -> Overlap {
        let key = "k".into();
        Overlap { key, first, second }
    }

    #[test]
    fn one_after_the_other_is_clean() {
        let history = History::strict();
        for token in 1..=100 {
            history.queued("k", token);
            history.queued("other", token);
        }
        for token in 1..=100 {
            let inside = history.enter_from_queue("k", token, 7 * token);
            // Another key is another lock, with tokens and a queue of its own.
            history.enter_from_queue("other", token, token).exit();
            inside.exit();
        }
        history.check().assert_clean(200);
        // A visit is allowed to begin at the moment at which another visit ends.
        of(&[(1, 0, 5), (2, 5, 9)]).assert_clean(2);
    }

    #[test]
    fn overlapping_visits_are_found() {
        let history = History::new();
        let first = history.enter("k", 1);
        let second = history.enter("k", 2);
        first.exit();
        second.exit();
        let report = history.check();
        assert_eq!(report.overlaps, [overlap(1, 2)]);
        assert!(!report.is_clean());
    }

    #[test]
    fn overlapping_intervals_are_found() {
        assert_eq!(of(&[(1, 0, 5), (2, 4, 9)]).overlaps, [overlap(1, 2)]);
        // The check compares the third visit with the long first visit, and not only with the short second visit.
        assert_eq!(
            of(&[(1, 0, 9), (2, 1, 2), (3, 3, 4)]).overlaps,
            [overlap(1, 2), overlap(1, 3)]
        );
        // The order in which visits are recorded can differ from the order in which they began.
        assert_eq!(of(&[(2, 4, 9), (3, 0, 5)]).overlaps, [overlap(3, 2)]);
    }

    #[test]
    fn whoever_never_left_overlaps_with_all_that_follow() {
        let history = History::new();
        let _stays = history.enter("k", 1);
        let then = Instant::now();
        history.record("k", 2, then + MS, then + 2 * MS);
        history.record("k", 3, then + 3 * MS, then + 4 * MS);
        assert_eq!(history.check().overlaps, [overlap(1, 2), overlap(1, 3)]);
    }

    #[test]
    fn a_strict_history_panics_at_once_and_stays_usable() {
        let history = History::strict();
        let _first = history.enter("k", 1);
        let entering = std::thread::spawn({
            let history = history.clone();
            move || history.enter("k", 2).exit()
        });
        let panic = entering.join().expect_err("the second entry panics");
        let message = panic
            .downcast_ref::<String>()
            .expect("the panic has a message");
        assert_eq!(message, "`k` was entered with token 2 while 1 were inside");
        assert_eq!(history.check().overlaps, [overlap(1, 2)]);
    }

    #[test]
    fn repeated_and_falling_tokens_are_found() {
        let fault = |before, token| TokenFault {
            key: "k".into(),
            before,
            token,
        };
        assert_eq!(of(&[(4, 0, 1), (4, 1, 2)]).tokens, [fault(4, 4)]);
        let report = of(&[(4, 0, 1), (2, 1, 2), (3, 2, 3), (5, 3, 4)]);
        // Token 3 is above the token before it, but below token 4, the highest earlier token.
        assert_eq!(report.tokens, [fault(4, 2), fault(4, 3)]);
        assert!(!report.is_clean());
    }

    #[test]
    fn a_wrong_order_is_found() {
        let history = History::new();
        for caller in 1..=4 {
            history.queued("k", caller);
        }
        history.gave_up("k", 1);
        for (token, caller) in [(1, 3), (2, 2), (3, 4), (4, 9)] {
            history.enter_from_queue("k", caller, token).exit();
        }
        let fault = |entered, overtaken: &[u64]| OrderFault {
            key: "k".into(),
            entered,
            overtaken: overtaken.to_vec(),
        };
        // Caller 1 has left the queue, so caller 3 overtakes only caller 2. Caller 9 was never in the queue.
        let report = history.check();
        assert_eq!(report.order, [fault(3, &[2]), fault(9, &[])]);
        assert!(!report.is_clean());
        assert_eq!(
            report.to_string(),
            "4 visits\n`k`: caller 3 entered before [2]\n`k`: caller 9 entered before []"
        );
    }

    #[test]
    fn a_mutex_passes_and_a_broken_one_fails() {
        let run = |broken: bool| {
            let (history, turn) = (History::new(), Mutex::new(0));
            // If `broken` is set, both threads are in the critical section at the same time, because neither leaves
            // before the other has entered.
            let meeting = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut token = turn.lock().unwrap();
                        *token += 1;
                        let number = *token;
                        let guard = (!broken).then_some(token);
                        let inside = history.enter("k", number);
                        if broken {
                            meeting.wait();
                        }
                        inside.exit();
                        drop(guard);
                    });
                }
            });
            history.check()
        };
        run(false).assert_clean(2);
        assert_eq!(run(true).overlaps.len(), 1);
    }

    #[test]
    #[should_panic(expected = "so many visits")]
    fn an_empty_history_is_no_proof() {
        History::new().check().assert_clean(1);
    }
}
