//! Where locks live: one folder for each backend. `client/builder.rs` chooses one by the URL.

pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod redlock;
