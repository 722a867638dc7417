// Options are written `name = value`.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock("order:<id>")]
async fn no_name(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", = "5s")]
async fn only_a_value(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait("5s"))]
async fn parentheses(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait =)]
async fn no_value(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
