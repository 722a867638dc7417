//! Attributes of other crates beside the attribute.

use super::{Locked, LockError, pause, used};
use lock_runtime::LockClient;

/// Returns a client.
pub async fn client() -> LockClient {
    pause().await;
    match LockClient::current() {
        Ok(client) => client,
        Err(_) => loop {
            pause().await;
        },
    }
}

// shape: instrument_above
#[tracing::instrument(skip(other))]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn instrument_above(id: u64, other: u64) -> Locked<u64> {
    pause().await;
    Ok(id ^ other)
}

// shape: instrument_below
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
#[tracing::instrument(skip_all, err, ret, fields(id = id))]
pub async fn instrument_below(
    id: u64,
    (first, _): (u64, u64),
) -> Locked<u64> {
    pause().await;
    Ok(id ^ first)
}

// shape: instrument_under_async_trait
#[async_trait::async_trait]
pub trait Traced {
    #[tracing::instrument(skip(self))]
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn traced(&self, id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    #[tracing::instrument(skip(self), err)]
    async fn traced_below(&self, id: u64) -> Locked<u64> {
        pause().await;
        return Ok(id);
    }
}

// shape: main
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a", client = client().await))]
#[tokio::main]
pub async fn main() -> Locked<()> {
    #[cfg(not(annotated))] drop(client());
    let unused = 1;
    pause().await;
    Ok(())
}

// shape: main_without_await
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a", client = client().await))]
#[tokio::main(flavor = "current_thread")]
pub async fn main_without_await() -> Result<(), LockError> {
    #[cfg(not(annotated))] drop(client());
    used(1);
    return Ok(());
}
