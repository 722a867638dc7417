use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use lock_core::{
    backend::Request,
    layout::Layout,
    lease::{LeaseTerms, Renewal},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot::Receiver,
};

use super::*;
use crate::{
    backend::redis::{
        protocol::{
            layout::{Names, Scripts},
            request::AcquireRequest,
        },
        session::waiters::Turned,
    },
    background::{Context, Polled, TaskRuntime},
};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);

fn at(millis: u32) -> Moment {
    Moment::new(10_000 * MS + millis * MS)
}

/// One session, and the lock for which all its callers wait.
struct Fixture {
    session: Arc<Session>,
    cohorts: Cohorts,
    name: LockName,
}

/// A waiting caller.
struct Member {
    request: Arc<AcquireRequest>,
    turned: Receiver<Turned>,
}

impl Member {
    fn owner(&self) -> OwnerId {
        self.request.owner
    }
}

impl Fixture {
    fn new() -> Self {
        Self {
            session: Session::new(Context::of_process()),
            cohorts: Cohorts::default(),
            name: LockName::stored("{lock:k}"),
        }
    }

    /// Adds a waiting caller with this owner.
    fn member(&self, owner: u128) -> Member {
        self.join(owner, None)
    }

    /// Adds a waiting caller with this owner, which this runtime polled at `now`.
    fn member_on(&self, owner: u128, runtime: &TaskRuntime, now: Moment) -> Member {
        let on = runtime.clone();
        self.join(owner, Some(Polled { on, at: now }))
    }

    fn join(&self, owner: u128, polled: Option<Polled>) -> Member {
        let request = Request {
            name: self.name.clone(),
            owner: OwnerId::from_u128(owner),
            lease: LeaseTerms {
                time: LEASE,
                renewal: Renewal::Fixed,
            },
            wait: 60 * LEASE,
            function: "",
        };
        let session_id = self.session.session_id.clone();
        let context = Context::of_process().clone();
        let names = Names::new(Layout::Native, request.name.clone(), false);
        let request = AcquireRequest::new(
            context,
            Scripts::of(Layout::Native, false),
            names,
            &request,
            session_id,
            "test/host/1".into(),
        );
        let request = Arc::new(request);
        let (turned, _) = self.session.waiters.join(&request, polled);
        self.session
            .waiters
            .queued(&self.name, &[(&*request, owner as u64)]);
        Member { request, turned }
    }

    fn grant(&self, first: u64, members: &[&Member], now: Moment) -> GrantSnapshot {
        let owners: Vec<_> = members.iter().map(|m| m.owner().to_string()).collect();
        let lease = LEASE.as_millis().to_string();
        let (first, owners) = (first.to_string(), owners.join(" "));
        GrantSnapshot::pushed(&first, &lease, &owners, &self.session.session_id, now).unwrap()
    }

    /// Accepts a grant to these members, as if the server had pushed it.
    fn push(&self, first: u64, members: &[&Member], now: Moment) -> TakenUp {
        let grant = self.grant(first, members, now);
        self.cohorts.take_up(&self.session, &self.name, &grant, now)
    }

    /// Accepts a grant to these members, as if the answer to a request had described it.
    fn describe(&self, first: u64, members: &[&Member], now: Moment) -> TakenUp {
        let mut grant = self.grant(first, members, now);
        grant.is_pushed = false;
        self.cohorts.take_up(&self.session, &self.name, &grant, now)
    }

    /// Returns the token of the turn that this member has, if it was told of it since the last call.
    fn turn(&self, member: &mut Member) -> Option<u64> {
        let Ok(told) = member.turned.try_recv() else {
            return None;
        };
        told.unwrap();
        let turn = self.cohorts.turn_of(&self.name, member.owner());
        turn.map(|(token, _)| token.get())
    }

