// A placeholder has to name the field of `self` that identifies it, not all of `self`.
use lock_runtime::{LockError, distributed_lock};

struct Order {
    id: u64,
}

impl Order {
    #[distributed_lock(key = "order:<self>")]
    async fn pay(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
