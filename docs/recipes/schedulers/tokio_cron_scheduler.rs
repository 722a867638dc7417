//! A job of `tokio-cron-scheduler` that runs once per fire time, although every machine has a scheduler.
//!
//! The scheduler does not tell a job its fire time, and calls it up to half a second late. The job therefore looks up the
//! last fire time before now, with the parser that the scheduler itself uses. If a call is later than the time between two
//! fire times, the earlier of the two is skipped. `once` is the function of the recipe `once_per_fire_time`.

use chrono::Utc;
use croner::parser::{CronParser, Seconds};
use lock_runtime::LockClient;
use recipes::once_per_fire_time::{Error, once};
use sqlx::SqlitePool;
use tokio_cron_scheduler::{Job, JobScheduler};

/// Starts a scheduler that runs the job at each fire time of `schedule`.
///
/// # Errors
/// Returns an error if the schedule is not valid.
pub async fn start(
    schedule: &str,
    locks: LockClient,
    database: SqlitePool,
) -> Result<JobScheduler, Error> {
    let parser = CronParser::builder()
        .seconds(Seconds::Required)
        .dom_and_dow(true)
        .build();
    let cron = parser.parse(schedule)?;
    let job = Job::new_async(schedule, move |_, _| {
        let (cron, locks, database) = (cron.clone(), locks.clone(), database.clone());
        Box::pin(async move {
            let now = Utc::now();
            let Ok(fire_time) = cron.find_previous_occurrence(&now, true) else {
                return;
            };
            let fire_time = fire_time.timestamp();
            let work = crate::report(&database, fire_time);
            if let Err(error) = once(&locks, &database, "report", fire_time, work).await {
                eprintln!("no report of {fire_time}: {error}");
            }
        })
    })?;
    let scheduler = JobScheduler::new().await?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}
