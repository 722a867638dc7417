// A fallback that is a method has to be named with its type, as in `Self::later`.
use lock_runtime::{LockError, distributed_lock};

struct Shop;

impl Shop {
    #[distributed_lock(key = "order:<id>", on_busy = fallback(later))]
    async fn pay(&self, id: u64) -> Result<(), LockError> {
        Ok(())
    }

    async fn later(&self, _id: u64, error: LockError) -> Result<(), LockError> {
        Err(error)
    }
}

fn main() {}
