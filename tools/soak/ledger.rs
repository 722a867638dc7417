//! The ledger records all visits. A visit is one stay of a caller inside a lock. The ledger checks the visits during
//! the run. After the check, the ledger keeps only the newest visit of each key, so that its memory does not grow over
//! hours.

use std::collections::{BTreeMap, HashMap};

use progress::suspend;

use crate::{
    failovers::Failover,
    plan::{BUFFERED, BUFFERED_FROM, Poller},
};

/// One stay of a caller inside a lock. All times of a visit are read from a clock that all processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) key: u32,
    pub(crate) token: u64,
    pub(crate) poller: Poller,
    /// Whether the caller reads. Readers can be inside together.
    pub(crate) reads: bool,
    /// The time just before the call, in ns. The time is 0 if the ledger must not check how long the caller waited.
    pub(crate) asked: u64,
    /// The time just after the grant, in ns.
    pub(crate) entered: u64,
    /// The time just before the release, in ns. For a lost hold, this time is no later than the deadline of the hold.
    pub(crate) ended: u64,
}

impl Visit {
    /// Formats the visit as the line that a worker writes.
    pub(crate) fn line(self) -> String {
        let Self {
            key,
            token,
            poller,
            reads,
            asked,
            entered,
            ended,
        } = self;
        let (poller, reads) = (poller.number(), u8::from(reads));
        format!("v {key} {token} {poller} {reads} {asked} {entered} {ended}")
    }

    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix("v ")?.split(' ').map(str::parse);
        let mut next = || fields.next()?.ok();
        let key = u32::try_from(next()?).ok()?;
        Some(Self {
            key,
            token: next()?,
            poller: Poller::read(next()?)?,
            reads: next()? == 1,
            asked: next()?,
            entered: next()?,
            ended: next()?,
        })
    }
}

/// The ledger prints only gaps that are longer than this time, in ns. A gap is a time in which a caller waits for a
/// lock although nobody holds the lock. The limit is longer than the sum of a claim (2 s) and a probe interval (200
/// ms).
const REMARKABLE: u64 = 2_500_000_000;

/// The visits and the gaps of one key.
#[derive(Debug, Default)]
struct Track {
    /// The visits that the ledger has not checked yet, by token. The visits wait here, because reports of visits with
    /// lower tokens can still arrive.
    pending: BTreeMap<u64, Visit>,
    /// The newest visit of a writer.
    newest: Option<Visit>,
    /// Of the readers since then, the visit that ended last.
    reader: Option<Visit>,
    /// The latest call time (`asked`) of all checked visits.
    latest_asked: u64,
    /// The gaps in which nobody held the lock, each with its beginning and its end. A gap is stored only if it is
    /// longer than the longest time that [`Track::stands`] has found so far.
    gaps: Vec<(u64, u64)>,
}

impl Track {
    /// Computes the longest time for which nobody held the lock while the caller of this visit waited, and raises
    /// `longest` to this time. The caller has possibly waited through earlier gaps too, behind other callers.
    fn stands(&mut self, visit: &Visit, longest: &mut u64) {
        let last = self.newest.into_iter().chain(self.reader);
        let since = last.map(|last| last.ended).max().unwrap_or(visit.entered);
        if visit.entered.saturating_sub(since) > *longest {
            self.gaps.push((since, visit.entered));
        }
        if visit.asked > 0 {
            for (since, until) in &self.gaps {
                let stood = until.saturating_sub(visit.asked.max(*since));
                if stood > *longest {
                    *longest = stood;
                    if stood > REMARKABLE {
                        let ms = stood / 1_000_000;
                        suspend(|| eprintln!("no caller entered for {ms} ms before {visit:?}"));
                    }
                }
            }
            // No caller waits for longer than a minute, so older gaps are no longer needed.
            self.gaps
                .retain(|(_, until)| until + 60_000_000_000 > visit.entered);
        }
    }
}

