// The empty key names nothing.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
