// A function that returns a future can be locked only if it ends in `async move { … }`. Code before the future runs
// without the lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
fn pay(id: u64) -> impl Future<Output = Result<(), LockError>> {
    later(id)
}

#[distributed_lock(key = "order:<id>")]
fn without_move(id: u64) -> impl Future<Output = Result<(), LockError>> {
    async { Ok(()) }
}

async fn later(_: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
