// The key contains a closing bracket without an opening bracket.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
