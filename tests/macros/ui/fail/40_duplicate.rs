// An option is given twice, so it is unclear which value applies.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", wait = "1s", wait = "2s")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
