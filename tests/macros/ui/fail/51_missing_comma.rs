// Options are separated by commas.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>" wait = "5s")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
