//! Distributed locks for async Rust services, declared with one attribute: fair, cancel-safe, fenced, on Redis or in
//! process.
//!
//! ```
//! use lock_runtime::{LockClient, LockError, distributed_lock};
//!
//! #[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s")]
//! async fn pay(id: u64, cents: u64) -> Result<String, LockError> {
//!     Ok(format!("order {id}: {cents} cents paid")) // alone for this `id`
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     LockClient::connect("memory:").await?.install()?; // or "redis://127.0.0.1/"
//!     assert_eq!(pay(42, 995).await?, "order 42: 995 cents paid");
//!     Ok(())
//! }
//! ```
//!
//! - [`distributed_lock`] guards an `async fn`; its options and placeholders are documented there.
//! - [`LockClient`] says where locks live; [`Lock`] and [`MultiLock`] are the explicit API on the same engine,
//!   [`LockGuard`], [`MultiLockGuard`], [`Hold`] and [`Holds`] are what is held.
//! - [`LockError`] says why a call did not run to its end under its lock, [`ConnectError`] why there is no client.
//! - [`InCurrentHold`] takes spawned tasks into the hold of their parent.
//!
//! # Fairness
//! Callers of one key enter in the order in which they queued, over all processes. A call with `wait` zero never queues,
//! and never overtakes one that waits. Callers that wait by [`Strategy::Notify`] or [`Strategy::Spin`] do not queue
//! either: they have no order, and enter when nobody queues. On a Redlock, and in [Redisson's layout](Layout::Redisson), nobody
//! queues at all.
//!
//! # Cancel safety
//! Every future of this crate may be dropped at any await: neither a key nor a place in a queue stays behind beyond one
//! round trip, or, while the server cannot be reached, beyond the lease.
//!
//! # Loss
//! A lease can end while its body runs: it ran out, the server lost it, or could not be reached in time to renew it. The
//! body is then dropped at its next `.await`. What it has started elsewhere goes on; send [`Hold::token`] with every
//! write, so that the guarded resource can refuse it.
//!
//! # Events
//! Every step of a lock's life is a `tracing` event of the target `lock_runtime`: grants and releases at debug, losses,
//! failed renewals and bodies that have used 80 % of a fixed lease at warn. [`LockClient::stats`] counts them.

mod acquire;
mod backend;
mod background;
mod call;
mod client;
mod connect_error;
mod events;
mod guard;
mod in_current_hold;
mod lease;
mod lock;
mod multi_lock;
mod options;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
#[cfg(feature = "__simulation")]
#[doc(hidden)]
pub mod simulation;

pub use call::Run;
pub use client::{AlreadyInstalled, LockClient, builder::LockClientBuilder};
pub use connect_error::{ConnectError, URL_VARIABLE};
pub use events::Stats;
pub use guard::{Hold, Holds, LockGuard, MultiLockGuard};
pub use in_current_hold::{InCurrentHold, WithinHold};
pub use lease::release::ReleaseOutcome;
pub use lock::Lock;
pub use lock_core::{
    advice::{Advice, Detail},
    backend::{Holder, Status},
    error::{BusyWith, FromLockError, LockError, LockResult, LossReason, MapErrResult, SkipResult},
    fencing::FencingToken,
    key::{KeyError, KeyPart, LockKey, MAX_KEY_BYTES, MAX_KEYS, escape},
    layout::Layout,
    options::{Backoff, OnLost, OptionsError, Release, Strategy},
    owner::OwnerId,
};
pub use lock_macros::distributed_lock;
pub use multi_lock::MultiLock;
pub use redis;
