// The key contains an argument of type `T`, but no bound says that `T` implements `Display`.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn pay<T>(id: T) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
