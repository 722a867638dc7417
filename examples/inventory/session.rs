//! A session is a client of the shop with its own connections. Sessions compete for a lock in the same way as separate
//! processes do.

use std::time::{Duration, Instant};

use lock_runtime::{Layout, LockClient, LockError};
use uuid::Uuid;

use crate::{
    Failure,
    by_hand::{ByHand, Kind},
    guard::Guard,
    ours::{self, Way},
    purchase::{Outcome, Pace, Purchase},
    servers::Urls,
    shop::Shop,
};

/// The lease in scenarios with a buyer that dies or is slow. The lease is not renewed.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(1);

/// The lease of hand-written locks in the scenarios without an accident. In these scenarios, the locks of this project
/// use their default lease, which is also 30 s but is renewed.
const AMPLE_LEASE: Duration = Duration::from_secs(30);

/// The choice of a lock's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    Ample,
    Short,
}

impl Lease {
    fn duration(self) -> Duration {
        match self {
            Self::Ample => AMPLE_LEASE,
            Self::Short => SHORT_LEASE,
        }
    }
}

/// A client of the shop, with its own connections.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) shop: Shop,
    sale: String,
    locks: Locks,
}

#[derive(Debug, Clone)]
enum Locks {
    None,
    Optimistic,
    ByHand(ByHand),
    Ours(LockClient, Way),
}

/// The result of one purchase, and its times.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    pub(crate) buyer: String,
    pub(crate) outcome: Outcome,
    pub(crate) entered: Instant,
    /// The time from the call until the buyer's last try began.
    pub(crate) waited: Duration,
    /// The duration of the buyer's body, or `None` if the body was dropped.
    pub(crate) inside: Option<Duration>,
    pub(crate) tries: u64,
}

impl Session {
    /// Opens a session. A client of this project's locks acquires one lock here, so that the example does not measure
    /// the additional work of a first call.
    pub(crate) async fn open(guard: Guard, urls: &Urls, sale: &str) -> Result<Self, Failure> {
        let by_hand =
            async |kind| Ok::<_, Failure>(Locks::ByHand(ByHand::connect(kind, &urls.locks).await?));
        let locks = match guard {
            Guard::Nothing => Locks::None,
            Guard::Watch => Locks::Optimistic,
            Guard::SetNx => by_hand(Kind::SetNx).await?,
            Guard::SetPx => by_hand(Kind::SetPx).await?,
            Guard::Reentrant => by_hand(Kind::Reentrant).await?,
            Guard::Ours(way) => {
                let layout = match way {
                    Way::Notify => Layout::Redisson, // only locks in this layout have the strategy `notify`
                    Way::Handoff | Way::Spin => Layout::Native,
                };
                let client = LockClient::builder().url(&urls.locks).layout(layout);
                Locks::Ours(client.connect().await?, way)
            }
            Guard::Redlock => Locks::Ours(LockClient::connect(&urls.locks).await?, Way::Handoff),
        };
        if let Locks::Ours(client, _) = &locks {
            let first = client.lock(format!("first:{}", Uuid::new_v4()));
            first.run(async {}).await?;
        }
        Ok(Self {
            shop: Shop::open(&urls.stock, sale).await?,
            sale: sale.to_owned(),
            locks,
        })
    }

    /// Opens `sessions` sessions, or one session for each buyer if buyers under this guard cannot share a connection.
    pub(crate) async fn open_many(
        guard: Guard,
        urls: &Urls,
        sale: &str,
        sessions: usize,
        buyers: usize,
    ) -> Result<Vec<Self>, Failure> {
        let count = if guard.shares_connections() {
            sessions
        } else {
            buyers
        };
        let mut opened = Vec::new();
        for _ in 0..count {
            opened.push(Self::open(guard, urls, sale).await?);
        }
        Ok(opened)
    }

    /// Acquires the lock if the guard has a lock, runs the purchase, and releases the lock.
    pub(crate) async fn visit(
        &self,
        buyer: String,
        pace: Pace,
        lease: Lease,
    ) -> Result<Visit, Failure> {
        let asked = Instant::now();
        let mut purchase = Purchase::new(&self.shop, &buyer, pace);
        let outcome = match &self.locks {
            Locks::None => purchase.run(None).await?,
            Locks::Optimistic => purchase.run_optimistic().await?,
            Locks::ByHand(locks) => {
                let (key, owner) = (lock_key(&self.sale), Uuid::new_v4().to_string());
                locks.lock(&key, &owner, lease.duration()).await?;
                let outcome = purchase.run(None).await;
                locks.unlock(&key, &owner).await?;
                outcome?
            }
            Locks::Ours(client, way) => {
                let call = ours::run(*way, lease, &self.sale, &mut purchase);
                match client.scope(call).await {
                    Err(error) if is_lost(&error) => Outcome::Cancelled,
                    ended => ended?,
                }
            }
        };
        let (entered, left, tries) = (
            purchase.entered.unwrap_or(asked),
            purchase.left,
            purchase.tries,
        );
        Ok(Visit {
            buyer,
            outcome,
            entered,
            waited: entered - asked,
            inside: left.map(|left| left - entered),
            tries,
        })
    }

    /// Returns whether the lock is held and never expires, so that somebody must delete it by hand. The result is false
    /// for this project's locks, which always expire.
    pub(crate) async fn has_no_end(&self) -> Result<bool, Failure> {
        match &self.locks {
            Locks::ByHand(locks) => Ok(locks.has_no_end(&lock_key(&self.sale)).await?),
            Locks::None | Locks::Optimistic | Locks::Ours(..) => Ok(false),
        }
    }

    /// Shuts down the session's client of this project's locks, if there is one, and waits for its releases.
    pub(crate) async fn close(&self) {
        if let Locks::Ours(client, _) = &self.locks {
            client.shutdown().await;
        }
    }
}

/// Returns the key of a sale's lock. The attribute does not escape the name of a sale, because the name is hexadecimal.
pub(crate) fn lock_key(sale: &str) -> String {
    format!("stock:{sale}")
}

fn is_lost(error: &Failure) -> bool {
    matches!(error.downcast_ref(), Some(LockError::Lost { .. }))
}
