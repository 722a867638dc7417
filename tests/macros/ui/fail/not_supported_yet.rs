// The modes below are not supported yet. The message says what to write instead.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", mode = read)]
async fn shared(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = permits(3))]
async fn counted(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
