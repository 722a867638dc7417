//! The trait of the backends that the builder of a client opens.

use std::time::Duration;

use lock_core::backend::{Backend, BoxFuture};

use crate::connect_error::ConnectError;

/// A backend that has not necessarily connected yet.
pub(crate) trait Open: Backend {
    /// Connects to the servers once, so that a problem with them is reported when the client is created.
    fn connect(&self, patience: Duration) -> BoxFuture<'_, Result<(), ConnectError>>;
}
