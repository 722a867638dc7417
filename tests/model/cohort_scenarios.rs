//! Scenarios in which several callers of one process form a cohort. These scenarios check the protocol with all of its
//! rules; `cohort_variants.rs` removes one rule at a time.

use crate::{
    check,
    properties::{
        CONFIRMED, CRASH_INSIDE, GIVEN_BACK, HEALED, LOST, LOST_COHORT, NOBODY_LEFT, OVERLAP,
        PASSED, PASSED_OVER, RECOVERED, REFRESHED, TOLD_AGAIN,
    },
    scenario::{Faults, Scenario, Terms},
    state::ProcessId,
};

/// Returns the options of callers that begin at once, have short leases and waits, and hold the lock only briefly.
pub(crate) fn callers(callers: &[ProcessId]) -> Terms {
    Terms {
        lease: 3,
        claim: 2,
        wait: 3,
        ..Terms::of(callers)
    }
}

/// Returns a scenario with a holder, two waiters of the holder's process that form a cohort, a waiter of another
/// process, and one tick that may begin while an action is still due.
pub(crate) fn late_cohort() -> Scenario {
    Scenario {
        faults: Faults::late(1),
        reaches: vec![PASSED, PASSED_OVER, CONFIRMED, LOST, LOST_COHORT],
        ..Scenario::of(
            "cohort, late, others",
            Terms {
                lease: 2,
                once: vec![0],
                ..callers(&[0, 0, 0, 1])
            },
        )
    }
}

/// This test is skipped unless `MODEL_DEEPER` is set, because it takes half a minute or more.
#[test]
fn a_cohort_is_late_and_others_wait() {
    if std::env::var_os("MODEL_DEEPER").is_some() {
        check::holds(late_cohort());
    }
}

#[test]
fn a_cohort_is_late() {
    check::holds(
        Scenario::of(
            "cohort, late",
            Terms {
                wait: 2,
                lease: 2,
                once: vec![0],
                ..callers(&[0, 0, 0])
            },
        )
        .with(Faults::late(1))
        .reaching([PASSED, PASSED_OVER, CONFIRMED, LOST, LOST_COHORT]),
    );
}

#[test]
fn two_things_go_wrong_with_a_cohort() {
    check::holds(
        Scenario::of("cohort, two faults", callers(&[0, 0, 0]))
            .with(Faults::any(2))
            .reaching([
                PASSED,
                PASSED_OVER,
                HEALED,
                RECOVERED,
                CRASH_INSIDE,
                GIVEN_BACK,
                NOBODY_LEFT,
                TOLD_AGAIN,
            ]),
    );
}

/// This test is skipped unless `MODEL_DEEPER` is set, because it takes minutes.
#[test]
fn one_thing_goes_wrong_with_a_cohort_and_all_is_late() {
    if std::env::var_os("MODEL_DEEPER").is_none() {
        return;
    }
    check::holds(
        Scenario::of(
            "cohort, one fault, late",
            Terms {
                wait: 2,
                once: vec![0],
                ..callers(&[0, 0, 0])
            },
        )
        .with(Faults {
            late: 1,
            crashes: 0,
            lost_replies: 0,
            ..Faults::any(1)
        })
        .reaching([PASSED, PASSED_OVER, LOST, NOBODY_LEFT]),
    );
}

#[test]
fn cohorts_of_two_processes() {
    check::holds(
        Scenario::of(
            "cohort, processes",
            Terms {
                once: vec![0],
                wait: 2,
                body: 0,
                cohort_limit: 2,
                ..callers(&[0, 1, 1, 1])
            },
        )
        .with(Faults::any(1))
        .reaching([PASSED, PASSED_OVER, HEALED, CRASH_INSIDE]),
    );
}

#[test]
fn a_cohort_is_renewed() {
    check::holds(
        Scenario::of(
            "cohort, renewed",
            Terms {
                lease: 2,
                renewed: true,
                body: 3,
                ..callers(&[0, 0, 0])
            },
        )
        .with(Faults::crashes(1))
        .reaching([PASSED, REFRESHED, CRASH_INSIDE]),
    );
}

#[test]
fn the_server_loses_a_cohort() {
    check::holds(
        Scenario::of("cohort, state lost", callers(&[0, 0, 0]))
            .with(Faults {
                state_losses: 1,
                ..Faults::any(1)
            })
            .reaching([PASSED, LOST, LOST_COHORT, OVERLAP]),
    );
}

#[test]
fn a_cohort_of_members_of_another_lease() {
    check::holds(
        Scenario::of(
            "cohort, two leases",
            Terms {
                leases: vec![(1, 5), (2, 5)],
                ..callers(&[0, 0, 0, 0])
            },
        )
        .with(Faults::any(1))
        .reaching([PASSED, CRASH_INSIDE]),
    );
}
