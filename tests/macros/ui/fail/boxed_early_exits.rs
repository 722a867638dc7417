// In a function that boxes its future, a `return` or `?` before `Box::pin(async move { … })` would skip the lock.
use std::{future::Future, pin::Pin};

use lock_runtime::{LockError, distributed_lock};

type Boxed = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

#[distributed_lock(key = "order:<id>")]
fn pay(id: u64, fast: bool) -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>> {
    if fast {
        return Box::pin(async move { charge(id).await });
    }
    Box::pin(async move { charge(id).await })
}

#[distributed_lock(key = "order:<id>")]
fn aliased(id: Option<u64>) -> Boxed {
    let Some(id) = id else {
        return Box::pin(async { Err(LockError::ShutDown) });
    };
    let half = id.checked_div(2)?;
    Box::pin(async move { charge(half).await })
}

async fn charge(_id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
