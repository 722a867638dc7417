// A free function has no `self`.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<self.id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
