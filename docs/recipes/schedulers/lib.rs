//! Jobs of two schedulers that run once per fire time.

pub mod apalis_cron;
pub mod tokio_cron_scheduler;

use recipes::once_per_fire_time::Error;
use sqlx::SqlitePool;

/// The work of the jobs: adds a row to the table `reports`.
async fn report(database: &SqlitePool, fire_time: i64) -> Result<String, Error> {
    let insert = sqlx::query("INSERT INTO reports (fire_time) VALUES ($1)").bind(fire_time);
    insert.execute(database).await?;
    Ok(format!("the report of {fire_time}"))
}
