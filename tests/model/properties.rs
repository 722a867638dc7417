//! The promises, which hold in every state, and the conditions that a scenario has to reach. A condition describes an
//! event, such as a lost push. If a scenario does not reach its conditions, its promises prove nothing.

use std::time::Duration;

use lock_core::lease::Moment;
use stateright::{Expectation, Property};

use crate::{
    attempt::queued_grant,
    attempt_state::{Event, Step},
    broken::Broken,
    protocol::Protocol,
    scenario::Scenario,
    server::{Acquired, Token},
    state::{By, Caller, CallerId, End, Hold, Phase, Request, Script, State},
};

pub(crate) const EXCLUSION: &str = "two bodies never run at once on valid leases";
pub(crate) const TOKENS: &str = "tokens rise";
pub(crate) const ORDER: &str = "no waiter is overtaken";
pub(crate) const BEGUN: &str = "each body begins with a higher token than all earlier bodies";
pub(crate) const SEATED: &str = "no member enters after its cohort's local deadline";
pub(crate) const ANSWERED: &str = "a renewal's answer counts only for the member with the turn";
pub(crate) const OFFERED: &str =
    "a caller without an offer ignores an answer that would let it enter";
pub(crate) const CRASH: &str = "after a crash, the lock is free when the dead holder's lease ends";
pub(crate) const TOLD: &str = "each grant is known to its owner or is given back";
pub(crate) const LEFT: &str = "no caller that has left stays in the queue";
pub(crate) const FORGOTTEN: &str = "no waiter keeps waiting while the lock is free";
pub(crate) const BOUNDED: &str = "no caller waits for longer than its `wait` allows";
pub(crate) const HEARD: &str = "the lock is granted only to waiters that can be notified";
pub(crate) const CLAIM: &str = "a pushed grant that is not confirmed ends after a claim";
pub(crate) const TAKEN: &str = "an offer that is not taken is passed on after a claim";
pub(crate) const OVER: &str = "at the end, no grant and no waiter is left";

