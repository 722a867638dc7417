// Stacked locks are taken in the order of the attributes, and another function may have the other order.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
#[distributed_lock(key = "b")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