    fn is_inside(&self, token: u64, now: Moment) -> bool {
        let turn = |entry: &mut Entry| entry.cohort.turn().owner;
        let owner = self.cohorts.with_token(&self.name, token, turn);
        let grant = owner.and_then(|owner| self.cohorts.grant_of(&self.name, owner, now));
        grant.is_some_and(|grant| grant.token.get() == token)
    }

    /// Applies the answer to a renewal that was requested and answered at `now`. The new deadline is `until`.
    fn confirm(&self, token: u64, until: Moment, now: Moment) -> bool {
        let token = FencingToken::new(token);
        self.cohorts.confirm(&self.name, token, until, now)
    }

    /// Removes this member from the waiters of the session, as the member's acquisition does when it is settled.
    fn settle(&self, member: &Member) {
        self.session.waiters.remove(&member.request);
    }

    fn heartbeat_chores(&self, now: Moment) -> Chores {
        self.cohorts.heartbeat_chores(&self.session, now)
    }

    /// Asks a runtime whether it runs, because a caller that it polled earlier has not taken its turn.
    fn ask(&self, runtime: &TaskRuntime, now: Moment) {
        let caller = Polled {
            on: runtime.clone(),
            at: at(0),
        };
        let context = Context::of_process();
        self.cohorts.runtimes.ask(context, &caller, now);
    }
}

/// A runtime that nobody drives.
struct Undriven {
    runtime: TaskRuntime,
    _tokio: Runtime,
}

impl Undriven {
    fn new() -> Self {
        let tokio = Builder::new_current_thread().build().unwrap();
        let polled = tokio.block_on(async { Context::of_process().polled() });
        Self {
            runtime: polled.unwrap().on,
            _tokio: tokio,
        }
    }
}

fn is_nothing(taken_up: &TakenUp) -> bool {
    taken_up.requeue.is_empty() && taken_up.give_back.is_none()
}

#[test]
fn a_pushed_grant_offers_its_turns_in_order() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.member(1), fixture.member(2));
    assert!(is_nothing(&fixture.push(7, &[&a, &b], at(0))));
    assert_eq!(
        (fixture.turn(&mut a), fixture.turn(&mut b)),
        (Some(7), None)
    );
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(2));
    assert!(matches!(passed, Passed::On));
    assert_eq!(fixture.turn(&mut b), Some(8));
    assert!(fixture.is_inside(8, at(3)));
    fixture.settle(&b);
    let passed = fixture.cohorts.pass(&fixture.name, 8, at(4));
    assert!(matches!(passed, Passed::Ended(7)));
}

#[test]
fn a_member_that_has_left_is_passed_over() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.settle(&a);
    assert!(is_nothing(&fixture.push(7, &[&a, &b], at(0))));
    assert_eq!(
        (fixture.turn(&mut a), fixture.turn(&mut b)),
        (None, Some(8))
    );
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
    assert!(matches!(
        fixture.cohorts.known(&fixture.name, token),
        Known::Over
    ));
}

#[test]
fn a_grant_of_another_session_is_ignored() {
    let fixture = Fixture::new();
    let mut a = fixture.member(1);
    let mut grant = fixture.grant(7, &[&a], at(0));
    grant.session_id = "another".into();
    let taken_up = fixture
        .cohorts
        .take_up(&fixture.session, &fixture.name, &grant, at(0));
    assert!(is_nothing(&taken_up));
    assert_eq!(fixture.turn(&mut a), None);
}

#[test]
fn a_grant_whose_time_is_over_lets_its_members_queue_again() {
    let fixture = Fixture::new();
    let (mut a, b) = (fixture.member(1), fixture.member(2));
    let grant = fixture.grant(7, &[&a, &b], at(0));
    let late = at(2000);
    let taken_up = fixture
        .cohorts
        .take_up(&fixture.session, &fixture.name, &grant, late);
    assert_eq!(taken_up.requeue.len(), 1);
    assert_eq!(fixture.turn(&mut a), None);
}

