//! An update that the database refuses if its sender has lost the lock.
//!
//! The row stores the highest fencing token so far. A holder first stores its own token, and then reads: from that moment
//! on, no earlier holder can change what it has read. The write compares the token again. A query that was sent before
//! the loss of the lock, or a body that blocks its thread, can therefore not overwrite the work of a later holder.

use lock_runtime::{LockClient, LockError, distributed_lock};
use sqlx::SqlitePool;

/// The guarded table. A fencing token is below 2^53, so a `BIGINT` holds it.
pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS stock (
    item TEXT PRIMARY KEY, left_over BIGINT NOT NULL, lock_token BIGINT NOT NULL DEFAULT 0)";
/// Stores the token of a holder, and reads the row.
pub const CLAIM: &str = "UPDATE stock SET lock_token = $1 WHERE item = $2 AND lock_token <= $1
    RETURNING left_over";
const TAKE: &str = "UPDATE stock SET left_over = $1 WHERE item = $2 AND lock_token = $3";

/// The reason why nothing was sold.
#[derive(Debug)]
pub enum SaleError {
    /// The lock was not acquired, or was lost.
    Lock(LockError),
    /// A later holder has the row, or the item has no row.
    Overtaken,
    /// No unit is left.
    SoldOut,
    /// The database failed.
    Database(sqlx::Error),
}

impl From<sqlx::Error> for SaleError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// Sells one unit of an item during the time of a payment, and returns how many units are left.
///
/// # Errors
/// Returns a [`SaleError`]. After `Lost`, the write may have been sent: read the row before you repeat the sale.
#[distributed_lock(key = "stock:<item>", client = locks, guard = hold, map_err = SaleError::Lock)]
pub async fn sell(
    locks: &LockClient,
    database: &SqlitePool,
    item: &str,
    payment: impl Future<Output = ()> + Send,
) -> Result<i64, SaleError> {
    let token = hold.token().get().cast_signed();
    let claim = sqlx::query_scalar(CLAIM).bind(token).bind(item);
    let left: i64 = claim
        .fetch_optional(database)
        .await?
        .ok_or(SaleError::Overtaken)?;
    if left == 0 {
        return Err(SaleError::SoldOut);
    }
    payment.await;
    let take = sqlx::query(TAKE).bind(left - 1).bind(item).bind(token);
    match take.execute(database).await?.rows_affected() {
        0 => Err(SaleError::Overtaken),
        _ => Ok(left - 1),
    }
}
