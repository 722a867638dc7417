// `permits` and `take` are of type `u32`. rustc reports another type at the value.
use lock_runtime::{LockError, distributed_lock};

const GPUS: usize = 8;

#[distributed_lock(key = "gpu:<host>", permits = GPUS)]
async fn constant(host: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "gpu:<host>", permits = 8, take = jobs)]
async fn argument(host: &str, jobs: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "gpu:<host>", permits = 8, take = jobs)]
async fn part_of_a_pattern(host: &str, (jobs, _): (u32, u32)) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "gpu:<host>", permits = limit)]
async fn unknown(host: &str) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