#[test]
fn a_repeated_push_changes_nothing() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    assert!(is_nothing(&fixture.push(7, &[&a, &b], at(2))));
    assert_eq!(fixture.turn(&mut b), None, "another member is inside");
}

/// Simulates an attacker that receives all grant messages, and repeats them while another process holds the lock.
#[test]
fn a_push_that_is_repeated_after_its_grant_was_forgotten_seats_nobody() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    // The first member is still inside when the lease ends, so the second member queues again.
    let chores = fixture.heartbeat_chores(at(1100));
    assert_eq!(chores.requeue.len(), 1);
    // The first member leaves, and the grant is over for this process.
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(2500));
    assert!(matches!(passed, Passed::Stale));
    assert!(fixture.cohorts.seen(&fixture.name, 7).is_none());
    for now in [3200, 3220, 3240, 13_000] {
        // At last, the registry removes the cohort of the grant.
        fixture.heartbeat_chores(at(now));
        assert!(is_nothing(&fixture.push(7, &[&a, &b], at(now))));
        assert_eq!(fixture.turn(&mut b), None, "the grant is over");
    }
    // A newer grant is still accepted.
    fixture.push(9, &[&b], at(14_000));
    assert_eq!(fixture.turn(&mut b), Some(9));
}

#[test]
fn a_suspended_grant_that_the_server_still_has_is_shared_again() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    assert_eq!(fixture.heartbeat_chores(at(1100)).requeue.len(), 1);
    fixture.describe(7, &[&a, &b], at(1200));
    assert_eq!(fixture.turn(&mut b), Some(8));
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
    let (name, cohorts, token) = (&fixture.name, &fixture.cohorts, FencingToken::new(7));
    let dissolve = |lease| cohorts.dissolve(name, token, lease);
    assert!(dissolve(Some(LEASE)).is_none());
    assert!(cohorts.dissolves(name, token, true) && !cohorts.dissolves(name, token, false));
    let longer = Extend::To(2 * LEASE);
    assert_eq!(cohorts.shared(name, token, longer), Extend::To(LEASE));
    let dissolved = dissolve(Some(2 * LEASE)).unwrap();
    assert_eq!((dissolved.first, dissolved.owner), (token, a.owner()));
    assert_eq!(dissolved.others, [b.owner(), c.owner()]);
    // Until the server has queued them, a release and another extension do it first.
    assert!(cohorts.dissolves(name, token, false));
    assert_eq!(cohorts.shared(name, token, longer), Extend::To(LEASE));
    assert_eq!(dissolve(Some(LEASE)).unwrap().others, dissolved.others);
    assert!(is_nothing(&fixture.describe(7, &[&a, &b, &c], at(20))));
    // Both are on their way to the queue, so their absence does not mean that the grant is lost.
    assert!(!cohorts.has_lost(name, 7, at(20)));
    let entries = fixture.session.waiters.entries(name, &dissolved.others);
    let places: Vec<_> = entries.iter().map(|(_, place)| place.as_str()).collect();
    assert_eq!(places, ["2", "3"]);
    assert_eq!(entries[1].0, c.request.member());
    cohorts.has_queued(name, token);
    assert!(dissolve(None).is_none() && !cohorts.dissolves(name, token, true));
    assert_eq!(cohorts.shared(name, token, longer), longer);
    assert!(is_nothing(&fixture.describe(7, &[&a], at(30))));
    // The server has lost the script: it describes the grant as it was.
    let again = fixture.describe(7, &[&a, &b, &c], at(40)).dissolve;
    assert_eq!(again, Some(token));
    assert_eq!(
        dissolve(Some(Duration::ZERO)).unwrap().others,
        dissolved.others
    );
    assert!(matches!(cohorts.pass(name, 7, at(50)), Passed::Ended(7)));
}

