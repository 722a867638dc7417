// A lease that is renewed has to leave time for the round trips of the renewals.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "500ms", renew = true)]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
