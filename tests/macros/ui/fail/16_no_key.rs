// Without a key, all calls of all functions would share one lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock]
async fn bare() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(wait = "5s")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
