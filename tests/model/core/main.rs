//! A model of two clients that use the engine's own core. `cargo test --test core_model` visits every state of small
//! scenarios. With `MODEL_DEEPER=1`, each scenario has one more late tick and one more broken link. With `-- --nocapture`,
//! the command prints the number of states.
//!
//! The modules `core` and `grant` are the engine's own files: `Core` decides about places, batches, turns and grants, and
//! `Acquisition` about the next step of a caller. `client.rs` carries out their decisions as `queue/*.rs` do, `server.rs` has
//! the scripts, and `world.rs` has the callers, the links, the clock and the promises. A tick is 1 s long: a claim lasts two
//! ticks, a lease three. Due steps happen in any order before the next tick, except in as many ticks as the scenario allows
//! to be late. A break loses all replies and pushes under way. The server may still read what was written to the old link,
//! until the new link kills the old one.
//!
//! Callers write, read, or take permits. A writer can let readers in beside it. A rule about the order or the tokens of two
//! bodies holds only if their modes exclude each other.
//!
//! Each planted error is an error of the code around the core. The checker has to find it, because a model that misses it
//! proves nothing about the rule that the error breaks. `DissolveQueuesLeavers` is no invention: the model has
//! found it in `queue_others`. While its request is under way, the `wait` of another member ends, and this member leaves the queue. A second
//! request of the holder (its release, or a repeated request after a break) then queues the member again, although it has
//! left. The server grants the lock to nobody, and keeps it for a claim if the push is lost.
//!
//! # What is not modelled
//!
//! The model leaves out several keys, replicas, renewals after the first, `hold_at_least`, moved locks, refusals, the claims
//! by which the server skips silent clients, the last try of a caller that leaves, the rule that a body begins only with two
//! thirds of its lease, a server that loses its state, and clocks that run unevenly. The timers of a tick run at its start,
//! unless a tick can be late or a lease is extended. The batch window ends at any moment, but only before the first batch. A
//! release is repeated without a limit. No scenario has a runtime that does not run.

#[expect(dead_code, reason = "the model uses a part of the core")]
#[path = "../../../lock-runtime/src/backend"]
mod backend {
    pub(crate) mod redis {
        pub(crate) mod core;
        pub(crate) mod protocol {
            pub(crate) mod grant;
        }
    }
}
mod client;
#[expect(dead_code, reason = "the core uses two of the limits")]
#[path = "../../../lock-runtime/src/limits.rs"]
mod limits;
mod server;
mod world;

use std::time::Instant;

use lock_core::options::Mode::{self, Read, Write};
use stateright::{Checker, HasDiscoveries, Model};

use crate::{
    server::{ClientId, Id},
    world::{Action, EXCLUSION, FREE, ORDER, Scenario, TOLD},
};

/// An error that is planted around the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Planted {
    TurnIgnoresDeadline,
    PassesOnWhileDissolving,
    LeaverKeepsTurn,
    AnswerCountsFromArrival,
    NameIsReused,
    NobodyGivesBack,
    DissolveIsNotRepeated,
    NameEndsWithTheLink,
    DissolveQueuesLeavers,
    FirstReaderReleases,
    ReadersOvertake,
    DowngradeKeepsCohort,
}

/// The lock is a semaphore of two permits.
const ONE: Mode = Mode::Permits { take: 1, of: 2 };
const BOTH: Mode = Mode::Permits { take: 2, of: 2 };

/// Returns a scenario in which no step goes wrong.
fn callers(clients: &[ClientId]) -> Scenario {
    Scenario {
        clients: clients.to_vec(),
        modes: vec![Mode::Write; clients.len()],
        ..Scenario::default()
    }
}

/// The first caller holds the lock, and the others are queued behind it, or are inside beside it.
fn held(callers: &[(ClientId, Mode)]) -> Scenario {
    let (clients, modes) = callers.iter().copied().unzip();
    Scenario {
        clients,
        modes,
        prefix: (0..callers.len()).map(Action::Begin).collect(),
        ..Scenario::default()
    }
}

