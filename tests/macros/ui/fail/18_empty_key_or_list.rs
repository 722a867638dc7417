// Neither an empty key nor a list without keys names a lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = [])]
async fn transfer(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<from>", ""])]
async fn refund(from: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
