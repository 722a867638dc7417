// Blanks at the ends and control characters are refused, because keys that look equal could name different locks.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = " order:<id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>\n")]
async fn line(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>\u{202E}", namespace = "shop\u{2028}")]
async fn reversed(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
