// The value of a constant and the type of every value are checked at compile time.
use std::time::Duration;

use lock_runtime::{LockError, distributed_lock};

const TWO_DAYS: Duration = Duration::from_secs(48 * 60 * 60);

mod limits {
    pub(crate) const LEASE: std::time::Duration = std::time::Duration::from_millis(1);
    pub(crate) const SECONDS: u64 = 5;
}

#[distributed_lock(key = "order:<id>", wait = TWO_DAYS)]
async fn long_wait(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = limits::LEASE)]
async fn short_lease(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", hold_at_least = TWO_DAYS)]
async fn long_hold(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = limits::SECONDS)]
async fn no_duration(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = wait)]
async fn no_duration_either(id: u64, wait: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
