//! Runs the checker and reports its result.

use std::{fmt::Write as _, time::Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use crate::{
    broken::Broken,
    protocol::{Action, Protocol},
    scenario::Scenario,
    state::{Phase, State},
};

/// Checks that a scenario breaks no promise in any state, and that it reaches all of its conditions.
#[track_caller]
pub(crate) fn holds(scenario: Scenario) {
    let protocol = Protocol::new(scenario.deeper(), None);
    if let Some((name, trace)) = run(&protocol, true) {
        panic!("{}: `{name}` is broken:\n{trace}", protocol.scenario.name);
    }
}

/// Checks that a scenario breaks `promise` if the rule `broken` is removed, and breaks no promise otherwise.
#[track_caller]
pub(crate) fn is_caught(broken: Broken, scenario: Scenario, promise: &'static str) {
    are_caught(&[broken], &scenario, promise);
    if let Some((name, trace)) = run(&Protocol::new(scenario, None), false) {
        panic!("{broken:?}: the promise `{name}` is broken although no rule is removed:\n{trace}");
    }
}

/// Checks that a scenario breaks `promise` if any one of these rules is removed. A separate test has to check that the
/// scenario breaks no promise with all rules in place.
#[track_caller]
pub(crate) fn are_caught(broken: &[Broken], scenario: &Scenario, promise: &'static str) {
    for broken in broken {
        match run(&Protocol::new(scenario.clone(), Some(*broken)), false) {
            None => panic!("no promise is broken without the rule {broken:?}"),
            Some((name, trace)) => {
                assert_eq!(
                    name, promise,
                    "without the rule {broken:?}, another promise is broken:\n{trace}"
                );
            }
        }
    }
}

/// Checks that a scenario shows a documented gap: it breaks this promise although no rule is removed.
#[track_caller]
pub(crate) fn is_known(scenario: Scenario, promise: &'static str) {
    let found = run(&Protocol::new(scenario, None), false);
    assert_eq!(found.map(|(name, _)| name), Some(promise));
}

/// Returns the promise that can be broken in the fewest steps, with these steps, or `None` if no promise can be broken.
/// If `reaches` is set and no promise can be broken, panics unless the scenario reaches all of its conditions.
fn run(protocol: &Protocol, reaches: bool) -> Option<(&'static str, String)> {
    let started = Instant::now();
    let properties = protocol.properties();
    let checker = protocol
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!(
        "{}{}: {} states, {} steps deep at most, {:.1} s",
        protocol.scenario.name,
        protocol
            .broken
            .map_or(String::new(), |broken| format!(" with {broken:?}")),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64(),
    );
    let discoveries = checker.discoveries();
    // If several promises are broken after the same number of steps, this code chooses the promise that is first in
    // `properties`.
    let broken = properties
        .iter()
        .filter(|property| property.expectation == Expectation::Always)
        .filter_map(|property| Some((property.name, discoveries.get(property.name)?)))
        .min_by_key(|(_, path)| (*path).clone().into_actions().len());
    if let Some((name, path)) = broken {
        return Some((name, trace(path)));
    }
    for (name, _) in protocol.scenario.reaches.iter().filter(|_| reaches) {
        assert!(
            discoveries.contains_key(name),
            "{}: `{name}` is never reached",
            protocol.scenario.name
        );
    }
    None
}

fn trace(path: &Path<State, Action>) -> String {
    let mut trace = String::new();
    for (state, action) in path.clone().into_vec() {
        let _ = write!(trace, "{}", summary(&state));
        if let Some(action) = action {
            let _ = writeln!(trace, "  then {action:?}");
        }
    }
    trace
}

/// Describes a state in one line: the time, the grant, the queue, the phase of each caller, and the cohort of each
/// process.
fn summary(state: &State) -> String {
    let mut line = format!("{:2}:", state.now);
    if state.server.clock != state.now {
        let _ = write!(line, " (server {})", state.server.clock);
    }
    match state.server.grant {
        Some(grant) => {
            let owners: Vec<_> = grant.owners.iter().collect();
            let _ = write!(
                line,
                " lock {} of {owners:?} until {},",
                grant.token, grant.expires
            );
        }
        None => line.push_str(" lock free,"),
    }
    for member in &state.server.queue {
        let _ = write!(line, " queued {} at {},", member.owner, member.place);
    }
    for (id, caller) in state.callers.iter().enumerate() {
        let _ = match caller.phase {
            Phase::Inside(hold) => write!(
                line,
                " {id} inside with {} until {:?}",
                hold.token,
                hold.until.since_origin()
            ),
            phase => write!(line, " {id} {phase:?}"),
        };
        if let Some(behind) = caller.behind {
            let _ = write!(line, " behind {behind:?}");
        }
        line.push(',');
    }
    for (id, process) in state.processes.iter().enumerate() {
        if let Some(entry) = &process.entry {
            let _ = write!(line, " process {id} has {entry:?},");
        }
    }
    line.pop();
    line
}
