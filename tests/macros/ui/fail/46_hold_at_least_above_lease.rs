// After the call has returned, only the lease keeps the lock taken, so `hold_at_least` cannot be longer than the lease.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "nightly", lease = "30s", hold_at_least = "1m")]
async fn fixed() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "nightly", lease = "30s", renew = true, hold_at_least = "1m")]
async fn renewed() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "nightly", hold_at_least = "25h")]
async fn longer_than_any_lease() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
