// The value of an associated constant is checked only if the function is used.
use std::time::Duration;

use lock_runtime::{LockError, distributed_lock};

struct Shop;

impl Shop {
    const WAIT: Duration = Duration::from_secs(25 * 60 * 60);

    #[distributed_lock(key = "shop", wait = Self::WAIT)]
    async fn open(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {
    drop(Shop.open());
}
