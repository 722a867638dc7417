//! Scenarios with all kinds of faults. These scenarios check the protocol with all of its rules; `variants.rs` removes
//! one rule at a time.

use crate::{
    check,
    properties::{
        BUSY, CONFIRMED, CRASH_INSIDE, GHOST, GIVEN_BACK, HANDOFF, HEALED, LAST_MOMENT, LOST,
        OVERLAP, RECOVERED, REFRESHED, Reached, SKIPPED,
    },
    scenario::{Faults, Scenario, Terms},
};

/// The conditions that a scenario has to reach if all faults of `Faults::any` may happen.
const GONE_WRONG: [Reached; 7] = [
    HANDOFF,
    HEALED,
    RECOVERED,
    CRASH_INSIDE,
    SKIPPED,
    GHOST,
    GIVEN_BACK,
];

/// Returns the options of two callers of different processes that begin at once.
fn two_at_once() -> Terms {
    Terms {
        body: 3,
        ..Terms::of(&[0, 1])
    }
}

/// Returns the options of two callers of different processes that begin within one tick.
fn two_processes() -> Terms {
    Terms {
        begin_within: 1,
        ..two_at_once()
    }
}

#[test]
fn messages_and_processes_are_late() {
    check::holds(
        Scenario::of("late", two_at_once())
            .with(Faults::late(2))
            .reaching([HANDOFF, CONFIRMED, LAST_MOMENT, LOST, BUSY]),
    );
}

#[test]
fn one_thing_goes_wrong_and_all_is_late() {
    check::holds(
        Scenario::of("one fault, late", two_at_once())
            .with(Faults {
                late: 1,
                ..Faults::any(1)
            })
            .reaching([
                HANDOFF,
                HEALED,
                RECOVERED,
                CONFIRMED,
                CRASH_INSIDE,
                SKIPPED,
                GHOST,
                GIVEN_BACK,
            ]),
    );
}

/// This test is skipped unless `MODEL_DEEPER` is set, because it takes half a minute in a debug build.
#[test]
fn two_things_go_wrong() {
    if std::env::var_os("MODEL_DEEPER").is_none() {
        return;
    }
    check::holds(
        Scenario::of("two faults", two_at_once())
            .with(Faults::any(2))
            .reaching(GONE_WRONG),
    );
}

#[test]
fn callers_of_one_process() {
    check::holds(
        Scenario::of(
            "one process",
            Terms {
                callers: vec![0, 0],
                ..two_processes()
            },
        )
        .with(Faults {
            late: 1,
            ..Faults::any(1)
        })
        .reaching([HANDOFF, HEALED, RECOVERED, CRASH_INSIDE, GHOST, GIVEN_BACK]),
    );
}

/// This test is skipped unless `MODEL_DEEPER` is set, because it takes half a minute or more.
#[test]
fn three_processes() {
    if std::env::var_os("MODEL_DEEPER").is_none() {
        return;
    }
    check::holds(
        Scenario::of(
            "three processes",
            Terms {
                callers: vec![0, 1, 2],
                body: 1,
                lease: 3,
                claim: 2,
                wait: 3,
                ..two_at_once()
            },
        )
        .with(Faults::any(1))
        .reaching(GONE_WRONG),
    );
}

#[test]
fn two_of_three_callers_share_a_process() {
    check::holds(
        Scenario::of(
            "three callers",
            Terms {
                callers: vec![0, 1, 1],
                body: 2,
                ..two_at_once()
            },
        )
        .with(Faults::any(1))
        .reaching(GONE_WRONG),
    );
}

#[test]
fn renewed_leases() {
    check::holds(
        Scenario::of(
            "renewed",
            Terms {
                lease: 2,
                claim: 2,
                wait: 3,
                renewed: true,
                ..two_at_once()
            },
        )
        .with(Faults::late(1))
        .reaching([HANDOFF, REFRESHED, LOST]),
    );
}

#[test]
fn one_attempt_only() {
    check::holds(
        Scenario::of(
            "one attempt",
            Terms {
                once: vec![1],
                ..two_at_once()
            },
        )
        .with(Faults {
            late: 1,
            ..Faults::any(1)
        })
        .reaching([RECOVERED, BUSY, GIVEN_BACK]),
    );
}

#[test]
fn clocks_run_unevenly() {
    check::holds(
        Scenario::of("uneven clocks", two_at_once())
            .with(Faults {
                late: 1,
                lags: 1,
                any: 1,
                ..Faults::NONE
            })
            .reaching([HANDOFF, LOST]),
    );
}

#[test]
fn the_server_loses_its_state() {
    check::holds(
        Scenario::of("state lost", two_at_once())
            .with(Faults {
                state_losses: 1,
                any: 1,
                ..Faults::NONE
            })
            .reaching([HANDOFF, LOST, OVERLAP]),
    );
}

#[test]
fn the_server_restarts_without_its_state() {
    check::holds(
        Scenario::of("restart", two_at_once())
            .with(Faults {
                restarts: 1,
                any: 1,
                ..Faults::NONE
            })
            .reaching([HANDOFF, LOST, OVERLAP]),
    );
}

#[test]
fn the_servers_clock_jumps_ahead() {
    check::holds(
        Scenario::of("clock ahead", two_processes())
            .with(Faults {
                jumps_ahead: 1,
                any: 1,
                ..Faults::NONE
            })
            .reaching([HANDOFF, LOST, OVERLAP]),
    );
}

#[test]
fn the_servers_clock_jumps_back() {
    check::holds(
        Scenario::of("clock back", two_processes())
            .with(Faults {
                jumps_back: 1,
                any: 1,
                ..Faults::NONE
            })
            .reaching([HANDOFF]),
    );
}

#[test]
fn old_connections_cannot_be_closed() {
    check::holds(
        Scenario::of(
            "without CLIENT KILL",
            Terms {
                may_kill: false,
                ..two_processes()
            },
        )
        .with(Faults::any(1))
        .reaching([HANDOFF, HEALED, RECOVERED, GHOST]),
    );
}
