// `keys` has to be a list without duplicates, and each key in it is checked.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = "account:<from>")]
async fn no_list(from: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<from>", "account:<from>"])]
async fn twice(from: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<from>", "account:<too>"])]
async fn unknown(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
