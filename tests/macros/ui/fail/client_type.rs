// The expression for the client has the wrong type.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", client = 5)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
