//! Checks that each guard (way to guard the stock) had its expected result. Without these checks, the program would
//! print the figures of a broken guard as if they were valid.

use std::fmt::{Debug, Display};

use crate::{
    accidents::{Aftermath, Late},
    guard::Guard,
    ours::Way,
    purchase::Outcome,
    rows::{Row, Waiting},
    shop::Audit,
    waiters::Waiters,
};

const HANDOFF: Guard = Guard::Ours(Way::Handoff);

/// The unexpected results, one line for each.
#[derive(Debug, Default)]
pub(crate) struct Surprises(Vec<String>);

impl Surprises {
    fn check(&mut self, row: impl Display, expected: &str, seen: impl Debug, is: bool) {
        if !is {
            self.0
                .push(format!("{row}: expected {expected}, seen {seen:?}"));
        }
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.0
    }

    /// Checks the results of one guard in the rush and in the accidents.
    pub(crate) fn of_row(&mut self, row: &Row) {
        self.of_rush(row);
        self.of_death(row);
        let guard = row.guard;
        match guard {
            Guard::Nothing | Guard::SetPx | Guard::Reentrant => {
                let late = &row.late;
                self.check(
                    guard,
                    "other buyers inside during the slow buyer's purchase",
                    late,
                    late.others_came_in,
                );
                self.check(guard, "a late write", late, late.ended == Outcome::Sold);
                self.check(
                    guard,
                    "a slow buyer to oversell",
                    late,
                    late.audit.oversold() > 0,
                );
            }
            Guard::SetNx => self.of_late(guard, &row.late, Outcome::Sold, false),
            Guard::Watch => self.of_late(guard, &row.late, Outcome::Sold, true),
            Guard::Ours(_) | Guard::Redlock => {
                self.of_late(guard, &row.late, Outcome::Cancelled, true);
            }
        }
        self.check(
            guard,
            "a result with a blocked thread, only under this project's locks",
            &row.blocked,
            row.blocked.is_some() == guard.is_ours(),
        );
        if let Some(blocked) = &row.blocked {
            self.of_late(guard, blocked, Outcome::Refused, true);
        }
    }

    fn of_rush(&mut self, row: &Row) {
        let (guard, audit) = (row.guard, &row.audit);
        if guard == Guard::Nothing {
            self.check(
                guard,
                "more sales than items in the rush",
                audit.sold(),
                audit.oversold() > 0,
            );
            return;
        }
        self.check(
            guard,
            "no sale lost or doubled in the rush",
            row.amiss(),
            row.amiss() == 0,
        );
        self.exact(guard, "the rush", audit);
        if guard == Guard::Watch {
            let (tries, entries) = (row.rush.tries(), row.rush.entries());
            self.check(guard, "retries", (tries, entries), tries > entries);
        }
        if guard == HANDOFF {
            self.of_queue(&format!("{guard}, the rush"), &row.rush);
        }
    }

    fn of_death(&mut self, row: &Row) {
        let (guard, death) = (row.guard, &row.death);
        let (expected, is): (_, fn(Aftermath) -> bool) = match guard {
            Guard::Nothing | Guard::Watch => ("nothing held by the dead buyer", |seen| {
                seen == Aftermath::NothingHeld
            }),
            Guard::SetNx => ("a sale that stands still after a death", |seen| {
                seen == Aftermath::StandsStill
            }),
            _ => ("a lock that is free after the dead buyer's lease", |seen| {
                matches!(seen, Aftermath::Free(_))
            }),
        };
        self.check(guard, expected, death.aftermath, is(death.aftermath));
        if death.aftermath != Aftermath::StandsStill {
            self.exact(guard, "the sale with a death", &death.audit);
        }
    }

    /// Checks the sale with a slow buyer under a guard with which each item is sold exactly once.
    fn of_late(&mut self, guard: Guard, late: &Late, ended: Outcome, others_came_in: bool) {
        let expected = if others_came_in {
            "other buyers inside during the slow buyer's purchase"
        } else {
            "no other buyer inside during the slow buyer's purchase"
        };
        self.check(guard, expected, late, late.others_came_in == others_came_in);
        self.check(
            guard,
            &format!("a slow buyer that is {ended}"),
            late,
            late.ended == ended,
        );
        self.exact(guard, "the sale with a slow buyer", &late.audit);
    }

    /// Checks that each item was sold to exactly one buyer.
    fn exact(&mut self, guard: Guard, sale: &str, audit: &Audit) {
        let is = audit.sold() == audit.items && audit.doubled() == 0;
        self.check(guard, &format!("each item sold once in {sale}"), audit, is);
    }

    /// Checks the results of one guard in the scenario with waiting callers.
    pub(crate) fn of_waiting(&mut self, waiting: &Waiting) {
        if waiting.guard == HANDOFF {
            let row = format!("{HANDOFF}, {:?} each", waiting.hold);
            self.of_queue(&row, &waiting.waiters);
        }
    }

    /// Checks the waiting callers of a lock with a queue. These callers send at most about two scripts for each
    /// acquisition, plus the probes. The callers often send fewer scripts, because one script can serve several
    /// neighbours in the queue that belong to one process.
    fn of_queue(&mut self, row: &str, waiters: &Waiters) {
        let (most, seen) = (waiters.ceiling_of_a_queue(), waiters.commands());
        let expected = format!("2 to {most} commands");
        self.check(row, &expected, seen, (2..=most).contains(&seen));
    }
}

#[cfg(test)]
mod tests;
