//! Waits for a lock on one server, and hands it on: attempts, cohorts, and the driver of sessions.

pub(crate) mod attempt;
pub(crate) mod cleanup;
pub(crate) mod cohort;
pub(crate) mod cohort_registry;
pub(crate) mod driver;
pub(crate) mod enqueue;
pub(crate) mod grants;
pub(crate) mod heartbeat;
pub(crate) mod multi;
pub(crate) mod notify;
pub(crate) mod renew_commands;
pub(crate) mod server;
