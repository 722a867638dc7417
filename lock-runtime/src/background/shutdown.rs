//! The end of a client: shutdown has begun, or its last handle is gone.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use crate::lease::scheduler::RenewalScheduler;

/// Whether a client's shutdown has begun.
#[derive(Debug, Default)]
pub(crate) struct ShutdownSignal {
    begun: AtomicBool,
    begins: Notify,
}

impl ShutdownSignal {
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.begins.notify_waiters();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// ExitPolicy when the shutdown begins.
    pub(crate) async fn begun(&self) {
        let mut begins = pin!(self.begins.notified());
        begins.as_mut().enable();
        if !self.has_begun() {
            begins.await;
        }
    }
}

/// The renewals of a client, as long as it lives: dropped, it ends them.
#[derive(Debug)]
pub(crate) struct Renewals(pub(crate) Arc<RenewalScheduler>);

impl Drop for Renewals {
    fn drop(&mut self) {
        self.0.end();
    }
}
