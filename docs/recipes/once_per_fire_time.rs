//! A job that every machine starts, and that runs once per fire time.
//!
//! The clocks of two machines differ. The second machine can start the job after the first machine has ended it and has
//! released the lock, so the lock alone does not prevent a second run. The fire time in the key gives each run a lock of
//! its own, and a row of the table `runs` records that the run is done.
//!
//! `hold_at_least` with a key that does not contain the fire time drifts, because its time begins with the grant. If the
//! time is shorter than the difference of the clocks, a run is repeated. If a grant is late, the lock can still be taken at
//! the next fire time, and that run is skipped. With the fire time in the key, `hold_at_least` may replace the table, if a
//! second run after a crash, or after a loss of the lock server's data, does no harm.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_runtime::{LockClient, distributed_lock};
use sqlx::SqlitePool;

/// The errors of a job.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The table of the runs that are done.
pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS runs (
    job TEXT, fire_time BIGINT, result TEXT NOT NULL, PRIMARY KEY (job, fire_time))";
const FIND: &str = "SELECT result FROM runs WHERE job = $1 AND fire_time = $2";
const RECORD: &str = "INSERT INTO runs (job, fire_time, result) VALUES ($1, $2, $3)
    ON CONFLICT DO NOTHING";

/// Returns the last fire time, in seconds since 1970, of a job that fires at each multiple of `every`.
pub fn fire_time(now: SystemTime, every: Duration) -> i64 {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    (now - now % every.as_secs().max(1)).cast_signed()
}

/// Does the work of one fire time, and records its result. Returns `None` if the work was already done.
///
/// # Errors
/// Returns the errors of the work, of the database and of the lock. A machine that waits for the lock then does the work.
#[distributed_lock(key = "job:<job>:<fire_time>", wait = "1h", client = locks)]
pub async fn once(
    locks: &LockClient,
    database: &SqlitePool,
    job: &str,
    fire_time: i64,
    work: impl Future<Output = Result<String, Error>> + Send,
) -> Result<Option<String>, Error> {
    // A machine that has waited for the lock, or whose clock is behind, finds the record.
    let find = sqlx::query(FIND).bind(job).bind(fire_time);
    if find.fetch_optional(database).await?.is_some() {
        return Ok(None);
    }
    // If this machine crashes before it has recorded the result, another machine repeats the work.
    let result = work.await?;
    // The primary key refuses the record of a holder that has lost its lock.
    let record = sqlx::query(RECORD).bind(job).bind(fire_time).bind(&result);
    let recorded = record.execute(database).await?.rows_affected();
    Ok((recorded == 1).then_some(result))
}
