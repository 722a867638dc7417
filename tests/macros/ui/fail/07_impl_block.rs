// An impl block has many bodies: each method says its own key.
use lock_runtime::{LockError, distributed_lock};

struct S;

#[distributed_lock(key = "job")]
impl S {
    async fn pay(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
