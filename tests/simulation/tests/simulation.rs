//! Tests of the engine in a simulated world: random seeds, fixed scenarios, and a check that a seed always has the same
//! history.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use lock_runtime::Strategy;
use lock_simulation::{
    callers::Way,
    corpus,
    faults::Fault,
    history::Line,
    plan::{Plan, Store},
    world::run,
};

/// The histories of two runs with the same seed are equal byte for byte, including every message.
#[test]
fn one_seed_has_one_history() {
    let stores = [
        Store::Group { replicas: 1 },
        Store::Group { replicas: 2 },
        Store::Cluster { replicas: 0 },
        Store::Cluster { replicas: 1 },
    ];
    let replicated = stores.into_iter().zip(100..).map(|(store, seed)| Plan {
        store,
        lag: 20,
        replicas: store.replicas().min(1),
        strategies: vec![Strategy::Handoff],
        faults: Fault::of(store),
        ..Plan::of(seed)
    });
    for plan in (0..8).map(Plan::of).chain(replicated) {
        let seed = plan.seed;
        let (first, second) = (run(&plan, true), run(&plan, true));
        let differs = first
            .lines
            .iter()
            .zip(&second.lines)
            .position(|(a, b)| a != b);
        if let Some(line) = differs {
            panic!(
                "seed {seed}, line {line}:\n{}\n{}",
                first.lines[line], second.lines[line]
            );
        }
        assert_eq!(first, second, "seed {seed}");
    }
}

/// A call with the strategy `notify` tries to acquire the lock, but is polled too late to read the answer, so the
/// engine abandons this try. The clean-up of the abandoned try does not release the grant of the next try.
#[test]
fn notified_calls_are_polled_late_at_a_server_that_stops() {
    for seed in 0..100 {
        let plan = Plan {
            store: Store::Redisson,
            replicas: 0,
            processes: 2,
            keys: 2,
            tasks: 1,
            delay: 10,
            leases: vec![Duration::from_secs(2), Duration::from_secs(3)],
            waits: vec![Duration::from_secs(10)],
            strategies: vec![Strategy::Notify],
            ways: vec![Way::Try, Way::Buffered],
            slow: 0,
            body: 50,
            faults: vec![Fault::Stop],
            calm: 300,
            ..Plan::of(seed)
        };
        assert_eq!(run(&plan, false).violations, [], "seed {seed}");
    }
}

/// While callers of a process are in the queue, the next caller of this process waits up to 1 ms before it sends its
/// request, so that more callers can share the request.
#[test]
fn a_caller_behind_others_of_its_process_asks_within_two_ms() {
    for seed in 0..20 {
        let plan = Plan {
            store: Store::Redis,
            replicas: 0,
            processes: 1,
            keys: 1,
            tasks: 4,
            delay: 0,
            leases: vec![Duration::from_secs(10)],
            waits: vec![Duration::from_secs(10)],
            strategies: vec![Strategy::Handoff],
            ways: vec![Way::Run],
            slow: 0,
            body: 50,
            faults: Vec::new(),
            drift: 0,
            ..Plan::of(seed)
        };
        let lines = run(&plan, true).lines;
        let asks = |line: &&Line| line.who.starts_with("server") && line.what.contains("EVALSHA");
        let asked: Vec<u64> = lines.iter().filter(asks).map(|line| line.at).collect();
        // The test skips the calls of the first 50 ms, because they can have to wait for the client's connection.
        let begins = |line: &&Line| line.what.contains(" begins: ") && line.at > 50;
        let begun: Vec<u64> = lines.iter().filter(begins).map(|line| line.at).collect();
        assert!(begun.len() > 50, "seed {seed}: {} calls", begun.len());
        for begun in begun {
            let in_time = asked
                .iter()
                .any(|asked| (begun..=begun + 2).contains(asked));
            assert!(
                in_time,
                "seed {seed}: no caller sends a request within 2 ms after {begun} ms"
            );
        }
    }
}

/// A node of a Redlock grants a lock so late that the engine gives this grant back. The hold is renewed meanwhile, and
/// the node still has the grant when it answers the renewal. The renewal does not count this node, so the hold ends
/// before a majority of the nodes has lost its grants.
#[test]
fn a_renewal_does_not_count_a_node_whose_grant_is_given_back() {
    for seed in 0..40 {
        let plan = Plan {
            store: Store::Redlock,
            replicas: 0,
            seconds: 6,
            processes: 2,
            keys: 2,
            tasks: 4,
            delay: 40,
            leases: vec![Duration::from_millis(400)],
            waits: vec![Duration::from_secs(5)],
            strategies: vec![Strategy::Spin],
            ways: vec![Way::Nested, Way::Siblings],
            slow: 0,
            body: 50,
            faults: Vec::new(),
            ..Plan::of(seed)
        };
        assert_eq!(run(&plan, false).violations, [], "seed {seed}");
    }
}

