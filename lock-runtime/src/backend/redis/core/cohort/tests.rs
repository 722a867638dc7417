//! Tests of each transition of a cohort's state, and of events that come late or repeatedly.

use lock_core::lease::CLAIM;

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

fn at(ms: u32) -> Moment {
    Moment::new(SECOND * 100 + MS * ms)
}

fn owner(number: u128) -> OwnerId {
    OwnerId::from_u128(number)
}

/// Passes the turn to the next member, and returns that turn.
fn pass(cohort: &mut Cohort, now: Moment) -> Option<Turn> {
    let turn = cohort.next(now)?;
    cohort.enter(turn);
    Some(turn)
}

/// Returns the cohort of a grant with this lease. At time 0, the server granted the lock to owners 1, 2, …, with tokens
/// 10, 11, …. The grant is valid for a claim (2 s), or for the lease if the lease is shorter.
fn pushed(owners: u128, lease: Duration) -> Cohort {
    let owners: Vec<_> = (1..=owners).map(|one| owner(one).to_string()).collect();
    let grant = format!("10|{}|session_id|{}", lease.as_millis(), owners.join(" "));
    let claim = u64::try_from(lease.min(CLAIM).as_millis()).expect("the claim fits into u64");
    let grant = GrantSnapshot::parse(&grant, claim, at(0)).expect("a grant");
    Cohort::new(&grant, at(0)).expect("a cohort")
}

fn inside(owners: u128) -> Cohort {
    let mut cohort = pushed(owners, LEASE);
    let turn = pass(&mut cohort, at(0));
    assert_eq!(turn, Some(turn_of(10, 1)));
    cohort
}

fn turn_of(token: u64, number: u128) -> Turn {
    Turn {
        token,
        owner: owner(number),
    }
}

#[test]
fn the_member_that_has_the_turn_has_a_grant() {
    let cohort = inside(2);
    assert!(cohort.has_turn(10) && !cohort.has_turn(11));
    let grant = cohort.grant_of(owner(1), at(1)).expect("its turn");
    assert_eq!(grant.token, FencingToken::new(10));
    assert!(grant.queued);
    // The grant is valid for a claim (2 s), minus the possible clock drift.
    assert_eq!(grant.valid_until, Some(at(0) + less_drift(CLAIM)));
    assert!(cohort.is_inside(owner(1)) && !cohort.is_inside(owner(2)));
    for stranger in [2, 3] {
        assert_eq!(cohort.grant_of(owner(stranger), at(1)), None);
    }
}

#[test]
fn turns_pass_in_order_under_rising_tokens() {
    let mut cohort = inside(3);
    for (token, number) in [(11, 2), (12, 3)] {
        assert_eq!(cohort.leave(token - 1), Departure::Free);
        assert_eq!(pass(&mut cohort, at(10)), Some(turn_of(token, number)));
        assert_eq!(cohort.grant_of(owner(number - 1), at(10)), None);
        let grant = cohort.grant_of(owner(number), at(10)).expect("its turn");
        assert_eq!(grant.token.get(), token);
    }
    assert_eq!(cohort.leave(12), Departure::Free);
    assert_eq!(pass(&mut cohort, at(11)), None);
}

#[test]
fn a_member_that_is_passed_over_burns_its_token() {
    let mut cohort = pushed(3, LEASE);
    assert_eq!(cohort.next(at(1)), Some(turn_of(10, 1)));
    assert_eq!(pass(&mut cohort, at(1)), Some(turn_of(11, 2)));
    assert_eq!(cohort.grant_of(owner(1), at(1)), None);
    assert_eq!(cohort.leave(10), Departure::Stale);
}

#[test]
fn a_member_that_has_left_does_not_end_the_turn_before() {
    let mut cohort = inside(2);
    assert_eq!(cohort.leave(10), Departure::Free);
    assert_eq!(cohort.next(at(1)), Some(turn_of(11, 2)));
    // The second member no longer waits, and no further member is left. The cohort still stores the turn
    // of the first member. Each time the first member leaves, it learns that the cohort has ended.
    cohort.end();
    assert_eq!(cohort.leave(10), Departure::Ended);
    assert_eq!(cohort.leave(10), Departure::Ended);
}

#[test]
fn a_turn_passed_on_seats_the_next_and_never_the_first() {
    let mut cohort = inside(2);
    assert_eq!(pass(&mut cohort, at(1900)), Some(turn_of(11, 2)));
    // The first member's renewal is answered after that member's turn was passed on.
    assert!(!cohort.confirm(10, at(31_900), at(1950)));
    assert_eq!(cohort.grant_of(owner(1), at(1950)), None);
    assert!(cohort.confirm(11, at(31_950), at(1960)));
    assert!(cohort.grant_of(owner(2), at(1961)).is_some());
}

#[test]
fn no_member_has_a_grant_after_the_deadline() {
    let cohort = inside(1);
    assert!(cohort.grant_of(owner(1), at(1900)).is_some());
    assert_eq!(cohort.grant_of(owner(1), at(2000)), None);
}

