// Below `#[tokio::main]` the attribute sees the `main` that `#[tokio::main]` generated, which is not async.
use lock_runtime::{LockError, distributed_lock};

mod written {
    use super::*;

    #[distributed_lock(key = "job")]
    fn main() {}
}

#[tokio::main]
#[distributed_lock(key = "job", client = todo!())]
async fn main() -> Result<(), LockError> {
    Ok(())
}
