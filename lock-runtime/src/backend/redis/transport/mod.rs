//! Connections: how they are made, what is sent over them, and what is known about the server at the other end.

pub(crate) mod batcher;
pub(crate) mod connection;
pub(crate) mod health;
pub(crate) mod liveness;
pub(crate) mod outage;
pub(crate) mod preflight;
pub(crate) mod script;
