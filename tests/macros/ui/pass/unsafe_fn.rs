// Unsafe functions are tested in a file for trybuild, because the workspace forbids `unsafe` in its own code.
#![deny(warnings)]

use async_trait::async_trait;
use lock_runtime::{LockClient, LockError, distributed_lock};

/// # Safety
/// `id` must point to a valid `u64`.
#[distributed_lock(key = "order:<at.0>")]
async unsafe fn read(at: (u64,), id: *const u64) -> Result<u64, LockError> {
    let held = LockClient::current()?.lock("order:7");
    assert!(held.is_held_here());
    let read = unsafe { id.read() };
    tokio::task::yield_now().await;
    Ok(at.0 + read)
}

#[async_trait(?Send)]
trait Reads {
    async unsafe fn read(&self, id: *const u64) -> Result<u64, LockError>;
}

#[async_trait(?Send)]
impl Reads for u64 {
    #[distributed_lock(key = "number")]
    async unsafe fn read(&self, id: *const u64) -> Result<u64, LockError> {
        let held = LockClient::current()?.lock("number");
        assert!(held.is_held_here());
        Ok(self + unsafe { id.read() })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = LockClient::connect("memory:").await?;
    let one = 1;
    assert_eq!(client.scope(unsafe { read((7,), &one) }).await, Ok(8));
    assert_eq!(client.scope(unsafe { Reads::read(&7, &one) }).await, Ok(8));
    for key in ["order:7", "number"] {
        assert_eq!(client.lock(key).status().await?.holder, None);
    }
    Ok(())
}
