use std::{cell::RefCell, collections::BTreeSet};

use lock_core::options::Mode;

use super::*;
use crate::backend::redis::core::Stored;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);

fn at(millis: u32) -> Moment {
    Moment::new(10_000 * MS + millis * MS)
}

/// The parts of a core without an engine. A caller is its owner name, and whether its runtime does not run.
enum Bare {}

impl Parts for Bare {
    type Request = OwnerId;
    type Caller = (OwnerId, bool);
    type Batch = ();
}

/// One session, and the lock for which all its callers wait.
struct Fixture {
    core: RefCell<Core<Bare>>,
    link: Link,
    name: LockName,
    /// The owners whose turn has come since the test asked for it.
    told: RefCell<BTreeSet<OwnerId>>,
}

/// A waiting caller.
#[derive(Clone, Copy)]
struct Member(OwnerId);

impl Fixture {
    fn new() -> Self {
        let mut core = Core::default();
        Self {
            link: core.lines.open_link(&"session".into()),
            core: RefCell::new(core),
            name: LockName::stored("{lock:k}"),
            told: RefCell::default(),
        }
    }

    /// Calls a method of the core, and collects the members whose turn has come.
    fn with<T>(&self, method: impl FnOnce(&mut Core<Bare>, &LockName) -> T) -> T {
        let mut core = self.core.borrow_mut();
        let result = method(&mut core, &self.name);
        for ((owner, _), told) in core.lines.take_outgoing().callers {
            if told == Some(Ended::Turn) {
                self.told.borrow_mut().insert(owner);
            }
        }
        result
    }

    /// Adds a waiting caller with this owner, whose place in the queue is its number.
    fn member(&self, owner: u128) -> Member {
        self.join(owner, false)
    }

    fn join(&self, number: u128, is_silent: bool) -> Member {
        let owner = OwnerId::from_u128(number);
        self.with(|core, name| {
            let (lines, caller) = (&mut core.lines, (owner, is_silent));
            lines.join(self.link, name, owner, Stored::default(), owner, caller);
            lines.queued(self.link, name, &[(owner, number as u64)]);
        });
        Member(owner)
    }

    fn grant(&self, first: u64, members: &[&Member], now: Moment) -> GrantSnapshot {
        let owners: Vec<_> = members.iter().map(|member| member.0.to_string()).collect();
        let lease = LEASE.as_millis().to_string();
        let (first, owners) = (first.to_string(), owners.join(" "));
        GrantSnapshot::pushed(&first, &lease, &owners, "session", now).unwrap()
    }

    /// Accepts a grant to readers, as if the server had pushed it.
    fn push_readers(&self, first: u64, members: &[&Member], now: Moment) -> TakenUp {
        let mut grant = self.grant(first, members, now);
        grant.mode = Mode::Read;
        self.take_up(&grant, now)
    }

    fn take_up(&self, grant: &GrantSnapshot, now: Moment) -> TakenUp {
        self.with(|core, name| core.take_up(self.link, name, grant, now, &|(_, silent)| *silent))
    }

    /// Accepts a grant to these members, as if the server had pushed it.
    fn push(&self, first: u64, members: &[&Member], now: Moment) -> TakenUp {
        self.take_up(&self.grant(first, members, now), now)
    }

    /// Accepts a grant to these members, as if the answer to a request had described it.
    fn describe(&self, first: u64, members: &[&Member], now: Moment) -> TakenUp {
        let mut grant = self.grant(first, members, now);
        grant.is_pushed = false;
        self.take_up(&grant, now)
    }

    fn pass(&self, token: u64, now: Moment) -> Passed {
        self.with(|core, name| core.pass(name, token, now, &|(_, silent)| *silent))
    }

    /// Returns the token of the turn that this member has, if it was told of it since the last call.
    fn turn(&self, member: &Member) -> Option<u64> {
        let was_told = self.told.borrow_mut().remove(&member.0);
        let turn = self.with(|core, name| core.turn_of(name, member.0));
        turn.map(|(token, _)| token.get()).filter(|_| was_told)
    }

    fn is_inside(&self, token: u64, now: Moment) -> bool {
        let grant = self.with(|core, name| {
            let owner = core.with_token(name, token, |entry| entry.cohort.turn().owner)?;
            core.grant_of(name, owner, now)
        });
        grant.is_some_and(|grant| grant.token.get() == token)
    }

