// A list has to be iterable by reference, and its items have to implement `Display`.
use lock_runtime::{LockError, distributed_lock};

struct Secret;

struct Request {
    id: u64,
}

#[distributed_lock(keys = "item:<id..>")]
async fn one_value(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<text..>")]
async fn text(text: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<req.id..>")]
async fn field(req: Request) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<secrets..>")]
async fn secrets(secrets: Vec<Secret>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<ids..>")]
async fn options(ids: &[Option<u64>]) -> Result<(), LockError> {
    Ok(())
}

// rustc must not suggest a bound here, because a call with such a bound would lock no item.
#[distributed_lock(keys = ["cart", "item:<ids..>"])]
async fn hidden(ids: impl IntoIterator<Item = u64> + Send) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<ids..>")]
async fn generic<T: IntoIterator<Item = u64>>(ids: T) -> Result<(), LockError> {
    Ok(())
}

struct Cart<T> {
    items: T,
}

impl<T> Cart<T> {
    #[distributed_lock(keys = "item:<self.items..>")]
    async fn ship(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
