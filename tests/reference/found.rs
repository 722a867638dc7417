//! Regression tests for the defects that random sequences of steps have found in the engine and in the model. Each test
//! runs the shortest sequence that showed its defect.

use lock_runtime::Strategy;
use proptest::test_runner::Config;
use proptest_state_machine::StateMachineTest;

use crate::{
    Memory, Redis,
    model::{Form, Lease, Model, Spec},
    steps::{Place, Step},
    system::Machine,
};

const A: usize = 0;
const B: usize = 1;

fn run(steps: Vec<Step>) {
    let model = Model::new(Memory::RULES);
    Machine::<Memory>::test_sequential(Config::default(), model, steps, None);
}

fn run_on_a_server(steps: Vec<Step>) {
    let model = Model::new(Redis::RULES);
    Machine::<Redis>::test_sequential(Config::default(), model, steps, None);
}

fn notified(client: usize) -> Spec {
    Spec {
        strategy: Strategy::Notify,
        ..Spec::patient(client, A)
    }
}

/// A defect of the engine: a shutdown waited for a caller with `notify` until the end of the caller's `wait`.
#[test]
fn a_shutdown_dismisses_who_is_notified() {
    run(vec![
        Step::Begin(0, Spec::once(0, A)),
        Step::Begin(1, notified(1)),
        Step::ShutDown(1),
    ]);
}

/// A defect of the engine: nobody woke a caller with `notify` when a lock became free at the end of its
/// `hold_at_least`. If the caller had seen a lease at its last try, it tried again only at the end of that lease. If
/// the caller had seen no lease, it never tried again.
#[test]
fn the_end_of_a_kept_lock_wakes_who_is_notified() {
    let at_least = Spec {
        at_least: true,
        ..Spec::once(0, A)
    };
    run(vec![
        Step::Begin(0, at_least),
        Step::Begin(1, notified(1)),
        Step::Release(0),
        Step::Advance(60),
    ]);
}

/// A defect of the engine: nobody woke a caller with `notify` at the end of a lease that began after the caller had
/// tried the lock.
#[test]
fn the_end_of_a_later_lease_wakes_who_is_notified() {
    let short = Spec {
        lease: Lease::Short,
        ..Spec::patient(0, A)
    };
    run(vec![
        Step::Begin(0, Spec::once(0, A)),
        Step::Begin(1, notified(1)),
        Step::Begin(2, short),
        Step::Release(0),
        Step::Advance(60),
    ]);
}

/// A defect of the model: a call held its first lock, whose key an operator had deleted, and waited for its second
/// lock. When the call's client was shut down, the model counted a loss. The engine counts no loss for a call that has
/// not entered.
#[test]
fn a_call_that_is_shut_down_on_its_way_in_has_lost_nothing() {
    let body = Spec {
        form: Form::Body,
        ..Spec::patient(1, B)
    };
    let two = Spec {
        keys: vec![B, A],
        ..body.clone()
    };
    run_on_a_server(vec![
        Step::Begin(0, body),
        Step::Begin(1, two),
        Step::DeleteAndTry(A, 2, 0),
        Step::ShutDown(1),
    ]);
}