/// The results of all checks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// The number of visits.
    pub(crate) visits: u64,
    /// The number of callers that got the lock while the previous caller still held it.
    pub(crate) overlaps: u64,
    /// The number of overlaps on keys that an operator deletes, and of visits to these keys that began after a visit
    /// with a higher token. These events are allowed, because a holder learns of the deletion only at its next renewal.
    /// Until this renewal, the next holder can overlap with the holder, and a call with two keys can begin its body
    /// although one of its locks is deleted.
    pub(crate) allowed: u64,
    /// The same two numbers for failovers whose new primary lacks the grant of the earlier holder. These events are
    /// allowed too, because Redis replicates asynchronously. The earlier holder learns of its loss at its next renewal.
    pub(crate) unreplicated: u64,
    /// The number of visits with the token of another visit.
    pub(crate) repeated: u64,
    /// The number of visits whose token is lower than the token of an earlier visit to the same key.
    pub(crate) fallen: u64,
    /// For two callers that get the lock in another order than they called, this is the time between their calls. The
    /// field has the longest such time, in ns. In a fair queue, it is no longer than the time that a request takes.
    pub(crate) overtaken: u64,
    /// The longest time, in ns, for which nobody held a lock while a caller with [`Poller::Prompt`] waited for it.
    pub(crate) stood: u64,
    /// Like `stood`, but for keys that tasks lock with buffers of futures (`Poller::Buffered`). Several futures of one
    /// buffer can miss their turns one after another, so the gaps at these keys can be longer.
    pub(crate) stood_buffered: u64,
    /// The time, in ns, at which the first visit began that is counted in `overlaps` or `fallen`.
    pub(crate) first_fault: Option<u64>,
}

/// The record of all visits.
#[derive(Debug)]
pub(crate) struct Ledger {
    tracks: HashMap<u32, Track>,
    found: Found,
    by_poller: BTreeMap<Poller, u64>,
    /// The number of the first key that an operator deletes. Keys with lower numbers are never deleted.
    deleted_from: u32,
    pub(crate) failovers: Vec<Failover>,
    /// The longest time, in ns, from the promotion of a replica until a holder whose grant the replica lacks learns of
    /// its loss.
    told_within: u64,
}

impl Ledger {
    pub(crate) fn new(deleted_from: u32, told_within: u64) -> Self {
        Self {
            tracks: HashMap::new(),
            found: Found::default(),
            by_poller: BTreeMap::new(),
            deleted_from,
            failovers: Vec::new(),
            told_within,
        }
    }

    /// Records a visit. Visits can arrive in any order.
    pub(crate) fn add(&mut self, visit: Visit) {
        self.found.visits += 1;
        *self.by_poller.entry(visit.poller).or_default() += 1;
        if visit.poller == Poller::Prompt {
            for failover in &mut self.failovers {
                failover.note_wait(visit.key, visit.asked, visit.entered);
            }
        }
        let track = self.tracks.entry(visit.key).or_default();
        let newest = track.newest.map_or(0, |newest| newest.token);
        if visit.token == newest || track.pending.insert(visit.token, visit).is_some() {
            self.found.repeated += 1;
            suspend(|| eprintln!("the token of this visit was granted twice: {visit:?}"));
        } else if visit.token < newest {
            // The ledger has already checked a visit with a higher token. The ledger checks a visit only after the
            // reports of all earlier visits have arrived. The new visit therefore began later, although its token is
            // lower.
            self.found.fallen += 1;
            self.found.first_fault.get_or_insert(visit.entered);
            track.pending.remove(&visit.token);
            suspend(|| eprintln!("token fell: {visit:?} after {:?}", track.newest));
        }
    }

    /// Checks all visits that began before this time. The caller of this method must have added all of these visits.
    pub(crate) fn settle(&mut self, before: u64) {
        for track in self.tracks.values_mut() {
            while let Some(first) = track.pending.first_entry() {
                if first.get().entered >= before {
                    break;
                }
                let visit = first.remove();
                let overlaps = |last: &Visit| visit.entered < last.ended;
                let last = match visit.reads {
                    true => track.newest,
                    false => track.reader.filter(overlaps).or(track.newest),
                };
                if let Some(last) = last.filter(overlaps) {
                    // Returns whether the grant of `last`, whose token is lower, was possibly lost in this failover.
                    let lost_in = |failover: &Failover| {
                        let told = failover.promoted.saturating_add(self.told_within);
                        failover.affects(visit.key)
                            && failover.killed < visit.entered
                            && visit.entered < told
                            && last.entered < told
                    };
                    if visit.key >= self.deleted_from {
                        self.found.allowed += 1;
                    } else if self.failovers.iter().any(lost_in) {
                        self.found.unreplicated += 1;
                        suspend(|| eprintln!("not replicated: {visit:?} while {last:?}"));
                    } else if visit.entered < last.entered {
                        self.found.fallen += 1;
                        self.found.first_fault.get_or_insert(visit.entered);
                        suspend(|| eprintln!("token fell: {last:?} came after {visit:?}"));
                    } else {
                        self.found.overlaps += 1;
                        self.found.first_fault.get_or_insert(visit.entered);
                        suspend(|| eprintln!("overlap: {visit:?} while {last:?}"));
                    }
                }
                let buffered = (BUFFERED_FROM..BUFFERED_FROM + BUFFERED).contains(&visit.key);
                let stood = if buffered {
                    &mut self.found.stood_buffered
                } else {
                    &mut self.found.stood
                };
                track.stands(&visit, stood);
                if visit.reads {
                    let ends = |reader: &Visit| reader.ended > visit.ended;
                    track.reader = track.reader.filter(ends).or(Some(visit));
                    continue;
                }
                (track.newest, track.reader) = (Some(visit), None);
                if visit.asked > 0 {
                    let overtaken = track.latest_asked.saturating_sub(visit.asked);
                    self.found.overtaken = self.found.overtaken.max(overtaken);
                    track.latest_asked = track.latest_asked.max(visit.asked);
                }
            }
        }
    }

