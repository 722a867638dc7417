#![doc = include_str!("../../README.md")]

mod backend;
mod client;
mod clock;
mod connect;
mod engine;
mod guard;
mod hold;
mod lock;
mod reentry;
mod renewal;
mod stats;
mod sync;
mod wait;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

pub use client::{AlreadyInstalled, LockClient, LockClientBuilder, URL_VARIABLE};
pub use connect::ConnectError;
pub use guard::{Hold, LockGuard, Run};
pub use lock::Lock;
pub use lock_core::{
    backend::{Holder, Status},
    error::{BusyWith, FromLockError, LockError, LockResult, LossReason},
    fencing::FencingToken,
    key::{KeyError, KeyPart, LockKey, escape},
    options::{OnLost, OptionsError},
    owner::OwnerId,
};
pub use lock_macros::distributed_lock;
pub use redis;
pub use reentry::{InCurrentHold, WithinHold};
pub use stats::Stats;