/// Two neighbours are queued behind a holder of the other client.
fn queued() -> Scenario {
    let prefix = vec![Action::Begin(2), Action::Begin(0), Action::Begin(1)];
    Scenario {
        prefix,
        ..callers(&[0, 0, 1])
    }
}

/// Two neighbours share a grant, and the first of them holds the lock. A waiter of the client `last` is queued behind them.
fn shared(last: ClientId) -> Scenario {
    let mut prefix: Vec<_> = [2, 0, 1, 3].map(Action::Begin).into();
    prefix.push(Action::Stop(2));
    Scenario {
        prefix,
        ..callers(&[0, 0, 1, last])
    }
}

/// Two readers of a client are queued behind a writer of the other client.
fn entering() -> Scenario {
    held(&[(1, Write), (0, Read), (0, Read)])
}

/// Two readers share a grant. Writers of both clients have queued behind them.
fn reading() -> Scenario {
    shared(1).with(&[Read, Read, Write, Write])
}

/// Two writers of a client, and a reader of the other client, are queued behind a writer.
fn neighbours() -> Scenario {
    held(&[(1, Write), (0, Write), (0, Write), (1, Read)])
}

/// The second member of a shared grant holds the lock. In the next tick, the `wait` of the last member ends.
fn ending() -> Scenario {
    let mut scenario = shared(0);
    let tick = Action::Tick;
    scenario.prefix.extend([tick, tick, Action::Stop(0), tick]);
    scenario
}

impl Scenario {
    fn late(mut self) -> Self {
        self.budget.late += 1;
        self
    }

    fn breaking(mut self) -> Self {
        self.budget.breaks += 1;
        self
    }

    fn dropping(mut self) -> Self {
        self.budget.drops += 1;
        self
    }

    fn extending(mut self) -> Self {
        self.budget.extends += 1;
        self
    }

    fn downgrading(mut self) -> Self {
        self.budget.downgrades += 1;
        self
    }

    fn with(mut self, modes: &[Mode]) -> Self {
        self.modes = modes.to_vec();
        self
    }

    fn slow(mut self, ids: &[Id]) -> Self {
        self.slow = ids.to_vec();
        self
    }

    /// Returns the promises that the fewest steps break, with these steps.
    fn run(self) -> Vec<(&'static str, String)> {
        let (started, planted) = (Instant::now(), self.planted);
        let checker = self.checker().finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.spawn_bfs().join();
        println!(
            "{planted:?}: {} states, {} steps deep, {:.1} s",
            checker.unique_state_count(),
            checker.max_depth(),
            started.elapsed().as_secs_f64(),
        );
        let found = checker.discoveries().into_iter();
        let found: Vec<_> = found
            .map(|(name, path)| (name, path.into_actions()))
            .collect();
        let fewest = found.iter().map(|(_, actions)| actions.len()).min();
        let shortest = found
            .into_iter()
            .filter(|(_, actions)| Some(actions.len()) == fewest);
        shortest
            .map(|(name, actions)| (name, format!("{actions:?}")))
            .collect()
    }
}

/// Writes a test for each scenario in which all promises hold.
macro_rules! holds {
    ($($name:ident: $scenario:expr;)+) => { $(
        #[test]
        fn $name() {
            let is_deeper = std::env::var_os("MODEL_DEEPER").is_some();
            let scenario = if is_deeper { $scenario.late().breaking() } else { $scenario };
            if let [(promise, actions), ..] = &scenario.run()[..] {
                panic!("`{promise}` is broken:\n{actions}");
            }
        }
    )+ };
}

/// Writes a test for each planted error, with a scenario in which it breaks this promise.
macro_rules! breaks {
    ($($name:ident: $planted:ident, $scenario:expr, $promise:expr;)+) => { $(
        #[test]
        fn $name() {
            let planted = Some(Planted::$planted);
            let found = Scenario { planted, ..$scenario }.run();
            // One step can break several promises.
            let is_found = found.iter().any(|(promise, _)| *promise == $promise);
            assert!(is_found, "`{}` is not among {found:?}", $promise);
        }
    )+ };
}

