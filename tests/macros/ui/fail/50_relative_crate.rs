// The expansion can be in any module, so `crate` has to be an absolute path.
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

#[distributed_lock(key = "order:<id>", crate = self)]
async fn bare(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", crate = super)]
async fn outer(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
