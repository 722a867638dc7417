//! Events that rarely coincide in a random plan, and often do in some plans.

use std::time::Duration;

use super::{Plan, Store};
use crate::{callers::Way, chance::Chance, faults::Fault};

impl Plan {
    /// Changes the plan so that events often coincide that rarely do so in other plans.
    pub(super) fn with_coincidence(self, draws: &Chance) -> Self {
        let seconds = |all: &[u64]| vec![Duration::from_secs(draws.pick(all))];
        let millis = |all: &[u64]| vec![Duration::from_millis(draws.pick(all))];
        let queued = self.store.or_queued();
        let plan = Self {
            delay: self.delay.min(10),
            faults: Vec::new(),
            ways: vec![Way::Run, Way::Guard],
            leases: seconds(&[5, 10]),
            waits: seconds(&[10]),
            ..self.with_prompt_callers()
        };
        match draws.index(23) {
            // A call is forgotten while its request is under way.
            0 => Self {
                store: draws.pick(&[queued, Store::Redlock]),
                processes: draws.pick(&[1, 2]),
                tasks: 1,
                keys: 1,
                body: 0,
                ways: vec![Way::Forgotten],
                waits: seconds(&[2, 5]),
                quirks: true,
                ..plan
            },
            // One caller misses each of its turns, and many callers of its process never do.
            1 => Self {
                store: queued,
                processes: 1,
                tasks: 8,
                keys: 1,
                slow: 15,
                pauses: vec![2_500],
                body: 50,
                ..plan
            },
            // The only caller of a Redlock misses each of its rounds.
            2 => Self {
                store: Store::Redlock,
                processes: 1,
                tasks: 1,
                keys: 1,
                slow: 100,
                pauses: vec![2_500],
                ..plan
            },
            // Callers read so late that they are queued that the engine has given their requests up.
            3 => Self {
                store: queued,
                processes: 3,
                tasks: 1,
                keys: 1,
                slow: 50,
                pauses: vec![2_500],
                body: 400,
                ..plan
            },
            // Callers read so late that the server has forgotten a script that the engine has given their requests up.
            4 => Self {
                store: queued,
                processes: draws.pick(&[1, 2]),
                tasks: 1,
                keys: 2,
                slow: 100,
                pauses: vec![3_500],
                leases: seconds(&[10]),
                faults: vec![Fault::ForgetScripts],
                calm: 300,
                ..plan
            },
            // A nested call with a short `wait` reads late that the lease is longer.
            5 => Self {
                store: queued,
                processes: 1,
                tasks: 4,
                keys: 4,
                slow: 100,
                rhythmic: false,
                body: 5,
                ways: vec![Way::Nested],
                leases: vec![Duration::from_secs(5), Duration::from_secs(10)],
                waits: vec![Duration::from_millis(50), Duration::from_secs(10)],
                ..plan
            },
            // A nested call with a short `wait` needs a longer lease, and the server's answers are held back.
            6 => Self {
                store: Store::Redis,
                processes: 1,
                tasks: 4,
                keys: 4,
                body: 400,
                ways: vec![Way::Nested],
                leases: vec![Duration::from_secs(5), Duration::from_secs(10)],
                waits: vec![Duration::from_millis(50), Duration::from_secs(10)],
                faults: vec![Fault::HoldDown],
                calm: 1_000,
                ..plan
            },
            // Nested calls extend the lease while the server has no free memory.
            7 => Self {
                store: queued,
                processes: 1,
                tasks: 4,
                keys: 4,
                body: 400,
                ways: vec![Way::Nested, Way::TakenAlong],
                faults: vec![Fault::OutOfMemory],
                calm: 300,
                ..plan
            },
            // Guards are extended while the server has no free memory.
            8 => Self {
                store: queued,
                processes: 1,
                tasks: 2,
                keys: 4,
                body: 400,
                ways: vec![Way::ExtendedGuard],
                faults: vec![Fault::OutOfMemory],
                calm: 1_000,
                ..plan
            },
            // A node of a Redlock has no free memory for a grant that lasts long.
            9 => Self {
                store: Store::Redlock,
                processes: 1,
                tasks: 2,
                keys: 2,
                body: 2_500,
                leases: seconds(&[1]),
                faults: vec![Fault::OutOfMemory],
                calm: 4_000,
                ..plan
            },
            // The server refuses the requests of many callers together.
            10 => Self {
                store: Store::Redis,
                processes: 2,
                tasks: 16,
                keys: 1,
                delay: 2,
                body: 50,
                faults: vec![
                    Fault::RestartEmpty,
                    draws.pick(&[Fault::Loading, Fault::ReadOnly, Fault::OutOfMemory]),
                ],
                calm: 300,
                ..plan
            },
            // A slot takes longer than a lease to move.
            11 => Self {
                store: Store::Cluster { replicas: 0 },
                processes: 3,
                tasks: 2,
                keys: draws.pick(&[1, 2]),
                body: 1_500,
                leases: seconds(&[1]),
                faults: vec![draws.pick(&[Fault::MoveSlot, Fault::Join])],
                calm: 1_000,
                slow_moves: true,
                ..plan
            },
            // Callers wait in the queue of a slot that moves.
            12 => Self {
                store: Store::Cluster { replicas: 0 },
                processes: 3,
                tasks: draws.pick(&[1, 2]),
                keys: 1,
                body: 400,
                faults: vec![draws.pick(&[Fault::MoveSlot, Fault::Join])],
                calm: 8_000,
                ..plan
            },
            // A primary is silent while a client renews holds on all primaries.
            13 => Self {
                store: Store::Cluster { replicas: 0 },
                processes: 1,
                tasks: 16,
                keys: 16,
                body: 5_000,
                ways: vec![Way::Run],
                leases: seconds(&[2, 3]),
                faults: vec![Fault::Stop],
                calm: 1_000,
                ..plan
            },
            // Calls are dropped while their process passes the turn on and their requests are under way.
            14 => Self {
                store: queued,
                processes: draws.pick(&[1, 2]),
                tasks: 16,
                keys: 1,
                delay: 40,
                body: 5,
                ways: vec![Way::Run, Way::Dropped],
                ..plan
            },
            // A call gets several locks at once, and reads this late.
            15 => Self {
                store: queued,
                processes: draws.pick(&[1, 2]),
                tasks: 2,
                keys: 4,
                slow: 100,
                pauses: draws.pick(&[vec![300], vec![300, 2_500]]),
                ways: vec![Way::Several],
                leases: millis(&[400, 400, 3_000]),
                ..plan
            },
            // Answers about many holds come after the ends of their leases.
            16 => Self {
                store: Store::Redis,
                processes: 1,
                runtimes: draws.pick(&[1, 2]),
                tasks: 48,
                keys: 48,
                delay: 2,
                slow: 60,
                rhythmic: false,
                body: 1_500,
                leases: millis(&[1_000, 2_000]),
                faults: vec![Fault::Stop],
                calm: 1_000,
                ..plan
            },
            // The answer that queues a call is lost, and its process then has no connection for seconds.
            17 => Self {
                store: Store::Redis,
                processes: 3,
                tasks: 1,
                keys: 1,
                delay: 40,
                body: 400,
                faults: vec![Fault::Partition],
                calm: 1_000,
                ..plan
            },
            // The `wait` of a call that is no longer polled ends while other calls wait.
            18 => Self {
                store: queued,
                seconds: 14,
                processes: draws.pick(&[1, 2]),
                tasks: 4,
                keys: 1,
                body: 400,
                ways: vec![Way::Forgotten, Way::Run],
                waits: millis(&[500, 2_000]),
                quirks: false,
                ..plan
            },
            // A release takes several steps, and is not polled after its first poll.
            19 => Self {
                store: queued,
                processes: draws.pick(&[1, 2]),
                tasks: 4,
                keys: 1,
                body: 50,
                ways: vec![Way::ExtendedGuard],
                unpolled_releases: true,
                ..plan
            },
            // A client is shut down while turns are offered to calls that are not polled.
            20 => Self {
                store: queued,
                processes: 2,
                tasks: 4,
                keys: 1,
                body: 50,
                ways: vec![Way::Forgotten, Way::Run],
                faults: vec![Fault::ShutDown],
                calm: 1_000,
                quirks: false,
                ..plan
            },
            // Callers queue on a server whose clock was set back, or whose data was deleted.
            21 => Self {
                store: queued,
                processes: draws.pick(&[2, 3]),
                tasks: draws.pick(&[4, 16]),
                keys: 1,
                body: 400,
                ways: vec![Way::Run, Way::Dropped],
                leases: seconds(&[1, 10]),
                faults: vec![draws.pick(&[Fault::ClockBack, Fault::Flush])],
                calm: 4_000,
                ..plan
            },
            // A server loses its data after its clock was set back, and callers wait on two runtimes of each process.
            _ => Self {
                store: Store::Redis,
                processes: 3,
                runtimes: 2,
                tasks: 4,
                keys: 1,
                delay: 0,
                body: 400,
                ways: vec![Way::Run, Way::Guard, Way::LeakedGuard],
                leases: seconds(&[2]),
                faults: vec![Fault::ClockBack, Fault::Flush],
                calm: draws.pick(&[1_000, 4_000]),
                ..plan
            },
        }
    }
}
