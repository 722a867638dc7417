//! The protocol with one of its rules taken out, and the gaps that it is known to have.

use crate::{
    broken::Broken,
    check,
    properties::{BOUNDED, CLAIM, EXCLUSION, FORGOTTEN, HEARD, ORDER, TOKENS, TOLD},
    scenario::{Faults, Scenario, Terms},
    state::ProcessId,
};

/// Callers of these processes, who begin at once and do not stay long.
fn callers(callers: &[ProcessId]) -> Terms {
    Terms {
        callers: callers.to_vec(),
        lease: 4,
        leases: Vec::new(),
        cohort_limit: 3,
        renewed: false,
        claim: 3,
        wait: 5,
        once: Vec::new(),
        slow: Vec::new(),
        next_owners: Vec::new(),
        begin_within: 0,
        body: 1,
        may_kill: true,
    }
}

/// Without this rule, these callers break this promise when that goes wrong.
#[track_caller]
fn is_caught(broken: Broken, terms: Terms, faults: Faults, promise: &'static str) {
    let scenario = Scenario {
        faults,
        ..Scenario::of("a variant", terms)
    };
    check::is_caught(broken, scenario, promise);
}

const NONE: Faults = Faults {
    late: 0,
    crashes: 0,
    breaks: 0,
    cancels: 0,
    lost_pushes: 0,
    lost_replies: 0,
    state_losses: 0,
    restarts: 0,
    jumps_ahead: 0,
    jumps_back: 0,
    lags: 0,
    any: 0,
};

#[test]
fn a_deadline_counts_from_the_sending() {
    let terms = Terms {
        body: 4,
        ..callers(&[0, 1])
    };
    is_caught(
        Broken::DeadlineFromTheReply,
        terms,
        Faults { late: 1, ..NONE },
        EXCLUSION,
    );
}

#[test]
fn a_late_push_is_not_trusted() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        wait: 2,
        once: vec![0],
        ..callers(&[0, 1, 0])
    };
    is_caught(
        Broken::DeadlineFromThePush,
        terms,
        Faults { late: 1, ..NONE },
        EXCLUSION,
    );
}

#[test]
fn clocks_may_drift_apart() {
    let terms = Terms {
        body: 4,
        ..callers(&[0, 1])
    };
    is_caught(
        Broken::NoDrift,
        terms,
        Faults {
            lags: 1,
            any: 1,
            ..NONE
        },
        EXCLUSION,
    );
}

#[test]
fn a_release_names_its_token() {
    let terms = Terms {
        body: 4,
        ..callers(&[0, 1, 2])
    };
    is_caught(Broken::ReleaseOfAnyToken, terms, NONE, ORDER);
}

#[test]
fn a_renewal_comes_too_late() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        renewed: true,
        body: 3,
        ..callers(&[0, 1])
    };
    is_caught(
        Broken::RenewalResurrects,
        terms,
        Faults { late: 1, ..NONE },
        TOLD,
    );
}

#[test]
fn an_old_connection_is_closed_before_anything_is_sent_again() {
    let faults = Faults {
        breaks: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::LateAcquireAccepted, callers(&[0]), faults, TOLD);
}

#[test]
fn the_gate_stays_shut_until_the_old_connection_is_closed() {
    let faults = Faults {
        breaks: 2,
        cancels: 1,
        any: 3,
        ..NONE
    };
    is_caught(
        Broken::GateOpensWithTheBreak,
        callers(&[0, 1]),
        faults,
        TOLD,
    );
}

/// The request that was sent again may be read after the release: the engine's releases go over another connection.
#[test]
fn who_gives_back_a_turn_leaves_as_well() {
    let faults = Faults {
        breaks: 1,
        cancels: 1,
        any: 2,
        ..NONE
    };
    is_caught(Broken::OfferGivenBackAlone, callers(&[0, 1]), faults, TOLD);
}

#[test]
fn a_request_sent_again_finds_its_grant() {
    let faults = Faults {
        breaks: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::QueuesBehindItself, callers(&[0]), faults, TOLD);
}

#[test]
fn a_batch_sent_again_finds_its_grant() {
    let faults = Faults {
        breaks: 1,
        any: 1,
        ..NONE
    };
    is_caught(
        Broken::BatchQueuesBehindItself,
        callers(&[0, 1]),
        faults,
        TOLD,
    );
}

#[test]
fn a_cancelled_call_leaves() {
    let faults = Faults {
        cancels: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::CancelWithoutLeave, callers(&[0]), faults, TOLD);
}

