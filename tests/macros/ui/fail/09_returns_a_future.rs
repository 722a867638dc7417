// A function that returns a future runs before that future is polled, and thus outside the lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
fn pay(id: u64) -> impl Future<Output = Result<(), LockError>> {
    async move { Ok(()) }
}

fn main() {}
