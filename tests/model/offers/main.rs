//! A model of the planned core of a client, in which the engine acquires and the caller takes. `cargo test --test
//! offers_model` visits every state of small scenarios. With `MODEL_DEEPER=1`, each scenario has one more late tick and
//! one more broken link. With `-- --nocapture`, the command prints the number of states.
//!
//! # The design
//!
//! - A caller sends, reads and decides nothing. The engine acquires the lock for it and offers it a turn. The caller
//!   takes the turn in the poll in which its body begins, and only while two thirds of the confirmed time are left.
//! - Each acquisition has one state. `table.rs` has the states, and one row for each event that changes a state.
//! - An offer that is not taken within a claim is withdrawn. Nothing is sent for the acquisition until its next poll.
//! - Neighbours in the queue share a grant, and pass the turn on in memory. A member that changes its lease first cuts
//!   the grant down to itself, and puts the others back at their places (it *dissolves* the grant).
//!
//! `server.rs` has the scripts, and `world.rs` has the callers, the links, the clock and the promises. A tick is 1 s
//! long: a claim lasts two ticks, a lease three. Due steps happen in any order before the next tick, except in as many
//! ticks as the scenario allows to be late. A break loses all replies and pushes under way. The server may still read
//! what was written to the old link, until the new link kills the old one.
//!
//! # What each result would stop
//!
//! Written down before the final runs:
//!
//! - Two bodies overlap, or a token falls, although no error is planted, and no row can prevent it: a caller must not
//!   take a turn by a decision in memory. Each take then needs an answer of the server, as it did before offers.
//! - A waiter that is polled in time is overtaken, and no row can prevent it: an acquisition must not be parked, and a
//!   grant must not be dissolved. Offers then stay with their callers until the lease ends, and leases of neighbours are
//!   changed in steps.
//! - Something stays stored for an owner that is told neither way: the names of owners need a record apart from the
//!   state of the acquisition, so one state for each acquisition is not enough.
//! - A waiter waits for a free lock, or a call does not end: the core needs a timer for each waiter beside its probe.
//! - A planted error is not found: the model proves nothing about the rule that the error breaks.
//!
//! # Results
//!
//! With the following additions to the plan, no promise is broken in the scenarios below. A planted error removes each
//! addition that has a name here.
//!
//! - One state for each acquisition is not enough, as the third result says. A name outlives its acquisition's state
//!   while a request under this name is unanswered: the old link can still queue the name. The core therefore keeps the
//!   names of unanswered requests, and a new link settles them (`NamesEndWithTheirStates`).
//! - A confirmation must not prolong an offer, or a caller that is polled at the wrong moments keeps the lock for ever
//!   (`ConfirmingRestartsTheOffer`). So `Confirming` keeps the end of the offer.
//! - A parked acquisition that is polled after its wait ends as busy. It must not queue again.
//! - A script that queues an owner can also grant it the lock. A reply that names the owner in the grant is a grant, not
//!   "queued" (`PushedGrantIsReadAsQueued`).
//! - The other callers of a silent runtime get a short offer. Skipping them breaks the order, because no caller can be
//!   polled between the suspicion and its turn (`SuspectIsSkipped`).
//! - An owner keeps its name over a new link, because its request is repeated (`NamesChangeWithTheLink`). It gets a new
//!   name when its turn is withdrawn, because the old name can still be in the grant.
//! - A holder whose lease has ended passes the turn on. The next member's turn is confirmed before it is offered, so the
//!   server decides whether the grant still stands.
//! - The members of a lost grant ask again, and so do those on a put-back list if the server answers that the grant was
//!   not held.
//! - A reply that names a grant that this client has released already is stale, and the owner asks again.
//! - On a new link, the order is: releases, a dissolve, and then the requests by their places. A request whose reply was
//!   lost counts from its sending.
//!
//! # What is not modelled
//!
//! The model leaves out several keys, replicas, renewed leases, `hold_at_least`, a server that loses its state, clocks
//! that run unevenly, and a server that refuses `CLIENT KILL`.

mod server;
mod table;
mod world;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::world::{
    Action, Budget, EXCLUSION, FREE, Id, ORDER, Planted, REACHED, Scenario, TOLD, Terms,
};

/// Returns the terms of callers, given by their clients, of which no step goes wrong.
fn terms(clients: &[usize]) -> Terms {
    Terms {
        clients: clients.to_vec(),
        lease: 3,
        longer: 4,
        wait: 4,
        slow: None,
        prefix: Vec::new(),
        budget: Budget::default(),
    }
}

/// Two neighbours are queued behind a holder of the other client.
fn queued() -> Terms {
    Terms {
        prefix: vec![Action::Begin(2), Action::Begin(0), Action::Begin(1)],
        ..terms(&[0, 0, 1])
    }
}

/// Two neighbours share a grant, and the first of them holds the lock. A waiter of this client is queued behind them.
fn shared(last: usize) -> Terms {
    let mut prefix: Vec<_> = [2, 0, 1, 3].map(Action::Begin).into();
    prefix.push(Action::Done(2));
    Terms {
        prefix,
        ..terms(&[0, 0, 1, last])
    }
}

fn breaking(terms: Terms, late: u8, breaks: u8) -> Terms {
    let budget = Budget {
        late,
        breaks,
        ..terms.budget
    };
    Terms { budget, ..terms }
}

fn dropping(terms: Terms) -> Terms {
    let budget = Budget {
        drops: 1,
        ..terms.budget
    };
    Terms { budget, ..terms }
}

