// Two attributes take their locks in the order in which they are written. With another order elsewhere, calls deadlock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
#[distributed_lock(key = "b")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
