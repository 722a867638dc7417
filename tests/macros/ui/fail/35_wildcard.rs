// `_` does not name an argument.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<_>")]
async fn pay(_: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
