// With zero permits, no call could ever get the lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", mode = permits(0))]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = "read")]
async fn look(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
