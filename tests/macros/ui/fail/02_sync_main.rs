// Below `#[tokio::main]` the attribute sees the `main` that `#[tokio::main]` generated, which is not async.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "job")]
fn main() {}
