// A required method has no body to lock.
use lock_runtime::{LockError, distributed_lock};

trait Pay {
    #[distributed_lock(key = "order:<id>")]
    async fn pay(&self, id: u64) -> Result<(), LockError>;
}

fn main() {}
