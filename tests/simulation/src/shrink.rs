//! Replaces a failing plan by smaller plans that fail in the same way.

use crate::{
    plan::Plan,
    world::{Outcome, run},
};

/// The largest number of runs in one search.
const TRIES: usize = 400;

/// A failing plan, and the steps that lead to it from the plan of the seed. Each step is an index into the plans that
/// [`Plan::smaller`] returns.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The smallest plan that the search has found.
    pub plan: Plan,
    /// The steps that lead from the plan of the seed to `plan`.
    pub steps: Vec<usize>,
}

/// Searches for the smallest plan that breaks the same promise: replaces the plan by a smaller plan that breaks the
/// promise, again and again. The search ends when no smaller plan breaks the promise, or after 400 runs.
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

/// Returns the plan to which these steps lead from the plan of a seed.
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