pub(crate) type Condition = fn(&Protocol, &State) -> bool;
/// A promise that holds in every state, and its name.
pub(crate) type Promise = (&'static str, Condition);

/// Returns the promises that hold under all faults of this scenario. If `shows_gaps` is set, also returns the promises
/// that are known not to hold in this scenario.
pub(crate) fn promises(scenario: &Scenario) -> Vec<Promise> {
    let faults = &scenario.faults;
    let loses_state = faults.state_losses + faults.restarts > 0;
    let mut promises: Vec<Promise> = vec![
        (BOUNDED, wait_is_bounded),
        (CLAIM, claim_ends),
        (TAKEN, turns_are_taken),
        (HEARD, |_, state| !state.observed.unheard),
        (SEATED, |_, state| !state.observed.seated_late),
        (OFFERED, offers_are_asked_for),
        (ANSWERED, |_, state| !state.observed.answered_astray),
        (CRASH, |_, state| !state.observed.outlived),
    ];
    // Tokens fall only if the server loses its state and its clock is set back by more than the length of the outage.
    if !loses_state || faults.jumps_back == 0 || scenario.shows_gaps {
        promises.push((TOKENS, |_, state| !state.observed.token_fell));
    }
    // As documented, if the server loses its state or its clock jumps ahead, bodies may overlap until the first holder
    // is notified of its loss.
    if !loses_state && faults.jumps_ahead == 0 || scenario.shows_gaps {
        promises.push((EXCLUSION, |protocol, state| inside(protocol, state) <= 1));
        promises.push((BEGUN, |_, state| !state.observed.begun_fell));
    }
    if !loses_state {
        promises.push((ORDER, |_, state| state.observed.overtaken.is_none()));
        promises.push((FORGOTTEN, |_, state| state.observed.neglected < 2));
    }
    // In some scenarios, a process is not allowed to close its old connections on the server. The server can then read
    // the request of a caller that has already left, and grant this caller the lock for one lease.
    if scenario.terms.may_kill || scenario.shows_gaps {
        promises.push((TOLD, holder_is_told));
        promises.push((LEFT, leavers_are_gone));
    }
    promises.push((OVER, |protocol, state| {
        state.now < protocol.horizon() || protocol.is_over(state)
    }));
    promises
}

/// Returns the promises of a scenario, and the conditions that the scenario has to reach, as properties for the
/// checker.
pub(crate) fn of(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let property = |expectation| {
        move |(name, condition): &(&'static str, Condition)| Property {
            expectation: Expectation::clone(&expectation),
            name,
            condition: *condition,
        }
    };
    let always = protocol.promises.iter().map(property(Expectation::Always));
    let reaches = protocol.scenario.reaches.iter();
    always
        .chain(reaches.map(property(Expectation::Sometimes)))
        .collect()
}

pub(crate) fn is_broken(protocol: &Protocol, state: &State) -> bool {
    let mut promises = protocol.promises.iter();
    promises.any(|(_, holds)| !holds(protocol, state))
}

fn holds(protocol: &Protocol, state: &State) -> impl Iterator<Item = Hold> {
    (0..)
        .zip(&state.callers)
        .filter_map(|(id, caller)| match caller.phase {
            Phase::Inside(hold) => (protocol.clock_of(state, id) < hold.until).then_some(hold),
            _ => None,
        })
}

/// Returns the number of running bodies whose local deadlines have not passed.
fn inside(protocol: &Protocol, state: &State) -> usize {
    holds(protocol, state).count()
}

/// Returns whether the server's grant is accounted for. A grant is accounted for if one of its owners holds the lock
/// with the grant, will be notified of the grant or is giving it back. A grant is also accounted for if the process of
/// its owners is dead.
fn holder_is_told(protocol: &Protocol, state: &State) -> bool {
    let Some(grant) = state.server.grant else {
        return true;
    };
    let mut owners = grant.owners.iter();
    let Some(owner) = owners.next().filter(|id| is_alive(protocol, state, *id)) else {
        return true;
    };
    let process = &state.processes[protocol.scenario.terms.process_of(owner)];
    if process
        .letting_go
        .iter()
        .any(|(first, _)| *first == grant.token)
    {
        return true;
    }
    let releases = |request: &Request| request.script == Script::Release(grant.token);
    let mut sent = process.main.requests.iter().chain(&process.home.requests);
    if sent.any(releases) {
        return true; // a release of this grant is on its way to the server
    }
    // After a loss of state, the server can grant the lock to a caller again. At that time, the caller may still hold
    // the lock with the older grant, or may have left. If the push of the newer grant is lost, nobody gives that grant
    // back, so it lasts until its claim ends. The promise `CLAIM` checks the end of the claim.
    let (left, at_first) = (&state.faults, &protocol.scenario.faults);
    let lost_state = left.state_losses < at_first.state_losses || left.restarts < at_first.restarts;
    let lost_push = state.observed.lost_push == Some(grant.token);
    if lost_push && lost_state && grant.claimed_until.is_some() {
        return true;
    }
    // A grant with an untaken offer is accounted for, because the promise `TAKEN` checks that no offer stays untaken
    // for too long.
    let cohort = process.entry.as_ref().map(|entry| &entry.cohort);
    let cohort = cohort.filter(|cohort| cohort.first() == u64::from(grant.token));
    let is_offered = cohort.is_some_and(|cohort| {
        let to = &state.callers[usize::from(protocol.caller_of(cohort.turn().owner))];
        cohort.is_offered() && (to.waits() || to.behind.is_some())
    });
    if is_offered {
        return true;
    }
    let is_known = cohort.is_some_and(|cohort| !cohort.is_over());
    let tokens = grant.token..grant.token + grant.owners.len() as Token;
    let is_its = |token: Option<Token>| token.is_some_and(|token| tokens.contains(&token));
    grant.owners.iter().any(|id| {
        let caller = &state.callers[usize::from(id)];
        let has_turn = is_its(caller.turn()) || is_its(caller.held());
        let may_hear = caller.behind.is_some() || caller.waits();
        has_turn || !is_known && may_hear
    })
}

fn is_alive(protocol: &Protocol, state: &State, id: CallerId) -> bool {
    state.processes[protocol.scenario.terms.process_of(id)].alive
}

fn leavers_are_gone(protocol: &Protocol, state: &State) -> bool {
    !state.server.queue.iter().any(|member| {
        state.callers[usize::from(member.owner)].has_ended()
            && is_alive(protocol, state, member.owner)
    })
}

fn wait_is_bounded(protocol: &Protocol, state: &State) -> bool {
    let (terms, faults) = (&protocol.scenario.terms, &protocol.scenario.faults);
    let late = faults.late - state.faults.late + faults.state_losses - state.faults.state_losses
        + faults.restarts
        - state.faults.restarts;
    (0..)
        .zip(&state.callers)
        .all(|(id, caller): (CallerId, _)| {
            let now = state.now;
            !caller.waits()
                || terms.is_slow(id)
                || now <= caller.began + terms.wait(id).max(1) + 1 + late.cast_signed()
        })
}

/// Returns whether every caller without an offer would ignore an answer of its cohort that would let the caller enter.
fn offers_are_asked_for(_: &Protocol, state: &State) -> bool {
    let word = queued_grant(0, Moment::new(Duration::ZERO), Duration::ZERO);
    state.callers.iter().all(|caller| {
        let mut attempt = caller.attempt.0.clone();
        attempt.offer().is_some() || attempt.on(Event::Inside(word)) == Step::Nothing
    })
}

fn claim_ends(_: &Protocol, state: &State) -> bool {
    let claim = state.server.grant.and_then(|grant| grant.claimed_until);
    claim.is_none_or(|until| state.server.clock < until)
}

/// Returns whether every offer was taken, and every reply with a grant was read, in time. The time limit is the sum of
/// a claim, one tick for the next heartbeat, the ticks that began while an action was still due, and the ticks that
/// passed while the server lost its state.
fn turns_are_taken(protocol: &Protocol, state: &State) -> bool {
    if protocol.is(Broken::AnswerSeats) {
        return true; // in the variant `AnswerSeats`, nobody passes an offer on
    }
    let (terms, faults) = (&protocol.scenario.terms, &protocol.scenario.faults);
    let late = (faults.late - state.faults.late + faults.state_losses - state.faults.state_losses
        + faults.restarts
        - state.faults.restarts)
        .cast_signed();
    let offers = state.processes.iter().all(|process| {
        let offered = process.entry.as_ref();
        let offered = offered.filter(|entry| entry.cohort.is_offered());
        let is_old = offered.is_some_and(|entry| state.now > entry.since + terms.claim + 1 + late);
        !process.alive || !is_old
    });
    let replies = state.callers.iter().all(|caller| {
        let unread = matches!(
            caller.phase,
            Phase::Answered {
                reply: Acquired::Taken(_),
                ..
            }
        );
        !unread || state.now <= caller.asked.saturating_add(terms.claim + 1 + late)
    });
    offers && replies
}

/// Returns whether a connected, waiting caller is neglected. A caller is neglected if nobody holds the lock, or if the
/// caller is neither in the queue nor an owner of the grant.
pub(crate) fn somebody_is_neglected(protocol: &Protocol, state: &State) -> bool {
    (0..).zip(&state.callers).any(|(id, caller)| {
        caller.phase == Phase::Queued
            && caller.is_waiting()
            && state.processes[protocol.scenario.terms.process_of(id)]
                .main
                .up
            && (state.server.grant.is_none()
                || !(state.server.is_queued(id) || state.server.holds(id)))
    })
}

/// A condition that a scenario has to reach in at least one state, and its name.
pub(crate) type Reached = (&'static str, Condition);

fn entered_by(state: &State, by: By) -> bool {
    let entered = |caller: &Caller| matches!(caller.phase, Phase::Inside(hold) if hold.by == by);
    state.callers.iter().any(entered)
}

fn ended(state: &State, end: End) -> bool {
    state
        .callers
        .iter()
        .any(|caller| caller.phase == Phase::Ended(end))
}

pub(crate) const HANDOFF: Reached = ("a handoff by push", |_, state| entered_by(state, By::Push));
pub(crate) const HEALED: Reached = ("a lost push, found by a probe", |_, state| {
    entered_by(state, By::Probe)
});
pub(crate) const RECOVERED: Reached = (
    "a lost reply, recovered by resending the request",
    |_, state| entered_by(state, By::Resend),
);
pub(crate) const LAST_MOMENT: Reached =
    ("a grant to a caller that leaves the queue", |_, state| {
        entered_by(state, By::Leave)
    });
pub(crate) const CRASH_INSIDE: Reached =
    ("a crash of a process that holds the lock", |_, state| {
        ended(state, End::Crashed { inside: true })
    });
pub(crate) const SKIPPED: Reached = ("a dead waiter is skipped", |_, state| {
    state.observed.skipped
});
pub(crate) const CONFIRMED: Reached = ("a caller has an offer before it enters", |_, state| {
    state
        .callers
        .iter()
        .any(|caller| matches!(caller.phase, Phase::Confirming { .. }) || caller.turn().is_some())
});
pub(crate) const LOST: Reached = ("a holder is notified of its loss", |_, state| {
    ended(state, End::Lost)
});
pub(crate) const BUSY: Reached = ("a call returns Busy", |_, state| ended(state, End::Busy));
pub(crate) const GHOST: Reached = ("a closed connection has unread requests", |_, state| {
    let left = |old: &Option<Vec<_>>| old.as_ref().is_some_and(|old| !old.is_empty());
    state
        .processes
        .iter()
        .any(|process| process.alive && left(&process.old))
});
pub(crate) const GIVEN_BACK: Reached = ("a cancelled caller gives back its grant", |_, state| {
    (0..)
        .zip(&state.callers)
        .any(|(id, caller)| caller.phase == Phase::Ended(End::Cancelled) && state.server.holds(id))
});
pub(crate) const PASSED: Reached = ("a cohort passes its turn on in memory", |_, state| {
    entered_by(state, By::Pass)
});
pub(crate) const PASSED_OVER: Reached = ("a cohort passes over a member that left", |_, state| {
    state.observed.passed_over
});
pub(crate) const MISSED: Reached = ("an offer that is not taken is passed on", |_, state| {
    state.observed.missed
});
pub(crate) const CAME_BACK: Reached = (
    "a caller that missed its turn enters as another owner",
    |protocol, state| {
        (0..).zip(&state.callers).any(|(id, caller)| {
            protocol.scenario.terms.is_next_owner(id) && matches!(caller.phase, Phase::Inside(_))
        })
    },
);
pub(crate) const REVOKED: Reached = ("a grant in an unread reply is given up", |_, state| {
    state.observed.revoked
});
pub(crate) const LOST_COHORT: Reached = ("members of a lost cohort queue again", |_, state| {
    state.observed.lost_cohort
});
pub(crate) const NOBODY_LEFT: Reached = ("a cohort without waiting members", |_, state| {
    state.observed.nobody_left
});
pub(crate) const TOLD_AGAIN: Reached = ("a message about a known cohort", |_, state| {
    state.observed.told_again
});
pub(crate) const OVERLAP: Reached = (
    "the documented overlap after a loss of state",
    |protocol, state| inside(protocol, state) > 1,
);
pub(crate) const REFRESHED: Reached = ("a renewal extends a lease", |protocol, state| {
    let lease = protocol.scenario.terms.lease;
    holds(protocol, state).any(|hold| {
        let first_ends = Moment::new(protocol.scenario.terms.time(hold.since + lease));
        hold.until > first_ends
    })
});
