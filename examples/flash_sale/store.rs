//! The inventory: the remaining stock, and the list of receipts. Neither the stock nor the list is protected against
//! buyers that write at the same time.

use std::{
    fmt,
    future::Future,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lock_runtime::redis::{
    AsyncCommands, AsyncConnectionConfig, Client, ErrorKind, RedisError,
    aio::MultiplexedConnection, pipe,
};

/// The proof that a buyer got an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) item: u64,
    pub(crate) buyer: String,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.item, self.buyer)
    }
}

impl FromStr for Receipt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once(' ')
            .and_then(|(item, buyer)| {
                Some(Self {
                    item: item.parse().ok()?,
                    buyer: buyer.into(),
                })
            })
            .ok_or_else(|| format!("not a receipt: `{text}`"))
    }
}

/// The error of a store.
pub(crate) type StoreError = RedisError;

/// An inventory that may be reached over a network.
pub(crate) trait Store: Send + Sync + 'static {
    /// Returns the number of remaining items.
    fn stock(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Writes the remaining stock and the receipt of a sale in one step. A buyer may be killed at any point, so either
    /// both are written or neither is.
    fn sell(
        &self,
        left: u64,
        receipt: &Receipt,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// An inventory in this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryStore {
    shelf: Arc<Mutex<(u64, Vec<Receipt>)>>,
}

impl MemoryStore {
    pub(crate) fn with_stock(stock: u64) -> Self {
        Self {
            shelf: Arc::new(Mutex::new((stock, Vec::new()))),
        }
    }

    /// Returns the current stock and all receipts.
    pub(crate) fn audit(&self) -> (u64, Vec<Receipt>) {
        self.shelf().clone()
    }

    fn shelf(&self) -> MutexGuard<'_, (u64, Vec<Receipt>)> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    // Each method yields before it returns, so that other tasks run during the call, as they would during a call to a
    // server.
    async fn stock(&self) -> Result<u64, StoreError> {
        let stock = self.shelf().0;
        tokio::task::yield_now().await;
        Ok(stock)
    }

    async fn sell(&self, left: u64, receipt: &Receipt) -> Result<(), StoreError> {
        {
            let mut shelf = self.shelf();
            shelf.0 = left;
            shelf.1.push(receipt.clone());
        }
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// An inventory on a Redis server. The keys of an inventory begin with the prefix of its sale.
#[derive(Debug, Clone)]
pub(crate) struct RedisStore {
    connection: MultiplexedConnection,
    stock: String,
    receipts: String,
}

/// How long the store waits for an answer. The time is long, because a slow server should not make the sale fail: the
/// example tests the lock and not the store.
const PATIENCE: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Opens a new connection to the data of `sale`.
    pub(crate) async fn open(url: &str, sale: &str) -> Result<Self, StoreError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = Client::open(url)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Self {
            connection,
            stock: format!("{}stock", data_prefix(sale)),
            receipts: format!("{}receipts", data_prefix(sale)),
        })
    }

    pub(crate) async fn put_on_sale(&self, stock: u64) -> Result<(), StoreError> {
        self.connection.clone().set(&self.stock, stock).await
    }

    /// Returns the current stock and all receipts.
    pub(crate) async fn audit(&self) -> Result<(u64, Vec<Receipt>), StoreError> {
        let receipts: Vec<String> = self
            .connection
            .clone()
            .lrange(&self.receipts, 0, -1)
            .await?;
        let receipts: Result<Vec<Receipt>, String> =
            receipts.iter().map(|text| text.parse()).collect();
        let receipts =
            receipts.map_err(|text| (ErrorKind::Parse, "an unreadable receipt", text))?;
        Ok((self.stock().await?, receipts))
    }

    /// Returns the keys that locks have left on the server: each key that contains the sale's name and does not store
    /// the sale's data, and each counter of fencing tokens.
    pub(crate) async fn lock_keys(&self, sale: &str) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        for pattern in [format!("*{sale}*"), "*:fence".into()] {
            let mut connection = self.connection.clone();
            let mut keys = connection.scan_match::<_, String>(pattern).await?;
            while let Some(key) = keys.next_item().await {
                found.push(key?);
            }
        }
        found.retain(|key| !key.starts_with(&data_prefix(sale)));
        found.sort();
        found.dedup();
        Ok(found)
    }

    pub(crate) async fn delete(&self) -> Result<(), StoreError> {
        self.connection
            .clone()
            .del((&self.stock, &self.receipts))
            .await
    }
}

/// Returns the prefix of the keys that store a sale's data.
pub(crate) fn data_prefix(sale: &str) -> String {
    format!("flash_sale:{sale}:")
}

impl Store for RedisStore {
    async fn stock(&self) -> Result<u64, StoreError> {
        self.connection.clone().get(&self.stock).await
    }

    async fn sell(&self, left: u64, receipt: &Receipt) -> Result<(), StoreError> {
        pipe()
            .atomic()
            .set(&self.stock, left)
            .ignore()
            .rpush(&self.receipts, receipt.to_string())
            .ignore()
            .query_async(&mut self.connection.clone())
            .await
    }
}
