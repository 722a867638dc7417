//! The stock and the records of its sales on a Redis server. The Redis keys of the stock and of the records begin with
//! a prefix that contains the name of the sale.

use std::{collections::BTreeSet, fmt, sync::LazyLock};

use lock_runtime::FencingToken;
use redis::{
    AsyncCommands, Client, Commands, RedisResult, Script, aio::MultiplexedConnection, cmd, pipe,
};
use support::server::connect;

use crate::Failure;

static SELL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("sell.lua")));

/// The number of commands between `MULTI` and `EXEC` in one purchase.
pub(crate) const IN_TRANSACTION: u64 = 2;

/// One client's access to the stock of a sale.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    client: Client,
    connection: MultiplexedConnection,
    sale: String,
}

/// The record of one sold item.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    item: u64,
    buyer: String,
}

/// The result of a sale, read from its records.
pub(crate) struct Audit {
    /// The number of items at the beginning of the sale.
    pub(crate) items: u64,
    sales: Vec<Record>,
}

impl Shop {
    pub(crate) async fn open(url: &str, sale: &str) -> RedisResult<Self> {
        let client = Client::open(url)?;
        let mut connection = connect(&client).await?;
        SELL.prepare_invoke().load_async(&mut connection).await?;
        Ok(Self {
            connection,
            client,
            sale: sale.to_owned(),
        })
    }

    fn key(&self, what: &str) -> String {
        format!("shop:{}:{what}", self.sale)
    }

    pub(crate) async fn put_on_sale(&self, items: u64) -> RedisResult<()> {
        self.connection.clone().set(self.key("stock"), items).await
    }

    pub(crate) async fn stock(&self) -> RedisResult<u64> {
        self.connection.clone().get(self.key("stock")).await
    }

    /// Records the sale of one item, and writes the remaining stock. Returns false, and writes nothing, if a writer
    /// with a higher token has already written.
    pub(crate) async fn sell(
        &self,
        item: u64,
        buyer: &str,
        token: Option<FencingToken>,
    ) -> RedisResult<bool> {
        let mut sell = SELL.prepare_invoke();
        self.write(&mut sell, item, buyer, token);
        sell.invoke_async(&mut self.connection.clone()).await
    }

    fn write(
        &self,
        sell: &mut redis::ScriptInvocation<'_>,
        item: u64,
        buyer: &str,
        token: Option<FencingToken>,
    ) {
        for key in ["stock", "sales", "fence"] {
            sell.key(self.key(key));
        }
        sell.arg(item - 1)
            .arg(record(item, buyer))
            .arg(token.map(|token| token.to_string()).unwrap_or_default());
    }

    /// Reads and watches the stock. The next call of [`sell_unchanged`](Self::sell_unchanged) writes only if no other
    /// client has changed the stock in between.
    pub(crate) async fn watch(&self) -> RedisResult<u64> {
        let watch = cmd("WATCH").arg(self.key("stock")).to_owned();
        watch.exec_async(&mut self.connection.clone()).await?;
        self.stock().await
    }

    pub(crate) async fn unwatch(&self) -> RedisResult<()> {
        cmd("UNWATCH")
            .exec_async(&mut self.connection.clone())
            .await
    }

    /// If the stock has not changed since [`watch`](Self::watch), records the sale of one item, and writes the
    /// remaining stock. Returns whether the record and the stock were written.
    pub(crate) async fn sell_unchanged(&self, item: u64, buyer: &str) -> RedisResult<bool> {
        let written: Option<()> = pipe()
            .atomic()
            .set(self.key("stock"), item - 1)
            .ignore()
            .rpush(self.key("sales"), record(item, buyer))
            .ignore()
            .query_async(&mut self.connection.clone())
            .await?;
        Ok(written.is_some())
    }

    /// Permits the buyer that waits in [`word`](Self::word) to continue.
    pub(crate) async fn give_word(&self) -> RedisResult<()> {
        self.connection.clone().rpush(self.key("word"), "go").await
    }

    /// Waits for permission to continue. The waiting command blocks its connection, so it uses a connection of its own.
    pub(crate) async fn word(&self) -> RedisResult<()> {
        let mut connection = connect(&self.client).await?;
        let () = connection.blpop(self.key("word"), 0.0).await?;
        Ok(())
    }

    /// Returns access to the same shop with calls that block the thread.
    pub(crate) fn blocking(&self) -> RedisResult<BlockingShop<'_>> {
        Ok(BlockingShop {
            shop: self,
            connection: self.client.get_connection()?,
        })
    }

    pub(crate) async fn audit(&self, items: u64) -> Result<Audit, Failure> {
        let sales: Vec<String> = self
            .connection
            .clone()
            .lrange(self.key("sales"), 0, -1)
            .await?;
        Ok(Audit::of(items, sales.iter().map(String::as_str))?)
    }
}

/// Access to the shop for a buyer that blocks its thread.
pub(crate) struct BlockingShop<'a> {
    shop: &'a Shop,
    connection: redis::Connection,
}

impl BlockingShop<'_> {
    pub(crate) fn stock(&mut self) -> RedisResult<u64> {
        self.connection.get(self.shop.key("stock"))
    }

    pub(crate) fn word(&mut self) -> RedisResult<()> {
        self.connection.blpop(self.shop.key("word"), 0.0)
    }

    pub(crate) fn sell(
        &mut self,
        item: u64,
        buyer: &str,
        token: Option<FencingToken>,
    ) -> RedisResult<bool> {
        let mut sell = SELL.prepare_invoke();
        self.shop.write(&mut sell, item, buyer, token);
        sell.invoke(&mut self.connection)
    }
}

fn record(item: u64, buyer: &str) -> String {
    format!("{item} {buyer}")
}

fn read_record(text: &str) -> Option<Record> {
    let (item, buyer) = text.split_once(' ')?;
    Some(Record {
        item: item.parse().ok()?,
        buyer: buyer.to_owned(),
    })
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("items", &self.items)
            .field("sold", &self.sold())
            .field("doubled", &self.doubled())
            .finish()
    }
}

impl Audit {
    /// Reads the result of a sale of `items` items from its records.
    pub(crate) fn of<'a>(
        items: u64,
        records: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let sales = records.into_iter().map(|text| {
            let sale = read_record(text);
            sale.ok_or_else(|| format!("not a record of a sale: `{text}`"))
        });
        Ok(Self {
            items,
            sales: sales.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn sold(&self) -> u64 {
        self.sales.len() as u64
    }

    /// Returns the number of items that were sold beyond the number in stock.
    pub(crate) fn oversold(&self) -> u64 {
        self.sold().saturating_sub(self.items)
    }

    /// Returns the number of sales whose item was already sold.
    pub(crate) fn doubled(&self) -> u64 {
        let mut items: Vec<u64> = self.sales.iter().map(|sale| sale.item).collect();
        items.sort_unstable();
        items.dedup();
        self.sold() - items.len() as u64
    }

    /// Returns the number of purchases that have no record, although their buyers (`told`) got the answer that they had
    /// bought an item.
    pub(crate) fn lost<'a>(&self, told: impl Iterator<Item = &'a str>) -> u64 {
        let known: BTreeSet<&str> = self.sales.iter().map(|sale| sale.buyer.as_str()).collect();
        told.filter(|buyer| !known.contains(buyer)).count() as u64
    }
}
