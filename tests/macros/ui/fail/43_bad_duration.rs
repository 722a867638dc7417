// The value is not a valid duration, or it is out of range.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", wait = "soon")]
async fn f0(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = "-5s")]
async fn f1(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = -5)]
async fn f2(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = "1.5s")]
async fn f3(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = "5 s")]
async fn f4(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = "99999999999999999999s")]
async fn f5(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = "2d")]
async fn f6(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wait = 1..5)]
async fn f7(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
