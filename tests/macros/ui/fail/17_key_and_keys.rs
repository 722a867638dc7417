// A function can have `key` or `keys`, but not both.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", keys = ["order:<id>"])]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
