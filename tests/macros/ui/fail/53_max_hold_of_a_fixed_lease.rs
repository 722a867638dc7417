// `max_hold` limits the renewal, but a fixed lease is not renewed.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "30s", max_hold = "10m")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
