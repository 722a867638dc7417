#![doc = include_str!("../README.md")]
//!
//! # The parts of the API
//! - [`distributed_lock`] makes an `async fn` run under a lock. The documentation of the attribute lists all options
//!   and placeholders.
//! - A [`LockClient`] connects to the server that stores the locks, or keeps the locks in process. [`Lock`] and
//!   [`MultiLock`] are the explicit API on the same engine. [`LockGuard`], [`MultiLockGuard`], [`Hold`] and [`Holds`]
//!   represent held locks.
//! - [`LockError`] says why a call did not complete under its lock. [`ConnectError`] says why a client could not
//!   connect.
//! - A [`Leader`] runs a function in one process of a fleet at a time, as the attribute [`macro@leader`] does.
//! - [`InCurrentHold`] makes a spawned task part of its parent's hold.
//!
//! # Fairness
//! Callers of one key enter in the order in which they queued, across all processes. A call with a `wait` of zero never
//! queues, and never overtakes a queued caller. Callers that wait by [`Strategy::Spin`] do not queue: they enter in no
//! particular order, and only when the queue is empty. A Redlock and [Redisson's layout](Layout::Redisson) have no queue.
//!
//! # Cancel safety
//! Every future of this crate can be dropped at any `.await`. The engine then removes the future's grant and its place
//! in a queue within one round trip. While the server cannot be reached, the grant of a dropped future stays until its
//! lease ends (at most 2 s if the grant was not confirmed yet). The future's place in a queue stays until `wait` ends.
//!
//! # Loss
//! A lease can be lost while its body runs: the lease expires, the server loses its state, or the server cannot be
//! reached in time to renew the lease. After a loss, the body is dropped at its next `.await`. Work that the body has
//! started in other tasks or on other servers continues. Send [`Hold::token`] with every write, so that the guarded
//! resource can refuse a write that arrives after a write with a newer token.
//!
//! # Events
//! The engine reports every grant, renewal, release and loss of a lock as a `tracing` event with the target
//! `lock_runtime`. Grants and releases have level `DEBUG`. Losses, failed renewals and bodies that have used 80 % of a
//! fixed lease have level `WARN`, as do bodies that block their threads. A wait of more than ten seconds has level `INFO`.
//! [`LockClient::stats`] returns how often each kind of event has happened.
//!
//! Each call has a span `lock` with the target `lock_runtime::span` and the level `INFO`. The child spans `lock.wait`
//! and `lock.hold`, with the level `DEBUG`, show how long the call waited, and how long it held its locks. With the feature `metrics`, the
//! engine reports metrics through the facade crate `metrics`.
#![cfg_attr(docsrs, feature(doc_cfg))]
// The backends share limits, metrics and helpers of which each feature uses a part. With all features, the lint covers
// the whole crate. The compiler generates no machine code for what is not used.
#![cfg_attr(
    not(all(feature = "cluster", feature = "redisson", feature = "redlock")),
    allow(dead_code, reason = "some features use only a part of the shared code")
)]

mod acquire;
mod backend;
mod background;
mod call;
mod client;
mod connect_error;
mod credentials;
mod events;
mod features;
mod guard;
mod in_current_hold;
mod latch;
mod leader;
mod lease;
mod limits;
mod lock;
mod multi_lock;
mod options;
mod patience;
mod scan;
mod semaphore;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
#[cfg(feature = "__simulation")]
#[doc(hidden)]
pub mod simulation;

#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use backend::redis::transport::pem::Pem;
pub use call::Run;
pub use client::{
    AlreadyInstalled, LockClient,
    builder::LockClientBuilder,
    leftovers::{Leftovers, RunningHold},
    ping::PingError,
    testing::Testing,
};
pub use connect_error::{ConnectError, URL_VARIABLE};
pub use credentials::Credentials;
#[cfg(feature = "metrics")]
pub use events::metrics::{METRIC_BUCKETS, describe_metrics};
pub use events::{LeaseLoss, LeaseWarning, Stats};
pub use guard::{Hold, Holds, LockGuard, MultiLockGuard};
pub use in_current_hold::{InCurrentHold, WithinHold};
pub use latch::{Latch, LatchStatus, Latched};
pub use leader::{Leader, LeaderWatch, Role, Term};
pub use lease::release::ReleaseOutcome;
pub use lock::{ForcedRelease, Lock};
pub use lock_core::{
    advice::{Advice, Detail},
    backend::{Caller, Holder, Status, Waiter},
    error::{
        BusyWith, FromLockError, HeldBy, LockError, LockResult, LossReason, MapErrResult,
        SkipResult,
    },
    fencing::FencingToken,
    key::{KeyError, KeyPart, LockKey, MAX_KEY_BYTES, MAX_KEYS, escape},
    layout::Layout,
    options::{
        AccessMode, Backoff, MAX_PARTS, MAX_PERMITS, Mode, OnLost, OptionsError, Release, Strategy,
    },
    owner::OwnerId,
};
pub use lock_macros::{distributed_lock, leader};
pub use multi_lock::MultiLock;
pub use scan::LockScan;
pub use semaphore::Semaphore;
