// A fallback takes the function's arguments and then the error, by value. A wrong signature is reported at its name.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", on_busy = fallback(without_error))]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

async fn without_error(_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", on_busy = fallback(another_type))]
async fn ship(id: u64) -> Result<(), LockError> {
    Ok(())
}

async fn another_type(_id: u64, _error: LockError) -> Result<u64, LockError> {
    Ok(1)
}

#[distributed_lock(key = "order:<id>", on_busy = fallback(not_async))]
async fn refund(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn not_async(_id: u64, _error: LockError) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", on_busy = fallback(cut))]
async fn cut_argument(id: u64, #[cfg(unix)] _unix: u8) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
