//! Requests that callers sent directly, not in the session's batches, and whose answers they have not read yet.

use std::sync::{Arc, Mutex};

use foldhash::HashMap;
use lock_core::{lease::Moment, owner::OwnerId};

use crate::{backend::redis::protocol::request::AcquireRequest, background::sync::lock};

/// Requests that callers sent directly, not in the session's batches, and whose answers they have not read yet.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<HashMap<OwnerId, Arc<AcquireRequest>>>);

impl Unanswered {
    pub(crate) fn insert(&self, request: &Arc<AcquireRequest>) {
        lock(&self.0).insert(request.owner, request.clone());
    }

    pub(crate) fn remove(&self, owner: OwnerId) {
        lock(&self.0).remove(&owner);
    }

    /// Removes and returns the requests that were sent a claim ago or earlier.
    pub(crate) fn overdue(&self, now: Moment) -> Vec<Arc<AcquireRequest>> {
        let mut unanswered = lock(&self.0);
        let overdue = unanswered.extract_if(|_, request| request.is_overdue(now));
        let mut overdue: Vec<_> = overdue.map(|(_, request)| request).collect();
        overdue.sort_unstable_by_key(|request| request.owner);
        overdue
    }

    /// Returns whether a grant has a single owner, and the owner's caller has not yet read the answer to its own
    /// request. That answer may describe the grant.
    pub(crate) fn has(&self, owners: &[OwnerId]) -> bool {
        matches!(owners, [owner] if lock(&self.0).contains_key(owner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}
