//! Scenarios and variants with slow callers, whose futures are polled at any time or never again.

use crate::{
    broken::Broken,
    check,
    cohort_scenarios::callers,
    properties::{CAME_BACK, EXCLUSION, LOST, MISSED, ORDER, PASSED, REVOKED, TAKEN},
    scenario::{Faults, Scenario, Terms},
};

/// Returns the options of three callers of one process. The second caller is slow: its future is polled at any time or
/// never again. If the second caller misses its turn, it continues under the owner name 3.
fn slow_member() -> Terms {
    Terms {
        once: vec![0],
        slow: vec![1],
        next_owners: vec![(1, 3)],
        wait: 5,
        ..callers(&[0, 0, 0, 0])
    }
}

/// Returns the options of two callers of different processes. The first caller is slow: its future is polled at any
/// time or never again. If the first caller misses its turn, it continues under the owner name 2.
fn slow_holder() -> Terms {
    Terms {
        slow: vec![0],
        next_owners: vec![(0, 2)],
        wait: 4,
        ..callers(&[0, 1, 0])
    }
}

fn late(late: u8) -> Faults {
    Faults::late(late)
}

#[test]
fn a_member_is_slow() {
    check::holds(Scenario::of("slow member", slow_member()).reaching([PASSED, MISSED, CAME_BACK]));
}

#[test]
fn a_caller_that_is_granted_the_lock_in_a_reply_may_be_slow() {
    check::holds(Scenario::of("slow holder", slow_holder()).reaching([REVOKED, CAME_BACK]));
}

#[track_caller]
fn is_caught(broken: Broken, terms: Terms, faults: Faults, promise: &'static str) {
    let scenario = Scenario::of("a variant", terms).with(faults);
    check::is_caught(broken, scenario, promise);
}

/// The variant `AnswerSeats` breaks exclusion even if no fault happens.
#[test]
fn an_answer_of_the_server_seats_nobody() {
    is_caught(Broken::AnswerSeats, slow_member(), late(0), EXCLUSION);
}

#[test]
fn a_caller_enters_by_an_offer_that_stands() {
    is_caught(
        Broken::EntersWithoutOffer,
        slow_member(),
        late(0),
        EXCLUSION,
    );
}

#[test]
fn an_offer_that_nobody_takes_is_passed_on() {
    is_caught(Broken::OfferStands, slow_member(), late(0), TAKEN);
}

/// Returns a scenario with a cohort whose renewals may be answered late.
fn late_answers() -> Scenario {
    Scenario {
        faults: late(1),
        reaches: vec![PASSED, LOST],
        ..Scenario::of(
            "late answers",
            Terms {
                renewed: true,
                body: 4,
                wait: 4,
                once: vec![0],
                ..callers(&[0, 0, 0])
            },
        )
    }
}

/// This test is skipped unless `MODEL_DEEPER` is set, because it takes minutes.
#[test]
fn renewals_of_a_cohort_are_answered_late() {
    if std::env::var_os("MODEL_DEEPER").is_some() {
        check::holds(late_answers());
    }
}

#[test]
fn an_answer_after_the_deadline_revives_nothing() {
    check::are_caught(&[Broken::AnswerRevives], &late_answers(), EXCLUSION);
}

/// Returns a scenario in which a slow caller (one that is polled late or never) misses its turn while other callers are
/// queued behind it.
fn comes_back() -> Scenario {
    Scenario {
        reaches: vec![MISSED, CAME_BACK],
        ..Scenario::of(
            "comes back",
            Terms {
                lease: 2,
                claim: 1,
                wait: 4,
                once: vec![0],
                slow: vec![1],
                next_owners: vec![(1, 4)],
                ..callers(&[0, 0, 1, 2, 0])
            },
        )
    }
}

/// This test is skipped unless `MODEL_DEEPER` is set, because it takes half a minute or more.
#[test]
fn a_slow_caller_comes_back_to_its_place() {
    if std::env::var_os("MODEL_DEEPER").is_some() {
        check::holds(comes_back());
    }
}

#[test]
fn a_caller_that_queues_again_with_its_place_keeps_it() {
    check::are_caught(&[Broken::HeadBeforeWhoComesBack], &comes_back(), ORDER);
}

#[test]
fn a_grant_in_a_reply_is_its_owners_whoever_describes_it() {
    let terms = Terms {
        lease: 5,
        body: 4,
        once: Vec::new(),
        slow: vec![0],
        next_owners: vec![(0, 2)],
        wait: 4,
        ..callers(&[0, 0, 0])
    };
    is_caught(Broken::UnreadGrantOffered, terms, late(0), EXCLUSION);
}

#[test]
fn a_grant_that_nobody_reads_is_given_up() {
    is_caught(Broken::DirectGrantStands, slow_holder(), late(0), TAKEN);
}

#[test]
fn whoever_comes_back_late_finds_its_grant_given_up() {
    is_caught(Broken::RevokedEnters, slow_holder(), late(0), EXCLUSION);
}
