//! Situations that are rare in a random plan, and common in some plans.

use std::time::Duration;

use lock_runtime::Strategy;

use super::{Plan, Store};
use crate::{callers::Way, chance::Chance, faults::Fault};

impl Plan {
    /// Changes the plan so that one rare situation is common.
    pub(super) fn with_rare_situation(self, situations: &Chance) -> Self {
        let millis = |all: &[u64]| vec![Duration::from_millis(situations.pick(all))];
        let queued = |store: Store| match store {
            store if store.has_queue() => store,
            _ => Store::Redis,
        };
        let calm = Self {
            replicas: 0,
            slow: 0,
            delay: self.delay.min(10),
            drift: self.drift.min(400),
            faults: Vec::new(),
            ..self
        };
        match situations.index(6) {
            // Guards are leaked, so leases end without a release. The waiters are in the session of the holder.
            0 => Self {
                store: queued(calm.store),
                processes: 1,
                runtimes: 1,
                tasks: situations.pick(&[4, 8]),
                keys: situations.pick(&[1, 2]),
                strategies: vec![Strategy::Handoff],
                ways: vec![Way::Run, Way::Guard, Way::LeakedGuard],
                leases: millis(&[400, 1_000, 3_000]),
                waits: millis(&[5_000, 10_000]),
                ..calm
            },
            // All callers are woken by messages that the lock is free.
            1 => Self {
                store: Store::Redisson,
                processes: 1 + situations.index(2),
                tasks: situations.pick(&[4, 16]),
                strategies: vec![Strategy::Notify],
                waits: millis(&[500, 2_000, 10_000]),
                slow: situations.pick(&[0, 20]),
                ways: vec![Way::Run, Way::Guard, Way::LeakedGuard],
                ..calm
            },
            // Clients are shut down, and nothing else happens.
            2 => Self {
                faults: vec![Fault::ShutDown],
                calm: 1_000,
                ways: Way::ALL.into_iter().filter(|way| way.is_prompt()).collect(),
                ..calm
            },
            // Calls wait for replicas.
            3 => {
                let store = situations.pick(&[
                    Store::Group { replicas: 1 },
                    Store::Group { replicas: 2 },
                    Store::Cluster { replicas: 1 },
                ]);
                let faults = [
                    Fault::ReplicaDown,
                    Fault::ReplicaCutOff,
                    Fault::PrimaryIsCutOff,
                    Fault::PrimaryStops,
                    Fault::Break,
                ];
                Self {
                    store,
                    replicas: situations.pick(&[1, store.replicas()]),
                    lag: situations.pick(&[20, 200]),
                    leases: vec![millis(&[400, 1_000])[0], millis(&[3_000, 10_000])[0]],
                    waits: vec![millis(&[50, 500])[0], millis(&[5_000, 10_000])[0]],
                    slow: situations.pick(&[0, 20, 60]),
                    ways: vec![Way::Run, Way::Guard, Way::Several, Way::Forgotten, Way::Try],
                    faults: match situations.index(2) {
                        0 => Vec::new(),
                        _ => vec![situations.pick(&faults)],
                    },
                    ..calm
                }
            }
            // One caller is alone, and is always polled late.
            4 => Self {
                store: queued(calm.store),
                processes: 1,
                tasks: 1,
                slow: 100,
                rhythmic: true,
                strategies: vec![Strategy::Handoff],
                ways: vec![Way::Run, Way::Guard, Way::Function],
                waits: millis(&[5_000, 10_000]),
                ..calm
            },
            // A client renews many holds.
            _ => Self {
                store: Store::Redis,
                processes: 1,
                tasks: 48,
                keys: 48,
                strategies: vec![Strategy::Handoff],
                body: 1_500,
                leases: millis(&[1_000, 2_000]),
                ways: vec![Way::Run, Way::Guard, Way::Nested],
                ..calm
            },
        }
    }

