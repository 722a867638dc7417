// The attribute applies to one function. In an impl block, each method needs its own attribute.
use lock_runtime::{LockError, distributed_lock};

struct S;

#[distributed_lock(key = "job")]
impl S {
    async fn pay(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
