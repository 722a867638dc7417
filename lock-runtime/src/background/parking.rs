//! Lets a watching task sleep while there is nothing to watch.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Lets a watching task, such as the heartbeat of a session, sleep while there is nothing to watch.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    parked: AtomicBool,
    active: Notify,
}

impl Parking {
    /// Wakes the task if it sleeps in [`park`](Self::park). The calling code must record the new work before this
    /// call, so that the closure `is_idle` of `park` returns false.
    pub(crate) fn watch(&self) {
        if self.parked.load(Ordering::SeqCst) && self.parked.swap(false, Ordering::SeqCst) {
            self.active.notify_one();
        }
    }

    /// Sleeps until [`watch`](Self::watch) or [`leave`](Self::leave) is called, if `is_idle` returns true.
    pub(crate) async fn park(&self, is_idle: impl Fn() -> bool) {
        if !is_idle() {
            return;
        }
        self.parked.store(true, Ordering::SeqCst);
        // Work that was added before `parked` was set has not woken the heartbeat, so `is_idle` is checked again.
        if is_idle() {
            self.active.notified().await;
        }
        self.parked.store(false, Ordering::SeqCst);
    }

    /// Wakes the task so that it can end.
    pub(crate) fn leave(&self) {
        self.active.notify_one();
    }
}
