//! Checks of the results of calls, and a check that bodies do not overlap.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use lock_runtime::LockError;

/// Checks that a call was refused because the lock is taken.
///
/// # Panics
/// If the call has any other result.
#[track_caller]
pub fn assert_busy<T: Debug>(result: &Result<T, LockError>) {
    let busy = matches!(result, Err(LockError::Busy { .. }));
    assert!(busy, "{result:?}");
}

/// Checks that a call failed because it lost its lock.
///
/// # Panics
/// If the call has any other result.
#[track_caller]
pub fn assert_lost<T: Debug>(result: &Result<T, LockError>) {
    let lost = matches!(result, Err(LockError::Lost { .. }));
    assert!(lost, "{result:?}");
}

/// A critical section that only one caller at a time is allowed to enter.
#[derive(Debug, Default)]
pub struct Room(AtomicBool);

impl Room {
    /// Enters the critical section, stays for `time`, and leaves.
    ///
    /// # Panics
    /// If another caller is inside the critical section.
    pub async fn stay(&self, time: Duration) {
        assert!(
            !self.0.swap(true, Ordering::SeqCst),
            "two callers are inside"
        );
        tokio::time::sleep(time).await;
        self.0.store(false, Ordering::SeqCst);
    }

    /// Returns whether a caller is inside the critical section.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