    /// Applies the answer to a renewal that was requested and answered at `now`. The new deadline is `until`.
    fn confirm(&self, token: u64, until: Moment, now: Moment) -> bool {
        let token = FencingToken::new(token);
        self.with(|core, name| core.confirm(name, token, until, now))
    }

    fn known(&self, token: u64) -> Known {
        self.with(|core, name| core.known(name, FencingToken::new(token)))
    }

    /// Whether this process knows the grant, and its last member has not left.
    fn is_seen(&self, first: u64) -> bool {
        self.with(|core, name| core.seen(name, first)).is_some()
    }

    fn lose(&self, first: u64) -> bool {
        self.with(|core, name| core.lose(name, first)).is_some()
    }

    fn forget(&self, first: u64) {
        self.with(|core, name| core.forget(name, FencingToken::new(first)));
    }

    fn forget_turn(&self, token: u64) {
        self.with(|core, name| core.forget_turn(name, FencingToken::new(token)));
    }

    /// Removes this member from the waiters of the session, as the member's acquisition does when it is settled.
    fn settle(&self, member: &Member) {
        self.with(|core, name| core.lines.leave_list(self.link, name, member.0));
    }

    fn heartbeat_chores(&self, now: Moment) -> Chores {
        self.with(|core, _| core.heartbeat_chores(self.link, now))
    }
}

fn is_nothing(taken_up: &TakenUp) -> bool {
    taken_up.requeue.is_empty() && taken_up.give_back.is_none()
}

#[test]
fn a_pushed_grant_offers_its_turns_in_order() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    assert!(is_nothing(&fixture.push(7, &[&a, &b], at(0))));
    assert_eq!((fixture.turn(&a), fixture.turn(&b)), (Some(7), None));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    let passed = fixture.pass(7, at(2));
    assert!(matches!(passed, Passed::On));
    assert_eq!(fixture.turn(&b), Some(8));
    assert!(fixture.is_inside(8, at(3)));
    fixture.settle(&b);
    let passed = fixture.pass(8, at(4));
    assert!(matches!(passed, Passed::Ended(7)));
}

#[test]
fn a_member_that_has_left_is_passed_over() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.settle(&a);
    assert!(is_nothing(&fixture.push(7, &[&a, &b], at(0))));
    assert_eq!((fixture.turn(&a), fixture.turn(&b)), (None, Some(8)));
}

#[test]
fn a_grant_that_nobody_takes_goes_back_under_its_last_token() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.settle(&a);
    fixture.settle(&b);
    let taken_up = fixture.push(7, &[&a, &b], at(0));
    assert!(taken_up.requeue.is_empty());
    let (token, _) = taken_up.give_back.expect("the grant is given back");
    assert!(matches!(fixture.known(token.get()), Known::Over));
}

#[test]
fn a_grant_of_another_session_is_ignored() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    let mut grant = fixture.grant(7, &[&a], at(0));
    grant.session_id = "another".into();
    let taken_up = fixture.take_up(&grant, at(0));
    assert!(is_nothing(&taken_up));
    assert_eq!(fixture.turn(&a), None);
}

#[test]
fn a_grant_whose_time_is_over_lets_its_members_queue_again() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    let grant = fixture.grant(7, &[&a, &b], at(0));
    let late = at(2000);
    let taken_up = fixture.take_up(&grant, late);
    assert_eq!(taken_up.requeue.len(), 1);
    assert_eq!(fixture.turn(&a), None);
}

#[test]
fn a_repeated_push_changes_nothing() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    assert!(is_nothing(&fixture.push(7, &[&a, &b], at(2))));
    assert_eq!(fixture.turn(&b), None, "another member is inside");
}

