// The key contains an opening bracket without a closing bracket.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
