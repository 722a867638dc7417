// A lock has the modes `read` and `write`. The message for any other value says what to write instead.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", mode = "read")]
async fn in_quotes(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = reader)]
async fn reader(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = shared)]
async fn shared(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = Mode::Write)]
async fn path(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = optimistic)]
async fn unknown(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = permits(3))]
async fn permits(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode = read, mode = write)]
async fn twice(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", mode)]
async fn no_value(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
