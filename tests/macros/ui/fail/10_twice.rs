// Two attributes take their locks in the order written. A function with the other order could deadlock with this one.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
#[distributed_lock(key = "b")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