    /// Changes the plan so that another rare situation is common. In contrast to [`with_rare_situation`](Self::with_rare_situation), most of these
    /// situations need a certain kind of fault.
    pub(super) fn with_rare_fault(self, rare: &Chance) -> Self {
        let millis = |all: &[u64]| vec![Duration::from_millis(rare.pick(all))];
        let plan = Self {
            replicas: 0,
            slow: 0,
            delay: 10,
            drift: self.drift.min(400),
            strategies: vec![Strategy::Handoff],
            ways: vec![Way::Run, Way::Guard],
            ..self
        };
        match rare.index(5) {
            // Connections break while answers and messages about grants are under way.
            0 => Self {
                store: Store::Redis,
                processes: 2,
                keys: rare.pick(&[1, 2]),
                tasks: rare.pick(&[2, 4]),
                delay: 40,
                body: rare.pick(&[0, 5]),
                leases: millis(&[2_000, 5_000]),
                waits: millis(&[5_000, 10_000]),
                ways: vec![Way::Run, Way::Guard, Way::Try, Way::Dropped],
                faults: vec![rare.pick(&[Fault::Break, Fault::HalfOpen])],
                calm: rare.pick(&[300, 4_000]),
                ..plan
            },
            // A node of a Redlock is away or slow.
            1 => Self {
                store: Store::Redlock,
                processes: 2,
                keys: 1,
                tasks: 4,
                delay: rare.pick(&[10, 40]),
                body: rare.pick(&[5, 50]),
                leases: millis(&[1_000, 3_000]),
                waits: millis(&[2_000, 5_000]),
                strategies: vec![rare.pick(&[Strategy::Handoff, Strategy::Spin])],
                faults: match rare.index(5) {
                    0 => Vec::new(),
                    _ => vec![rare.pick(&[
                        Fault::Stop,
                        Fault::Partition,
                        Fault::HoldUp,
                        Fault::OutOfMemory,
                    ])],
                },
                calm: 300,
                ..plan
            },
            // Clients are shut down, some of them while they are cut off, and calls end in unusual ways.
            2 => Self {
                store: match plan.store {
                    Store::Redisson => Store::Redis,
                    store => store,
                },
                tasks: 2,
                keys: 4,
                body: rare.pick(&[400, 1_500]),
                ways: Way::ALL.into_iter().filter(|way| way.is_prompt()).collect(),
                faults: vec![Fault::ShutDown],
                calm: 1_000,
                quirks: true,
                ..plan
            },
            // The slots of a cluster move while callers of several processes wait.
            3 => Self {
                store: Store::Cluster { replicas: 0 },
                processes: 3,
                keys: 1,
                body: rare.pick(&[50, 400]),
                waits: millis(&[5_000]),
                faults: vec![Fault::MoveSlot],
                calm: rare.pick(&[300, 1_000]),
                ..plan
            },
            // Connections fall silent, and nothing else reveals it to the engine.
            _ => Self {
                store: Store::Redis,
                keys: 1,
                tasks: 8,
                leases: millis(&[3_000, 10_000]),
                waits: millis(&[10_000]),
                faults: vec![Fault::Silence],
                calm: 4_000,
                ..plan
            },
        }
    }

