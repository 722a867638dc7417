//! Variants of the protocol in which one rule of cohorts or batches is removed.

use crate::{
    broken::Broken,
    check,
    cohort_scenarios::{callers, late_cohort},
    properties::{BEGUN, CRASH, EXCLUSION, FORGOTTEN, LEFT, ORDER, TOKENS, TOLD},
    scenario::{Faults, Scenario, Terms},
};

/// Checks that a scenario with these callers and faults breaks `promise` if the rule `broken` is removed, and breaks no
/// promise otherwise.
#[track_caller]
fn is_caught(broken: Broken, terms: Terms, faults: Faults, promise: &'static str) {
    let scenario = Scenario::of("a variant", terms).with(faults);
    check::is_caught(broken, scenario, promise);
}

#[test]
fn a_member_that_leaves_keeps_the_cohort() {
    let terms = Terms {
        once: vec![0],
        body: 0,
        ..callers(&[0, 0, 0, 1])
    };
    is_caught(
        Broken::LeaveFreesTheCohort,
        terms,
        Faults::cancels(1),
        ORDER,
    );
}

#[test]
fn a_cohort_lasts_while_a_member_is_inside() {
    let terms = Terms {
        once: vec![0, 3],
        ..callers(&[0, 0, 0, 1])
    };
    is_caught(
        Broken::LastWaiterReleases,
        terms,
        Faults::cancels(1),
        EXCLUSION,
    );
}

#[test]
fn a_cohort_is_taken_up_once() {
    is_caught(
        Broken::KnownCohortTakenUpAgain,
        callers(&[0, 0, 0]),
        Faults::NONE,
        EXCLUSION,
    );
}

#[test]
fn a_member_that_has_left_is_skipped() {
    is_caught(
        Broken::SkippedTurnStays,
        callers(&[0, 0, 0]),
        Faults::cancels(1),
        TOLD,
    );
}

#[test]
fn a_cohort_of_which_nobody_waits_is_released() {
    is_caught(
        Broken::EmptyCohortStays,
        callers(&[0, 0, 0]),
        Faults::cancels(2),
        TOLD,
    );
}

#[test]
fn a_cohort_has_as_many_tokens_as_members() {
    is_caught(
        Broken::OneTokenForACohort,
        Terms {
            once: vec![0],
            ..callers(&[0, 0, 0, 1])
        },
        Faults::NONE,
        TOKENS,
    );
}

#[test]
fn each_member_has_a_token_of_its_own() {
    is_caught(
        Broken::MembersShareAToken,
        callers(&[0, 0, 0]),
        Faults::NONE,
        BEGUN,
    );
}

#[test]
fn a_cohort_is_of_one_session() {
    let terms = Terms {
        cohort_limit: 2,
        body: 0,
        ..callers(&[0, 1, 0, 1])
    };
    is_caught(Broken::CohortOfTwoSessions, terms, Faults::NONE, ORDER);
}

#[test]
fn a_cohort_is_of_one_lease() {
    let terms = Terms {
        leases: vec![(1, 5)],
        ..callers(&[0, 0, 0])
    };
    is_caught(Broken::CohortOfTwoLeases, terms, Faults::crashes(1), CRASH);
}

#[test]
fn a_turn_is_passed_on_while_the_cohort_is_known_to_be_held() {
    check::are_caught(&[Broken::PassIgnoresDeadline], &late_cohort(), EXCLUSION);
}

#[test]
fn a_member_of_a_lost_cohort_queues_again() {
    let broken = [Broken::LostCohortReleasedFirst, Broken::LostCohortStaysAway];
    check::are_caught(&broken, &late_cohort(), ORDER);
}

/// A caller learns its place from the reply to its batch. If the connection breaks before this reply arrives, the
/// process resends the batch. If the server grants the caller the lock before it reads the resent batch, the reply to
/// this batch contains no place. A caller that knows no place still has to queue again if its cohort is lost.
#[test]
fn a_member_without_a_known_place_queues_again() {
    let terms = Terms {
        lease: 2,
        claim: 1,
        wait: 4,
        once: vec![0],
        body: 2,
        ..callers(&[0, 0, 0])
    };
    is_caught(
        Broken::ComesBackToAPlaceOnly,
        terms,
        Faults::breaks(1),
        FORGOTTEN,
    );
}

/// When the server's clock jumps ahead, the server removes the older waiters, because their `wait` seems to be over. A
/// probe that checks only a younger waiter, which is still queued, does not detect that the older waiters were removed.
#[test]
fn a_probe_asks_for_the_oldest() {
    let terms = Terms {
        claim: 1,
        wait: 5,
        body: 3,
        ..callers(&[0, 0, 0])
    };
    let faults = Faults {
        jumps_ahead: 1,
        any: 1,
        ..Faults::NONE
    };
    is_caught(Broken::ProbeAsksForAnybody, terms, faults, FORGOTTEN);
}

#[test]
fn one_request_names_a_caller() {
    let faults = Faults {
        breaks: 1,
        ..Faults::cancels(2)
    };
    is_caught(Broken::AloneAndInABatch, callers(&[0, 0]), faults, LEFT);
}

#[test]
fn nobody_enters_while_a_request_names_him() {
    let faults = Faults {
        breaks: 1,
        any: 3,
        ..Faults::cancels(2)
    };
    is_caught(
        Broken::EntersBesideItsRequest,
        callers(&[0, 0]),
        faults,
        TOLD,
    );
}
