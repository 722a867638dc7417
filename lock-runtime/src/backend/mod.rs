//! The backends. Each module but `open` contains one implementation of `lock_core::backend::Backend`. `client/builder`
//! chooses the backend by the URL.

pub(crate) mod memory;
pub(crate) mod open;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
