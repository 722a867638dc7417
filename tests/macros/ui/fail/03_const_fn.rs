// A `const fn` cannot wait for a lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
const fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
