// A placeholder in the syntax of a shell, of SQL, of a router or the like would become literal text of the key.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a:$id")]
async fn dollar(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = ":id")]
async fn colon(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "%id")]
async fn percent(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "[id]")]
async fn brackets(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "(id)")]
async fn parentheses(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "<<id>>")]
async fn literal(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
