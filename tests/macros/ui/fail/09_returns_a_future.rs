// A function that returns a future can run code before the future is polled, and that code would run without the lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
fn pay(id: u64) -> impl Future<Output = Result<(), LockError>> {
    async move { Ok(()) }
}

fn main() {}