fn extending(terms: Terms) -> Terms {
    let budget = Budget {
        extends: 1,
        ..terms.budget
    };
    Terms { budget, ..terms }
}

fn slow(terms: Terms, id: Id) -> Terms {
    Terms {
        slow: Some(id),
        ..terms
    }
}

/// Returns the promise that the fewest steps break, with these steps.
fn run(terms: Terms, planted: Option<Planted>) -> Option<(&'static str, String)> {
    let started = Instant::now();
    let scenario = Scenario { terms, planted };
    let checker = scenario.checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    println!(
        "{planted:?}: {} states, {} steps deep, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64(),
    );
    let found = checker.discoveries().into_iter();
    let found = found.map(|(name, path)| (name, path.into_actions()));
    let (name, actions) = found.min_by_key(|(_, actions)| actions.len())?;
    Some((name, format!("{actions:?}")))
}

#[track_caller]
fn holds(mut terms: Terms) {
    if std::env::var_os("MODEL_DEEPER").is_some() {
        terms.budget.late += 1;
        terms.budget.breaks += 1;
    }
    if let Some((name, actions)) = run(terms, None) {
        panic!("`{name}` is broken:\n{actions}");
    }
}

#[track_caller]
fn is_found(planted: Planted, terms: Terms, promise: &str) {
    let Some((name, actions)) = run(terms, Some(planted)) else {
        panic!("{planted:?} is not found");
    };
    assert_eq!(name, promise, "another promise is broken:\n{actions}");
}

#[test]
fn the_turn_passes_between_neighbours_and_clients() {
    holds(terms(&[0, 0, 1]));
}

#[test]
fn a_caller_leaves_at_any_moment() {
    holds(dropping(terms(&[0, 0, 1])));
}

#[test]
fn a_link_breaks_and_a_caller_leaves() {
    holds(dropping(breaking(queued(), 0, 1)));
}

#[test]
fn a_tick_is_late() {
    holds(breaking(queued(), 1, 0));
}

#[test]
fn a_caller_is_polled_late_or_never() {
    holds(slow(dropping(breaking(queued(), 0, 1)), 0));
}

#[test]
fn a_member_is_polled_late_or_never() {
    holds(slow(shared(0), 1));
}

#[test]
fn a_member_changes_its_lease_and_a_link_breaks() {
    holds(extending(breaking(shared(0), 0, 1)));
}

#[test]
fn a_member_changes_its_lease_and_a_caller_leaves() {
    holds(extending(dropping(shared(1))));
}

#[test]
fn a_take_heeds_the_deadline() {
    is_found(
        Planted::TakeIgnoresUntil,
        breaking(shared(1), 1, 0),
        EXCLUSION,
    );
}

#[test]
fn a_taken_offer_is_not_withdrawn() {
    is_found(Planted::WithdrawsWhatIsTaken, shared(1), EXCLUSION);
}

#[test]
fn nothing_is_passed_on_while_a_grant_is_dissolved() {
    is_found(Planted::PassesOnWhileDissolving, extending(shared(1)), TOLD);
}

#[test]
fn a_holder_that_is_queued_leaves_the_queue() {
    let prefix = vec![Action::Begin(1), Action::Begin(0), Action::Begin(2)];
    let terms = Terms {
        prefix,
        ..terms(&[0, 1, 1])
    };
    is_found(Planted::HeldStaysQueued, breaking(terms, 2, 1), TOLD);
}

#[test]
fn a_grant_of_a_caller_that_has_left_is_released() {
    is_found(Planted::NobodyReleases, dropping(terms(&[0, 0, 1])), TOLD);
}

#[test]
fn a_put_back_list_outlives_a_lost_answer() {
    is_found(
        Planted::PutBackForgotten,
        extending(breaking(shared(1), 0, 1)),
        ORDER,
    );
}

#[test]
fn a_suspect_is_not_skipped() {
    is_found(Planted::SuspectIsSkipped, slow(shared(1), 0), ORDER);
}

#[test]
fn a_reply_that_names_the_owner_in_a_grant_is_a_grant() {
    is_found(
        Planted::PushedGrantIsReadAsQueued,
        breaking(terms(&[0, 0, 1]), 0, 1),
        TOLD,
    );
}

#[test]
fn an_owner_keeps_its_name_over_a_new_link() {
    is_found(
        Planted::NamesChangeWithTheLink,
        breaking(queued(), 0, 1),
        TOLD,
    );
}

/// An offer is not taken while the link breaks twice and its lease ends.
fn untaken() -> Terms {
    let prefix = vec![Action::Begin(0), Action::Begin(1), Action::Done(0)];
    let terms = Terms {
        prefix,
        wait: 3,
        ..terms(&[0, 0])
    };
    slow(breaking(terms, 1, 2), 1)
}

#[test]
fn a_link_breaks_twice_while_an_offer_is_not_taken() {
    holds(untaken());
}

#[test]
fn a_name_outlives_its_acquisition_while_a_request_is_unanswered() {
    is_found(Planted::NamesEndWithTheirStates, untaken(), TOLD);
}

#[test]
fn a_confirmation_does_not_prolong_an_offer() {
    is_found(
        Planted::ConfirmingRestartsTheOffer,
        slow(queued(), 0),
        REACHED,
    );
}

#[test]
fn a_lock_with_a_waiter_is_not_left_free() {
    is_found(Planted::TakeIgnoresUntil, slow(queued(), 0), FREE);
}
