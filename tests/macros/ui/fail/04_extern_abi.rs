// Foreign code cannot await.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
extern "C" fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
