//! The protocol as it is where processes are given the lock for several of their callers at once.

use crate::{
    check,
    properties::{
        CONFIRMED, CRASH_INSIDE, GIVEN_BACK, HEALED, LOST, LOST_COHORT, NOBODY_LEFT, OVERLAP,
        PASSED, PASSED_OVER, RECOVERED, REFRESHED, TOLD_AGAIN,
    },
    scenario::{Faults, Scenario, Terms},
    state::ProcessId,
};

/// These callers begin at once, and do not stay long.
pub(crate) fn callers(callers: &[ProcessId]) -> Terms {
    Terms {
        callers: callers.to_vec(),
        lease: 3,
        leases: Vec::new(),
        cohort_limit: 3,
        renewed: false,
        claim: 2,
        wait: 3,
        once: Vec::new(),
        slow: Vec::new(),
        next_owners: Vec::new(),
        begin_within: 0,
        body: 1,
        may_kill: true,
    }
}

/// Everything of which nobody is to notice anything.
fn any(faults: u8) -> Faults {
    Faults {
        crashes: 1,
        breaks: faults,
        cancels: faults,
        lost_pushes: 1,
        lost_replies: 1,
        any: faults,
        ..Faults::default()
    }
}

/// A cohort of two, and somebody else behind it.
pub(crate) fn late_cohort() -> Scenario {
    Scenario {
        faults: Faults {
            late: 1,
            ..Faults::default()
        },
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

/// Half a minute and more, so not by default.
#[test]
fn a_cohort_is_late_and_others_wait() {
    if std::env::var_os("MODEL_DEEPER").is_some() {
        check::holds(late_cohort());
    }
}

#[test]
fn a_cohort_is_late() {
    check::holds(Scenario {
        faults: Faults {
            late: 1,
            ..Faults::default()
        },
        reaches: vec![PASSED, PASSED_OVER, CONFIRMED, LOST, LOST_COHORT],
        ..Scenario::of(
            "cohort, late",
            Terms {
                wait: 2,
                lease: 2,
                once: vec![0],
                ..callers(&[0, 0, 0])
            },
        )
    });
}

#[test]
fn two_things_go_wrong_with_a_cohort() {
    check::holds(Scenario {
        faults: any(2),
        reaches: vec![
            PASSED,
            PASSED_OVER,
            HEALED,
            RECOVERED,
            CRASH_INSIDE,
            GIVEN_BACK,
            NOBODY_LEFT,
            TOLD_AGAIN,
        ],
        ..Scenario::of("cohort, two faults", callers(&[0, 0, 0]))
    });
}

/// Minutes, so not by default.
#[test]
fn one_thing_goes_wrong_with_a_cohort_and_all_is_late() {
    if std::env::var_os("MODEL_DEEPER").is_none() {
        return;
    }
    check::holds(Scenario {
        faults: Faults {
            late: 1,
            crashes: 0,
            lost_replies: 0,
            ..any(1)
        },
        reaches: vec![PASSED, PASSED_OVER, LOST, NOBODY_LEFT],
        ..Scenario::of(
            "cohort, one fault, late",
            Terms {
                wait: 2,
                once: vec![0],
                ..callers(&[0, 0, 0])
            },
        )
    });
}

#[test]
fn cohorts_of_two_processes() {
    check::holds(Scenario {
        faults: any(1),
        reaches: vec![PASSED, PASSED_OVER, HEALED, CRASH_INSIDE],
        ..Scenario::of(
            "cohort, processes",
            Terms {
                once: vec![0],
                wait: 2,
                body: 0,
                cohort_limit: 2,
                ..callers(&[0, 1, 1, 1])
            },
        )
    });
}

#[test]
fn a_cohort_is_renewed() {
    check::holds(Scenario {
        faults: Faults {
            crashes: 1,
            any: 1,
            ..Faults::default()
        },
        reaches: vec![PASSED, REFRESHED, CRASH_INSIDE],
        ..Scenario::of(
            "cohort, renewed",
            Terms {
                lease: 2,
                renewed: true,
                body: 3,
                ..callers(&[0, 0, 0])
            },
        )
    });
}

#[test]
fn the_server_loses_a_cohort() {
    check::holds(Scenario {
        faults: Faults {
            state_losses: 1,
            ..any(1)
        },
        reaches: vec![PASSED, LOST, LOST_COHORT, OVERLAP],
        ..Scenario::of("cohort, state lost", callers(&[0, 0, 0]))
    });
}

#[test]
fn a_cohort_of_members_of_another_lease() {
    check::holds(Scenario {
        faults: any(1),
        reaches: vec![PASSED, CRASH_INSIDE],
        ..Scenario::of(
            "cohort, two leases",
            Terms {
                leases: vec![(1, 5), (2, 5)],
                ..callers(&[0, 0, 0, 0])
            },
        )
    });
}
