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

/// Offers the turn to the next member, and returns that turn.
fn offer_next(cohort: &mut Cohort, now: Moment) -> Option<Turn> {
    let turn = cohort.next(now)?;
    cohort.offer(turn, 0, now);
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

fn offered(owners: u128) -> Cohort {
    let mut cohort = pushed(owners, LEASE);
    let turn = offer_next(&mut cohort, at(0));
    assert_eq!(turn, Some(turn_of(10, 1)));
    cohort
}

fn inside(owners: u128) -> Cohort {
    let mut cohort = offered(owners);
    assert!(matches!(cohort.enter(10, at(1)), Seat::Inside(_)));
    cohort
}

fn turn_of(token: u64, number: u128) -> Turn {
    Turn {
        token,
        owner: owner(number),
    }
}

fn extended(until: u32) -> Confirmation {
    Confirmation {
        asked: at(0),
        until: at(until),
        restarted: false,
    }
}

fn restarted(until: u32) -> Confirmation {
    Confirmation {
        asked: at(0),
        until: at(until),
        restarted: true,
    }
}

#[test]
fn a_member_enters_on_its_offer_once() {
    let mut cohort = offered(2);
    assert!(cohort.is_offered() && cohort.has_turn(10));
    let Seat::Inside(grant) = cohort.enter(10, at(1)) else {
        panic!("the offer is still valid");
    };
    assert_eq!(grant.token, FencingToken::new(10));
    assert!(grant.queued);
    // The grant is valid for a claim (2 s), minus the possible clock drift.
    assert_eq!(grant.valid_until, Some(at(0) + less_drift(CLAIM)));
    assert_eq!(cohort.enter(10, at(2)), Seat::Missed);
    assert!(cohort.is_inside(owner(1)) && !cohort.is_inside(owner(2)));
}

#[test]
fn no_token_but_the_offers_enters() {
    let mut cohort = offered(2);
    for stranger in [0, 9, 11, 12] {
        assert_eq!(cohort.enter(stranger, at(1)), Seat::Missed);
    }
    assert!(matches!(cohort.enter(10, at(1)), Seat::Inside(_)));
}

#[test]
fn with_less_than_two_thirds_of_the_claim_the_grant_is_confirmed_first() {
    let mut cohort = offered(1);
    assert!(matches!(cohort.clone().enter(10, at(663)), Seat::Inside(_)));
    assert_eq!(cohort.enter(10, at(664)), Seat::Unconfirmed);
    assert_eq!(
        cohort.enter(10, at(5000)),
        Seat::Unconfirmed,
        "a member cannot take its turn after the deadline"
    );
    assert!(cohort.confirm(10, extended(31_000), at(1000)));
    // The time that the grant has left counts from the moment at which the answer is read. A member that is polled
    // right after the answer can therefore take its turn, even after a long round trip.
    assert!(matches!(
        cohort.clone().enter(10, at(1001)),
        Seat::Inside(_)
    ));
    assert_eq!(
        cohort.enter(10, at(11_001)),
        Seat::Unconfirmed,
        "less than two thirds of the renewed lease is left"
    );
}

/// A holder with a fixed lease only checks it. The next member nevertheless needs two thirds of a claim.
#[test]
fn a_check_by_a_holder_does_not_lessen_what_the_next_member_needs() {
    let mut cohort = inside(2);
    assert!(cohort.confirm(10, extended(1_998), at(1_500)));
    assert_eq!(cohort.leave(10), Departure::Free);
    assert_eq!(offer_next(&mut cohort, at(1_501)), Some(turn_of(11, 2)));
    assert_eq!(cohort.enter(11, at(1_502)), Seat::Unconfirmed);
    assert_eq!(cohort.renewal_of_offer(at(1_502)), Some(CLAIM));
}

/// The next member needs two thirds of the renewed lease, and never more than two thirds of the cohort's own lease.
#[test]
fn a_renewal_by_a_holder_raises_what_the_next_member_needs_up_to_the_lease() {
    for (until, missing) in [(30_001, 19_000), (90_001, 19_000)] {
        let mut cohort = inside(2);
        assert!(cohort.confirm(10, extended(until), at(1)));
        assert_eq!(cohort.leave(10), Departure::Free);
        let turn = offer_next(&mut cohort, at(2));
        assert_eq!(turn, Some(turn_of(11, 2)));
        let short = at(until - missing);
        assert_eq!(cohort.clone().enter(11, short), Seat::Unconfirmed);
        let enough = at(until - 20_001);
        assert!(matches!(cohort.enter(11, enough), Seat::Inside(_)));
    }
}

#[test]
fn turns_pass_in_order_under_rising_tokens() {
    let mut cohort = inside(3);
    for (token, number) in [(11, 2), (12, 3)] {
        assert_eq!(cohort.leave(token - 1), Departure::Free);
        assert_eq!(
            offer_next(&mut cohort, at(10)),
            Some(turn_of(token, number))
        );
        assert_eq!(cohort.enter(token - 1, at(10)), Seat::Missed);
        assert!(matches!(cohort.enter(token, at(10)), Seat::Inside(_)));
    }
    assert_eq!(cohort.leave(12), Departure::Free);
    assert_eq!(offer_next(&mut cohort, at(11)), None);
}

#[test]
fn a_member_that_is_passed_over_burns_its_token() {
    let mut cohort = offered(3);
    assert_eq!(offer_next(&mut cohort, at(1)), Some(turn_of(11, 2)));
    assert_eq!(cohort.enter(10, at(1)), Seat::Missed);
    assert_eq!(cohort.leave(10), Departure::Stale);
    assert!(matches!(cohort.enter(11, at(1)), Seat::Inside(_)));
}

#[test]
fn a_member_that_has_left_does_not_end_the_turn_before() {
    let mut cohort = inside(2);
    assert_eq!(cohort.leave(10), Departure::Free);
    assert_eq!(cohort.next(at(1)), Some(turn_of(11, 2)));
    // The second member could not be offered its turn, and no further member is left. The cohort still stores the turn
    // of the first member. Each time the first member leaves, it learns that the cohort has ended.
    cohort.end();
    assert_eq!(cohort.leave(10), Departure::Ended);
    assert_eq!(cohort.leave(10), Departure::Ended);
}

#[test]
fn an_offer_stands_for_a_claim_or_a_shorter_lease() {
    let cohort = offered(2);
    assert!(!cohort.is_overdue(at(1999)) && cohort.is_overdue(at(2000)));
    let mut short = pushed(2, 500 * MS);
    offer_next(&mut short, at(0));
    assert!(!short.is_overdue(at(499)) && short.is_overdue(at(500)));
    assert!(
        !inside(2).is_overdue(at(60_000)),
        "a member that holds the lock is never overdue"
    );
}

#[test]
fn an_offer_to_a_member_that_has_missed_one_stands_for_a_tenth_of_a_claim() {
    let mut cohort = offered(2);
    let turn = cohort.next(at(0)).unwrap();
    cohort.offer(turn, 1, at(0));
    assert!(!cohort.is_overdue(at(199)) && cohort.is_overdue(at(200)));
}

#[test]
fn an_offer_passed_on_seats_the_next_and_never_the_first() {
    let mut cohort = offered(2);
    assert_eq!(offer_next(&mut cohort, at(1900)), Some(turn_of(11, 2)));
    assert!(
        !cohort.is_overdue(at(2000)),
        "the second member's offer lasts for a whole claim"
    );
    // The first member's renewal is answered after that member's turn was passed on.
    assert!(!cohort.confirm(10, extended(31_900), at(1950)));
    assert_eq!(cohort.enter(10, at(1950)), Seat::Missed);
    assert_eq!(cohort.enter(11, at(1950)), Seat::Unconfirmed);
    assert!(cohort.confirm(11, extended(31_950), at(1960)));
    assert!(matches!(cohort.enter(11, at(1961)), Seat::Inside(_)));
}

#[test]
fn offers_are_kept_fresh() {
    let mut cohort = offered(1);
    assert_eq!(cohort.renewal_of_offer(at(600)), None);
    assert_eq!(
        cohort.renewal_of_offer(at(700)),
        Some(CLAIM),
        "the grant of an offer is renewed for the length of a claim, not for a lease"
    );
    assert!(cohort.confirm(10, extended(2600), at(600)));
    assert_eq!(cohort.renewal_of_offer(at(1200)), None);
    assert!(matches!(cohort.enter(10, at(1200)), Seat::Inside(_)));
    assert_eq!(
        cohort.renewal_of_offer(at(2000)),
        None,
        "after the member has taken its turn, there is no offer to renew"
    );
}

/// Each answer is read 100 ms after its request was sent.
#[test]
fn the_renewals_of_an_offer_do_not_become_shorter() {
    let mut cohort = offered(2);
    for asked in [700, 1_500, 2_300] {
        assert_eq!(cohort.renewal_of_offer(at(asked)), Some(CLAIM));
        let answer = Confirmation {
            asked: at(asked),
            ..extended(asked + 2_000)
        };
        assert!(cohort.confirm(10, answer, at(asked + 100)));
    }
}

/// The answer to the restart comes so late that a sixth of the lease is left.
#[test]
fn an_offer_after_a_late_restart_is_renewed_for_a_lease() {
    let mut cohort = inside(2);
    assert!(cohort.confirm(10, extended(30_001), at(1)));
    assert!(cohort.confirm(10, restarted(30_000), at(25_000)));
    assert_eq!(cohort.leave(10), Departure::Free);
    let turn = offer_next(&mut cohort, at(25_001));
    assert_eq!(turn, Some(turn_of(11, 2)));
    assert_eq!(
        cohort.renewal_of_offer(at(27_000)),
        Some(Duration::from_secs(30))
    );
}

#[test]
fn an_answer_counts_for_the_turn_that_asked() {
    let mut cohort = inside(2);
    assert!(
        !cohort.confirm(11, extended(30_000), at(5)),
        "the second member does not have the turn yet"
    );
    assert!(cohort.confirm(10, extended(30_000), at(5)));
    assert_eq!(cohort.until(), at(30_000));
    assert!(
        cohort.confirm(10, extended(20_000), at(6)),
        "the cohort accepts each answer to the member that has the turn"
    );
    assert_eq!(cohort.until(), at(30_000), "an extension shortens no lease");
    assert!(cohort.confirm(10, restarted(10_000), at(7)));
    assert_eq!(cohort.until(), at(10_000), "a restart can shorten a lease");
    cohort.leave(10);
    offer_next(&mut cohort, at(8));
    assert!(
        !cohort.confirm(10, extended(40_000), at(9)),
        "the first member no longer has the turn"
    );
    assert_eq!(cohort.until(), at(10_000));
}

#[test]
fn an_answer_to_what_was_asked_before_a_restart_lengthens_nothing() {
    let mut cohort = inside(2);
    let restart = Confirmation {
        asked: at(20),
        ..restarted(10_000)
    };
    assert!(cohort.confirm(10, restart, at(30)));
    let older = Confirmation {
        asked: at(10),
        ..extended(60_000)
    };
    assert!(cohort.confirm(10, older, at(31)), "the member has the turn");
    assert_eq!(cohort.until(), at(10_000));
    let newer = Confirmation {
        asked: at(40),
        ..older
    };
    assert!(cohort.confirm(10, newer, at(50)));
    assert_eq!(cohort.until(), at(60_000));
}

#[test]
fn an_answer_after_the_deadline_revives_nothing() {
    let mut cohort = inside(2);
    let end = at(0) + less_drift(CLAIM);
    assert!(cohort.is_late(end));
    assert!(!cohort.confirm(10, extended(30_000), end));
    assert_eq!(cohort.until(), end);
    assert_eq!(
        offer_next(&mut cohort, end),
        None,
        "the grant has no time left for the next member"
    );
}

#[test]
fn a_suspended_cohort_seats_nobody() {
    for mut cohort in [offered(3), inside(3)] {
        cohort.suspend();
        assert!(cohort.is_over() && cohort.is_suspended());
        assert_eq!(cohort.enter(10, at(1)), Seat::Missed);
        assert!(!cohort.confirm(10, extended(30_000), at(1)));
        assert_eq!(offer_next(&mut cohort, at(1)), None);
        assert_eq!(cohort.leave(10), Departure::Suspended);
        assert_eq!(cohort.leave(11), Departure::Stale);
    }
}

#[test]
fn an_ended_cohort_is_known_until_its_release_is_confirmed() {
    for mut cohort in [offered(2), inside(2)] {
        cohort.end();
        assert_eq!(cohort.enter(10, at(1)), Seat::Missed);
        assert_eq!(
            cohort.leave(10),
            Departure::Ended,
            "the cohort has ended, so the calling code sends the release again"
        );
        assert!(!cohort.confirm(10, extended(30_000), at(1)));
        cohort.mark_released();
        assert!(cohort.is_released() && cohort.is_over());
        assert_eq!(cohort.leave(10), Departure::Stale);
        assert_eq!(cohort.enter(10, at(1)), Seat::Missed);
    }
}

#[test]
fn a_retained_lock_is_nobodys_turn() {
    let mut cohort = inside(2);
    assert!(cohort.retain(10));
    assert!(!cohort.retain(10), "the lock is retained already");
    assert!(!cohort.retain(11));
    assert_eq!(cohort.enter(10, at(2)), Seat::Missed);
    assert_eq!(cohort.enter(11, at(2)), Seat::Missed);
    assert!(
        cohort.confirm(10, extended(5000), at(2)),
        "a retained lock is still renewed"
    );
    assert!(!cohort.is_overdue(at(60_000)));
    // The minimum hold time can end after the local deadline. Until the minimum hold time ends, the waiting members do
    // not queue again.
    assert!(!cohort.is_late(at(60_000)));
    assert_eq!(cohort.leave(10), Departure::Free);
    assert_eq!(offer_next(&mut cohort, at(3)), Some(turn_of(11, 2)));
}

#[test]
fn a_stretched_grant_is_seen() {
    let mut cohort = inside(2);
    assert!(!cohort.is_stretched(at(1)));
    assert!(cohort.confirm(10, extended(60_000), at(1)));
    assert!(cohort.is_stretched(at(1)));
    assert!(cohort.confirm(10, restarted(30_001), at(1)));
    assert!(!cohort.is_stretched(at(1)));
}

/// The answer to the restart is lost, and so much time has passed that the grant counts as stretched no longer.
#[test]
fn a_restart_without_an_answer_shortens_the_turn_of_the_next_member() {
    let mut cohort = inside(2);
    assert!(cohort.confirm(10, extended(60_000), at(1)));
    cohort.note_restart(10, at(1), at(30_001));
    cohort.leave(10);
    offer_next(&mut cohort, at(5_000));
    let Seat::Inside(grant) = cohort.enter(11, at(5_000)) else {
        panic!("the offer is still valid");
    };
    assert!(grant.valid_until.is_some_and(|until| until <= at(30_001)));
}

/// The answer to the extension comes after the restart was sent, and the answer to the restart is lost.
#[test]
fn a_late_answer_to_an_extension_does_not_undo_a_restart() {
    let mut cohort = inside(2);
    assert!(cohort.confirm(10, extended(30_000), at(0)));
    cohort.note_extension(10, at(0), at(60_000));
    cohort.note_restart(10, at(1), at(30_001));
    assert!(cohort.confirm(10, extended(60_000), at(2)));
    cohort.leave(10);
    offer_next(&mut cohort, at(5_000));
    let Seat::Inside(grant) = cohort.enter(11, at(5_000)) else {
        panic!("the offer is still valid");
    };
    assert!(grant.valid_until.is_some_and(|until| until <= at(30_001)));
}

/// The extension was sent after the restart, over another connection. The server can carry out the extension last.
#[test]
fn a_restart_does_not_end_a_later_extension() {
    let mut cohort = inside(2);
    cohort.note_extension(10, at(5), at(60_005));
    // The answer to an earlier extension does not hide the later one.
    assert!(cohort.confirm(10, extended(60_000), at(6)));
    assert!(cohort.confirm(10, restarted(30_001), at(6)));
    assert!(cohort.is_stretched(at(6)));
}

#[test]
fn a_member_gets_no_more_than_its_lease() {
    let mut cohort = inside(2);
    assert!(cohort.confirm(10, extended(90_000), at(1)));
    cohort.leave(10);
    offer_next(&mut cohort, at(2));
    let Seat::Inside(grant) = cohort.enter(11, at(2)) else {
        panic!("the offer is still valid");
    };
    assert_eq!(grant.valid_until, Some(at(2) + less_drift(LEASE)));
}

#[test]
fn what_was_known_before_a_question_is_told_apart() {
    let cohort = offered(1);
    assert!(!cohort.was_known_at(at(0)) && cohort.was_known_at(at(1)));
    assert!(cohort.contains(10) && !cohort.contains(11));
}
