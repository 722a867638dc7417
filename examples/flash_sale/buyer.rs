//! One buyer's purchase. The body of a purchase is the same with the lock and without it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, LockError, distributed_lock};
use tokio::{task::JoinSet, time::sleep};

use crate::store::{Receipt, Shelf, Store, StoreError};

/// How a purchase ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purchase {
    Sold {
        item: u64,
        /// The fencing token of the hold, or `None` if the sale is unguarded.
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

/// The buyers of one process.
#[derive(Debug)]
pub(crate) struct Crowd<'a> {
    pub(crate) sale: &'a str,
    /// The prefix of the buyers' names.
    pub(crate) prefix: &'a str,
    pub(crate) buyers: u64,
    pub(crate) guarded: bool,
    /// How long each buyer pauses between reading the stock and buying.
    pub(crate) think: Duration,
}

/// One buyer.
#[derive(Debug, Clone)]
struct Buyer {
    name: String,
    asked: Instant,
    think: Duration,
}

impl Buyer {
    /// Reads the stock, and writes the stock minus one item. The result is correct only if no other buyer changes the
    /// stock between the read and the write.
    async fn buy<S: Store>(
        self,
        store: &S,
        token: Option<FencingToken>,
    ) -> Result<Purchase, SaleError> {
        let waited = self.asked.elapsed();
        let sold = |item| Purchase::Sold {
            item,
            token: token.map(FencingToken::get),
            waited,
        };
        let item = match store.look(token, &self.name).await? {
            Shelf::Bought(item) => return Ok(sold(item)),
            Shelf::Left(0) => return Ok(Purchase::SoldOut { waited }),
            Shelf::Left(item) => item,
        };
        if !self.think.is_zero() {
            sleep(self.think).await;
        }
        let buyer = self.name;
        store
            .sell(token, item - 1, &Receipt { item, buyer })
            .await?;
        Ok(sold(item))
    }

    /// Buys an item under the lock. A buyer whose lock is lost does not know whether it has bought the item, and calls
    /// again. If the first call has bought the item, the second call finds its receipt, so no buyer gets two items.
    async fn buy_once<S: Store>(self, sale: &str, store: &S) -> Result<Purchase, SaleError> {
        loop {
            match buy_guarded(sale, store, self.clone()).await {
                Err(
                    SaleError::Lock(LockError::Lost { .. })
                    | SaleError::Store(StoreError::Overtaken),
                ) => {}
                ended => return ended,
            }
        }
    }
}

/// Buys an item under the lock. The lease is short, so that the sale continues about 2 s after a buyer was killed. The
/// lease is renewed, so that a slow buyer keeps the lock.
#[distributed_lock(key = "flash-sale:<sale>", wait = "60s", lease = "2s", renew = true, guard = hold)]
async fn buy_guarded<S: Store>(sale: &str, store: &S, buyer: Buyer) -> Result<Purchase, SaleError> {
    buyer.buy(store, Some(hold.token())).await
}

/// Returns the key that [`buy_guarded`] locks. A sale's name is hexadecimal, so the attribute does not have to escape
/// any part of it.
pub(crate) fn lock_key(sale: &str) -> String {
    format!("flash-sale:{sale}")
}

/// Lets all buyers of a process concurrently buy one item each, and passes the result of each purchase to `report`.
pub(crate) async fn rush<S: Store>(crowd: Crowd<'_>, store: S, mut report: impl FnMut(Purchase)) {
    let (sale, store): (Arc<str>, _) = (crowd.sale.into(), Arc::new(store));
    let mut purchases = JoinSet::new();
    for number in 1..=crowd.buyers {
        let (sale, store, guarded) = (sale.clone(), store.clone(), crowd.guarded);
        let (name, think) = (format!("{}{number}", crowd.prefix), crowd.think);
        purchases.spawn(async move {
            let buyer = Buyer {
                name,
                asked: Instant::now(),
                think,
            };
            if guarded {
                buyer.buy_once(&sale, &*store).await
            } else {
                buyer.buy(&*store, None).await
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
