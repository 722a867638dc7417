//! The service that sells items, and the locks that it takes.

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use lock_runtime::{LockClient, distributed_lock};
use serde::Serialize;
use tracing::instrument;
use uuid::Uuid;

use crate::{
    database::{Database, Sale},
    error::ShopError,
};

/// The proof of a sale.
#[derive(Debug, Serialize)]
pub struct Receipt {
    /// The order's ID.
    pub order: String,
    /// The name of the item.
    pub item: String,
    /// The number of the sold unit. This number equals the number of units that were left before the sale.
    pub unit: i64,
    /// The fencing token of the lock under which the unit was sold.
    pub token: u64,
}

/// The operations of the shop on its stock.
#[async_trait]
pub trait Orders: Debug + Send + Sync {
    /// Sells one unit of an item.
    async fn buy(&self, item: &str, customer: &str) -> Result<Receipt, ShopError>;

    /// Adds units to the stock of an item, and returns the number of units that are left.
    async fn restock(&self, item: &str, units: u32) -> Result<i64, ShopError>;

    /// Returns the number of units of an item that are left.
    async fn left(&self, item: &str) -> Result<i64, ShopError>;
}

/// The payment provider.
#[async_trait]
pub trait Payments: Debug + Send + Sync {
    /// Reserves the price on the customer's account, and returns the ID of the reservation. A reservation lapses if no
    /// order uses it, so a sale that fails later costs the customer nothing.
    async fn authorize(&self, customer: &str) -> Result<String, ShopError>;
}

/// A payment provider that accepts every payment after a fixed time.
#[derive(Debug, Clone)]
pub struct PaymentsAfter(pub Duration);

#[async_trait]
impl Payments for PaymentsAfter {
    #[instrument(name = "authorize", skip_all)]
    async fn authorize(&self, _customer: &str) -> Result<String, ShopError> {
        tokio::time::sleep(self.0).await;
        Ok(Uuid::new_v4().to_string())
    }
}

/// The shop's service.
#[derive(Debug)]
pub struct OrderService {
    database: Database,
    payments: Arc<dyn Payments>,
    locks: LockClient,
}

impl OrderService {
    /// Creates the service.
    pub fn new(database: Database, payments: Arc<dyn Payments>, locks: LockClient) -> Self {
        Self {
            database,
            payments,
            locks,
        }
    }
}

#[async_trait]
impl Orders for OrderService {
    // The lock covers three steps: reading the stock, the payment, and the database transaction. `record` commits the
    // transaction before the body ends, and the lock is released only after the body has ended. The next buyer
    // therefore reads the stock that this buyer has written. The attribute sets no `wait`, so the `wait` of the client
    // applies.
    #[distributed_lock(key = "stock:<item>", max_hold = "30s", client = self.locks, guard = hold)]
    async fn buy(&self, item: &str, customer: &str) -> Result<Receipt, ShopError> {
        let unit = self.database.claim(item, hold.token()).await?;
        if unit == 0 {
            return Err(ShopError::SoldOut);
        }
        let payment = self.payments.authorize(customer).await?;
        let order = Uuid::new_v4().to_string();
        let sale = Sale {
            order: order.clone(),
            item,
            unit,
            customer,
            payment,
        };
        self.database.record(&sale, hold.token()).await?;
        Ok(Receipt {
            order,
            item: item.to_owned(),
            unit,
            token: hold.token().get(),
        })
    }

    // The key is the same as that of `buy`, so no units are added between a buyer's read and write of the stock.
    #[distributed_lock(key = "stock:<item>", client = self.locks, guard = hold)]
    async fn restock(&self, item: &str, units: u32) -> Result<i64, ShopError> {
        self.database.restock(item, units, hold.token()).await
    }

    async fn left(&self, item: &str) -> Result<i64, ShopError> {
        self.database.left(item).await
    }
}
