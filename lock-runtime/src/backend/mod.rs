//! The backends: one module for each, which implements `lock_core::backend::Backend`. `client/builder.rs` chooses one
//! by the URL.

pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod redlock;
