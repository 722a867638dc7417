//! Makes connections to servers, sends commands over them, and records their health and the outages of the servers.

pub(crate) mod access;
pub(crate) mod call_error;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod credentials;
pub(crate) mod health;
pub(crate) mod liveness;
pub(crate) mod outage;
#[cfg(feature = "__tls")]
pub(crate) mod pem;
pub(crate) mod refusal;
pub(crate) mod script;
pub(crate) mod sentinel;
pub(crate) mod shard_channels;
#[cfg(feature = "__tls")]
pub(crate) mod tls;
pub(crate) mod wait_connections;
pub(crate) mod wire;
