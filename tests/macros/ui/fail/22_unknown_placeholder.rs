// The placeholder does not name an argument of the function.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<order_di>")]
async fn pay(order_id: u64, amount: u64) -> Result<(), LockError> {
    Ok(())
}

// The mistake causes no second error, although the body does not use the arguments.
#[forbid(unused_variables)]
#[distributed_lock(key = "order:<customer>")]
async fn far(order_id: u64, amount: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn none() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
