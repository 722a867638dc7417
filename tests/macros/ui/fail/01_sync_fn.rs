// A function that is not async cannot wait without blocking its thread.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
