// An `Option` cannot be part of a key, because all calls with `None` would share one lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn pay(id: Option<u64>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn borrowed(id: &std::option::Option<u64>) -> Result<(), LockError> {
    Ok(())
}

type Maybe = Option<u64>;

#[distributed_lock(key = "order:<id>")]
async fn alias(id: Maybe) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
