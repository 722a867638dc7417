//! One buyer's purchase. The same body runs with or without the lock around it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, LockError, distributed_lock};
use tokio::task::JoinSet;

use crate::store::{Receipt, Store, StoreError};

/// How a purchase ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purchase {
    Sold {
        item: u64,
        /// The token of the hold, or `None` if the sale is unguarded.
        token: Option<u64>,
        waited: Duration,
    },
    SoldOut {
        waited: Duration,
    },
    Failed {
        why: String,
    },
}

/// Reads the stock, and writes the stock minus one item. The result is correct only if no other buyer changes the stock
/// between the read and the write.
async fn buy<S: Store>(
    store: &S,
    buyer: String,
    asked: Instant,
    token: Option<FencingToken>,
) -> Result<Purchase, SaleError> {
    let waited = asked.elapsed();
    let item = store.stock().await?;
    if item == 0 {
        return Ok(Purchase::SoldOut { waited });
    }
    store.sell(item - 1, &Receipt { item, buyer }).await?;
    let token = token.map(FencingToken::get);
    Ok(Purchase::Sold {
        item,
        token,
        waited,
    })
}

/// Buys an item under the lock. The lease is short, so that the sale continues within about 2 s after a buyer was
/// killed. The lease is renewed, so that a slow buyer keeps the lock.
#[distributed_lock(key = "flash-sale:<sale>", wait = "60s", lease = "2s", renew = true, guard = hold)]
async fn buy_guarded<S: Store>(
    sale: &str,
    store: &S,
    buyer: String,
    asked: Instant,
) -> Result<Purchase, SaleError> {
    buy(store, buyer, asked, Some(hold.token())).await
}

/// Returns the key that [`buy_guarded`] locks. The attribute escapes no part of a sale's name, because the name is
/// hexadecimal.
pub(crate) fn lock_key(sale: &str) -> String {
    format!("flash-sale:{sale}")
}

/// Lets this many buyers concurrently buy one item each, and passes the result of each purchase to `report`.
pub(crate) async fn rush<S: Store>(
    sale: &str,
    store: S,
    prefix: &str,
    buyers: u64,
    guarded: bool,
    mut report: impl FnMut(Purchase),
) {
    let (sale, store): (Arc<str>, _) = (sale.into(), Arc::new(store));
    let mut purchases = JoinSet::new();
    for number in 1..=buyers {
        let (sale, store, buyer) = (sale.clone(), store.clone(), format!("{prefix}{number}"));
        purchases.spawn(async move {
            let asked = Instant::now();
            if guarded {
                buy_guarded(&sale, &*store, buyer, asked).await
            } else {
                buy(&*store, buyer, asked, None).await
            }
        });
    }
    while let Some(purchase) = purchases.join_next().await {
        let failed = |why: String| Purchase::Failed { why };
        report(match purchase {
            Ok(Ok(purchase)) => purchase,
            Ok(Err(error)) => failed(error.to_string()),
            Err(error) => failed(error.to_string()),
        });
    }
}

/// The reason why a purchase failed.
#[derive(Debug)]
enum SaleError {
    Lock(LockError),
    Store(StoreError),
}

impl From<LockError> for SaleError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<StoreError> for SaleError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for SaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Store(error) => write!(f, "the store failed: {error}"),
        }
    }
}
