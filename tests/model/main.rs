//! A model of the handoff protocol, checked in every state that it can reach: `cargo test --test model`, with
//! `-- --nocapture` for the number of states.
//!
//! # What is modelled
//!
//! One lock on one server, one to three processes, two to five callers, each of which calls once. Callers are polled whenever
//! they are woken, except slow ones: their futures are polled at any later step, or never again, so what they are told of (a
//! turn, the reply to a request) is read late. One that misses its turn goes on as another owner, with its place.
//!
//! - `server.rs`: the grant, the queue and the fence, and each script as one step that decides as the script does
//!   (`acquire`, with `acquire_free` before it, `queue`, `release`, `renew`, `leave`, `look`, `hand_on`, `next_token`).
//! - `attempt.rs`, `link.rs` and `hold.rs`: what a process does: the attempt with its place, its gate and its clean-up; the
//!   link with its push, its look and its resending; the hold with its local deadline and its keeper.
//! - `cohort.rs`: a grant of one or several owners, whose turn the process offers and passes on in memory, and the group that
//!   queues in one request.
//! - `wire.rs`: a link's connection, in order both ways; what an old connection has left behind, which the server may
//!   still read until it is closed; the home link, in any order.
//! - `protocol.rs`: what can happen next. Time is ticks of about a heartbeat. What is due happens before the next tick,
//!   in every order; a tick that passes nevertheless is `late`, and stands for slow networks, slow servers and stopped
//!   processes. Bodies end, callers begin and servers notice dead connections whenever they like.
//! - `scenario.rs`: who calls, on what terms, and how often each thing may go wrong: lateness, crashes, broken
//!   connections, cancelled calls, lost pushes, lost replies, a server that loses its state or restarts, clocks that jump
//!   or run unevenly.
//! - `properties.rs`: what is promised in every state, and what has to be reached somewhere for that to mean anything.
//!
//! `scenarios.rs` and `cohort_scenarios.rs` check the protocol as it is. `variants.rs` and `cohort_variants.rs` take out one
//! rule after the other (`broken.rs`), `slow.rs` does both for slow callers, and they expect the checker to break the very promise that the rule is for. A failed
//! check prints the steps that led there.
//!
//! What it has found: `Broken::GateOpensWithTheBreak`, `Broken::OlderGrantStands`, `Broken::HeadBeforeWhoComesBack`,
//! `Broken::ComesBackToAPlaceOnly` and `Broken::DeadPlaceStands` in the runtime, and `Broken::LostBlockReleasedFirst` in
//! how blocks were designed; with slow callers, `Broken::AnswerSeats` in the runtime before cohorts had offers, and
//! `Broken::UnreadGrantOffered` in the first one that had them. The known gaps are at the end of `variants.rs`.
//!
//! # What is not
//!
//! Several keys, a kept lock (`hold_at_least`), `notify` and `spin`, Redlock, re-entry, a refusing server (out of memory,
//! read only), `extend`, and a renewed lease's `max_hold`.
//!
//! A liveness promise is checked as what must not be the case in any state: a tick at which nothing is due and somebody
//! waits beside a free lock, a wait that is longer than it may be, anything left at the horizon. The server's
//! `TIME` is as fine as the number of grants in a tick, and losing its state takes the server a tick.
//!
//! # How to look deeper
//!
//! `MODEL_DEEPER=1 cargo test --release --test model scenarios -- --nocapture --test-threads 1` allows one more fault of
//! each kind that a scenario has, late ticks included, and one more altogether: minutes, and some GB. A name instead of
//! `scenarios` picks one, `MODEL_DEEPER=2` allows two more.

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

/// The paths by which the engine's files import each other.
mod backend {
    pub(crate) mod redis {
        pub(crate) mod protocol {
            pub(crate) use crate::grant;
        }
    }
}
