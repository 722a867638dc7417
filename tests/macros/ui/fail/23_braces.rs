// Braces are a Redis Cluster hash tag, not a placeholder, so all calls would share the lock `order:{id}`.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
