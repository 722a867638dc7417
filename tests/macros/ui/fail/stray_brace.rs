// A key with a brace outside its one hash tag would be refused at every call, so it is a compile error.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:{<id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "{order}:{<id>}")]
async fn two(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
