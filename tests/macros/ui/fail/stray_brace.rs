// A brace outside the one hash tag of a key is a compile error, because every call with the key would fail.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:{<id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "{order}:{<id>}")]
async fn two(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