/// Simulates an attacker that receives all grant messages, and repeats them while another process holds the lock.
#[test]
fn a_push_that_is_repeated_after_its_grant_was_forgotten_seats_nobody() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    // The first member is still inside when the lease ends, so the second member queues again.
    let chores = fixture.heartbeat_chores(at(1100));
    assert_eq!(chores.requeue.len(), 1);
    // The first member leaves, and the grant is over for this process.
    let passed = fixture.pass(7, at(2500));
    assert!(matches!(passed, Passed::Stale));
    assert!(!fixture.is_seen(7));
    for now in [3200, 3220, 3240, 13_000] {
        // At last, the registry removes the cohort of the grant.
        fixture.heartbeat_chores(at(now));
        assert!(is_nothing(&fixture.push(7, &[&a, &b], at(now))));
        assert_eq!(fixture.turn(&b), None, "the grant is over");
    }
    // A newer grant is still accepted.
    fixture.push(9, &[&b], at(14_000));
    assert_eq!(fixture.turn(&b), Some(9));
}

#[test]
fn a_suspended_grant_that_the_server_still_has_is_shared_again() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    assert_eq!(fixture.heartbeat_chores(at(1100)).requeue.len(), 1);
    fixture.describe(7, &[&a, &b], at(1200));
    assert_eq!(fixture.turn(&b), Some(8));
}