/// The first release of a member, whose caller no longer waits for it, has made the other members queue again. The second
/// release must not release the grant, because the other members possibly share it again.
#[test]
fn a_second_release_of_a_member_does_not_end_a_grant_that_is_shared_again() {
    for is_suspended in [false, true] {
        let fixture = Fixture::new();
        let (mut a, mut b) = (fixture.member(1), fixture.member(2));
        fixture.push(7, &[&a, &b], at(0));
        assert_eq!(fixture.turn(&mut a), Some(7));
        assert!(fixture.is_inside(7, at(1)));
        fixture.settle(&a);
        if is_suspended {
            fixture.heartbeat_chores(at(1100));
            let passed = fixture.cohorts.pass(&fixture.name, 7, at(1200));
            assert!(matches!(passed, Passed::Stale), "{passed:?}");
        } else {
            let passed = fixture.cohorts.pass(&fixture.name, 7, at(1200));
            assert!(matches!(passed, Passed::Late(_)), "{passed:?}");
        }
        let again = || fixture.cohorts.pass(&fixture.name, 7, at(1300));
        assert!(matches!(again(), Passed::Stale));
        let token = FencingToken::new(7);
        fixture.cohorts.forget_turn(&fixture.name, token);
        let known = fixture.cohorts.known(&fixture.name, token);
        assert!(matches!(known, Known::Over), "{known:?}");
        fixture.describe(7, &[&a, &b], at(1400));
        assert_eq!(fixture.turn(&mut b), Some(8));
        assert!(matches!(again(), Passed::Stale));
    }
}

