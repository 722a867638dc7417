// An argument that only the options use is not reported as unused. `#[async_trait]` binds the arguments again in the body.
#![deny(warnings)]

use std::time::Duration;

use async_trait::async_trait;
use lock_runtime::{LockClient, LockError, distributed_lock};

struct Pair(u64, u64);

#[async_trait]
trait Job {
    async fn run(&self, tenant: u64, limit: Duration, _kind: &str) -> Result<u64, LockError>;
}

#[async_trait]
impl Job for Pair {
    // Only the options use the arguments.
    #[distributed_lock(key = "nightly:<tenant>:<_kind>", wait = limit)]
    async fn run(&self, tenant: u64, limit: Duration, _kind: &str) -> Result<u64, LockError> {
        Ok(self.0 + self.1)
    }
}

#[distributed_lock(key = "<tenant>:<_kind>:<left>", wait = limit, client = locks)]
async fn only_in_the_options(
    tenant: u64,
    limit: Duration,
    _kind: &str,
    Pair(left, _): Pair,
    (locks,): (LockClient,),
) -> Result<(), LockError> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let client = LockClient::connect("memory:").await.unwrap();
    let wait = Duration::from_secs(1);
    client.scope(Pair(1, 2).run(1, wait, "c")).await?;
    only_in_the_options(1, wait, "c", Pair(1, 2), (client,)).await
}