/// A member that wants a longer lease keeps the grant alone. Turns pass to nobody in memory, and answers that describe the
/// grant as it was do not change that.
#[test]
fn a_member_that_wants_more_is_the_last_one() {
    let fixture = Fixture::new();
    let [a, b, c] = [1, 2, 3].map(|owner| fixture.member(owner));
    fixture.push(7, &[&a, &b, &c], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    let token = FencingToken::new(7);
    let dissolve = |lease| fixture.with(|core, name| core.dissolve(name, token, lease));
    let dissolves = |retains| fixture.with(|core, name| core.dissolves(name, token, retains));
    let shared = |extend| fixture.with(|core, name| core.shared(name, token, extend));
    assert!(dissolve(Some(LEASE)).is_none());
    assert!(dissolves(true) && !dissolves(false));
    let longer = Extend::To(2 * LEASE);
    assert_eq!(shared(longer), Extend::To(LEASE));
    let dissolved = dissolve(Some(2 * LEASE)).unwrap();
    assert_eq!((dissolved.first, dissolved.owner), (token, a.0));
    assert_eq!(dissolved.others, [b.0, c.0]);
    // Until the server has queued them, a release and another extension do it first.
    assert!(dissolves(false));
    assert_eq!(shared(longer), Extend::To(LEASE));
    assert_eq!(dissolve(Some(LEASE)).unwrap().others, dissolved.others);
    assert!(is_nothing(&fixture.describe(7, &[&a, &b, &c], at(20))));
    // Both are on their way to the queue, so their absence does not mean that the grant is lost.
    assert!(!fixture.with(|core, name| core.has_lost(name, 7, at(20))));
    let places = |core: &mut Core<_>, name: &_| {
        let (link, others) = (fixture.link, &dissolved.others);
        core.lines.places(link, name, others)
    };
    let entries = fixture.with(places);
    assert_eq!(entries, [(b.0, 2), (c.0, 3)]);
    fixture.with(|core, name| core.has_queued(name, token));
    assert!(dissolve(None).is_none() && !dissolves(true));
    assert_eq!(shared(longer), longer);
    assert!(is_nothing(&fixture.describe(7, &[&a], at(30))));
    // The server has lost the script: it describes the grant as it was.
    let again = fixture.describe(7, &[&a, &b, &c], at(40)).dissolve;
    assert_eq!(again, Some(token));
    assert_eq!(
        dissolve(Some(Duration::ZERO)).unwrap().others,
        dissolved.others
    );
    assert!(matches!(fixture.pass(7, at(50)), Passed::Ended(7)));
}

/// The first release of a member, whose caller no longer waits for it, has made the other members queue again. The second
/// release must not release the grant, because the other members possibly share it again.
#[test]
fn a_second_release_of_a_member_does_not_end_a_grant_that_is_shared_again() {
    for is_suspended in [false, true] {
        let fixture = Fixture::new();
        let (a, b) = (fixture.member(1), fixture.member(2));
        fixture.push(7, &[&a, &b], at(0));
        assert_eq!(fixture.turn(&a), Some(7));
        assert!(fixture.is_inside(7, at(1)));
        fixture.settle(&a);
        if is_suspended {
            fixture.heartbeat_chores(at(1100));
            let passed = fixture.pass(7, at(1200));
            assert!(matches!(passed, Passed::Stale), "{passed:?}");
        } else {
            let passed = fixture.pass(7, at(1200));
            assert!(matches!(passed, Passed::Late(_)), "{passed:?}");
        }
        let again = || fixture.pass(7, at(1300));
        assert!(matches!(again(), Passed::Stale));
        fixture.forget_turn(7);
        let known = fixture.known(7);
        assert!(matches!(known, Known::Over), "{known:?}");
        fixture.describe(7, &[&a, &b], at(1400));
        assert_eq!(fixture.turn(&b), Some(8));
        assert!(matches!(again(), Passed::Stale));
    }
}

#[test]
fn a_newer_grant_replaces_one_that_the_server_has_lost() {
    let fixture = Fixture::new();
    let (a, b, c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    let taken_up = fixture.push(20, &[&c], at(10));
    assert_eq!(
        taken_up.requeue.len(),
        1,
        "the members of the replaced grant queue again"
    );
    assert_eq!(fixture.turn(&c), Some(20));
    // A late answer that describes the older grant is ignored.
    assert!(is_nothing(&fixture.describe(7, &[&b], at(20))));
}

/// After a failover, a grant of the old primary comes while a member of a cohort holds the lock by a grant of the new
/// primary. When the grant of the old primary is over, the new primary describes its grant again.
#[test]
fn a_member_that_is_inside_outlasts_a_grant_of_an_old_primary() {
    let fixture = Fixture::new();
    let (a, b, c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    let taken_up = fixture.push(20, &[&c], at(10));
    assert_eq!(taken_up.requeue.len(), 1, "the second member queues again");
    // While a member of the newer grant has the turn, the older grant stays replaced.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(11))));
    assert!(fixture.is_inside(20, at(12)));
    fixture.settle(&c);
    let pass = |token, now| fixture.pass(token, now);
    assert!(matches!(pass(20, at(13)), Passed::Ended(20)));
    fixture.forget(20);
    // The first member is still inside, so nobody else gets a turn, and the grant is not given back.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(14))));
    assert_eq!(fixture.turn(&b), None, "another member is inside");
    let known = |token| fixture.known(token);
    assert!(matches!(known(7), Known::Turn(7)));
    assert!(matches!(pass(7, at(15)), Passed::On));
    assert_eq!(fixture.turn(&b), Some(8));
}

/// The server loses its data, and its clock is set back, so its tokens begin again at a lower number.
#[test]
fn a_described_grant_with_a_lower_token_counts_after_the_known_grant_is_over() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(20, &[&a], at(0));
    assert!(fixture.is_inside(20, at(1)));
    fixture.settle(&a);
    // The request was sent before the grant was known, or the grant is not over.
    assert!(is_nothing(&fixture.describe(7, &[&b], at(0))));
    assert!(is_nothing(&fixture.describe(7, &[&b], at(2))));
    assert_eq!(fixture.turn(&b), None);
    fixture.lose(20);
    assert!(
        is_nothing(&fixture.push(7, &[&b], at(3))),
        "a message can be late"
    );
    assert_eq!(fixture.turn(&b), None);
    fixture.describe(7, &[&b], at(3));
    assert_eq!(fixture.turn(&b), Some(7));
    assert!(fixture.is_inside(7, at(4)));
}

/// A member of a replaced grant that leaves does not pass its turn on, because the server has usually lost the grant.
/// The grant is released, because the server may still have it.
#[test]
fn a_replaced_grant_passes_no_turn_on() {
    let fixture = Fixture::new();
    let (a, b, c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    fixture.push(20, &[&c], at(10));
    assert_eq!(fixture.turn(&c), Some(20));
    assert!(fixture.is_inside(20, at(11)));
    // The request was sent before the other grant came.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(10))));
    let passed = fixture.pass(7, at(12));
    assert!(matches!(passed, Passed::Ended(7)));
    assert_eq!(fixture.turn(&b), None);
    // The server describes the older grant too late.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(13))));
    assert_eq!(fixture.turn(&b), None);
}

/// Only an answer to a request that was sent after the replacement shows that the server still has the grant.
#[test]
fn an_answer_that_was_requested_before_the_replacement_does_not_reverse_it() {
    let fixture = Fixture::new();
    let (a, b, c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    assert!(fixture.confirm(7, at(5000), at(5)));
    fixture.push(20, &[&c], at(10));
    fixture.lose(20);
    // The registry forgets the other grant a claim (2 s) after its deadline.
    fixture.heartbeat_chores(at(3100));
    assert!(!fixture.is_seen(20));
    fixture.describe(7, &[&a, &b], at(10));
    let passed = fixture.pass(7, at(3101));
    assert!(matches!(passed, Passed::Ended(7)));
    assert_eq!(fixture.turn(&b), None);
}

/// A grant of which no member waits is given back, and does not replace the other grants.
#[test]
fn a_grant_that_nobody_takes_replaces_no_other_grant() {
    let fixture = Fixture::new();
    let (a, b, c, d) = (
        fixture.member(1),
        fixture.member(2),
        fixture.member(3),
        fixture.member(4),
    );
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    for left in [&a, &c, &d] {
        fixture.settle(left);
    }
    let taken_up = fixture.push(20, &[&c, &d], at(10));
    assert!(taken_up.requeue.is_empty() && taken_up.give_back.is_some());
    let passed = fixture.pass(7, at(12));
    assert!(matches!(passed, Passed::On));
    assert_eq!(fixture.turn(&b), Some(8));
}

#[test]
fn a_replaced_grant_is_forgotten_a_claim_after_its_deadline() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    fixture.push(20, &[&b], at(10));
    fixture.heartbeat_chores(at(1100));
    assert!(fixture.is_seen(7));
    fixture.heartbeat_chores(at(3100));
    assert!(!fixture.is_seen(7));
}

#[test]
fn an_owner_that_is_inside_gives_a_second_grant_back() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.push(7, &[&a], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    let taken_up = fixture.push(9, &[&a], at(2));
    let (token, _) = taken_up.give_back.expect("the grant is given back");
    assert_eq!(token.get(), 9);
    // The owner still holds the lock with the token of its first grant.
    assert!(matches!(fixture.known(7), Known::Turn(7)));
}

#[test]
fn a_grant_of_one_that_was_told_in_a_reply_is_left_to_it() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.settle(&a);
    assert!(is_nothing(&fixture.describe(7, &[&a], at(0))));
    assert!(!fixture.is_seen(7));
}

#[test]
fn a_pushed_grant_of_a_call_that_has_ended_is_given_back() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.settle(&a);
    let taken_up = fixture.push(7, &[&a], at(0));
    let (token, _) = taken_up.give_back.expect("the grant is given back");
    assert_eq!(token.get(), 7);
    // The server then grants the lock to the next waiter.
    assert!(is_nothing(&fixture.push(8, &[&b], at(1))));
    assert_eq!(fixture.turn(&b), Some(8));
}

/// A caller is dismissed when its slot moves. If the slot moves back, the caller queues again under the same owner name.
#[test]
fn a_grant_that_is_given_back_does_not_seat_its_returning_owner() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.settle(&a);
    assert!(fixture.push(7, &[&a], at(0)).give_back.is_some());
    let again = fixture.member(1);
    assert!(is_nothing(&fixture.describe(7, &[&again], at(1))));
    assert_eq!(fixture.turn(&again), None, "the grant is being released");
}

