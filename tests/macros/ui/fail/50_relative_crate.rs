// The expansion stands in many modules.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", crate = lock_runtime)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", crate = self::locks)]
async fn inner(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", crate = "::lock_runtime")]
async fn quoted(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
