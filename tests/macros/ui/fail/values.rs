// For a wrong value, the message says which values the option takes.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", on_lost = "continue")]
async fn on_lost(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", strategy = "spin")]
async fn strategy(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", on_busy = fallback)]
async fn on_busy(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", namespace = SHOP)]
async fn namespace(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", namespace = " shop")]
async fn blank_namespace(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", guard = "hold")]
async fn guard(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", crate = 5)]
async fn path(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", release = async, wait = "5s")]
async fn release(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = async |error| error)]
async fn map_err(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", replicas = "1")]
async fn replicas(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