/// The first member misses its turn, and the runtime of both members is silent, so the engine releases the grant. The grant
/// has been extended, but the answer is under way, so the server still has the grant after its local deadline. The release
/// arrives late. Meanwhile no member may enter by this grant.
#[test]
fn a_grant_whose_release_is_under_way_is_not_shared_again() {
    let fixture = Fixture::new();
    let [a, b] = [fixture.member(1), fixture.join(2, true)];
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    let token = FencingToken::new(7);
    fixture.with(|core, name| core.note_request(name, token, at(1900)));
    assert!(fixture.is_inside(7, at(1)));
    assert!(fixture.confirm(7, at(1200), at(200)));
    assert!(matches!(fixture.pass(7, at(1100)), Passed::Ended(7)));
    for now in [1300, 1800, 3800] {
        fixture.heartbeat_chores(at(now));
        assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(now + 50))));
        assert!(!fixture.is_inside(8, at(now + 50)));
        let passed = fixture.pass(7, at(now + 50));
        assert!(matches!(passed, Passed::Ended(7)), "{passed:?}");
    }
    // A newer grant does not change this.
    let c = fixture.member(3);
    fixture.push(20, &[&c], at(3870));
    assert_eq!(fixture.turn(&c), Some(20));
    assert_eq!(fixture.known(7), Known::Over);
    // Every heartbeat removes the cohort, because the session of the cohort may have ended.
    let other = fixture.with(|core, _| core.lines.open_link(&"other".into()));
    let beat = |now| fixture.with(|core, _| core.heartbeat_chores(other, now));
    beat(at(3890));
    assert_eq!(fixture.known(7), Known::Over);
    beat(at(3900));
    let known = fixture.known(7);
    assert_eq!(known, Known::Itself, "the grant is past");
}

