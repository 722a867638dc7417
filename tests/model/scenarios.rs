//! The protocol as it is, with everything that may go wrong.

use crate::{
    check,
    properties::{
        BUSY, CONFIRMED, CRASH_INSIDE, GHOST, GIVEN_BACK, HANDOFF, HEALED, LAST_MOMENT, LOST,
        OVERLAP, RECOVERED, REFRESHED, SKIPPED,
    },
    scenario::{Faults, Scenario, Terms},
};

/// Two processes, a caller in each.
fn two_processes() -> Terms {
    Terms {
        callers: vec![0, 1],
        lease: 4,
        leases: Vec::new(),
        cohort_limit: 3,
        renewed: false,
        claim: 3,
        wait: 5,
        once: Vec::new(),
        slow: Vec::new(),
        next_owners: Vec::new(),
        begin_within: 1,
        body: 3,
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

#[test]
fn messages_and_processes_are_late() {
    check::holds(Scenario {
        faults: Faults {
            late: 2,
            ..Faults::default()
        },
        reaches: vec![HANDOFF, CONFIRMED, LAST_MOMENT, LOST, BUSY],
        ..Scenario::of(
            "late",
            Terms {
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn one_thing_goes_wrong_and_all_is_late() {
    check::holds(Scenario {
        faults: Faults { late: 1, ..any(1) },
        reaches: vec![
            HANDOFF,
            HEALED,
            RECOVERED,
            CONFIRMED,
            CRASH_INSIDE,
            SKIPPED,
            GHOST,
            GIVEN_BACK,
        ],
        ..Scenario::of(
            "one fault, late",
            Terms {
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

/// Half a minute in a debug build, so not by default.
#[test]
fn two_things_go_wrong() {
    if std::env::var_os("MODEL_DEEPER").is_none() {
        return;
    }
    check::holds(Scenario {
        faults: any(2),
        reaches: vec![
            HANDOFF,
            HEALED,
            RECOVERED,
            CRASH_INSIDE,
            SKIPPED,
            GHOST,
            GIVEN_BACK,
        ],
        ..Scenario::of(
            "two faults",
            Terms {
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn callers_of_one_process() {
    check::holds(Scenario {
        faults: Faults { late: 1, ..any(1) },
        reaches: vec![HANDOFF, HEALED, RECOVERED, CRASH_INSIDE, GHOST, GIVEN_BACK],
        ..Scenario::of(
            "one process",
            Terms {
                callers: vec![0, 0],
                ..two_processes()
            },
        )
    });
}

/// Half a minute and more, so not by default.
#[test]
fn three_processes() {
    if std::env::var_os("MODEL_DEEPER").is_none() {
        return;
    }
    check::holds(Scenario {
        faults: any(1),
        reaches: vec![
            HANDOFF,
            HEALED,
            RECOVERED,
            CRASH_INSIDE,
            SKIPPED,
            GHOST,
            GIVEN_BACK,
        ],
        ..Scenario::of(
            "three processes",
            Terms {
                callers: vec![0, 1, 2],
                begin_within: 0,
                body: 1,
                lease: 3,
                claim: 2,
                wait: 3,
                ..two_processes()
            },
        )
    });
}

#[test]
fn two_of_three_callers_share_a_process() {
    check::holds(Scenario {
        faults: any(1),
        reaches: vec![
            HANDOFF,
            HEALED,
            RECOVERED,
            CRASH_INSIDE,
            SKIPPED,
            GHOST,
            GIVEN_BACK,
        ],
        ..Scenario::of(
            "three callers",
            Terms {
                callers: vec![0, 1, 1],
                begin_within: 0,
                body: 2,
                ..two_processes()
            },
        )
    });
}

#[test]
fn renewed_leases() {
    check::holds(Scenario {
        faults: Faults {
            late: 1,
            ..Faults::default()
        },
        reaches: vec![HANDOFF, REFRESHED, LOST],
        ..Scenario::of(
            "renewed",
            Terms {
                lease: 2,
                claim: 2,
                wait: 3,
                renewed: true,
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn one_attempt_only() {
    check::holds(Scenario {
        faults: Faults { late: 1, ..any(1) },
        reaches: vec![RECOVERED, BUSY, GIVEN_BACK],
        ..Scenario::of(
            "one attempt",
            Terms {
                once: vec![1],
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn clocks_run_unevenly() {
    check::holds(Scenario {
        faults: Faults {
            late: 1,
            lags: 1,
            any: 1,
            ..Faults::default()
        },
        reaches: vec![HANDOFF, LOST],
        ..Scenario::of(
            "uneven clocks",
            Terms {
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn the_server_loses_its_state() {
    check::holds(Scenario {
        faults: Faults {
            state_losses: 1,
            any: 1,
            ..Faults::default()
        },
        reaches: vec![HANDOFF, LOST, OVERLAP],
        ..Scenario::of(
            "state lost",
            Terms {
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn the_server_restarts_without_its_state() {
    check::holds(Scenario {
        faults: Faults {
            restarts: 1,
            any: 1,
            ..Faults::default()
        },
        reaches: vec![HANDOFF, LOST, OVERLAP],
        ..Scenario::of(
            "restart",
            Terms {
                begin_within: 0,
                ..two_processes()
            },
        )
    });
}

#[test]
fn the_servers_clock_jumps_ahead() {
    check::holds(Scenario {
        faults: Faults {
            jumps_ahead: 1,
            any: 1,
            ..Faults::default()
        },
        reaches: vec![HANDOFF, LOST, OVERLAP],
        ..Scenario::of("clock ahead", two_processes())
    });
}

#[test]
fn the_servers_clock_jumps_back() {
    check::holds(Scenario {
        faults: Faults {
            jumps_back: 1,
            any: 1,
            ..Faults::default()
        },
        reaches: vec![HANDOFF],
        ..Scenario::of("clock back", two_processes())
    });
}

#[test]
fn old_connections_cannot_be_closed() {
    check::holds(Scenario {
        faults: any(1),
        reaches: vec![HANDOFF, HEALED, RECOVERED, GHOST],
        ..Scenario::of(
            "without CLIENT KILL",
            Terms {
                may_kill: false,
                ..two_processes()
            },
        )
    });
}
