// `#[async_trait]` moves the bindings of a pattern into the body, so the key is rendered before the names are bound.
use async_trait::async_trait;
use lock_runtime::{LockError, distributed_lock};

struct Path<T>(T);

struct Shop;

#[async_trait]
trait Pays {
    async fn pay(&self, id: Path<u64>) -> Result<(), LockError>;
}

#[async_trait]
impl Pays for Shop {
    #[distributed_lock(key = "order:<id>")]
    async fn pay(&self, Path(id): Path<u64>) -> Result<(), LockError> {
        drop(id);
        Ok(())
    }
}

fn main() {}
