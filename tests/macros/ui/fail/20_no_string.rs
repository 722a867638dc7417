// The macro parses the key at compile time, so the key has to be a string literal.
use lock_runtime::{LockError, distributed_lock};

const KEY: &str = "order";

#[distributed_lock(key = KEY)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = 42)]
async fn number(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
