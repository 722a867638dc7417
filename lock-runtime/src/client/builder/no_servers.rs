//! Stands in for `servers` if the feature `redis` is off.

use std::sync::Arc;

use crate::{
    backend::open::Open,
    background::Context,
    client::builder::{LockClientBuilder, Target},
    connect_error::ConnectError,
    events::Counters,
};

/// Returns whether the servers are the nodes of a Redlock.
pub(super) fn is_redlock(target: &Target) -> bool {
    matches!(target, Target::Nodes(_))
}

/// Refuses a URL. `features::check_url` has refused every URL of a server before.
pub(super) fn open(
    _: &LockClientBuilder,
    _: &Target,
    _: String,
    _: &Arc<Context>,
    _: &Arc<Counters>,
) -> Result<Arc<dyn Open>, ConnectError> {
    Err(ConnectError::InvalidUrl {
        detail: "unknown scheme".into(),
    })
}
