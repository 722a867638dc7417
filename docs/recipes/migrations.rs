//! A migration runner. Every instance of a service calls `migrate` when it starts, and each migration runs once.
//!
//! The version that an instance reads before it has the lock is old, so it reads the version again under the lock. Each
//! migration is a transaction that begins with a fenced update of the version. If an instance loses its lock, a later
//! holder's token refuses the rest of its migrations. This needs a database that undoes changes of the schema with their
//! transaction, such as Postgres or SQLite. MySQL commits them at once, so each migration there must be repeatable.

use lock_runtime::{LockClient, distributed_lock};
use sqlx::SqlitePool;

/// The errors of a migration.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_version (
    one INTEGER PRIMARY KEY, version BIGINT NOT NULL, lock_token BIGINT NOT NULL)";
const FIRST: &str = "INSERT INTO schema_version VALUES (1, 0, 0) ON CONFLICT DO NOTHING";
const CLAIM: &str =
    "UPDATE schema_version SET lock_token = $1 WHERE lock_token <= $1 RETURNING version";
const STEP: &str =
    "UPDATE schema_version SET version = $1 + 1 WHERE version = $1 AND lock_token = $2";
const OVERTAKEN: &str = "a later holder of the lock has begun to migrate";

/// Runs the migrations that the database lacks.
///
/// # Errors
/// Returns the errors of the database and of the lock. Each migration has then run completely or not at all.
pub async fn migrate(
    locks: &LockClient,
    database: &SqlitePool,
    migrations: &[&str],
) -> Result<(), Error> {
    // Most starts find nothing to do, and need no lock. The query fails if the table does not exist yet.
    let version = sqlx::query_scalar("SELECT version FROM schema_version");
    let version: i64 = version.fetch_one(database).await.unwrap_or(0);
    if version >= migrations.len() as i64 {
        return Ok(());
    }
    run(locks, database, migrations).await
}

#[distributed_lock(key = "migrations", wait = "10m", client = locks, guard = hold)]
async fn run(locks: &LockClient, database: &SqlitePool, migrations: &[&str]) -> Result<(), Error> {
    sqlx::raw_sql(TABLE).execute(database).await?;
    sqlx::raw_sql(FIRST).execute(database).await?;
    let token = hold.token().get().cast_signed();
    // From here on, the table refuses the migrations of earlier holders.
    let claim = sqlx::query_scalar(CLAIM).bind(token);
    let version: Option<i64> = claim.fetch_optional(database).await?;
    for version in version.ok_or(OVERTAKEN)?..migrations.len() as i64 {
        step(database, version, token, migrations[version as usize]).await?;
    }
    Ok(())
}

/// Runs one migration, unless a later holder has claimed the table.
pub async fn step(database: &SqlitePool, version: i64, token: i64, sql: &str) -> Result<(), Error> {
    let mut transaction = database.begin().await?;
    // The update is first, because it locks the row for the rest of the transaction.
    let step = sqlx::query(STEP).bind(version).bind(token);
    if step.execute(&mut *transaction).await?.rows_affected() == 0 {
        return Err(OVERTAKEN.into());
    }
    sqlx::raw_sql(sql).execute(&mut *transaction).await?;
    Ok(transaction.commit().await?)
}
