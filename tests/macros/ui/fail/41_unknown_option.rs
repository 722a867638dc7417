// The attribute has no option with this name. Some names resemble an option, and others belong to another library.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", laese = "5s")]
async fn f0(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", frobnicate = true)]
async fn f1(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", timeout = "5s")]
async fn f2(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", waitTime = "5s")]
async fn f3(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", ttl = "5s")]
async fn f4(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", expire = "5s")]
async fn f5(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", leaseTime = "5s")]
async fn f6(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
