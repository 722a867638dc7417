//! The protocol with one of its rules removed, and the known gaps of the protocol.

use crate::{
    broken::Broken,
    check,
    properties::{BOUNDED, CLAIM, EXCLUSION, FORGOTTEN, HEARD, ORDER, TOKENS, TOLD},
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
fn a_deadline_counts_from_the_sending() {
    let terms = Terms {
        body: 4,
        ..Terms::of(&[0, 1])
    };
    is_caught(
        Broken::DeadlineFromTheReply,
        terms,
        Faults::late(1),
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
        ..Terms::of(&[0, 1, 0])
    };
    is_caught(
        Broken::DeadlineFromThePush,
        terms,
        Faults::late(1),
        EXCLUSION,
    );
}

#[test]
fn clocks_may_drift_apart() {
    let terms = Terms {
        body: 4,
        ..Terms::of(&[0, 1])
    };
    is_caught(
        Broken::NoDrift,
        terms,
        Faults {
            lags: 1,
            any: 1,
            ..Faults::NONE
        },
        EXCLUSION,
    );
}

#[test]
fn a_release_names_its_token() {
    let terms = Terms {
        body: 4,
        ..Terms::of(&[0, 1, 2])
    };
    is_caught(Broken::ReleaseOfAnyToken, terms, Faults::NONE, ORDER);
}

#[test]
fn a_renewal_comes_too_late() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        renewed: true,
        body: 3,
        ..Terms::of(&[0, 1])
    };
    is_caught(Broken::RenewalResurrects, terms, Faults::late(1), TOLD);
}

#[test]
fn an_old_connection_is_closed_before_anything_is_sent_again() {
    is_caught(
        Broken::LateAcquireAccepted,
        Terms::of(&[0]),
        Faults::breaks(1),
        TOLD,
    );
}

#[test]
fn the_gate_stays_shut_until_the_old_connection_is_closed() {
    let faults = Faults {
        breaks: 2,
        cancels: 1,
        any: 3,
        ..Faults::NONE
    };
    is_caught(
        Broken::GateOpensWithTheBreak,
        Terms::of(&[0, 1]),
        faults,
        TOLD,
    );
}

/// The engine sends background releases over the home session, and requests over the callers' session. The server may
/// therefore read a release before a request that was resent earlier.
#[test]
fn a_caller_that_gives_back_its_turn_leaves() {
    let faults = Faults {
        breaks: 1,
        cancels: 1,
        any: 2,
        ..Faults::NONE
    };
    is_caught(
        Broken::OfferGivenBackAlone,
        Terms::of(&[0, 1]),
        faults,
        TOLD,
    );
}

#[test]
fn a_request_sent_again_finds_its_grant() {
    is_caught(
        Broken::QueuesBehindItself,
        Terms::of(&[0]),
        Faults::breaks(1),
        TOLD,
    );
}

#[test]
fn a_batch_sent_again_finds_its_grant() {
    is_caught(
        Broken::BatchQueuesBehindItself,
        Terms::of(&[0, 1]),
        Faults::breaks(1),
        TOLD,
    );
}

#[test]
fn a_cancelled_call_leaves() {
    is_caught(
        Broken::CancelWithoutLeave,
        Terms::of(&[0]),
        Faults::cancels(1),
        TOLD,
    );
}

#[test]
fn leaving_gives_a_grant_back() {
    is_caught(
        Broken::LeaveChecksTheQueueOnly,
        Terms::of(&[0]),
        Faults::cancels(1),
        TOLD,
    );
}

#[test]
fn a_heartbeat_probes() {
    let faults = Faults {
        lost_pushes: 1,
        any: 1,
        ..Faults::NONE
    };
    is_caught(Broken::NoProbe, Terms::of(&[0, 1]), faults, FORGOTTEN);
}

#[test]
fn a_dead_head_is_skipped() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        body: 0,
        once: vec![0],
        ..Terms::of(&[0, 1, 2])
    };
    is_caught(Broken::DeadHeadStays, terms, Faults::crashes(1), FORGOTTEN);
}