/// The members whose runtime is silent miss their turns, and the next member on another runtime gets the turn.
#[test]
fn members_of_a_silent_runtime_are_passed_over() {
    let fixture = Fixture::new();
    let [a, b, c] = [(1, false), (2, true), (3, true)].map(|(n, silent)| fixture.join(n, silent));
    let d = fixture.member(4);
    fixture.push(7, &[&a, &b, &c, &d], at(0));
    assert!(fixture.is_inside(7, at(1)));
    assert!(matches!(fixture.pass(7, at(900)), Passed::On));
    for silent in [b, c] {
        assert!(fixture.told.borrow().contains(&silent.0));
        assert_eq!(fixture.turn(&silent), None);
    }
    assert_eq!(fixture.turn(&d), Some(10));
}

/// A probe finds the grant of a member whose runtime is silent. The grant is given back at once.
#[test]
fn a_described_grant_of_a_silent_runtime_is_given_back() {
    let fixture = Fixture::new();
    let a = fixture.join(1, true);
    let unused = fixture.describe(7, &[&a], at(1000)).give_back;
    assert_eq!(unused.map(|(token, _)| token.get()), Some(7));
}

#[test]
fn an_answer_for_a_turn_that_has_passed_counts_for_nobody() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    fixture.pass(7, at(2));
    assert_eq!(fixture.turn(&b), Some(8));
    assert!(!fixture.confirm(7, at(30_000), at(3)));
    assert_eq!(fixture.known(7), Known::Over);
}

#[test]
fn a_grant_of_whose_member_the_server_knows_nothing_is_lost() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    let lost = |granted, asked| fixture.with(|core, name| core.has_lost(name, granted, asked));
    assert!(!lost(7, at(0)), "sent before this process knew the grant");
    assert!(!lost(5, at(1)), "the owner belongs to an earlier grant");
    assert!(lost(7, at(1)));
    assert!(fixture.lose(7) && !lost(7, at(1)));
    let known = fixture.known(7);
    assert!(matches!(known, Known::Over));
}

/// The first member's token is also the grant's token. When the first member leaves, the core must not conclude
/// that the grant is released, because only the last member releases the grant.
#[test]
fn the_first_member_that_has_left_does_not_confirm_the_release() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    let pass = |token| fixture.pass(token, at(3));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    assert!(matches!(pass(7), Passed::On));
    assert!(fixture.is_inside(8, at(2)));
    fixture.settle(&b);
    assert!(matches!(pass(8), Passed::Ended(7)));
    // The background release of the first member is confirmed after the second member has left.
    fixture.forget_turn(7);
    // The future that releases for the second member was dropped before it completed, so the release continues in the
    // background.
    assert!(matches!(pass(8), Passed::Ended(7)));
    fixture.forget(7);
    assert!(matches!(pass(8), Passed::Unknown | Passed::Stale));
}

/// A member has left a suspended cohort. The answer to an old request describes the grant, whose local deadline has passed.
/// A second release of the member nevertheless finds that the member has left.
#[test]
fn a_second_release_after_a_late_answer_is_stale() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    let passed = fixture.pass(7, at(1200));
    assert!(matches!(passed, Passed::Late(_)), "{passed:?}");
    let mut grant = fixture.grant(7, &[&a, &b], at(100));
    grant.is_pushed = false;
    let taken_up = fixture.take_up(&grant, at(1300));
    assert_eq!(taken_up.requeue.len(), 1, "the other member queues again");
    let passed = fixture.pass(7, at(1400));
    assert!(matches!(passed, Passed::Stale), "{passed:?}");
}

