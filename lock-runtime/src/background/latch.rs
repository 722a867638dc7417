//! A count of what is under way, and word of its end.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

/// Counts what is under way.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    under_way: AtomicUsize,
    none_left: Notify,
}

impl Latch {
    pub(crate) fn add(&self) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self) {
        if self.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.none_left.notify_waiters();
        }
    }

    /// Counts one until it is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.add();
        UnderWay(self.clone())
    }

    /// ExitPolicy when nothing is under way.
    pub(crate) async fn ended(&self) {
        // As it is most often: nothing has to be told.
        if self.under_way.load(Ordering::Acquire) == 0 {
            return;
        }
        loop {
            let mut none_left = pin!(self.none_left.notified());
            none_left.as_mut().enable();
            if self.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            none_left.await;
        }
    }
}

/// One that a [`Latch`] counts.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Latch>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.remove();
    }
}
