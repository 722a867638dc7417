// Nothing says that a `T` has a text.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn pay<T>(id: T) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
