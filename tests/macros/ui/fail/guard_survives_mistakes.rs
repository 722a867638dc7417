// A mistake elsewhere does not unbind the guard.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(kye = "order:<id>", guard = hold)]
async fn pay(id: u64) -> Result<(), LockError> {
    hold.token();
    Ok(())
}

fn main() {}
