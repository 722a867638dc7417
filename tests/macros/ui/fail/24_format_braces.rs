// Unlike a `format!` string, a key has no positional arguments.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:{}")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:{0}")]
async fn indexed(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
