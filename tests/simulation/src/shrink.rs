//! Makes a plan that fails smaller, as long as it fails alike.

use crate::{
    plan::Plan,
    world::{Outcome, run},
};

/// How many runs are tried at most.
const TRIES: usize = 400;

/// A plan that fails, and how it was made out of the seed's: which smaller one was taken, again and again.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The smallest plan that was found.
    pub plan: Plan,
    /// The steps that lead from the seed to it.
    pub steps: Vec<usize>,
}

/// The smallest plan that can be found which breaks the same promise.
#[must_use]
pub fn shrink(plan: &Plan, promise: &str) -> Shrunk {
    let mut shrunk = Shrunk {
        plan: plan.clone(),
        steps: Vec::new(),
    };
    let mut tries = 0;
    loop {
        let smaller = shrunk.plan.smaller().into_iter().enumerate();
        let mut smaller = smaller.take_while(|_| {
            tries += 1;
            tries <= TRIES
        });
        let Some((step, plan)) = smaller.find(|(_, plan)| breaks(&run(plan, false), promise))
        else {
            return shrunk;
        };
        shrunk.plan = plan;
        shrunk.steps.push(step);
    }
}

/// The plan at the end of these steps from a seed's.
#[must_use]
pub fn follow(seed: u64, steps: &[usize]) -> Plan {
    let begin = Plan::of(seed);
    steps.iter().fold(begin, |plan, step| {
        plan.smaller().into_iter().nth(*step).unwrap_or(plan)
    })
}

fn breaks(outcome: &Outcome, promise: &str) -> bool {
    let mut violations = outcome.violations.iter();
    violations.any(|violation| violation.promise == promise)
}
