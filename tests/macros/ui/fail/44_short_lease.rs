// A lease of less than 10 ms could end before the body begins.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "0s")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "9ms")]
async fn short(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