/// The members that wait are not polled, and do not queue again. Nobody shares the suspended grant again, so the engine
/// releases it.
#[test]
fn a_suspended_grant_that_nobody_shares_again_is_released() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    assert_eq!(fixture.heartbeat_chores(at(1100)).requeue.len(), 1);
    let passed = fixture.pass(7, at(1200));
    assert!(matches!(passed, Passed::Stale), "{passed:?}");
    assert!(fixture.heartbeat_chores(at(3000)).release.is_empty());
    let chores = fixture.heartbeat_chores(at(3300));
    let [(_, token, _)] = &chores.release[..] else {
        panic!("{chores:?}");
    };
    assert_eq!(token.get(), 7);
    // An answer from before the release does not begin the cohort again.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(3350))));
    assert_eq!(fixture.turn(&b), None);
    let passed = fixture.pass(7, at(3400));
    assert!(matches!(passed, Passed::Ended(7)), "{passed:?}");
}

#[test]
fn readers_all_have_their_turns_until_the_last_has_left() {
    let fixture = Fixture::new();
    let members: Vec<_> = (1..=4).map(|number| fixture.member(number)).collect();
    fixture.settle(&members[3]); // it has left before the grant
    let [a, b, c, d] = &members[..] else {
        panic!("four members");
    };
    assert!(is_nothing(&fixture.push_readers(7, &[a, b, c, d], at(0))));
    let turns = [a, b, c, d].map(|member| fixture.turn(member));
    assert_eq!(turns, [Some(7), Some(8), Some(9), None]);
    for token in 7..10 {
        assert_eq!(fixture.known(token), Known::Turn(7));
        assert!(fixture.confirm(token, at(1_000), at(10)));
    }
    for member in [a, b, c] {
        fixture.settle(member);
    }
    assert!(matches!(fixture.pass(8, at(20)), Passed::On));
    assert!(matches!(fixture.pass(8, at(21)), Passed::Stale));
    assert_eq!(fixture.known(8), Known::Over);
    assert!(matches!(fixture.pass(7, at(22)), Passed::On));
    assert_eq!(fixture.known(9), Known::Turn(7));
    assert!(matches!(fixture.pass(9, at(23)), Passed::Ended(7)));
    fixture.forget(7);
    assert!(!fixture.is_seen(7));
}

#[test]
fn readers_do_not_replace_readers_but_a_writer_does() {
    let fixture = Fixture::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|number| fixture.member(number));
    fixture.push_readers(9, &[&a], at(0));
    // The message about an earlier grant comes later.
    assert!(is_nothing(&fixture.push_readers(7, &[&b], at(1))));
    let turns = [&a, &b].map(|member| fixture.turn(member));
    assert_eq!(turns, [Some(9), Some(7)]);
    assert!(matches!(fixture.pass(9, at(2)), Passed::Ended(9)));
    assert_eq!(fixture.known(7), Known::Turn(7));
    fixture.push(10, &[&c], at(3));
    assert_eq!(fixture.turn(&c), Some(10));
    assert_eq!(fixture.turn(&b), None, "the server has lost its grant");
    assert!(matches!(fixture.pass(7, at(4)), Passed::Ended(7)));
    assert!(matches!(fixture.pass(10, at(5)), Passed::Ended(10)));
    // A grant of readers from before the writer is old.
    fixture.push_readers(8, &[&d], at(6));
    assert_eq!(fixture.turn(&d), None);
}

#[test]
fn a_reader_whose_runtime_is_silent_misses_its_turn_alone() {
    let fixture = Fixture::new();
    let (a, b, c) = (fixture.member(1), fixture.join(2, true), fixture.member(3));
    fixture.push_readers(7, &[&a, &b, &c], at(0));
    let turns = [&a, &b, &c].map(|member| fixture.turn(member));
    assert_eq!(turns, [Some(7), None, Some(9)]);
    assert_eq!(fixture.known(8), Known::Over);
    assert!(matches!(fixture.pass(9, at(1)), Passed::On));
    assert!(matches!(fixture.pass(7, at(2)), Passed::Ended(7)));
}