#[test]
fn leaving_gives_a_grant_back() {
    let faults = Faults {
        cancels: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::LeaveChecksTheQueueOnly, callers(&[0]), faults, TOLD);
}

#[test]
fn a_heartbeat_probes() {
    let faults = Faults {
        lost_pushes: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::NoProbe, callers(&[0, 1]), faults, FORGOTTEN);
}

#[test]
fn a_dead_head_is_skipped() {
    let faults = Faults {
        crashes: 1,
        any: 1,
        ..NONE
    };
    let terms = Terms {
        lease: 2,
        claim: 2,
        body: 0,
        once: vec![0],
        ..callers(&[0, 1, 2])
    };
    is_caught(Broken::DeadHeadStays, terms, faults, FORGOTTEN);
}

#[test]
fn not_heard_is_not_given() {
    let faults = Faults {
        crashes: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::GivenUnheard, callers(&[0, 1]), faults, HEARD);
}

#[test]
fn a_push_is_a_claim() {
    let faults = Faults {
        crashes: 1,
        any: 1,
        ..NONE
    };
    is_caught(
        Broken::PushedForTheWholeLease,
        callers(&[0, 1]),
        faults,
        CLAIM,
    );
}

#[test]
fn a_free_lock_is_its_queues() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        begin_within: 2,
        body: 4,
        ..callers(&[0, 1, 2])
    };
    is_caught(Broken::Barging, terms, NONE, ORDER);
}

#[test]
fn a_waiter_comes_back_to_its_place() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        wait: 2,
        body: 0,
        once: vec![0, 2],
        ..callers(&[0, 1, 0, 2])
    };
    let faults = Faults {
        breaks: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::PlaceForgotten, terms, faults, ORDER);
}

#[test]
fn a_clock_set_back_does_not_reorder() {
    let faults = Faults {
        jumps_back: 1,
        any: 1,
        ..NONE
    };
    is_caught(
        Broken::PlaceByClockAlone,
        callers(&[0, 1, 2]),
        faults,
        ORDER,
    );
}

#[test]
fn a_new_connection_is_no_new_wait() {
    let terms = Terms {
        wait: 2,
        body: 4,
        ..callers(&[0, 1])
    };
    let faults = Faults {
        breaks: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::WaitBeginsAgain, terms, faults, BOUNDED);
}

#[test]
fn a_lost_counter_goes_on_above_the_clock() {
    let faults = Faults {
        state_losses: 1,
        any: 1,
        ..NONE
    };
    is_caught(Broken::CounterStartsAgain, callers(&[0, 1]), faults, TOKENS);
}

/// Else there is a grant that nobody knows: the answer to a request that was sent again comes after a push has given the
/// owner its turn, and in between the server has lost the pushed grant.
#[test]
fn the_newer_grant_counts() {
    let faults = Faults {
        state_losses: 1,
        breaks: 1,
        any: 2,
        ..NONE
    };
    let terms = Terms {
        body: 0,
        lease: 4,
        claim: 4,
        wait: 5,
        ..callers(&[0, 1])
    };
    is_caught(Broken::OlderGrantStands, terms, faults, TOLD);
}

#[test]
fn a_place_that_is_dead_by_a_clock_that_jumped_is_given_up() {
    let faults = Faults {
        jumps_ahead: 1,
        any: 1,
        ..NONE
    };
    let terms = Terms {
        body: 3,
        ..callers(&[0, 1])
    };
    is_caught(Broken::DeadPlaceStands, terms, faults, FORGOTTEN);
}

/// The gap of promise 1.
#[test]
fn known_to_fail_when_state_is_lost_and_the_clock_set_back() {
    let faults = Faults {
        state_losses: 1,
        jumps_back: 1,
        any: 2,
        ..NONE
    };
    check::is_known(
        Scenario {
            faults,
            shows_gaps: true,
            ..Scenario::of(
                "a gap",
                Terms {
                    once: vec![0, 1],
                    ..callers(&[0, 1])
                },
            )
        },
        TOKENS,
    );
}

/// The gap of promise 6.
#[test]
fn known_to_fail_without_client_kill() {
    let faults = Faults {
        breaks: 1,
        any: 1,
        ..NONE
    };
    let terms = Terms {
        may_kill: false,
        ..callers(&[0])
    };
    check::is_known(
        Scenario {
            faults,
            shows_gaps: true,
            ..Scenario::of("a gap", terms)
        },
        TOLD,
    );
}
