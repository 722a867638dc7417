//! Situations in which a lease, a quarantine or a `wait` ends while something else is still under way.

use std::time::Duration;

use super::{Plan, Store};
use crate::{callers::Way, chance::Chance, faults::Fault};

impl Plan {
    /// Changes the plan so that a lease, a quarantine or a `wait` often ends while something else is still under way.
    pub(super) fn with_deadlines(self, draws: &Chance) -> Self {
        let millis = |all: &[u64]| all.iter().copied().map(Duration::from_millis).collect();
        let plan = Self {
            delay: 10,
            ..self.with_prompt_callers()
        };
        match draws.index(4) {
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
            1 => Self {
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
            // The server restarts without its state while holds have much of their leases left.
            2 => Self {
                store: Store::Redis,
                processes: 2,
                tasks: 4,
                keys: 4,
                delay: draws.pick(&[2, 10]),
                body: 4_000,
                ways: vec![Way::Run, Way::Guard],
                leases: millis(&[10_000]),
                waits: millis(&[5_000]),
                faults: vec![Fault::RestartEmpty],
                calm: 3_000,
                ..plan
            },
            // A lock is released after the end of a call's `wait`, and before the poll in which the call leaves the queue.
            _ => Self {
                store: Store::Redis,
                processes: draws.pick(&[1, 2]),
                tasks: 8,
                keys: 8,
                delay: 2,
                slow: 50,
                pauses: vec![900],
                body: 1_500,
                ways: vec![Way::Run],
                leases: millis(&[10_000]),
                waits: millis(&[500]),
                faults: Vec::new(),
                quirks: false,
                ..plan
            },
        }
    }
}
