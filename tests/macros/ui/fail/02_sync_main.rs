// Below `#[tokio::main]` the attribute sees the sync `main` that the other one left.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "job")]
fn main() {}
