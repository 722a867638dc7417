//! Tests of the checks in `expected.rs`. The checks must accept the expected result of each guard, and report the
//! result of another guard in its place.

use std::time::{Duration, Instant};

use super::*;
use crate::{accidents::Death, session::Visit};

const MS: Duration = Duration::from_millis(1);

/// Returns the audit of a sale of ten items to ten buyers. `oversold` of these items were sold twice, to two different
/// buyers.
fn audit(oversold: u64) -> Audit {
    let once = (1..=10).map(|item| format!("{item} a{item}"));
    let twice = (1..=oversold).map(|item| format!("{item} b{item}"));
    let records: Vec<String> = once.chain(twice).collect();
    Audit::of(10, records.iter().map(String::as_str)).expect("records of sales")
}

/// Returns the results of ten buyers that bought one after another. Each buyer made `tries` tries, and all buyers
/// together sent `commands` commands.
fn waiters(tries: u64, commands: u64) -> Waiters {
    let visits = (1..=10).map(|item| {
        vec![Visit {
            buyer: format!("a{item}"),
            outcome: Outcome::Sold,
            entered: Instant::now(),
            waited: item * MS,
            inside: Some(MS),
            tries,
        }]
    });
    Waiters::of(visits.collect(), 10 * MS, commands, 4)
}

fn late(others_came_in: bool, ended: Outcome, oversold: u64) -> Late {
    Late {
        others_came_in,
        ended,
        audit: audit(oversold),
    }
}

/// Returns the expected results of a guard.
fn row(guard: Guard) -> Row {
    let aftermath = match guard {
        Guard::Nothing | Guard::Watch => Aftermath::NothingHeld,
        Guard::SetNx => Aftermath::StandsStill,
        _ => Aftermath::Free(900 * MS),
    };
    let late_one = match guard {
        Guard::Nothing | Guard::SetPx | Guard::Reentrant => late(true, Outcome::Sold, 3),
        Guard::SetNx => late(false, Outcome::Sold, 0),
        Guard::Watch => late(true, Outcome::Sold, 0),
        Guard::Ours(_) | Guard::Redlock => late(true, Outcome::Cancelled, 0),
    };
    Row {
        guard,
        rush: waiters(if guard == Guard::Watch { 2 } else { 1 }, 20),
        audit: audit(if guard == Guard::Nothing { 5 } else { 0 }),
        death: Death {
            aftermath,
            audit: audit(0),
        },
        late: late_one,
        blocked: guard.is_ours().then(|| late(true, Outcome::Refused, 0)),
    }
}

fn surprises(row: &Row) -> Vec<String> {
    let mut surprises = Surprises::default();
    surprises.of_row(row);
    surprises.0
}

/// Asserts that at least one unexpected result is reported for the row, and that each report names the row's guard.
fn is_noticed(row: &Row) {
    let seen = surprises(row);
    assert!(!seen.is_empty(), "not noticed: {row:?}");
    let name = row.guard.name();
    assert!(seen.iter().all(|line| line.starts_with(name)), "{seen:?}");
}

#[test]
fn each_row_as_its_guard_makes_it_is_no_surprise() {
    for guard in Guard::ALL {
        assert_eq!(surprises(&row(guard)), Vec::<String>::new());
    }
}

#[test]
fn the_rush_of_another_guard_is_noticed() {
    for guard in Guard::ALL {
        let mut row = row(guard);
        row.audit = audit(if guard == Guard::Nothing { 0 } else { 5 });
        is_noticed(&row);
    }
}

#[test]
fn a_sale_that_was_told_and_not_recorded_is_noticed() {
    for guard in Guard::ALL.into_iter().skip(1) {
        let mut row = row(guard);
        let records = (1..=10).map(|item| format!("{item} c{item}"));
        let records: Vec<String> = records.collect();
        row.audit = Audit::of(10, records.iter().map(String::as_str)).expect("records of sales");
        is_noticed(&row);
    }
}

#[test]
fn the_aftermath_of_another_guard_is_noticed() {
    let all = [
        Aftermath::NothingHeld,
        Aftermath::Free(900 * MS),
        Aftermath::StandsStill,
    ];
    for guard in Guard::ALL {
        let expected = row(guard).death.aftermath;
        for aftermath in all.into_iter().filter(|other| *other != expected) {
            let mut row = row(guard);
            row.death.aftermath = aftermath;
            is_noticed(&row);
        }
    }
}

#[test]
fn the_slow_buyer_of_another_guard_is_noticed() {
    for guard in Guard::ALL {
        for other in Guard::ALL {
            let mut row = row(guard);
            let expected = format!("{:?}", row.late);
            row.late = self::row(other).late;
            if format!("{:?}", row.late) != expected {
                is_noticed(&row);
            }
        }
    }
}

#[test]
fn a_token_that_nobody_looks_at_is_noticed() {
    for guard in Guard::ALL.into_iter().filter(|guard| guard.is_ours()) {
        let mut row = row(guard);
        row.blocked = Some(late(true, Outcome::Sold, 3));
        is_noticed(&row);
        row.blocked = None;
        is_noticed(&row);
    }
}

#[test]
fn an_optimist_that_never_tries_again_is_noticed() {
    let mut row = row(Guard::Watch);
    row.rush = waiters(1, 20);
    is_noticed(&row);
}

#[test]
fn a_queue_that_sends_more_or_less_than_its_scripts_is_noticed() {
    for commands in [1, 50] {
        let mut row = row(HANDOFF);
        row.rush = waiters(1, commands);
        is_noticed(&row);
        let mut surprises = Surprises::default();
        surprises.of_waiting(&Waiting {
            guard: HANDOFF,
            hold: 20 * MS,
            waiters: waiters(1, commands),
        });
        assert_eq!(surprises.lines().len(), 1);
    }
}
