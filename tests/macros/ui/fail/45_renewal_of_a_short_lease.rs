// A renewed lease has to be long enough for the round trips of its renewals.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "500ms", renew = true)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
