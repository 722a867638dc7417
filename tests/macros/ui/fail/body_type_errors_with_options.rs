// Whatever the options, a wrong type in the body is reported once, on its own line.
use lock_runtime::{LockError, distributed_lock};

struct PayError;

#[distributed_lock(key = "order:<id>", on_busy = fallback(later))]
async fn falls_back(id: u64) -> Result<(), LockError> {
    Ok(id)
}

async fn later(_id: u64, error: LockError) -> Result<(), LockError> {
    Err(error)
}

#[distributed_lock(key = "order:<id>", on_busy = skip)]
async fn skipped(id: u64) -> Result<Option<u64>, LockError> {
    Ok(id)
}

fn wrap(_: LockError) -> PayError {
    PayError
}

#[distributed_lock(key = "order:<id>", map_err = wrap, on_busy = skip)]
async fn mapped(id: u64) -> Result<Option<u64>, PayError> {
    if id == 0 {
        return Err("zero");
    }
    Ok(Some(id))
}

#[distributed_lock(keys = ["from:<from>", "to:<to>"], guard = holds)]
async fn several(from: u64, to: u64) -> Result<(), LockError> {
    holds.token();
    Ok(())
}

fn main() {}
