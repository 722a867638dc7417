// `#[tokio::main]` and `#[tokio::test]` generate sync functions, so they belong below `#[distributed_lock]`.
use lock_runtime::{LockError, distributed_lock};

#[tokio::test]
#[distributed_lock(key = "suite")]
async fn below_test() -> Result<(), LockError> {
    Ok(())
}

#[tokio::main]
#[distributed_lock(key = "job")]
async fn below_main() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "job")]
#[tokio::main]
async fn main() -> Result<(), LockError> {
    Ok(())
}
