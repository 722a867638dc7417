use std::time::Duration;

use super::*;

/// The parts of a core without an engine.
#[derive(Debug, Clone)]
enum Bare {}

impl Parts for Bare {
    type Request = ();
    type Caller = u128;
    type Batch = &'static str;
}

struct Fixture {
    lines: Lines<Bare>,
    link: Link,
    name: LockName,
}

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

fn owner(number: u128) -> OwnerId {
    OwnerId::from_u128(number)
}

fn placed(place: u64) -> Stored {
    Stored {
        place: Some(place),
        granted: 0,
    }
}

impl Fixture {
    fn new() -> Self {
        let mut lines = Lines::default();
        Self {
            link: lines.open_link(&"session".into()),
            lines,
            name: LockName::stored("{lock:k}"),
        }
    }

    fn join(&mut self, number: u128, stored: Stored) -> bool {
        let (link, name) = (self.link, &self.name);
        self.lines
            .join(link, name, owner(number), stored, (), number)
    }

    fn join_all(&mut self, numbers: impl IntoIterator<Item = u128>) {
        for number in numbers {
            self.join(number, Stored::default());
        }
    }

    fn queued(&mut self, number: u128, place: u64) {
        let (link, name) = (self.link, &self.name);
        self.lines.queued(link, name, &[(owner(number), place)]);
    }

    /// Returns the owners of the next batch, and their places.
    fn next_batch(&mut self) -> Vec<(u128, Option<u64>)> {
        let batch = self.lines.next_batch(self.link, &self.name);
        let number = |one: &ToSend<Bare>| (1..200).find(|number| owner(*number) == one.owner);
        let batch = batch.iter();
        batch
            .map(|one| (number(one).unwrap(), one.stored.place))
            .collect()
    }

    /// Returns the callers that have been told why their wait has ended.
    fn told(&mut self) -> Vec<(u128, Ended)> {
        let callers = self.lines.take_outgoing().callers;
        let told = callers.into_iter();
        told.filter_map(|(caller, ended)| Some((caller, ended?)))
            .collect()
    }

    fn leave(&mut self, number: u128) -> Option<Stored> {
        let (link, name) = (self.link, &self.name);
        self.lines.leave_list(link, name, owner(number))
    }

    fn batches(&mut self) -> Vec<&'static str> {
        self.lines.take_outgoing().batches
    }
}

#[test]
fn only_the_first_caller_without_a_place_asks_by_itself() {
    let mut fixture = Fixture::new();
    assert!(fixture.join(1, Stored::default()));
    assert!(!fixture.join(2, Stored::default()));
    assert_eq!(fixture.next_batch(), [(2, None)]);
    let mut fixture = Fixture::new();
    assert!(!fixture.join(1, placed(5)), "it comes back to its place");
    assert_eq!(fixture.next_batch(), [(1, Some(5))]);
}

#[test]
fn a_caller_is_told_once_and_keeps_what_the_server_stores() {
    let mut fixture = Fixture::new();
    fixture.join(1, Stored::default());
    fixture.queued(1, 7);
    let (link, name) = (fixture.link, fixture.name.clone());
    fixture.lines.note_grant(link, &name, &[owner(1)], 40);
    let stored = fixture.lines.stored(link, &name, owner(1)).unwrap();
    assert_eq!((stored.place, stored.granted), (Some(7), 40));
    assert!(fixture.lines.tell(link, &name, owner(1), Ended::Turn));
    assert!(!fixture.lines.tell(link, &name, owner(1), Ended::Turn));
    assert_eq!(fixture.told(), [(1, Ended::Turn)]);
    assert!(!fixture.lines.waits(link, &name, owner(1)));
    assert_eq!(fixture.leave(1), Some(stored));
    assert!(fixture.lines.is_empty(link));
}

/// The message about a grant comes before the answer that names the place.
#[test]
fn a_place_that_comes_after_the_turn_is_kept() {
    let mut fixture = Fixture::new();
    fixture.join_all([1, 2]);
    fixture.queued(1, 6);
    let (link, name) = (fixture.link, fixture.name.clone());
    assert!(fixture.lines.tell(link, &name, owner(2), Ended::Turn));
    fixture.queued(2, 7);
    assert_eq!(fixture.leave(2), Some(placed(7)));
    fixture.lines.await_batch(link, &name, "one is queued");
    assert_eq!(fixture.batches(), [""; 0]);
    fixture.leave(1);
    assert_eq!(fixture.batches(), ["one is queued"]);
}

