// If a duration is misspelt, as in `5min`, the message suggests the right spelling.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", wait = "5min")]
async fn minutes(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "5S")]
async fn seconds(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", max_hold = "1 s")]
async fn blank(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
