// A placeholder is an argument or a field of one, not an expression.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id.to_string()>")]
async fn call(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id + 1>")]
async fn sum(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id[0]>")]
async fn index(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<&id>")]
async fn borrow(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<Self::ID>")]
async fn path(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
