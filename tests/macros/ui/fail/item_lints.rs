// Lints about an annotated function, its documentation and its body are the same as without the attribute.
#![forbid(unsafe_code)]
#![deny(dead_code, missing_docs, unused_variables, unused_mut, unused_must_use, unreachable_code)]

//! The crate.

use lock_runtime::{LockError, distributed_lock};

/// Reads.
#[distributed_lock(key = "a:<id>")]
pub async unsafe fn unsafe_function(id: u64, pointer: *const u64) -> Result<u64, LockError> {
    let _ = pointer;
    Ok(id)
}

#[distributed_lock(key = "a:<id>")]
async fn dead(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

/// A service.
pub struct Service;

impl Service {
    #[distributed_lock(key = "a:<id>")]
    async fn dead(&self, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }

    #[distributed_lock(key = "a:<id>")]
    pub async fn undocumented(
        &self,
        id: u64,
    ) -> Result<u64, LockError> {
        Ok(id)
    }
}

/// Has lints in its signature and its body.
#[distributed_lock(key = "a:<id>")]
pub async fn body(id: u64, unused: u64, mut fixed: u64) -> Result<u64, LockError> {
    Ok::<u64, LockError>(fixed);
    return Ok(1);
    Ok(2)
}

fn main() {}