holds! {
    the_turn_passes_between_neighbours_and_clients: callers(&[0, 0, 1]);
    a_caller_leaves_at_any_moment: callers(&[0, 0, 1]).dropping();
    a_link_breaks_and_a_caller_leaves: queued().dropping().breaking();
    a_tick_is_late: queued().late();
    a_caller_is_polled_late_or_never: queued().slow(&[0]).dropping().breaking();
    a_member_is_polled_late_or_never: shared(0).slow(&[1]);
    a_member_changes_its_lease_and_a_link_breaks: shared(0).extending().breaking();
    a_member_changes_its_lease_and_a_wait_ends: ending().extending().breaking();
    a_member_changes_its_lease_and_a_caller_leaves: shared(1).extending().dropping();
    readers_share_and_a_writer_is_alone: callers(&[0, 0, 1]).with(&[Read, Write, Read]).dropping();
    readers_enter_and_a_reader_is_polled_late_or_never: entering().slow(&[1]).dropping().breaking();
    readers_of_two_clients_enter: held(&[(1, Write), (0, Read), (1, Read)]).dropping().breaking();
    readers_of_one_grant_leave: reading().dropping().breaking();
    a_reader_waits_behind_a_writer: held(&[(0, Read), (1, Write), (0, Read)]).dropping().breaking();
    a_tick_of_readers_is_late: held(&[(0, Read), (1, Read), (0, Write)]).late();
    permits_are_taken_one_by_one: held(&[(1, ONE), (0, ONE), (0, ONE)]).dropping().breaking();
    permits_are_taken_together: held(&[(1, ONE), (0, BOTH), (0, ONE)]).dropping().breaking();
    a_tick_of_permits_is_late: held(&[(1, BOTH), (0, ONE), (0, ONE)]).late();
    a_writer_lets_readers_in: held(&[(0, Write), (0, Read), (1, Read)]).downgrading().breaking();
    a_writer_with_neighbours_lets_readers_in: neighbours().downgrading().dropping();
}

breaks! {
    a_turn_is_taken_before_its_deadline: TurnIgnoresDeadline, queued().late(), EXCLUSION;
    nothing_is_passed_on_while_a_grant_is_dissolved: PassesOnWhileDissolving, shared(1).extending(), TOLD;
    a_caller_that_leaves_gives_its_turn_back: LeaverKeepsTurn, queued().slow(&[0]).dropping(), TOLD;
    a_late_answer_seats_nobody: AnswerCountsFromArrival, shared(1).late(), EXCLUSION;
    a_name_that_was_given_up_is_not_used_again: NameIsReused, queued().late().breaking(), FREE;
    a_grant_of_callers_that_have_left_is_given_back: NobodyGivesBack, queued().dropping().dropping(), TOLD;
    a_dissolve_outlives_a_lost_answer: DissolveIsNotRepeated, shared(1).extending().breaking(), ORDER;
    a_name_outlives_the_link_that_carried_it: NameEndsWithTheLink, queued().dropping().breaking(), TOLD;
    a_dissolve_queues_no_caller_that_leaves: DissolveQueuesLeavers, ending().extending().breaking(), TOLD;
    a_reader_leaves_the_grant_to_the_others: FirstReaderReleases, reading(), EXCLUSION;
    a_reader_does_not_overtake_a_writer: ReadersOvertake, callers(&[0, 0, 1]).with(&[Read, Write, Read]), ORDER;
    a_grant_of_readers_that_have_left_is_given_back: NobodyGivesBack, entering().dropping().dropping(), TOLD;
    a_writer_that_lets_readers_in_has_no_neighbours: DowngradeKeepsCohort, neighbours().downgrading(), EXCLUSION;
}
