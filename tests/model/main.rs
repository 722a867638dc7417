//! A model of the handoff protocol, by which callers queue for a lock on one server. The model checker checks every
//! reachable state of the model. `cargo test --test model` runs the checks. With `-- --nocapture`, the command also
//! prints the number of states of each scenario.
//!
//! # Terms
//!
//! - An *owner name* identifies a caller on the server. A caller's *place* is its position in the lock's queue on the
//!   server. The server stores the place as a score, so a caller that queues again can return to its old place.
//! - A *session* is a connection of a process, over which the server notifies waiting callers. Each process has one
//!   session for its callers, and in this model another one for background work, the *home session*. The engine has
//!   only one session, whose order is stricter.
//! - A *push* is a message by which the server notifies a session of a grant.
//! - A *cohort* consists of neighbours in the queue, all of one session, that share one grant and take turns. An
//!   *offer* is a turn that was given to a member of the cohort, and that the member has not taken yet.
//! - The *claim* is a limit of 2 s. Within this time, a process has to confirm a grant from a push, and a caller has to
//!   take an offer.
//! - The *heartbeat* is a task of each session. The heartbeat runs the script `probe`, which finds lost pushes and lost
//!   queues. The heartbeat also withdraws offers that were not taken in time.
//! - A *tick* is the model's unit of time (see below).
//!
//! # The real types
//!
//! In the model, the engine's own code makes the decisions, not a copy of this code. [`cohort::Cohort`],
//! [`attempt_state::AttemptState`] and [`grant::GrantSnapshot`] are the engine's files, compiled into this crate, so
//! their unit tests run here too. The engine's I/O around these types is modelled: the registry of cohorts, the
//! sessions, the scripts, the holds.
//!
//! # What is modelled
//!
//! The model has one lock on one server, one to three processes, and one to four callers, each of which makes one call.
//! A caller's future is polled as soon as it is woken, unless the caller is slow. The future of a slow caller is polled
//! at any later step or never again, so the caller reads offers and answers late. A caller that misses its turn
//! continues under a new owner name, which takes over the place of the old name.
//!
//! - `server.rs`: the grant, the queue, the counter of fencing tokens, and the scripts. Each script runs as one step,
//!   and makes the same decisions as the engine's script. The scripts are `acquire` (with `acquire_free` before it),
//!   `queue`, `release`, `renew`, `leave`, `probe`, `grant_next` and `next_token`.
//! - `attempt.rs`: the steps of one caller, which an `AttemptState` decides. This file sends the requests that the
//!   `AttemptState` asks for, and asks the cohort to let the caller take its turn. If the caller gives up, this file
//!   removes what the caller has left on the server.
//! - `cohorts.rs`: the cohorts of a process. This file calls a `Cohort` as the engine's registry of cohorts does, and
//!   sends the batches that queue several callers.
//! - `session.rs`: the sessions with their pushes, probes and heartbeat, and the effects of a broken connection.
//! - `hold.rs`: the hold with its local deadline, its renewals and its release.
//! - `wire.rs`: the connections. A session's connection keeps the order of messages in both directions. The engine's
//!   home session delivers messages in any order. After a connection has broken, the server may still read the
//!   connection's unread requests until the server closes the connection.
//! - `protocol.rs`: the possible next steps. Normally, all due steps happen before the next tick, in any order. If the
//!   next tick begins before all due steps have happened, the remaining steps are late. Late steps model a slow
//!   network, a slow server or a stopped process. Callers can begin, bodies can end and the server can notice dead
//!   connections at any time.
//! - `scenario.rs`: the callers, their options, and how often each fault may happen: late steps, crashes, broken
//!   connections, cancelled calls, lost pushes, lost replies, a server that loses its state or restarts, clocks that
//!   jump or run unevenly.
//! - `properties.rs`: the promises, which have to hold in every state, and the conditions that a scenario has to reach.
//!   A condition describes an event, such as a lost push. If a scenario does not reach its conditions, its promises
//!   prove nothing.
//!
//! `scenarios.rs` and `cohort_scenarios.rs` check the unchanged protocol. `broken.rs` lists the rules of the protocol.
//! `variants.rs` and `cohort_variants.rs` remove one rule at a time, and the checker has to find a state in which the
//! promise that the rule protects does not hold. For slow callers, `slow.rs` checks both the unchanged protocol and
//! variants in which one rule is removed. Some rules are part of one of the engine's types. The model removes such a
//! rule by ignoring or altering the answer of that type. A failed check prints the steps that lead to the broken
//! promise.
//!
//! # Time
//!
//! The server's clock and the `wait`s of callers are measured in ticks. The engine's types use
//! [`Moment`](lock_core::lease::Moment)s. Each scenario sets the number of ticks in the engine's claim of 2 s, so a
//! tick is 0.5 to 2 s long. The engine's types compute local deadlines to the nanosecond. A process's clock can fall
//! behind by a millisecond at a time, and the engine's allowance for drift has to cover this lag.
//!
//! # Defects that the model has found
//!
//! The model has found the following defects, each of which a variant in `broken.rs` reproduces:
//!
//! - defects of the runtime: `Broken::GateOpensWithTheBreak`, `Broken::OlderGrantStands`,
//!   `Broken::HeadBeforeWhoComesBack`, `Broken::ComesBackToAPlaceOnly`, `Broken::DeadPlaceStands` and
//!   `Broken::OfferGivenBackAlone`
//! - a defect of the first design of cohorts: `Broken::LostCohortReleasedFirst`
//! - defects that appear only with slow callers: `Broken::AnswerSeats`, a defect of the runtime before cohorts had
//!   offers, and `Broken::UnreadGrantOffered`, a defect of the first version with offers
//!
//! The tests at the end of `variants.rs` show the known gaps of the protocol: documented cases in which a promise does
//! not hold.
//!
//! One rule is part of the model but not yet of the engine. If the server has lost a grant and then grants the lock to
//! the same owner again, the model replaces the offer from the older grant by an offer from the newer grant
//! (`Broken::OlderGrantStands`). In the engine, the owner keeps the older offer and does not use the newer grant, so
//! the lock goes to the next waiter only when the claim of the newer grant ends.
//!
//! With `MODEL_DEEPER=1` (see below), every scenario whose states fit into 17 GB of memory keeps its promises. Two
//! scenarios need more memory: `one_thing_goes_wrong_with_a_cohort_and_all_is_late` and
//! `a_cohort_is_late_and_others_wait`.
//!
//! # What is not modelled
//!
//! The model leaves out several keys, a retained lock (`hold_at_least`), `spin`, Redlock, re-entry with
//! its restarted leases, a server that refuses commands (out of memory, read only), `extend`, and `max_hold` of a
//! renewed lease. In the model, a caller that leaves the queue takes no free lock, although `leave.lua` may grant the
//! caller a free lock. The model's `acquire` and `queue` differ from the scripts in two respects. For every request,
//! the model's `acquire` grants a free lock to the head of the queue. The script does so only for a request without a
//! `wait`. The reply of the model's `queue` does not describe a grant that `queue` itself has made. If a session does
//! not confirm a grant within the claim (2 s), the scripts remove all waiters of that session from the queue, but the
//! model keeps the waiters in their places.
//!
//! Three promises check liveness. No caller waits for a free lock for two consecutive ticks at which nothing is due. No
//! caller waits for longer than its `wait` allows. No grant and no waiter is left at the horizon, the tick at which all
//! calls have to be over. The server's clock (the command `TIME`) advances in 16 steps per tick. In each tick, the
//! server makes fewer than 16 grants. A loss of the server's state takes one tick.
//!
//! # How to check deeper
//!
//! `MODEL_DEEPER=1 cargo test --release --test model scenarios -- --nocapture --test-threads 1` raises the limits of
//! faults in each scenario by one: ticks with late steps, crashes, broken connections, cancelled calls, lost pushes,
//! lost replies, and all faults together. A fault whose limit is zero still cannot happen. The run takes minutes and
//! some GB of memory. To run a single scenario, replace `scenarios` by the name of its test. `MODEL_DEEPER=2` raises
//! the limits by two. `MODEL_DEEPER=0` raises no limit but runs the large scenarios, which are skipped by default.

mod attempt;
mod broken;
mod check;
mod cohort_scenarios;
mod cohort_variants;
mod cohorts;
mod few;
mod hold;
mod properties;
mod protocol;
mod scenario;
mod scenarios;
mod server;
mod session;
mod slow;
mod state;
mod variants;
mod wire;

#[allow(dead_code, reason = "the engine uses all of it")]
#[path = "../../lock-runtime/src/backend/redis/queue/attempt/state.rs"]
mod attempt_state;
#[allow(dead_code, reason = "the engine uses all of it")]
#[path = "../../lock-runtime/src/backend/redis/queue/cohort/mod.rs"]
mod cohort;
#[allow(dead_code, reason = "the engine uses all of it")]
#[path = "../../lock-runtime/src/backend/redis/protocol/grant.rs"]
mod grant;

/// Provides the module paths by which the engine's files import each other.
mod backend {
    pub(crate) mod redis {
        pub(crate) mod protocol {
            pub(crate) use crate::grant;
        }
    }
}
