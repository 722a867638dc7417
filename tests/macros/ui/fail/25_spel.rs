// A placeholder in the syntax of Spring's expression language would become literal text of the key.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:#id")]
async fn plain(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:#{id}")]
async fn hash(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:${id}")]
async fn dollar(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
