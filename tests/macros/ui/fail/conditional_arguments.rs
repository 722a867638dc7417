// A key can name an argument under a `cfg`, as long as the argument is there.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<tenant>")]
async fn left_out(#[cfg(any())] tenant: &str, id: &str) -> Result<usize, LockError> {
    Ok(id.len())
}

#[distributed_lock(keys = ["order:<tenant>", "tenant:<tenant>:<id>"])]
async fn twice(#[cfg(any())] tenant: u64, #[cfg(any())] tenant: u32, id: &str) -> Result<usize, LockError> {
    Ok(id.len())
}

#[distributed_lock(key = "order:<tenant>")]
async fn part(#[cfg(any())] (tenant, _): (u64, u64), id: &str) -> Result<usize, LockError> {
    Ok(id.len())
}

#[distributed_lock(key = "order:<id>")]
async fn option(#[cfg(all())] id: Option<u64>, #[cfg(any())] id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
