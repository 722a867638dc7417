//! Connections: how they are made, how commands are sent over them, and what is known about the server.

pub(crate) mod batcher;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod health;
pub(crate) mod liveness;
pub(crate) mod outage;
pub(crate) mod preflight;
pub(crate) mod script;
pub(crate) mod sentinel;
