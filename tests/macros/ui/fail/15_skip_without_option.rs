// A skipped call returns `Ok(None)`, so the return type has to be a `Result` of an `Option`.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", on_busy = skip)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
