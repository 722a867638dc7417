//! The inventory consists of the remaining stock and the receipts. The inventory does not prevent buyers from writing
//! at the same time. If the inventory has seen a higher fencing token than the token of a buyer, it refuses the buyer,
//! because this buyer has lost the lock.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lock_runtime::FencingToken;
use redis::{
    AsyncCommands, AsyncConnectionConfig, Client, RedisError, Script, aio::MultiplexedConnection,
};

/// The proof that a buyer got an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) item: u64,
    pub(crate) buyer: String,
}

/// The state of the inventory that a buyer finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shelf {
    /// The number of remaining items.
    Left(u64),
    /// The buyer has bought this item already. An earlier call of the buyer has written the receipt, but has lost its
    /// lock before the answer came.
    Bought(u64),
}

/// The error of a store.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// A later holder of the lock has already used the inventory.
    Overtaken,
    Redis(RedisError),
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl Error for StoreError {}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overtaken => {
                f.write_str("a later holder of the lock has already used the inventory")
            }
            Self::Redis(error) => error.fmt(f),
        }
    }
}

/// An inventory that is possibly reached over a network. Buyers in an unguarded sale have no token, and are never
/// refused.
pub(crate) trait Store: Send + Sync + 'static {
    /// Stores the token, and returns what the buyer finds in the inventory.
    fn look(
        &self,
        token: Option<FencingToken>,
        buyer: &str,
    ) -> impl Future<Output = Result<Shelf, StoreError>> + Send;

    /// Writes the remaining stock and the receipt of a sale in one step. A buyer can be killed at any point. Because of
    /// the single step, either both are written or nothing is written.
    fn sell(
        &self,
        token: Option<FencingToken>,
        left: u64,
        receipt: &Receipt,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

#[derive(Debug, Clone, Default)]
struct Inventory {
    stock: u64,
    /// The item that each buyer has bought.
    receipts: BTreeMap<String, u64>,
    newest_token: u64,
}

impl Inventory {
    /// Stores a token. Fails if the inventory has seen a greater token.
    fn admit(&mut self, token: Option<FencingToken>) -> Result<(), StoreError> {
        let token = token.map_or(self.newest_token, FencingToken::get);
        if token < self.newest_token {
            return Err(StoreError::Overtaken);
        }
        self.newest_token = token;
        Ok(())
    }
}

/// An inventory in this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryStore {
    inventory: Arc<Mutex<Inventory>>,
}

impl MemoryStore {
    pub(crate) fn with_stock(stock: u64) -> Self {
        let store = Self::default();
        store.inventory().stock = stock;
        store
    }

    /// Returns the current stock and all receipts.
    pub(crate) fn audit(&self) -> (u64, Vec<Receipt>) {
        let inventory = self.inventory();
        (inventory.stock, receipts(inventory.receipts.clone()))
    }

    fn inventory(&self) -> MutexGuard<'_, Inventory> {
        self.inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn receipts(items: impl IntoIterator<Item = (String, u64)>) -> Vec<Receipt> {
    let items = items.into_iter();
    items.map(|(buyer, item)| Receipt { item, buyer }).collect()
}

impl Store for MemoryStore {
    // Each method yields before it returns, so that other tasks run during the call, as they would during a call to a
    // server.
    async fn look(&self, token: Option<FencingToken>, buyer: &str) -> Result<Shelf, StoreError> {
        let shelf = {
            let mut inventory = self.inventory();
            inventory.admit(token)?;
            let bought = inventory.receipts.get(buyer).copied();
            bought.map_or(Shelf::Left(inventory.stock), Shelf::Bought)
        };
        tokio::task::yield_now().await;
        Ok(shelf)
    }

    async fn sell(
        &self,
        token: Option<FencingToken>,
        left: u64,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        {
            let mut inventory = self.inventory();
            inventory.admit(token)?;
            inventory.stock = left;
            inventory
                .receipts
                .insert(receipt.buyer.clone(), receipt.item);
        }
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// A script that stores a token, unless the server has seen a greater token. `ARGV[1]` is 0 if the buyer has no token.
const ADMIT: &str = "\
local token, newest = tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[3]) or 0)
if token > 0 and token < newest then return false end
if token > newest then redis.call('SET', KEYS[3], ARGV[1]) end
";

/// A script that returns the stock and the item that the buyer has bought, or 0 if the buyer has bought nothing.
const LOOK: &str = "\
return {tonumber(redis.call('GET', KEYS[1])), tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or 0)}
";

const SELL: &str = "\
redis.call('SET', KEYS[1], ARGV[4])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
";

/// An inventory on a Redis server. The keys of an inventory begin with the prefix of its sale.
#[derive(Debug, Clone)]
pub(crate) struct RedisStore {
    connection: MultiplexedConnection,
    look: Script,
    sell: Script,
    stock: String,
    receipts: String,
    newest_token: String,
}

/// How long the store waits for an answer of the server. The time is long, so that a slow server does not make the sale
/// fail. The example tests the lock and not the store.
const PATIENCE: Duration = Duration::from_secs(30);

impl RedisStore {
    /// Opens a new connection to the data of `sale`.
    pub(crate) async fn open(url: &str, sale: &str) -> Result<Self, StoreError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = Client::open(url)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let key = |name: &str| format!("{}{name}", data_prefix(sale));
        Ok(Self {
            connection,
            look: Script::new(&format!("{ADMIT}{LOOK}")),
            sell: Script::new(&format!("{ADMIT}{SELL}")),
            stock: key("stock"),
            receipts: key("receipts"),
            newest_token: key("newest-token"),
        })
    }

    pub(crate) async fn put_on_sale(&self, stock: u64) -> Result<(), StoreError> {
        Ok(self.connection.clone().set(&self.stock, stock).await?)
    }

    /// Returns the current stock and all receipts.
    pub(crate) async fn audit(&self) -> Result<(u64, Vec<Receipt>), StoreError> {
        let mut connection = self.connection.clone();
        let sold: BTreeMap<String, u64> = connection.hgetall(&self.receipts).await?;
        Ok((connection.get(&self.stock).await?, receipts(sold)))
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
        let keys = (&self.stock, &self.receipts, &self.newest_token);
        Ok(self.connection.clone().del(keys).await?)
    }
}

/// Returns the prefix of the keys that store a sale's data.
pub(crate) fn data_prefix(sale: &str) -> String {
    format!("flash_sale:{sale}:")
}

impl Store for RedisStore {
    async fn look(&self, token: Option<FencingToken>, buyer: &str) -> Result<Shelf, StoreError> {
        let found: Option<(u64, u64)> = self
            .look
            .key(&self.stock)
            .key(&self.receipts)
            .key(&self.newest_token)
            .arg(token.map_or(0, FencingToken::get))
            .arg(buyer)
            .invoke_async(&mut self.connection.clone())
            .await?;
        match found {
            None => Err(StoreError::Overtaken),
            Some((stock, 0)) => Ok(Shelf::Left(stock)),
            Some((_, item)) => Ok(Shelf::Bought(item)),
        }
    }

    async fn sell(
        &self,
        token: Option<FencingToken>,
        left: u64,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        let sold: Option<u64> = self
            .sell
            .key(&self.stock)
            .key(&self.receipts)
            .key(&self.newest_token)
            .arg(token.map_or(0, FencingToken::get))
            .arg(&receipt.buyer)
            .arg(receipt.item)
            .arg(left)
            .invoke_async(&mut self.connection.clone())
            .await?;
        sold.map(drop).ok_or(StoreError::Overtaken)
    }
}
