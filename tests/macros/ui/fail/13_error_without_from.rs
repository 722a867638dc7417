// The error type has to implement `From<LockError>`.
use lock_runtime::distributed_lock;

struct PayError;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> Result<(), PayError> {
    Ok(())
}

fn main() {}