    /// Changes the plan so that a situation is common in which one check of the judge detects most.
    pub(super) fn with_check_target(self, targets: &Chance) -> Self {
        let millis = |all: &[u64]| vec![Duration::from_millis(targets.pick(all))];
        let queued = self.store.or_queued();
        let plan = Self {
            replicas: 0,
            slow: 0,
            delay: self.delay.min(10),
            drift: self.drift.min(400),
            faults: Vec::new(),
            strategies: vec![Strategy::Handoff],
            ways: vec![Way::Run, Way::Guard],
            ..self
        };
        match targets.index(8) {
            // One or two callers are always polled late.
            0 => {
                let tasks = targets.pick(&[1, 1, 2]);
                let mut ways = vec![Way::Run, Way::Guard, Way::Function, Way::Several];
                if tasks > 1 {
                    ways.push(Way::LeakedGuard);
                }
                Self {
                    store: queued,
                    processes: 1,
                    tasks,
                    keys: targets.pick(&[1, 2]),
                    slow: 100,
                    rhythmic: true,
                    ways,
                    leases: millis(&[400, 1_000, 2_000, 5_000]),
                    waits: millis(&[5_000, 10_000]),
                    faults: targets.pick(&[vec![], vec![], vec![Fault::ForgetScripts]]),
                    ..plan
                }
            }
            // Nested calls need longer leases, and are polled late.
            1 => Self {
                store: queued,
                processes: 1,
                tasks: 4,
                keys: 4,
                slow: 60,
                rhythmic: false,
                ways: vec![Way::Nested],
                leases: vec![millis(&[400, 1_000])[0], millis(&[5_000, 10_000])[0]],
                waits: vec![millis(&[50, 500])[0], millis(&[10_000])[0]],
                faults: targets.pick(&[vec![], vec![Fault::HoldDown], vec![Fault::OutOfMemory]]),
                habits: true,
                ..plan
            },
            // Callers in Redisson's layout are polled late while the server is away.
            2 => Self {
                store: Store::Redisson,
                processes: 1,
                slow: 60,
                rhythmic: false,
                strategies: vec![Strategy::Notify],
                waits: millis(&[10_000]),
                faults: vec![targets.pick(&[Fault::Stop, Fault::HoldUp])],
                ..plan
            },
            // A node of a Redlock refuses requests, and another one answers too late for a short lease.
            3 => Self {
                store: Store::Redlock,
                processes: 2,
                tasks: 2,
                delay: 40,
                leases: millis(&[400]),
                waits: millis(&[2_000, 5_000]),
                faults: vec![Fault::OutOfMemory],
                body: 5,
                calm: 300,
                ..plan
            },
            // Processes are stopped while their callers wait with different leases.
            4 => Self {
                store: Store::Redis,
                processes: 2,
                keys: 1,
                tasks: 8,
                strategies: targets.pick(&[
                    vec![Strategy::Handoff],
                    vec![Strategy::Handoff, Strategy::Spin],
                ]),
                leases: vec![millis(&[1_000, 2_000])[0], millis(&[3_000, 5_000])[0]],
                waits: millis(&[10_000]),
                body: targets.pick(&[5, 50, 400]),
                faults: vec![Fault::StopProcess],
                calm: 300,
                ..plan
            },
            // The server's clock is set back while callers wait for the end of a lease.
            5 => Self {
                store: queued,
                keys: targets.pick(&[1, 2]),
                tasks: 4,
                ways: vec![Way::Run, Way::Guard, Way::LeakedGuard],
                leases: millis(&[2_000, 5_000]),
                waits: millis(&[10_000]),
                faults: targets
                    .pick(&[vec![Fault::ClockBack], vec![Fault::ClockBack, Fault::Flush]]),
                calm: 4_000,
                ..plan
            },
            // The primaries of a cluster die, and stay down for a while.
            6 => Self {
                store: Store::Cluster { replicas: 1 },
                processes: 2,
                lag: self.lag.min(20),
                waits: millis(&[5_000, 10_000]),
                faults: vec![Fault::PrimaryDies],
                calm: 1_000,
                stays_down: true,
                ..plan
            },
            // Leases end without a release while other callers try without queueing.
            _ => Self {
                store: queued,
                processes: 2,
                keys: 1,
                tasks: 4,
                delay: 40,
                body: targets.pick(&[5, 50]),
                strategies: vec![Strategy::Handoff, Strategy::Spin],
                ways: vec![Way::Run, Way::Guard, Way::LeakedGuard, Way::Try],
                leases: millis(&[400, 1_000]),
                waits: millis(&[5_000]),
                ..plan
            },
        }
    }

