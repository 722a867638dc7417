//! A job of `apalis-cron` that runs once per fire time, although every machine has a worker.
//!
//! A tick contains the fire time of the schedule, which is the same on every machine. `once` is the function of the recipe
//! `once_per_fire_time`. While a job waits for its lock, the worker starts the jobs of the next fire times. A worker
//! returns an error if it was not polled at a fire time, for instance because its machine was suspended. It does not
//! recover from this error, so the loop builds another worker.

use std::str::FromStr;

use apalis::prelude::*;
use apalis_cron::{CronScheduler, Tick};
use cron::Schedule;
use lock_runtime::LockClient;
use recipes::once_per_fire_time::once;
use sqlx::SqlitePool;

async fn job(
    tick: Tick,
    locks: Data<LockClient>,
    database: Data<SqlitePool>,
) -> Result<(), BoxDynError> {
    let fire_time = tick.get_timestamp().cast_signed();
    let work = crate::report(&database, fire_time);
    once(&locks, &database, "report", fire_time, work).await?;
    Ok(())
}

/// Runs the job at each fire time of `schedule`, until the worker is stopped.
///
/// # Errors
/// Returns an error if the schedule is not valid.
pub async fn run(
    schedule: &str,
    locks: LockClient,
    database: SqlitePool,
) -> Result<(), BoxDynError> {
    let schedule = Schedule::from_str(schedule)?;
    loop {
        let worker = WorkerBuilder::new("report")
            .backend(CronScheduler::new(schedule.clone()))
            .data(locks.clone())
            .data(database.clone())
            .build(job);
        match worker.run().await {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("the worker begins again: {error}"),
        }
    }
}
