// The function returns nothing, so the call could not report that it did not get its lock.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) {}

#[distributed_lock(key = "order:<id>")]
async fn unit(id: u64) -> () {}

fn main() {}
