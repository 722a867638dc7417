// Paths are not quoted, because neither rustc nor an editor would resolve a name inside a string.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", on_busy = fallback("later"))]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", on_busy = "skip")]
async fn report(id: u64) -> Result<Option<u64>, LockError> {
    Ok(Some(id))
}

#[distributed_lock(key = "order:<id>", on_busy = fallback(|id, error| async { Ok(()) }))]
async fn ship(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = "PayError::Lock")]
async fn refund(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = wrap())]
async fn restock(id: u64) -> Result<(), LockError> {
    Ok(())
}

async fn later(_id: u64, _error: LockError) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
