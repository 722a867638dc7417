// The value of `renew` is `true` or `false`, without quotes.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "30s", renew = "true")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
