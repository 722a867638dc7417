// The names in a pattern are bound inside the body, after the key is made.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn pay((id, _amount): (u64, u64)) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
