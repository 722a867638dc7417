//! The backends. Each module contains one implementation of `lock_core::backend::Backend`. `client/builder.rs` chooses
//! the backend by the URL.

pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod redlock;
