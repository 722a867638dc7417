//! The stock and the orders, in SQLite or Postgres. All SQL statements run on both databases.
//!
//! Each write to an item's row in the table `stock` is fenced. This means that the row stores the highest fencing token
//! so far, and that a write with a lower token changes nothing. A buyer that has lost its lock therefore cannot
//! overwrite the stock that a later buyer has written.

use std::time::Duration;

use lock_runtime::FencingToken;
use sqlx::{AnyPool, any::AnyPoolOptions};
use tracing::instrument;

use crate::error::ShopError;

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS stock (
         item TEXT PRIMARY KEY,
         left_over BIGINT NOT NULL,
         lock_token BIGINT NOT NULL
     )",
    // The table has no constraint against two orders with the same unit. Only the lock and the fenced writes prevent
    // such orders.
    "CREATE TABLE IF NOT EXISTS orders (
         id TEXT PRIMARY KEY,
         item TEXT NOT NULL,
         unit BIGINT NOT NULL,
         customer TEXT NOT NULL,
         payment TEXT NOT NULL
     )",
];

const RESTOCK: &str = "
    INSERT INTO stock (item, left_over, lock_token) VALUES ($1, $2, $3)
    ON CONFLICT (item) DO UPDATE
    SET left_over = stock.left_over + excluded.left_over, lock_token = excluded.lock_token
    WHERE stock.lock_token <= excluded.lock_token
    RETURNING left_over";

const CLAIM: &str = "
    UPDATE stock SET lock_token = $1 WHERE item = $2 AND lock_token <= $1 RETURNING left_over";

const TAKE: &str = "
    UPDATE stock SET left_over = $1, lock_token = $2 WHERE item = $3 AND lock_token <= $2";

const ORDER: &str =
    "INSERT INTO orders (id, item, unit, customer, payment) VALUES ($1, $2, $3, $4, $5)";

/// How long a database query waits for a free connection of the pool.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(2);

/// One sold unit of an item.
#[derive(Debug, Clone)]
pub struct Sale<'a> {
    /// The new order's ID.
    pub order: String,
    /// The name of the item.
    pub item: &'a str,
    /// The number of the sold unit. This number equals the number of units that were left before the sale. No two
    /// orders of an item have the same number.
    pub unit: i64,
    /// The buyer.
    pub customer: &'a str,
    /// The ID of the authorized payment.
    pub payment: String,
}

/// A pool of connections to the shop's database.
#[derive(Debug, Clone)]
pub struct Database(AnyPool);

impl Database {
    /// Connects to `sqlite:file?mode=rwc` or `postgres://…`, and creates the tables if they are missing.
    ///
    /// # Errors
    /// Returns an error if the database does not answer, or refuses to create the tables.
    pub async fn open(url: &str) -> Result<Self, sqlx::Error> {
        sqlx::any::install_default_drivers();
        let options = AnyPoolOptions::new().acquire_timeout(CONNECTION_PATIENCE);
        let pool = options.connect(url).await?;
        for table in TABLES {
            let create = || sqlx::query(table).execute(&pool);
            // If several processes create a table at the same time, Postgres refuses all but one. A refused process
            // tries again, and then finds the table.
            if create().await.is_err() {
                create().await?;
            }
        }
        Ok(Self(pool))
    }

    /// Adds units to the stock of an item, and returns the number of units that are left.
    ///
    /// # Errors
    /// Returns [`ShopError::Overtaken`] if the row has a higher token.
    #[instrument(skip_all)]
    pub async fn restock(
        &self,
        item: &str,
        units: u32,
        token: FencingToken,
    ) -> Result<i64, ShopError> {
        let query = sqlx::query_scalar(RESTOCK);
        let query = query.bind(item).bind(i64::from(units)).bind(signed(token));
        let left = query.fetch_optional(&self.0).await?;
        left.ok_or(ShopError::Overtaken)
    }

    /// Stores the lock holder's token in the item's row, and returns the number of units that are left. From then on,
    /// the row refuses the writes of earlier holders. The number of units therefore changes only by a write with this
    /// token or a higher token.
    ///
    /// # Errors
    /// Returns [`ShopError::UnknownItem`], or [`ShopError::Overtaken`] if the item's row has a higher token.
    #[instrument(skip_all)]
    pub async fn claim(&self, item: &str, token: FencingToken) -> Result<i64, ShopError> {
        let query = sqlx::query_scalar(CLAIM).bind(signed(token)).bind(item);
        match query.fetch_optional(&self.0).await? {
            Some(left) => Ok(left),
            // The update has changed no row. If the item has a row, this row has a higher token. If the item has no
            // row, the item is unknown.
            None => self.left(item).await.and(Err(ShopError::Overtaken)),
        }
    }

    /// Writes the new stock and the order in one transaction. When the method returns `Ok`, the transaction is
    /// committed.
    ///
    /// # Errors
    /// Returns [`ShopError::Overtaken`], and writes nothing, if the item's row has a higher token.
    ///
    /// # Cancel safety
    /// If the future is dropped before the commit is sent, nothing is written.
    #[instrument(skip_all)]
    pub async fn record(&self, sale: &Sale<'_>, token: FencingToken) -> Result<(), ShopError> {
        let mut transaction = self.0.begin().await?;
        // The fenced update of the stock runs first, because it locks the item's row for the rest of the transaction.
        let take = sqlx::query(TAKE).bind(sale.unit - 1).bind(signed(token));
        let taken = take.bind(sale.item).execute(&mut *transaction).await?;
        if taken.rows_affected() == 0 {
            return Err(ShopError::Overtaken);
        }
        let order = sqlx::query(ORDER).bind(&sale.order).bind(sale.item);
        let order = order
            .bind(sale.unit)
            .bind(sale.customer)
            .bind(&sale.payment);
        order.execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the number of units of an item that are left.
    ///
    /// # Errors
    /// Returns [`ShopError::UnknownItem`].
    pub async fn left(&self, item: &str) -> Result<i64, ShopError> {
        let query = sqlx::query_scalar("SELECT left_over FROM stock WHERE item = $1").bind(item);
        let left = query.fetch_optional(&self.0).await?;
        left.ok_or(ShopError::UnknownItem)
    }

    /// Returns the numbers of an item's sold units, in rising order.
    ///
    /// # Errors
    /// Returns the error of the database.
    pub async fn units_sold(&self, item: &str) -> Result<Vec<i64>, ShopError> {
        let query = sqlx::query_scalar("SELECT unit FROM orders WHERE item = $1 ORDER BY unit");
        Ok(query.bind(item).fetch_all(&self.0).await?)
    }

    /// Checks that the database answers.
    ///
    /// # Errors
    /// Returns the error of the database.
    pub async fn ping(&self) -> Result<(), sqlx::Error> {
        sqlx::query("SELECT 1").execute(&self.0).await.map(drop)
    }

    /// Waits until running statements have ended, and closes the connections.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

/// Returns the token as a signed integer, because SQL has no unsigned integers. A token is below 2^53, so it fits.
fn signed(token: FencingToken) -> i64 {
    token.get().cast_signed()
}
