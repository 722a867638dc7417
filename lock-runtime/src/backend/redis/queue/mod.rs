//! Queues callers on one server, and passes a lock from caller to caller.

pub(crate) mod attempt;
pub(crate) mod cleanup;
pub(crate) mod driver;
pub(crate) mod enqueue;
pub(crate) mod grants;
pub(crate) mod heartbeat;
pub(crate) mod multi;
#[cfg(feature = "redisson")]
pub(crate) mod notify;
pub(crate) mod records;
pub(crate) mod renew_commands;
pub(crate) mod replicas;
pub(crate) mod scan;
pub(crate) mod server;
