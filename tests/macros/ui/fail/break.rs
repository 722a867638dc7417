// A `break` or `continue` cannot leave the body, as in a plain `async fn`.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn broken(id: u64) -> Result<u64, LockError> {
    if id == 1 {
        break;
    }
    Ok(id)
}

#[distributed_lock(key = "order:<id>")]
async fn labelled(id: u64) -> Result<u64, LockError> {
    break '__body Ok(id)
}

fn main() {}
