// Recognised, so that the answer is no guess.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = ["order:<id>"])]
async fn f0(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = read)]
async fn f1(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", strategy = notify)]
async fn f2(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", on_busy = skip)]
async fn f3(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", hold_at_least = "10s")]
async fn f4(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = wrap)]
async fn f5(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
