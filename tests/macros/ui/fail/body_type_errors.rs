// A wrong type in the body is reported once, on its own line.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>")]
async fn early(id: u64) -> Result<(), LockError> {
    if id == 0 {
        return Err("zero");
    }
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn question(id: u64) -> Result<(), LockError> {
    "x".parse::<u64>()?;
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn semicolon(id: u64) -> Result<(), LockError> {
    Ok(());
}

fn main() {}
