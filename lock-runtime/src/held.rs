//! What this process holds, by name.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use lock_core::key::LockName;
use tokio::sync::Notify;

use crate::{hold::HoldState, sync::lock};

/// What this process holds, so that a caller can be told that it waits for its own process, and so that nobody asks a
/// server whether this very process has released.
#[derive(Debug, Default)]
pub(crate) struct HeldHere {
    newest: Mutex<HashMap<LockName, Weak<HoldState>>>,
    /// How many holds have not been released, lost ones included, and how many calls are on their way in.
    holds: AtomicUsize,
    none_left: Notify,
}

impl HeldHere {
    pub(crate) fn add(&self, hold: &Arc<HoldState>) {
        self.holds.fetch_add(1, Ordering::AcqRel);
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
        self.one_less();
    }

    fn one_less(&self) {
        if self.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.none_left.notify_waiters();
        }
    }

    /// A call on its way in: it becomes a hold, or nothing, before the answer is dropped.
    pub(crate) fn entering(self: &Arc<Self>) -> Entering {
        self.holds.fetch_add(1, Ordering::AcqRel);
        Entering(self.clone())
    }

    /// Whether this process holds the lock, as far as it knows.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        let newest = lock(&self.newest).get(name).and_then(Weak::upgrade);
        newest.is_some_and(|hold| hold.loss().is_none())
    }

    /// Ends when nothing is held, and nobody on the way in.
    pub(crate) async fn drained(&self) {
        loop {
            let mut none_left = pin!(self.none_left.notified());
            none_left.as_mut().enable();
            if self.holds.load(Ordering::Acquire) == 0 {
                return;
            }
            none_left.await;
        }
    }
}

/// Counts a call on its way in.
#[derive(Debug)]
pub(crate) struct Entering(Arc<HeldHere>);

impl Drop for Entering {
    fn drop(&mut self) {
        self.0.one_less();
    }
}
