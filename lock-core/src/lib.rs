//! Vocabulary and contract of the distributed locks in `lock-runtime`.
//!
//! This crate has no dependencies and does nothing by itself: it names what the attribute, the engine and the
//! backends talk about. Services depend on `lock-runtime`, which re-exports what they need; a backend of your own
//! implements [`backend::Backend`].

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