#[test]
fn readers_whose_grant_is_lost_have_no_turn() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push_readers(7, &[&a, &b], at(0));
    assert!(fixture.lose(7));
    assert_eq!((fixture.turn(&a), fixture.turn(&b)), (None, None));
    assert!(matches!(fixture.pass(7, at(1)), Passed::Stale));
    assert!(matches!(fixture.pass(8, at(2)), Passed::Ended(7)));
}

#[test]
fn a_lock_stays_taken_until_the_last_reader_and_the_latest_minimum() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push_readers(7, &[&a, &b], at(0));
    let retain = |token, until: Option<Moment>| {
        fixture.with(|core, name| core.retain(name, FencingToken::new(token), until))
    };
    assert_eq!(retain(7, Some(at(50))), Some(at(50)));
    assert_eq!(retain(8, Some(at(40))), Some(at(50)));
    // Writers leave in order, so only the last one counts.
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.push(7, &[&a], at(0));
    let retain = |until| fixture.with(|core, name| core.retain(name, FencingToken::new(7), until));
    assert_eq!((retain(Some(at(50))), retain(None)), (Some(at(50)), None));
}

#[test]
fn the_members_that_wait_and_the_latest_end_are_known() {
    let fixture = Fixture::new();
    let members = [1, 2, 3, 4].map(|number| fixture.member(number));
    fixture.push(7, &members.each_ref(), at(0));
    fixture.settle(&members[0]);
    fixture.settle(&members[2]);
    let seen = |first| fixture.with(|core, name| core.seen(name, first));
    assert_eq!(
        seen(7).map(|(turn, waiting)| (turn.token, waiting)),
        Some((7, 2))
    );
    assert!(seen(8).is_none(), "a turn is no grant");
    fixture.with(|core, name| core.note_request(name, FencingToken::new(7), at(9000)));
    let latest = |token| fixture.with(|core, name| core.latest_end(name, FencingToken::new(token)));
    assert_eq!((latest(7), latest(6)), (Some(at(9000)), None));
}

#[test]
fn a_grant_is_over_at_its_deadline() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.push(7, &[&a], at(0));
    assert!(fixture.confirm(7, at(5000), at(1)));
    assert!(fixture.is_inside(7, at(4999)) && !fixture.is_inside(7, at(5000)));
}

/// An ended session needs its heartbeat while callers wait, and while a grant has to be given back or forgotten.
#[test]
fn an_ended_session_needs_its_heartbeat_for_what_is_left() {
    let fixture = Fixture::new();
    let other = fixture.with(|core, _| core.lines.open_link(&"other".into()));
    let needed = || fixture.with(|core, _| core.need_heartbeat(fixture.link));
    assert!(!needed());
    let (a, b) = (fixture.member(1), fixture.member(2));
    assert!(needed(), "callers wait");
    fixture.push(7, &[&a, &b], at(0));
    fixture.settle(&a);
    fixture.settle(&b);
    assert!(!needed(), "a member holds the lock");
    assert!(matches!(fixture.pass(7, at(1)), Passed::Ended(7)));
    assert!(needed(), "a request to release the grant is under way");
    assert!(fixture.with(|core, _| !core.need_heartbeat(other)));
    fixture.forget(7);
    assert!(!needed());
}

/// A member whose grant has ended while another one waits has left its grant to the next member, or to the heartbeat.
#[test]
fn a_suspended_cohort_needs_the_heartbeat_once_its_member_has_left() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    fixture.settle(&a);
    assert_eq!(fixture.heartbeat_chores(at(1100)).requeue.len(), 1);
    fixture.settle(&b);
    let needed = || fixture.with(|core, _| core.need_heartbeat(fixture.link));
    assert!(!needed(), "the member holds the lock");
    assert!(matches!(fixture.pass(7, at(1200)), Passed::Stale));
    assert!(needed());
}

/// A grant that was released is remembered while callers of its session wait for the lock.
#[test]
fn a_released_grant_is_forgotten_when_nobody_waits() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a], at(0));
    fixture.settle(&a);
    fixture.pass(7, at(1));
    fixture.forget(7);
    fixture.heartbeat_chores(at(2));
    assert_eq!(fixture.known(7), Known::Over);
    fixture.settle(&b);
    fixture.heartbeat_chores(at(3));
    assert_eq!(fixture.known(7), Known::Itself);
}
