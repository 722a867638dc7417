// A lock that fails needs an error to return.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> u64 {
    1
}

fn main() {}
