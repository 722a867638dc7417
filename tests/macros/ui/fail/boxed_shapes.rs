// A function that boxes its future can be locked only if it ends in `Box::pin(async move { … })`.
use std::{future::Future, pin::Pin};

use lock_runtime::{LockError, distributed_lock};

type Boxed = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

#[distributed_lock(key = "order:<id>")]
fn another_end(id: u64) -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>> {
    another(id)
}

#[distributed_lock(key = "order", on_busy = fallback(later))]
fn pattern((id, _): (u64, u64)) -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>> {
    Box::pin(async move {
        drop(id);
        Ok(())
    })
}

#[distributed_lock(key = "order:<id>")]
async fn never(id: u64) -> ! {
    std::process::exit(0)
}

type Number = Pin<Box<dyn Future<Output = u64> + Send>>;

#[distributed_lock(key = "order:<id>")]
fn no_result(id: u64) -> Number {
    Box::pin(async move { id })
}

fn another(_id: u64) -> Boxed {
    Box::pin(async { Ok(()) })
}

fn main() {}
