//! Situations in which answers are lost, or come after a deadline, while other callers go on.

use std::time::Duration;

use super::{Plan, Store};
use crate::{callers::Way, chance::Chance, faults::Fault};

impl Plan {
    /// Changes the plan so that answers are often lost or late when another part of the engine depends on them.
    pub(super) fn with_lost_answers(self, draws: &Chance) -> Self {
        let lease = |all: &[u64]| vec![Duration::from_millis(draws.pick(all))];
        let queued = self.store.or_queued();
        let plan = Self {
            store: queued,
            delay: 10,
            ways: vec![Way::Run, Way::Guard],
            leases: lease(&[5_000, 10_000]),
            waits: vec![Duration::from_secs(10)],
            ..self.with_prompt_callers()
        };
        match draws.index(4) {
            // A process is cut off for longer than a claim before it reads the answer that queues its call.
            0 => Self {
                store: Store::Redis,
                processes: 4,
                tasks: 1,
                keys: 1,
                delay: 40,
                body: 400,
                faults: vec![Fault::Partition],
                calm: 1_000,
                ..plan
            },
            // The server does not answer when a shutdown begins, and later answers for as long as the last body runs.
            1 => Self {
                store: Store::Redis,
                processes: 2,
                tasks: 1,
                keys: 2,
                body: 30_000,
                leases: lease(&[2_000]),
                faults: vec![Fault::ShutDown],
                quirks: true,
                calm: 1_000,
                ..plan
            },
            // Turns are offered to calls that are polled late while the connection of their process is lost.
            2 => Self {
                processes: 2,
                tasks: 4,
                keys: 1,
                slow: 50,
                pauses: vec![2_500],
                body: 50,
                ways: vec![Way::Run, Way::Dropped],
                faults: vec![Fault::Partition, Fault::Break, Fault::HoldDown],
                calm: 300,
                ..plan
            },
            // The answer to an extension comes after the end of the lease, and other calls of the process wait.
            _ => Self {
                processes: draws.pick(&[1, 2]),
                tasks: 8,
                keys: 1,
                body: 400,
                ways: vec![Way::ExtendedGuard],
                leases: lease(&[400, 1_000]),
                faults: vec![Fault::HoldDown],
                habits: draws.percent(50),
                extras: false,
                calm: 300,
                ..plan
            },
        }
    }
}