#[test]
fn an_answer_counts_for_the_turn_that_asked() {
    let mut cohort = inside(2);
    assert!(
        !cohort.confirm(11, at(30_000), at(5)),
        "the second member does not have the turn yet"
    );
    assert!(cohort.confirm(10, at(30_000), at(5)));
    assert_eq!(cohort.until(), at(30_000));
    assert!(
        cohort.confirm(10, at(20_000), at(6)),
        "the cohort accepts each answer to the member that has the turn"
    );
    assert_eq!(cohort.until(), at(30_000), "an answer shortens no lease");
    cohort.leave(10);
    pass(&mut cohort, at(8));
    assert!(
        !cohort.confirm(10, at(40_000), at(9)),
        "the first member no longer has the turn"
    );
    assert_eq!(cohort.until(), at(30_000));
}

#[test]
fn an_answer_after_the_deadline_revives_nothing() {
    let mut cohort = inside(2);
    let end = at(0) + less_drift(CLAIM);
    assert!(cohort.is_late(end));
    assert!(!cohort.confirm(10, at(30_000), end));
    assert_eq!(cohort.until(), end);
    assert_eq!(
        pass(&mut cohort, end),
        None,
        "the grant has no time left for the next member"
    );
}

#[test]
fn a_suspended_cohort_seats_nobody() {
    for mut cohort in [pushed(3, LEASE), inside(3)] {
        cohort.suspend();
        assert!(cohort.is_over() && cohort.is_suspended());
        assert_eq!(cohort.grant_of(owner(1), at(1)), None);
        assert!(!cohort.confirm(10, at(30_000), at(1)));
        assert_eq!(pass(&mut cohort, at(1)), None);
        assert_eq!(cohort.leave(10), Departure::Suspended);
        assert_eq!(cohort.leave(11), Departure::Stale);
    }
}

#[test]
fn an_ended_cohort_is_known_until_its_release_is_confirmed() {
    for mut cohort in [pushed(2, LEASE), inside(2)] {
        cohort.end();
        assert_eq!(cohort.grant_of(owner(1), at(1)), None);
        assert_eq!(
            cohort.leave(10),
            Departure::Ended,
            "the cohort has ended, so the calling code sends the release again"
        );
        assert!(!cohort.confirm(10, at(30_000), at(1)));
        cohort.mark_released();
        assert!(cohort.is_released() && cohort.is_over());
        assert_eq!(cohort.leave(10), Departure::Stale);
        assert_eq!(cohort.grant_of(owner(1), at(1)), None);
    }
}

#[test]
fn a_member_that_wants_more_keeps_the_grant_alone() {
    let mut cohort = inside(3);
    assert!(cohort.dissolve(10, false).is_empty());
    assert!(cohort.dissolve(11, true).is_empty(), "not its turn");
    assert_eq!(*cohort.dissolve(10, true), [owner(2), owner(3)]);
    assert!(cohort.is_dissolved() && cohort.to_come().is_empty());
    assert_eq!(cohort.next(at(2)), None);
    assert!(cohort.has_turn(10));
    // They are returned until the server has queued them.
    assert_eq!(*cohort.dissolve(10, false), [owner(2), owner(3)]);
    cohort.has_queued(11);
    assert!(cohort.is_queueing());
    cohort.has_queued(10);
    assert!(!cohort.is_queueing() && cohort.is_dissolved());
    // A failover has lost the script.
    cohort.queue_again([owner(3)].into());
    assert_eq!(*cohort.dissolve(10, false), [owner(3)]);
    cohort.end();
    assert!(!cohort.is_queueing());
}

/// The answer to the renewal is lost. Until the lease that was asked for has ended, the server can have the grant.
#[test]
fn a_request_without_an_answer_makes_the_grant_last_longer() {
    let mut cohort = inside(2);
    cohort.note_request(12, at(90_000));
    assert_eq!(cohort.latest_end(), cohort.until());
    cohort.note_request(10, at(60_000));
    assert_eq!(cohort.latest_end(), at(60_000));
    let mut again = pushed(2, LEASE);
    again.continue_from(&cohort);
    assert_eq!(again.latest_end(), at(60_000));
    assert_eq!(again.end_by(at(1)), at(60_000));
    assert!(!again.is_past(at(60_000)) && again.is_past(at(60_000) + CLAIM));
}

#[test]
fn a_member_gets_no_more_than_its_lease() {
    let mut cohort = inside(2);
    assert!(cohort.confirm(10, at(90_000), at(1)));
    cohort.leave(10);
    pass(&mut cohort, at(2));
    let grant = cohort.grant_of(owner(2), at(2)).expect("its turn");
    assert_eq!(grant.valid_until, Some(at(2) + less_drift(LEASE)));
}

#[test]
fn what_was_known_before_a_question_is_told_apart() {
    let cohort = inside(1);
    assert!(!cohort.was_known_at(at(0)) && cohort.was_known_at(at(1)));
    assert!(cohort.contains(10) && !cohort.contains(11));
}
