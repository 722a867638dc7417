//! Regression tests for the defects that random sequences of steps have found in the engine and in the model. Each test
//! runs the shortest sequence that showed its defect.

use proptest::test_runner::Config;
use proptest_state_machine::StateMachineTest;

use crate::{
    Redis,
    model::{Form, Model, Spec},
    steps::{Place, Step},
    system::Machine,
};

const A: usize = 0;
const B: usize = 1;

fn run(steps: Vec<Step>) {
    let model = Model::new(Redis::RULES);
    Machine::<Redis>::test_sequential(Config::default(), model, steps, None);
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
    run(vec![
        Step::Begin(0, body),
        Step::Begin(1, two),
        Step::DeleteAndTry(A, 2, 0),
        Step::ShutDown(1),
    ]);
}

/// A defect of the test: the answer to an abandoned call came before the call was dropped. The client then checked the
/// older hold of the lock, and found that its key had expired.
#[test]
fn an_abandoned_call_has_no_answer() {
    let abandoned = Step::Abandon { client: 1, key: A };
    run(vec![
        Step::Begin(0, Spec::patient(1, A)),
        Step::Expire(A),
        abandoned,
    ]);
}
