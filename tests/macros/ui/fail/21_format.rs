// A macro in the key is expanded only after the attribute, so it cannot build the key.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = format!("order:{id}"))]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = concat!("order:", "<id>"))]
async fn joined(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
