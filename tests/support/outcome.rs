//! What calls return.

use std::fmt::Debug;

use lock_runtime::LockError;

/// Checks that a call was refused because the lock is taken.
///
/// # Panics
/// If it was not.
#[track_caller]
pub fn assert_busy<T: Debug>(result: &Result<T, LockError>) {
    let busy = matches!(result, Err(LockError::Busy { .. }));
    assert!(busy, "{result:?}");
}

/// Checks that a call was told that it has lost its lock.
///
/// # Panics
/// If it was not.
#[track_caller]
pub fn assert_lost<T: Debug>(result: &Result<T, LockError>) {
    let lost = matches!(result, Err(LockError::Lost { .. }));
    assert!(lost, "{result:?}");
}
