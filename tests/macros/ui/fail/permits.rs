// The options of a semaphore: literals are checked when the attribute is expanded, and the type of every value is checked.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "smtp", permits = 10, mode = read)]
async fn with_a_mode() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["smtp", "imap"], permits = 10, take = 2)]
async fn with_keys() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "gpu:<host>", take = jobs)]
async fn take_alone(host: &str, jobs: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = 0)]
async fn no_permits() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = 1_001)]
async fn too_many_permits() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = 10, take = 0)]
async fn takes_nothing() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = 10, take = 11)]
async fn takes_too_much() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = limit, take = 1001)]
async fn takes_more_than_any_semaphore_has(limit: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = "10")]
async fn permits_in_quotes() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = 10, take = "jobs")]
async fn take_in_quotes(jobs: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = -1)]
async fn negative() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits = 10usize)]
async fn another_suffix() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", mode = permits(GPUS))]
async fn as_a_mode() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", permits(10))]
async fn called() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "smtp", max_concurrency = 10)]
async fn another_name() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