#[test]
fn a_newer_grant_replaces_one_that_the_server_has_lost() {
    let fixture = Fixture::new();
    let (mut a, b, mut c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    let taken_up = fixture.push(20, &[&c], at(10));
    assert_eq!(
        taken_up.requeue.len(),
        1,
        "the members of the replaced grant queue again"
    );
    assert_eq!(fixture.turn(&mut c), Some(20));
    // A late answer that describes the older grant is ignored.
    assert!(is_nothing(&fixture.describe(7, &[&b], at(20))));
}

/// After a failover, a grant of the old primary comes while a member of a cohort holds the lock by a grant of the new
/// primary. When the grant of the old primary is over, the new primary describes its grant again.
#[test]
fn a_member_that_is_inside_outlasts_a_grant_of_an_old_primary() {
    let fixture = Fixture::new();
    let (mut a, mut b, c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    let taken_up = fixture.push(20, &[&c], at(10));
    assert_eq!(taken_up.requeue.len(), 1, "the second member queues again");
    // While a member of the newer grant has the turn, the older grant stays replaced.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(11))));
    assert!(fixture.is_inside(20, at(12)));
    fixture.settle(&c);
    let pass = |token, now| fixture.cohorts.pass(&fixture.name, token, now);
    assert!(matches!(pass(20, at(13)), Passed::Ended(20)));
    fixture.cohorts.forget(&fixture.name, FencingToken::new(20));
    // The first member is still inside, so nobody else gets a turn, and the grant is not given back.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(14))));
    assert_eq!(fixture.turn(&mut b), None, "another member is inside");
    let known = |token| {
        fixture
            .cohorts
            .known(&fixture.name, FencingToken::new(token))
    };
    assert!(matches!(known(7), Known::Turn(7)));
    assert!(matches!(pass(7, at(15)), Passed::On));
    assert_eq!(fixture.turn(&mut b), Some(8));
}

/// The server loses its data, and its clock is set back, so its tokens begin again at a lower number.
#[test]
fn a_described_grant_with_a_lower_token_counts_after_the_known_grant_is_over() {
    let fixture = Fixture::new();
    let (a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.push(20, &[&a], at(0));
    assert!(fixture.is_inside(20, at(1)));
    fixture.settle(&a);
    // The request was sent before the grant was known, or the grant is not over.
    assert!(is_nothing(&fixture.describe(7, &[&b], at(0))));
    assert!(is_nothing(&fixture.describe(7, &[&b], at(2))));
    assert_eq!(fixture.turn(&mut b), None);
    fixture.cohorts.lose(&fixture.name, 20);
    assert!(
        is_nothing(&fixture.push(7, &[&b], at(3))),
        "a message can be late"
    );
    assert_eq!(fixture.turn(&mut b), None);
    fixture.describe(7, &[&b], at(3));
    assert_eq!(fixture.turn(&mut b), Some(7));
    assert!(fixture.is_inside(7, at(4)));
}

/// A member of a replaced grant that leaves does not pass its turn on, because the server has usually lost the grant.
/// The grant is released, because the server may still have it.
#[test]
fn a_replaced_grant_passes_no_turn_on() {
    let fixture = Fixture::new();
    let (a, mut b, mut c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    fixture.push(20, &[&c], at(10));
    assert_eq!(fixture.turn(&mut c), Some(20));
    assert!(fixture.is_inside(20, at(11)));
    // The request was sent before the other grant came.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(10))));
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(12));
    assert!(matches!(passed, Passed::Ended(7)));
    assert_eq!(fixture.turn(&mut b), None);
    // The server describes the older grant too late.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(13))));
    assert_eq!(fixture.turn(&mut b), None);
}

/// Only an answer to a request that was sent after the replacement shows that the server still has the grant.
#[test]
fn an_answer_that_was_requested_before_the_replacement_does_not_reverse_it() {
    let fixture = Fixture::new();
    let (a, mut b, c) = (fixture.member(1), fixture.member(2), fixture.member(3));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    assert!(fixture.confirm(7, at(5000), at(5)));
    fixture.push(20, &[&c], at(10));
    fixture.cohorts.lose(&fixture.name, 20);
    // The registry forgets the other grant a claim (2 s) after its deadline.
    fixture.heartbeat_chores(at(3100));
    assert!(fixture.cohorts.seen(&fixture.name, 20).is_none());
    fixture.describe(7, &[&a, &b], at(10));
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(3101));
    assert!(matches!(passed, Passed::Ended(7)));
    assert_eq!(fixture.turn(&mut b), None);
}

/// A grant of which no member waits is given back, and does not replace the other grants.
#[test]
fn a_grant_that_nobody_takes_replaces_no_other_grant() {
    let fixture = Fixture::new();
    let (a, mut b, c, d) = (
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
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(12));
    assert!(matches!(passed, Passed::On));
    assert_eq!(fixture.turn(&mut b), Some(8));
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
    assert!(fixture.cohorts.seen(&fixture.name, 7).is_some());
    fixture.heartbeat_chores(at(3100));
    assert!(fixture.cohorts.seen(&fixture.name, 7).is_none());
}

#[test]
fn an_owner_that_is_inside_gives_a_second_grant_back() {
    let fixture = Fixture::new();
    let mut a = fixture.member(1);
    fixture.push(7, &[&a], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    let taken_up = fixture.push(9, &[&a], at(2));
    let (token, _) = taken_up.give_back.expect("the grant is given back");
    assert_eq!(token.get(), 9);
    // The owner still holds the lock with the token of its first grant.
    assert!(matches!(
        fixture.cohorts.known(&fixture.name, FencingToken::new(7)),
        Known::Turn(7)
    ));
}

#[test]
fn a_grant_of_one_that_was_told_in_a_reply_is_left_to_it() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.settle(&a);
    assert!(is_nothing(&fixture.describe(7, &[&a], at(0))));
    assert!(fixture.cohorts.seen(&fixture.name, 7).is_none());
}

#[test]
fn a_pushed_grant_of_a_call_that_has_ended_is_given_back() {
    let fixture = Fixture::new();
    let (a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.settle(&a);
    let taken_up = fixture.push(7, &[&a], at(0));
    let (token, _) = taken_up.give_back.expect("the grant is given back");
    assert_eq!(token.get(), 7);
    // The server then grants the lock to the next waiter.
    assert!(is_nothing(&fixture.push(8, &[&b], at(1))));
    assert_eq!(fixture.turn(&mut b), Some(8));
}

/// A caller is dismissed when its slot moves. If the slot moves back, the caller queues again under the same owner name.
#[test]
fn a_grant_that_is_given_back_does_not_seat_its_returning_owner() {
    let fixture = Fixture::new();
    let a = fixture.member(1);
    fixture.settle(&a);
    assert!(fixture.push(7, &[&a], at(0)).give_back.is_some());
    let mut again = fixture.member(1);
    assert!(is_nothing(&fixture.describe(7, &[&again], at(1))));
    assert_eq!(
        fixture.turn(&mut again),
        None,
        "the grant is being released"
    );
}

/// The first member misses its turn, and the runtime of both members is silent, so the engine releases the grant. The grant
/// has been extended, but the answer is under way, so the server still has the grant after its local deadline. The release
/// arrives late. Meanwhile no member may enter by this grant.
#[test]
fn a_grant_whose_release_is_under_way_is_not_shared_again() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    let [mut a, b] = [1, 2].map(|owner| fixture.member_on(owner, &silent.runtime, at(0)));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    let token = FencingToken::new(7);
    let (name, cohorts) = (&fixture.name, &fixture.cohorts);
    fixture.ask(&silent.runtime, at(200));
    cohorts.note_request(name, token, at(1900));
    assert!(fixture.is_inside(7, at(1)));
    assert!(fixture.confirm(7, at(1200), at(200)));
    assert!(matches!(cohorts.pass(name, 7, at(1100)), Passed::Ended(7)));
    for now in [1300, 1800, 3800] {
        fixture.heartbeat_chores(at(now));
        assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(now + 50))));
        assert!(!fixture.is_inside(8, at(now + 50)));
        let passed = cohorts.pass(name, 7, at(now + 50));
        assert!(matches!(passed, Passed::Ended(7)), "{passed:?}");
    }
    // A newer grant does not change this.
    let mut c = fixture.member(3);
    fixture.push(20, &[&c], at(3870));
    assert_eq!(fixture.turn(&mut c), Some(20));
    assert_eq!(cohorts.known(name, token), Known::Over);
    // Every heartbeat removes the cohort, because the session of the cohort may have ended.
    let other = Fixture::new();
    let beat = |now| cohorts.heartbeat_chores(&other.session, now);
    beat(at(3890));
    assert_eq!(cohorts.known(name, token), Known::Over);
    beat(at(3900));
    let known = cohorts.known(name, token);
    assert_eq!(known, Known::Itself, "the grant is past");
}

