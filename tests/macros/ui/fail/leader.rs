//! The mistakes in uses of `#[leader]`.

use lock_runtime::{LockError, Term, leader};

#[leader(name = "scheduler")]
async fn without_a_name(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("scheduler", wait = "5s")]
async fn with_a_wait(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("scheduler", max_hold = "1h")]
async fn with_max_hold(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("scheduler", strategy = spin)]
async fn with_a_strategy(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("scheduler", lease = "500ms")]
async fn with_a_short_lease(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("scheduler", max_term = "6 hours")]
async fn with_another_time(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("shard:<idd>")]
async fn with_an_unknown_name(_: Term, id: u64) -> Result<(), LockError> {
    drop(id);
    Ok(())
}

#[leader("scheduler")]
async fn with_a_pattern(_: Term, (a, b): (u64, u64)) -> Result<(), LockError> {
    drop((a, b));
    Ok(())
}

struct Service;

impl Service {
    #[leader("scheduler")]
    async fn consumed(self, _: Term) -> Result<(), LockError> {
        Ok(())
    }
}

#[leader("scheduler")]
fn not_async(_: Term) -> Result<(), LockError> {
    Ok(())
}

#[leader("scheduler", permits = 2)]
async fn with_permits(_: Term) -> Result<(), LockError> {
    Ok(())
}

struct NotClone;

#[leader("scheduler")]
async fn with_an_argument_that_cannot_be_cloned(_: Term, one: NotClone) -> Result<(), LockError> {
    drop(one);
    Ok(())
}

fn main() {}
