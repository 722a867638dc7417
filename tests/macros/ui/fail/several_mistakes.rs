// All mistakes of one attribute are reported at once.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<di>", wait = "5", lease = "1ms", frobnicate)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