#[test]
fn not_heard_is_not_given() {
    is_caught(
        Broken::GivenUnheard,
        Terms::of(&[0, 1]),
        Faults::crashes(1),
        HEARD,
    );
}

#[test]
fn a_push_is_a_claim() {
    is_caught(
        Broken::PushedForTheWholeLease,
        Terms::of(&[0, 1]),
        Faults::crashes(1),
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
        ..Terms::of(&[0, 1, 2])
    };
    is_caught(Broken::Barging, terms, Faults::NONE, ORDER);
}

#[test]
fn a_waiter_comes_back_to_its_place() {
    let terms = Terms {
        lease: 2,
        claim: 2,
        wait: 2,
        body: 0,
        once: vec![0, 2],
        ..Terms::of(&[0, 1, 0, 2])
    };
    is_caught(Broken::PlaceForgotten, terms, Faults::breaks(1), ORDER);
}

#[test]
fn a_clock_set_back_does_not_reorder() {
    let faults = Faults {
        jumps_back: 1,
        any: 1,
        ..Faults::NONE
    };
    is_caught(
        Broken::PlaceByClockAlone,
        Terms::of(&[0, 1, 2]),
        faults,
        ORDER,
    );
}

#[test]
fn a_new_connection_is_no_new_wait() {
    let terms = Terms {
        wait: 2,
        body: 4,
        ..Terms::of(&[0, 1])
    };
    is_caught(Broken::WaitBeginsAgain, terms, Faults::breaks(1), BOUNDED);
}

#[test]
fn a_lost_counter_goes_on_above_the_clock() {
    let faults = Faults {
        state_losses: 1,
        any: 1,
        ..Faults::NONE
    };
    is_caught(
        Broken::CounterStartsAgain,
        Terms::of(&[0, 1]),
        faults,
        TOKENS,
    );
}

/// A push offers an owner its turn, the server loses the pushed grant, and a resent request grants the owner the lock a
/// second time. If the newer grant did not replace the older one, nobody would give the newer grant back.
#[test]
fn the_newer_grant_counts() {
    let faults = Faults {
        state_losses: 1,
        breaks: 1,
        any: 2,
        ..Faults::NONE
    };
    let terms = Terms {
        body: 0,
        lease: 4,
        claim: 4,
        wait: 5,
        ..Terms::of(&[0, 1])
    };
    is_caught(Broken::OlderGrantStands, terms, faults, TOLD);
}

#[test]
fn a_place_that_is_dead_by_a_clock_that_jumped_is_given_up() {
    let faults = Faults {
        jumps_ahead: 1,
        any: 1,
        ..Faults::NONE
    };
    let terms = Terms {
        body: 3,
        ..Terms::of(&[0, 1])
    };
    is_caught(Broken::DeadPlaceStands, terms, faults, FORGOTTEN);
}

/// Shows the documented gap of promise 1: tokens fall if the server loses its state and its clock is set back.
#[test]
fn known_to_fail_when_state_is_lost_and_the_clock_set_back() {
    let faults = Faults {
        state_losses: 1,
        jumps_back: 1,
        any: 2,
        ..Faults::NONE
    };
    check::is_known(
        Scenario::of(
            "a gap",
            Terms {
                once: vec![0, 1],
                ..Terms::of(&[0, 1])
            },
        )
        .with(faults)
        .with_gaps(),
        TOKENS,
    );
}

/// Shows the documented gap of promise 6: if the process is not allowed to close its old connection on the server, a
/// late request leaves a grant that no caller knows of.
#[test]
fn known_to_fail_without_client_kill() {
    let terms = Terms {
        may_kill: false,
        ..Terms::of(&[0])
    };
    check::is_known(
        Scenario::of("a gap", terms)
            .with(Faults::breaks(1))
            .with_gaps(),
        TOLD,
    );
}