#[test]
fn an_answer_for_a_turn_that_has_passed_counts_for_nobody() {
    let fixture = Fixture::new();
    let (mut a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert_eq!(fixture.turn(&mut a), Some(7));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    fixture.cohorts.pass(&fixture.name, 7, at(2));
    assert_eq!(fixture.turn(&mut b), Some(8));
    assert!(!fixture.confirm(7, at(30_000), at(3)));
    let token = FencingToken::new(7);
    assert!(matches!(
        fixture.cohorts.known(&fixture.name, token),
        Known::Over
    ));
}

#[test]
fn a_grant_of_whose_member_the_server_knows_nothing_is_lost() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    let lost = |granted, asked| fixture.cohorts.has_lost(&fixture.name, granted, asked);
    assert!(
        !lost(7, at(0)),
        "the request was sent before this process knew the grant"
    );
    assert!(!lost(5, at(1)), "the owner belongs to an earlier grant");
    assert!(lost(7, at(1)));
    assert!(fixture.cohorts.lose(&fixture.name, 7).is_some());
    let known = fixture.cohorts.known(&fixture.name, FencingToken::new(7));
    assert!(matches!(known, Known::Over));
}

/// The first member's token is also the grant's token. When the first member leaves, the registry must not conclude
/// that the grant is released, because only the last member releases the grant.
#[test]
fn the_first_member_that_has_left_does_not_confirm_the_release() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    let pass = |token| fixture.cohorts.pass(&fixture.name, token, at(3));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    assert!(matches!(pass(7), Passed::On));
    assert!(fixture.is_inside(8, at(2)));
    fixture.settle(&b);
    assert!(matches!(pass(8), Passed::Ended(7)));
    // The background release of the first member is confirmed after the second member has left.
    let token = FencingToken::new(7);
    fixture.cohorts.forget_turn(&fixture.name, token);
    // The future that releases for the second member was dropped before it completed, so the release continues in the
    // background.
    assert!(matches!(pass(8), Passed::Ended(7)));
    fixture.cohorts.forget(&fixture.name, token);
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
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(1200));
    assert!(matches!(passed, Passed::Late(_)), "{passed:?}");
    let mut grant = fixture.grant(7, &[&a, &b], at(100));
    grant.is_pushed = false;
    let (session, name) = (&fixture.session, &fixture.name);
    let taken_up = fixture.cohorts.take_up(session, name, &grant, at(1300));
    assert_eq!(taken_up.requeue.len(), 1, "the other member queues again");
    let passed = fixture.cohorts.pass(name, 7, at(1400));
    assert!(matches!(passed, Passed::Stale), "{passed:?}");
}

