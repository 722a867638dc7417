// A placeholder cannot contain another placeholder.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<a<id>>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
