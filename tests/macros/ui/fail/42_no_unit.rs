// A duration without a unit is ambiguous: `5` could mean 5 seconds or 5 milliseconds.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", wait = "5")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = 5)]
async fn number(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = 30s)]
async fn bare(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