/// The members that wait are not polled, and do not queue again. Nobody shares the suspended grant again, so the engine
/// releases it.
#[test]
fn a_suspended_grant_that_nobody_shares_again_is_released() {
    let fixture = Fixture::new();
    let (a, mut b) = (fixture.member(1), fixture.member(2));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.settle(&a);
    assert_eq!(fixture.heartbeat_chores(at(1100)).requeue.len(), 1);
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(1200));
    assert!(matches!(passed, Passed::Stale), "{passed:?}");
    assert!(fixture.heartbeat_chores(at(3000)).release.is_empty());
    let chores = fixture.heartbeat_chores(at(3300));
    let [(_, token, _)] = &chores.release[..] else {
        panic!("{chores:?}");
    };
    assert_eq!(token.get(), 7);
    // An answer from before the release does not begin the cohort again.
    assert!(is_nothing(&fixture.describe(7, &[&a, &b], at(3350))));
    assert_eq!(fixture.turn(&mut b), None);
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(3400));
    assert!(matches!(passed, Passed::Ended(7)), "{passed:?}");
}

/// The members whose runtime is silent miss their turns, and the next member on another runtime gets the turn.
#[test]
fn members_of_a_silent_runtime_are_passed_over() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    let [a, b, c] = [1, 2, 3].map(|owner| fixture.member_on(owner, &silent.runtime, at(0)));
    let mut d = fixture.member(4);
    fixture.push(7, &[&a, &b, &c, &d], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.ask(&silent.runtime, at(300));
    let passed = fixture.cohorts.pass(&fixture.name, 7, at(900));
    assert!(matches!(passed, Passed::On));
    assert_eq!(fixture.turn(&mut d), Some(10));
    assert!(!fixture.is_inside(8, at(901)));
    assert!(fixture.is_inside(10, at(901)));
}

/// A runtime that answers is not silent, however late it answers.
#[test]
fn members_of_a_runtime_that_answers_are_offered_their_turns() {
    let fixture = Fixture::new();
    let Undriven {
        runtime,
        _tokio: tokio,
    } = Undriven::new();
    let [a, mut b] = [1, 2].map(|owner| fixture.member_on(owner, &runtime, at(0)));
    fixture.push(7, &[&a, &b], at(0));
    assert!(fixture.is_inside(7, at(1)));
    fixture.ask(&runtime, at(300));
    tokio.block_on(async { tokio::task::yield_now().await });
    fixture.cohorts.pass(&fixture.name, 7, at(900));
    assert_eq!(fixture.turn(&mut b), Some(8));
}