#[test]
fn a_list_whose_session_has_ended_is_removed_with_its_task() {
    let mut fixture = Fixture::new();
    let (link, name) = (fixture.link, fixture.name.clone());
    fixture.join(1, placed(7));
    assert!(fixture.lines.begin_sending(link, &name));
    fixture.lines.end_link(link);
    assert_eq!(fixture.next_batch(), [], "nobody waits");
    assert_eq!(fixture.leave(1), Some(placed(7)));
    assert!(fixture.lines.is_empty(link));
}

#[test]
fn a_caller_that_leaves_is_told_nothing() {
    let mut fixture = Fixture::new();
    fixture.join(1, placed(7));
    assert_eq!(fixture.leave(1), Some(placed(7)));
    assert_eq!(fixture.told(), []);
    assert_eq!(fixture.leave(1), None);
}

#[test]
fn a_grant_counts_as_new_once() {
    let mut fixture = Fixture::new();
    fixture.join(1, placed(1));
    let (link, name) = (fixture.link, fixture.name.clone());
    let owners = [owner(1), owner(2)];
    assert!(fixture.lines.note_grant(link, &name, &owners, 7));
    assert!(!fixture.lines.note_grant(link, &name, &owners, 7));
    assert!(!fixture.lines.note_grant(link, &name, &owners, 6));
    // The server's tokens can start again at a lower number.
    fixture.lines.set_grant(link, &name, &owners, 3);
    assert!(fixture.lines.note_grant(link, &name, &owners, 4));
}

/// The callers wake in the order of their places, and then in the order of their requests.
#[test]
fn dismissed_callers_keep_their_order() {
    let mut fixture = Fixture::new();
    fixture.join_all([1, 2, 3, 4]);
    fixture.queued(3, 10);
    fixture.queued(1, 20);
    fixture.lines.end_link(fixture.link);
    assert!(fixture.lines.has_ended(fixture.link));
    let expected = [3, 1, 2, 4].map(|caller| (caller, Ended::Dismissed));
    assert_eq!(fixture.told(), expected);
    assert_eq!(fixture.leave(1), Some(placed(20)));
}

#[test]
fn only_the_callers_of_a_lock_that_has_moved_are_dismissed() {
    let mut fixture = Fixture::new();
    fixture.join(1, placed(1));
    fixture.name = LockName::stored("{lock:other}");
    fixture.join(2, placed(1));
    let moved = LockName::stored("{lock:k}");
    fixture.lines.dismiss(fixture.link, |name| *name == moved);
    assert_eq!(fixture.told(), [(1, Ended::Dismissed)]);
    assert!(fixture.lines.waits(fixture.link, &fixture.name, owner(2)));
}

/// After a reconnect, the callers with places are first, in the order of their places.
#[test]
fn requests_are_sent_again_in_the_order_of_the_places() {
    let mut fixture = Fixture::new();
    fixture.join_all([1, 2, 3, 4]);
    assert_eq!(fixture.next_batch(), [(2, None), (3, None), (4, None)]);
    fixture.queued(3, 30);
    fixture.queued(2, 40);
    let names = fixture.lines.requeue(fixture.link, None);
    assert_eq!(names, [fixture.name.clone()]);
    assert_eq!(fixture.next_batch(), [(3, Some(30)), (2, Some(40))]);
}

#[test]
fn a_batch_that_was_not_sent_comes_back_first() {
    let mut fixture = Fixture::new();
    fixture.join_all([1, 2, 3]);
    let (link, name) = (fixture.link, fixture.name.clone());
    let batch = fixture.lines.next_batch(link, &name);
    fixture.join_all([4]);
    fixture.lines.put_back(link, &name, &batch);
    assert_eq!(fixture.next_batch(), [(2, None), (3, None), (4, None)]);
}

#[test]
fn one_task_sends_the_requests_of_a_lock() {
    let mut fixture = Fixture::new();
    let (link, name) = (fixture.link, fixture.name.clone());
    fixture.join_all([1]);
    assert!(!fixture.lines.begin_sending(link, &name), "none is unsent");
    fixture.join_all([2]);
    assert!(fixture.lines.begin_sending(link, &name));
    assert!(!fixture.lines.begin_sending(link, &name));
    assert_eq!(fixture.next_batch().len(), 1);
    assert_eq!(fixture.next_batch(), [], "this ends the task");
    fixture.join_all([3]);
    assert!(fixture.lines.begin_sending(link, &name));
}