    pub(crate) fn found(&self) -> Found {
        self.found
    }

    /// Returns the number of visits of each kind of poller (a caller that polls its future in a certain way).
    pub(crate) fn by_poller(&self) -> &BTreeMap<Poller, u64> {
        &self.by_poller
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{failovers::Affected, plan::slot_of};

    fn found(visits: &[(u32, u64, u64, u64)]) -> Found {
        let mut ledger = Ledger::new(100, 5);
        for &(key, token, entered, ended) in visits {
            ledger.add(Visit {
                key,
                token,
                poller: Poller::Prompt,
                reads: false,
                asked: 0,
                entered,
                ended,
            });
        }
        ledger.settle(u64::MAX);
        ledger.found()
    }

    #[test]
    fn a_clean_history_has_no_faults_in_whatever_order_it_comes() {
        let clean = Found {
            visits: 3,
            ..Found::default()
        };
        let visits = [(1, 5, 10, 20), (1, 7, 20, 30), (1, 9, 31, 40)];
        assert_eq!(found(&visits), clean);
        let [a, b, c] = visits;
        assert_eq!(found(&[c, a, b]), clean);
        // Visits to other keys do not affect the result, because each key has its own tokens and times.
        assert_eq!(found(&[a, (2, 5, 10, 20), (2, 6, 25, 26)]), clean);
    }

    #[test]
    fn each_fault_is_found() {
        assert_eq!(found(&[(1, 5, 10, 20), (1, 6, 19, 30)]).overlaps, 1);
        assert_eq!(found(&[(1, 5, 10, 20), (1, 5, 20, 30)]).repeated, 1);
        assert_eq!(found(&[(1, 5, 10, 20), (1, 4, 20, 30)]).fallen, 1);
        let deleted = found(&[(100, 5, 10, 20), (100, 6, 19, 30)]);
        assert_eq!((deleted.overlaps, deleted.allowed), (0, 1));
        let late = found(&[(100, 5, 10, 20), (100, 4, 20, 30)]);
        assert_eq!((late.fallen, late.allowed), (0, 1));
        assert_eq!(found(&[(100, 5, 10, 20), (100, 5, 20, 30)]).repeated, 1);
    }

    #[test]
    fn readers_overlap_each_other_and_no_writer() {
        let overlaps = |visits: &[(bool, u64, u64, u64)]| {
            let mut ledger = Ledger::new(100, 5);
            for &(reads, token, entered, ended) in visits {
                ledger.add(Visit {
                    key: 1,
                    token,
                    poller: Poller::Prompt,
                    reads,
                    asked: 0,
                    entered,
                    ended,
                });
            }
            ledger.settle(u64::MAX);
            (ledger.found().overlaps, ledger.found().fallen)
        };
        // The reader with the later grant enters and leaves first.
        let readers = [(true, 5, 12, 20), (true, 6, 10, 15)];
        assert_eq!(
            overlaps(&[&readers[..], &[(false, 7, 20, 30)]].concat()),
            (0, 0)
        );
        assert_eq!(
            overlaps(&[&readers[..], &[(false, 7, 19, 30)]].concat()),
            (1, 0)
        );
        assert_eq!(
            overlaps(&[(false, 4, 5, 11), (true, 5, 12, 20), (true, 6, 10, 15)]),
            (1, 0)
        );
        assert_eq!(
            overlaps(&[(false, 4, 5, 9), (true, 5, 12, 20), (true, 6, 10, 15)]),
            (0, 0)
        );
    }

    #[test]
    fn an_overlap_counts_apart_only_after_a_failover_of_its_primary() {
        let found = |key: u32, times: [u64; 4]| {
            let mut ledger = Ledger::new(100, 5);
            let slot = slot_of(1);
            assert_ne!(slot, slot_of(2));
            let mut failover = Failover::new(12, Affected::Slots(vec![slot..=slot]));
            failover.promoted = 20;
            ledger.failovers.push(failover);
            for (token, times) in (1..).zip(times.chunks(2)) {
                ledger.add(Visit {
                    key,
                    token,
                    poller: Poller::Prompt,
                    reads: false,
                    asked: 0,
                    entered: times[0],
                    ended: times[1],
                });
            }
            ledger.settle(u64::MAX);
            let Found {
                overlaps,
                unreplicated,
                fallen,
                ..
            } = ledger.found();
            (overlaps, unreplicated, fallen)
        };
        assert_eq!(found(1, [10, 23, 22, 30]), (0, 1, 0));
        assert_eq!(
            found(1, [23, 24, 22, 30]),
            (0, 1, 0),
            "the first visit entered late"
        );
        assert_eq!(
            found(2, [10, 23, 22, 30]),
            (1, 0, 0),
            "the failover was of another primary"
        );
        assert_eq!(
            found(1, [5, 13, 11, 14]),
            (1, 0, 0),
            "the second visit entered before the kill"
        );
        assert_eq!(
            found(1, [10, 30, 26, 40]),
            (1, 0, 0),
            "the first holder already knew of its loss"
        );
        assert_eq!(
            found(1, [26, 30, 22, 40]),
            (0, 0, 1),
            "the first holder already knew of its loss"
        );
    }

    #[test]
    fn callers_that_a_failover_delays_are_counted() {
        let mut ledger = Ledger::new(100, 5);
        ledger.failovers.push(Failover::new(12, Affected::All));
        let waits = [(10, 11), (10, 30), (13, 30), (0, 30), (26, 40)];
        for (token, (asked, entered)) in (1..).zip(waits) {
            ledger.add(Visit {
                key: 1,
                token,
                poller: Poller::Prompt,
                reads: false,
                asked,
                entered,
                ended: entered,
            });
        }
        ledger.failovers[0].promoted = 25;
        let stood: Vec<u64> = ledger.failovers[0].stood().collect();
        assert_eq!(stood, [18, 17]);
    }

    #[test]
    fn what_is_settled_is_remembered() {
        let mut ledger = Ledger::new(100, 5);
        let visit = |token, entered, ended| Visit {
            key: 1,
            token,
            poller: Poller::Prompt,
            reads: false,
            asked: 0,
            entered,
            ended,
        };
        ledger.add(visit(5, 10, 20));
        ledger.settle(15);
        ledger.add(visit(6, 19, 25));
        ledger.settle(30);
        assert_eq!(ledger.found().overlaps, 1);
        ledger.add(visit(4, 40, 50));
        assert_eq!(ledger.found().fallen, 1);
        ledger.add(visit(6, 60, 70));
        assert_eq!(ledger.found().repeated, 1);
    }

    #[test]
    fn whoever_is_overtaken_is_found() {
        let overtaken = |asked: [u64; 3]| {
            let mut ledger = Ledger::new(100, 5);
            for (place, asked) in (1..).zip(asked) {
                ledger.add(Visit {
                    key: 1,
                    token: place,
                    poller: Poller::Prompt,
                    reads: false,
                    asked,
                    entered: 1000 * place,
                    ended: 1000 * place + 1,
                });
            }
            ledger.settle(u64::MAX);
            ledger.found().overtaken
        };
        assert_eq!(overtaken([10, 20, 30]), 0);
        assert_eq!(overtaken([10, 30, 20]), 10);
        assert_eq!(overtaken([30, 20, 10]), 20);
        assert_eq!(
            overtaken([30, 0, 29]),
            1,
            "the wait of a caller that did not queue is not checked"
        );
    }

    #[test]
    fn a_key_that_stands_is_found() {
        let stood = |visits: &[(u64, u64, u64)]| {
            let mut ledger = Ledger::new(100, 5);
            for (token, &(asked, entered, ended)) in (1..).zip(visits) {
                ledger.add(Visit {
                    key: 1,
                    token,
                    poller: Poller::Prompt,
                    reads: false,
                    asked,
                    entered,
                    ended,
                });
            }
            ledger.settle(u64::MAX);
            ledger.found().stood
        };
        assert_eq!(stood(&[(0, 10, 20), (15, 50, 60)]), 30);
        assert_eq!(
            stood(&[(0, 10, 20), (45, 50, 60)]),
            5,
            "the second caller called later"
        );
        assert_eq!(stood(&[(0, 10, 20), (0, 50, 60)]), 0, "nobody waited");
        let behind = [(0, 10, 20), (0, 50, 60), (30, 61, 70)];
        assert_eq!(
            stood(&behind),
            20,
            "a caller that queued behind a late poller"
        );
    }

    #[test]
    fn a_visit_reads_back_as_it_was_written() {
        let visit = Visit {
            key: 7,
            token: u64::MAX,
            poller: Poller::Forgotten,
            reads: true,
            asked: 3,
            entered: 1,
            ended: 2,
        };
        assert_eq!(Visit::read(&visit.line()), Some(visit));
        assert_eq!(Visit::read("test soak ... ok"), None);
        assert_eq!(Visit::read("v 1 2 0 3 4 5"), None);
    }
}