/// A probe finds the grant of a member whose runtime is silent. The grant is given back at once.
#[test]
fn a_described_grant_of_a_silent_runtime_is_given_back() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    let a = fixture.member_on(1, &silent.runtime, at(0));
    fixture.ask(&silent.runtime, at(0));
    let unused = fixture.describe(7, &[&a], at(1000)).give_back;
    assert_eq!(unused.map(|(token, _)| token.get()), Some(7));
}

/// A thread outside of the workers of a silent runtime can poll a caller, for instance in `block_on`. A caller that was
/// polled after the question is therefore offered its turn.
#[test]
fn a_caller_that_was_polled_after_the_question_is_offered_its_turn() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    fixture.ask(&silent.runtime, at(0));
    let [a, b] = [(1, 0), (2, 1)].map(|(n, ms)| fixture.member_on(n, &silent.runtime, at(ms)));
    fixture.push(7, &[&a, &b], at(1000));
    assert!(!fixture.is_inside(7, at(1001)));
    assert!(fixture.is_inside(8, at(1001)));
}

/// Callers that were polled after the question do not take their locks, either, so the runtime is asked again. They cost
/// one claim together.
#[test]
fn a_runtime_that_is_silent_again_costs_one_claim() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    fixture.ask(&silent.runtime, at(0));
    let [a, b, c] = [1, 2, 3].map(|owner| fixture.member_on(owner, &silent.runtime, at(100)));
    let mut d = fixture.member(4);
    fixture.push(7, &[&a, &b, &c, &d], at(200));
    assert!(fixture.is_inside(7, at(201)));
    let caller = Polled {
        on: silent.runtime.clone(),
        at: at(100),
    };
    let context = Context::of_process();
    for now in [400, 600, 800] {
        fixture.cohorts.runtimes.ask(context, &caller, at(now));
    }
    fixture.cohorts.pass(&fixture.name, 7, at(950));
    assert_eq!(fixture.turn(&mut d), Some(10));
}

/// A question to a runtime that has ended is forgotten after some time.
#[test]
fn a_runtime_that_never_answers_is_forgotten() {
    let fixture = Fixture::new();
    let ended = Undriven::new().runtime;
    fixture.ask(&ended, at(0));
    let runtimes = &fixture.cohorts.runtimes;
    assert!(!runtimes.have_answered(at(59_999)));
    assert!(runtimes.have_answered(at(60_000)));
}

/// With the last handle to a runtime, tokio drops the hooks of the user. They can use the same locks, so no mutex is locked
/// then.
#[test]
fn no_mutex_is_locked_while_the_hooks_of_a_runtime_are_dropped() {
    struct Hook(Arc<Fixture>, Arc<AtomicUsize>);
    impl Drop for Hook {
        fn drop(&mut self) {
            assert!(self.0.cohorts.entries.try_lock().is_ok());
            let waits = thread::scope(|scope| {
                let asking = scope.spawn(|| self.0.session.waiters.are_at(&self.0.name));
                asking.join()
            });
            waits.unwrap();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ends: [fn(&Fixture, &[&Member]); 3] = [
        |fixture, _| fixture.session.dismiss_waiters(),
        |fixture, members| fixture.settle(members[0]),
        |fixture, members| drop(fixture.push(7, members, at(0))),
    ];
    for end in ends {
        let (fixture, dropped) = (Arc::new(Fixture::new()), Arc::new(AtomicUsize::new(0)));
        let hook = Hook(fixture.clone(), dropped.clone());
        let tokio = Builder::new_current_thread()
            .on_thread_park(move || {
                let _ = &hook;
            })
            .build()
            .unwrap();
        let polled = tokio.block_on(async { Context::of_process().polled() });
        let (a, b) = (fixture.join(1, polled), fixture.member(2));
        drop(tokio);
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        end(&fixture, &[&a, &b]);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
