// The return type is not a `Result`, so the call could not report that it did not get its lock.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> u64 {
    1
}

fn main() {}
