//! Where locks live.

pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod redlock;
