//! What this process holds, by name.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use lock_core::key::LockName;

use crate::{
    background::{
        shutdown::{TaskTracker, TrackedTask, drained},
        sync::lock,
    },
    lease::hold::HoldState,
};

/// What this process holds, so that a caller can be told that it waits for its own process, and so that nobody asks a
/// server whether this very process has released.
#[derive(Debug, Default)]
pub(crate) struct HoldRegistry {
    newest: Mutex<HashMap<LockName, Weak<HoldState>>>,
    /// The holds that have not been released, lost ones included.
    holds: TaskTracker,
    /// The calls on their way in.
    entering: TaskTracker,
}

impl HoldRegistry {
    pub(crate) fn add(&self, hold: &Arc<HoldState>) {
        hold.track(self.holds.token());
        lock(&self.newest).insert(hold.name.clone(), Arc::downgrade(hold));
    }

    pub(crate) fn remove(&self, hold: &Arc<HoldState>) {
        {
            let mut newest = lock(&self.newest);
            // A lost hold may have been followed by another one of the same name.
            if newest
                .get(&hold.name)
                .is_some_and(|other| other.as_ptr() == Arc::as_ptr(hold))
            {
                newest.remove(&hold.name);
            }
        }
        hold.untrack();
    }

    /// A call on its way in: it becomes a hold, or nothing, before the answer is dropped.
    pub(crate) fn entering(&self) -> TrackedTask {
        self.entering.token()
    }

    /// Whether this process holds the lock, as far as it knows.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        let newest = lock(&self.newest).get(name).and_then(Weak::upgrade);
        newest.is_some_and(|hold| hold.is_valid())
    }

    /// What is left of the lease that ends last; zero if all are lost.
    pub(crate) fn longest_rest(&self) -> Duration {
        let holds: Vec<_> = lock(&self.newest).values().cloned().collect();
        let holds = holds.iter().filter_map(Weak::upgrade);
        let rests = holds.map(|hold| hold.remaining());
        rests.max().unwrap_or_default()
    }

    /// Ends when nobody is on the way in.
    pub(crate) async fn nobody_enters(&self) {
        drained(&self.entering).await;
    }

    /// Ends when nothing is held.
    pub(crate) async fn drained(&self) {
        drained(&self.holds).await;
    }
}