/// A request waits for more callers while some are queued, and while it has room for more.
#[test]
fn a_request_is_sent_when_nobody_is_queued_or_it_is_full() {
    let mut fixture = Fixture::new();
    let (link, name) = (fixture.link, fixture.name.clone());
    fixture.lines.await_batch(link, &name, "nobody waits");
    assert_eq!(fixture.batches(), ["nobody waits"]);
    fixture.join_all([1, 2]);
    fixture.queued(1, 1);
    fixture.lines.await_batch(link, &name, "queued");
    assert_eq!(fixture.batches(), [""; 0]);
    fixture.leave(1);
    assert_eq!(fixture.batches(), ["queued"]);
    fixture.queued(2, 2);
    fixture.lines.await_batch(link, &name, "full");
    fixture.join_all(3..3 + BATCH_LIMIT as u128);
    assert_eq!(fixture.batches(), ["full"]);
}

/// A probe asks about the first caller of the queue. A lock is not probed while requests for it are sent.
#[test]
fn a_probe_is_due_for_the_first_caller() {
    let mut fixture = Fixture::new();
    let (link, name) = (fixture.link, fixture.name.clone());
    assert!(!fixture.lines.probe_at(link, &name, at(10)), "nobody waits");
    fixture.join_all([1, 2]);
    fixture.queued(1, 20);
    fixture.queued(2, 10);
    assert!(fixture.lines.probe_at(link, &name, at(50)));
    assert!(fixture.lines.probe_at(link, &name, at(10)));
    assert!(
        !fixture.lines.probe_at(link, &name, at(40)),
        "one is earlier"
    );
    let due = |lines: &mut Lines<Bare>, now| {
        let due = lines.due(link, at(now), at(now + 200), 100);
        due.iter().map(|one| one.owner).collect::<Vec<_>>()
    };
    assert_eq!(due(&mut fixture.lines, 9), []);
    assert_eq!(due(&mut fixture.lines, 10), [owner(2)]);
    assert_eq!(due(&mut fixture.lines, 50), [], "an outdated entry");
    assert_eq!(fixture.lines.next_probe(link), Some(at(210)));
    assert!(fixture.lines.begin_sending(link, &name));
    assert_eq!(due(&mut fixture.lines, 210), []);
    assert_eq!(
        fixture.lines.next_probe(link),
        Some(at(210) + limits::PROBE_AGAIN)
    );
}

#[test]
fn a_forgotten_session_has_no_callers() {
    let mut fixture = Fixture::new();
    fixture.join_all([1]);
    let (link, name) = (fixture.link, fixture.name.clone());
    assert!(fixture.lines.has_id(link, "session") && !fixture.lines.has_id(link, "other"));
    fixture.lines.forget_link(link);
    assert_eq!(fixture.told(), [(1, Ended::Dismissed)]);
    assert!(fixture.lines.has_ended(link) && !fixture.lines.has_id(link, "session"));
    assert!(!fixture.lines.waits(link, &name, owner(1)));
    assert!(fixture.lines.links.is_empty());
}

#[test]
fn the_locks_of_a_session_are_counted() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.lines.locks(fixture.link), 0);
    assert!(fixture.lines.is_empty(fixture.link));
    fixture.join(1, Stored::default());
    fixture.name = LockName::stored("{lock:other}");
    fixture.join(2, Stored::default());
    assert_eq!(fixture.lines.locks(fixture.link), 2);
    assert!(!fixture.lines.is_empty(fixture.link));
}

/// While callers are queued, a batch that is not full waits for more of them.
#[test]
fn a_batch_waits_until_it_is_full() {
    let mut fixture = Fixture::new();
    fixture.join(1, Stored::default());
    fixture.queued(1, 5);
    fixture.join(2, Stored::default());
    let (link, name) = (fixture.link, fixture.name.clone());
    fixture.lines.await_batch(link, &name, "waits");
    fixture.join(3, Stored::default());
    assert!(fixture.batches().is_empty());
    fixture.leave(1);
    assert_eq!(fixture.batches(), ["waits"]);
    fixture.lines.await_batch(link, &name, "nobody is queued");
    assert_eq!(fixture.batches(), ["nobody is queued"]);
}

#[test]
fn a_probe_covers_no_more_locks_than_asked_for() {
    let mut fixture = Fixture::new();
    for key in ["{lock:a}", "{lock:b}", "{lock:c}"] {
        fixture.name = LockName::stored(key);
        fixture.join(1, Stored::default());
        fixture.queued(1, 5);
        fixture.lines.probe_at(fixture.link, &fixture.name, at(0));
    }
    let mut due = |most| fixture.lines.due(fixture.link, at(1), at(100), most).len();
    assert_eq!((due(2), due(2), due(2)), (2, 1, 0));
}
