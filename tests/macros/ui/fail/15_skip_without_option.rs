// A call that is skipped has no value: `Ok(None)` needs a place in the return type.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", on_busy = skip)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
