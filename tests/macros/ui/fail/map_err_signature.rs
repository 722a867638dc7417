// `map_err` converts a `LockError` into the function's error. A wrong type is reported at the value of `map_err`.
use lock_runtime::{LockError, distributed_lock};

enum PayError {
    Lock(LockError),
    Other(String),
}

#[distributed_lock(key = "order:<id>", map_err = PayError::Other)]
async fn another_argument(id: u64) -> Result<(), PayError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = PayError::Lock)]
async fn another_error(id: u64) -> Result<(), String> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = PayError::Lock)]
async fn no_result(id: u64) -> u64 {
    1
}

#[distributed_lock(key = "order:<id>", map_err = |error| error)]
async fn closure_of_another_error(id: u64) -> Result<(), PayError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", map_err = |_| PayError::Other(id.to_string()))]
async fn capture(id: u64) -> Result<(), PayError> {
    Ok(())
}

fn main() {}
