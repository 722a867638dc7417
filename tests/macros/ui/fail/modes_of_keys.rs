// A key of a list can have a mode of its own. The message for any other word says what to write instead.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = ["account:<id>", shared "rates"])]
async fn shared(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<id>", reads("rates")])]
async fn reads(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<id>", read rates])]
async fn no_text(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<id>", read "account:<id>"])]
async fn twice(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = read "rates")]
async fn one_key() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = read "rates")]
async fn no_list() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