/// Calls that wait for replicas are polled late, so they cannot read all answers of the server in time. These calls do
/// not report that the server did not answer, and do not give up before the end of their `wait`.
#[test]
fn calls_that_wait_for_replicas_are_polled_late() {
    for seed in 0..20 {
        let plan = Plan {
            store: Store::Group { replicas: 1 },
            seconds: 12,
            processes: 2,
            keys: 2,
            tasks: 4,
            delay: 2,
            lag: 2,
            replicas: 1,
            leases: vec![Duration::from_secs(2), Duration::from_secs(5)],
            waits: vec![Duration::from_secs(10)],
            strategies: vec![Strategy::Handoff],
            ways: vec![Way::Run, Way::Several],
            slow: 100,
            rhythmic: true,
            body: 5,
            faults: Vec::new(),
            drift: 0,
            ..Plan::of(seed)
        };
        assert_eq!(run(&plan, false).violations, [], "seed {seed}");
    }
}

/// A scenario with a primary that has two replicas, and three Sentinels.
fn group(seed: u64, faults: Vec<Fault>) -> Plan {
    Plan {
        store: Store::Group { replicas: 2 },
        seconds: 12,
        processes: 2,
        keys: 2,
        tasks: 4,
        delay: 2,
        lag: 200,
        leases: vec![Duration::from_secs(2), Duration::from_secs(10)],
        waits: vec![Duration::from_secs(5)],
        strategies: vec![Strategy::Handoff],
        ways: vec![Way::Run, Way::Guard],
        slow: 0,
        body: 400,
        faults,
        calm: 300,
        drift: 0,
        ..Plan::of(seed)
    }
}

/// A primary dies again and again, and a replica that lags replaces it. Without the option `replicas`, a second caller
/// enters while a holder whose grant the replica lacks still runs its body. With `replicas = 1`, the replica that has
/// acknowledged the most writes replaces the primary. This replica knows the holder's lease, and no other caller enters
/// before the end of the lease.
#[test]
fn a_promoted_replica_has_the_grants_that_it_has_acknowledged() {
    let (mut without, mut entered) = (0, 0);
    for seed in 0..30 {
        for replicas in [0, 1, 2] {
            let plan = Plan {
                replicas,
                lag: 1_000,
                leases: vec![Duration::from_secs(10)],
                body: 1_500,
                ..group(seed, vec![Fault::PrimaryDies])
            };
            let outcome = run(&plan, false);
            assert_eq!(outcome.violations, [], "seed {seed}, replicas {replicas}");
            if replicas == 0 {
                without += outcome.counts.excused;
            } else {
                entered += outcome.counts.entered;
            }
        }
    }
    assert!(without > 0, "no replica lacked a grant");
    assert!(entered > 100, "only {entered} calls have entered");
}

/// A primary is stopped, and continues after a replica has replaced it. The replies and messages that it then sends
/// reach clients that already use the new primary. The clients ignore them: with `replicas`, nobody enters beside a
/// holder.
#[test]
fn late_messages_of_an_old_primary_let_nobody_enter() {
    for seed in 50..80 {
        let plan = Plan {
            replicas: 1,
            delay: 40,
            lag: 0,
            slow: 20,
            rhythmic: false,
            ways: vec![Way::Run, Way::Guard, Way::Forgotten],
            ..group(seed, vec![Fault::PrimaryStops])
        };
        let outcome = run(&plan, false);
        assert_eq!(outcome.violations, [], "seed {seed}");
    }
}

/// If the primary waits for its replicas before it hands over, no grant is lost, so no caller enters while another
/// caller holds the lock.
#[test]
fn an_ordered_failover_loses_no_grant() {
    for seed in 0..30 {
        let outcome = run(&group(seed, vec![Fault::HandOver]), false);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert_eq!(outcome.counts.excused, 0, "seed {seed}");
        assert!(outcome.counts.entered > 10, "seed {seed}");
    }
}

/// No grant is lost while slots move between the primaries of a cluster and to a server that joins.
#[test]
fn a_slot_that_moves_loses_no_grant() {
    for seed in 0..30 {
        let plan = Plan {
            store: Store::Cluster { replicas: 0 },
            replicas: 0,
            ..group(seed, vec![Fault::MoveSlot, Fault::Join])
        };
        let outcome = run(&plan, false);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert_eq!(outcome.counts.excused, 0, "seed {seed}");
        assert!(outcome.counts.entered > 20, "seed {seed}");
    }
}

/// Runs the seeds that once failed.
#[test]
fn failed_seeds_hold() {
    for (arguments, outcome) in corpus::replay() {
        assert_eq!(outcome.violations, [], "{arguments}");
        assert!(outcome.counts.entered > 0, "{arguments}");
    }
}

/// Runs the first seeds: 60, or as many as `SIMULATION_SEEDS` says. The command `simulate` runs new seeds.
#[test]
fn first_seeds_hold() {
    let seeds = std::env::var("SIMULATION_SEEDS").map_or(60, |seeds| seeds.parse().unwrap());
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    let outcome = run(&Plan::of(seed), false);
                    assert_eq!(
                        outcome.violations,
                        [],
                        "cargo run --release --example simulate -- --seed {seed}"
                    );
                }
            });
        }
    });
}
