//! The shared types and the backend contract of the distributed locks in `lock-runtime`.
//!
//! This crate has no dependencies and only defines the types that the `#[distributed_lock]` attribute, the engine in
//! `lock-runtime` and the backends share. Services depend on `lock-runtime`, which re-exports the types that services
//! need. [`backend::Backend`] is the internal contract of the built-in backends; a client accepts no other backend.

pub mod advice;
pub mod backend;
pub mod duration;
pub mod error;
pub mod fencing;
pub mod key;
pub mod layout;
pub mod lease;
pub mod options;
pub mod owner;