    /// Changes the plan so that several events that are rare in other plans happen together.
    pub(super) fn with_rare_events(self, events: &Chance) -> Self {
        let millis = |all: &[u64]| vec![Duration::from_millis(events.pick(all))];
        let plan = Self {
            replicas: 0,
            slow: 0,
            drift: self.drift.min(400),
            faults: Vec::new(),
            stays_down: false,
            strategies: vec![Strategy::Handoff],
            ways: vec![Way::Run, Way::Guard],
            ..self
        };
        match events.index(9) {
            // A node of a Redlock loses its state while the clients have used leases of different lengths.
            0 => Self {
                store: Store::Redlock,
                processes: 3,
                tasks: 2,
                keys: 2,
                delay: events.pick(&[10, 40]),
                body: events.pick(&[50, 400]),
                leases: millis(&[400, 1_000]),
                waits: millis(&[2_000, 5_000]),
                ways: vec![Way::Run, Way::ExtendedGuard],
                faults: vec![events.pick(&[Fault::RestartEmpty, Fault::Flush])],
                calm: 4_000,
                ..plan
            },
            // Grants disappear, and clients are shut down, while calls wait for replicas that lag far behind.
            1 => Self {
                store: Store::Cluster { replicas: 1 },
                replicas: 1,
                lag: 200,
                delay: plan.delay.min(10),
                processes: 2,
                tasks: 4,
                keys: 4,
                body: events.pick(&[5, 50]),
                leases: vec![millis(&[1_000])[0], millis(&[5_000])[0]],
                waits: millis(&[5_000, 10_000]),
                ways: vec![Way::Run, Way::Guard, Way::Nested],
                faults: events.pick(&[vec![], vec![Fault::ShutDown], vec![Fault::Flush]]),
                calm: 1_000,
                ..plan
            },
            // The server loses the grants of large cohorts.
            2 => Self {
                store: Store::Redis,
                processes: 2,
                runtimes: 1,
                tasks: 48,
                keys: 1,
                delay: events.pick(&[0, 2]),
                body: 50,
                leases: millis(&[10_000]),
                waits: millis(&[10_000]),
                faults: vec![Fault::RestartEmpty],
                calm: 4_000,
                ..plan
            },
            // Members of a cohort that have extended their leases leave while the server refuses all requests.
            3 => Self {
                store: Store::Redis,
                processes: 1,
                tasks: 8,
                keys: 1,
                delay: events.pick(&[2, 10]),
                body: events.pick(&[50, 400]),
                leases: millis(&[5_000]),
                waits: millis(&[10_000]),
                ways: vec![Way::ExtendedGuard],
                habits: true,
                faults: vec![events.pick(&[Fault::Loading, Fault::ReadOnly])],
                calm: 300,
                ..plan
            },
            // A node of a Redlock has no memory for a grant, and nobody else wants the lock.
            4 => Self {
                store: Store::Redlock,
                processes: 2,
                tasks: 1,
                keys: 4,
                delay: 10,
                body: 1_500,
                leases: millis(&[1_000]),
                waits: millis(&[2_000, 5_000]),
                ways: vec![Way::Nested, Way::Guard],
                faults: vec![Fault::OutOfMemory],
                calm: 4_000,
                ..plan
            },
            // The grants of some nodes of a Redlock come late, while the lease is extended.
            5 => Self {
                store: Store::Redlock,
                processes: 2,
                tasks: 8,
                keys: 4,
                delay: 40,
                body: events.pick(&[5, 50]),
                leases: millis(&[400]),
                waits: millis(&[5_000]),
                strategies: vec![Strategy::Spin],
                ways: vec![Way::Nested, Way::Siblings, Way::ExtendedGuard],
                habits: true,
                faults: events.pick(&[vec![], vec![Fault::HoldUp]]),
                calm: 300,
                ..plan
            },
            // The `wait` of a caller that is polled late ends while another caller holds the lock.
            6 => Self {
                store: Store::Redis,
                processes: 1,
                tasks: 2,
                keys: events.pick(&[1, 2]),
                delay: events.pick(&[0, 2]),
                slow: 50,
                rhythmic: true,
                pauses: vec![900],
                body: 1_500,
                leases: millis(&[5_000]),
                waits: millis(&[500, 2_000]),
                ..plan
            },
            // Processes are killed while they wait.
            7 => Self {
                store: Store::Redis,
                processes: 3,
                tasks: 4,
                keys: events.pick(&[1, 2]),
                body: 400,
                leases: millis(&[3_000, 5_000]),
                waits: millis(&[10_000]),
                faults: vec![Fault::Crash],
                calm: 4_000,
                ..plan
            },
            // The callers of one process queue, and those of the other process spin. One of the processes is stopped.
            _ => Self {
                store: Store::Redis,
                processes: 2,
                keys: 1,
                tasks: 8,
                strategies: vec![Strategy::Handoff, Strategy::Spin],
                one_strategy_each: true,
                leases: vec![millis(&[1_000, 2_000])[0], millis(&[3_000, 5_000])[0]],
                waits: millis(&[10_000]),
                body: events.pick(&[5, 50, 400]),
                faults: vec![Fault::StopProcess],
                calm: 300,
                ..plan
            },
        }
    }

    /// Changes the plan so that the runtimes of some callers are blocked, or end.
    pub(super) fn with_failing_runtimes(mut self, runtimes: &Chance) -> Self {
        self.ways.retain(|way| *way != Way::Moved);
        self.ways
            .push(runtimes.pick(&[Way::Run, Way::Guard, Way::Forgotten, Way::ExtendedGuard]));
        let mut faults = vec![runtimes.pick(&[Fault::BlockRuntime, Fault::EndRuntime])];
        if runtimes.percent(30) {
            faults.push(runtimes.pick(&[
                Fault::StopProcess,
                Fault::Break,
                Fault::Silence,
                Fault::Crash,
                Fault::BlockRuntime,
            ]));
        }
        let plan = Self {
            runtimes: 2,
            processes: runtimes.pick(&[1, 2, 3]),
            tasks: self.tasks.max(4),
            keys: runtimes.pick(&[1, 2]),
            faults,
            ..self
        };
        if runtimes.percent(60) {
            return plan;
        }
        // Runtimes end while callers are forgotten that wait behind callers of the same runtime.
        Self {
            processes: 2,
            tasks: 8,
            keys: 1,
            slow: 0,
            replicas: 0,
            strategies: vec![plan.strategies[0]],
            ways: vec![Way::Forgotten, Way::ExtendedGuard],
            leases: vec![Duration::from_secs(5)],
            waits: vec![Duration::from_secs(10)],
            body: 50,
            faults: vec![Fault::EndRuntime],
            calm: runtimes.pick(&[300, 1_000]),
            ..plan
        }
    }
}
