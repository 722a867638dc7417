// Without a separator, the arguments `1, 23` and `12, 3` would give the same key.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "<a><b>")]
async fn none(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "<a>x<b>")]
async fn letter(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "<a>-<b>")]
async fn dash(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
