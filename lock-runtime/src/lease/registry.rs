//! The holds of this process by name.

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

/// The holds of one client in this process. It tells a waiting caller whether its own process holds the lock, and lets a
/// shutdown wait for releases without asking a server.
#[derive(Debug, Default)]
pub(crate) struct HoldRegistry {
    newest: Mutex<HashMap<LockName, Weak<HoldState>>>,
    /// The holds that have not been released, lost ones included.
    holds: TaskTracker,
    /// The acquisitions in progress.
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

    /// Registers an acquisition until the returned value is dropped. By then it has become a hold, or has failed.
    pub(crate) fn entering(&self) -> TrackedTask {
        self.entering.token()
    }

    /// Whether this process holds the lock, as far as it knows.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        let newest = lock(&self.newest).get(name).and_then(Weak::upgrade);
        newest.is_some_and(|hold| hold.is_valid())
    }

    /// Returns the longest rest of any lease; zero if all are lost.
    pub(crate) fn longest_rest(&self) -> Duration {
        let holds: Vec<_> = lock(&self.newest).values().cloned().collect();
        let holds = holds.iter().filter_map(Weak::upgrade);
        let rests = holds.map(|hold| hold.remaining());
        rests.max().unwrap_or_default()
    }

    /// Waits until no acquisition is in progress.
    pub(crate) async fn nobody_enters(&self) {
        drained(&self.entering).await;
    }

    /// Waits until nothing is held.
    pub(crate) async fn drained(&self) {
        drained(&self.holds).await;
    }
}
