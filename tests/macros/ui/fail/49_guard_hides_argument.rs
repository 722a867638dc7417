// A guard with the name of an argument would hide that argument from the body.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", guard = id)]
async fn pay(id: u64) -> Result<(), LockError> {
    let _: u64 = id;
    Ok(())
}

#[distributed_lock(key = "order", guard = part)]
async fn pattern((part, _): (u64, u64)) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
