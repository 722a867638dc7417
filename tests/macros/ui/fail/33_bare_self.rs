// A placeholder has to name a field of `self`, as in `<self.id>`, not `self` itself.
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
