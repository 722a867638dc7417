// The guard is declared despite a mistake in the attribute, so its use in the body causes no second error.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(kye = "order:<id>", guard = hold)]
async fn pay(id: u64) -> Result<(), LockError> {
    hold.token();
    Ok(())
}

fn main() {}
