//! Situations in which a lease or a quarantine ends while something else is still under way.

use std::time::Duration;

use lock_runtime::Strategy;

use super::{Plan, Store};
use crate::{callers::Way, chance::Chance, faults::Fault};

impl Plan {
    /// Changes the plan so that a lease or a quarantine often ends while something else is still under way.
    pub(super) fn with_deadlines(self, draws: &Chance) -> Self {
        let millis = |all: &[u64]| all.iter().copied().map(Duration::from_millis).collect();
        let plan = Self {
            replicas: 0,
            runtimes: 1,
            slow: 0,
            rhythmic: true,
            delay: 10,
            drift: self.drift.min(400),
            stays_down: false,
            one_strategy_each: false,
            strategies: vec![Strategy::Handoff],
            ..self
        };
        match draws.index(2) {
            // A process that knows only of short leases finds that a node of a Redlock has lost a long one.
            0 => Self {
                store: Store::Redlock,
                processes: 2,
                tasks: 2,
                keys: draws.pick(&[2, 4]),
                body: 400,
                ways: vec![Way::Run, Way::Guard],
                leases: millis(&[1_000, 10_000]),
                waits: millis(&[10_000]),
                one_lease_each: true,
                faults: vec![draws.pick(&[Fault::RestartEmpty, Fault::Flush])],
                calm: 8_000,
                quirks: false,
                ..plan
            },
            // A lease ends while the answer to its extension is under way, and the process is cut off for longer than a
            // claim.
            _ => Self {
                store: Store::Redis,
                seconds: 14,
                processes: 1,
                tasks: 16,
                keys: 16,
                delay: 40,
                body: 0,
                ways: vec![Way::Nested],
                leases: millis(&[400, 10_000]),
                waits: millis(&[10_000]),
                faults: vec![Fault::Partition],
                calm: 1_000,
                ..plan
            },
        }
    }
}
