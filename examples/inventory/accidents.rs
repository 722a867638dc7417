//! The accidents: a buyer that dies during its purchase, and a buyer that is slower than its lease. In both cases, the
//! unlucky buyer runs in a separate process, and other buyers want to buy during its purchase.

use std::time::{Duration, Instant};

use tokio::{task::JoinHandle, time::timeout};
use uuid::Uuid;

use crate::{
    Failure,
    guard::Guard,
    purchase::{Outcome, Pace},
    servers::Servers,
    session::{Lease, SHORT_LEASE, Session, Visit, lock_key},
    shop::Audit,
    worker::{Buyer, Order},
};

const ITEMS: u64 = 10;

/// The number of purchases that the other buyers attempt during the slow buyer's purchase.
const MEANWHILE: u64 = 3;

/// The number of sessions that the other buyers share. With more than one session, the buyers compete like buyers of
/// different processes.
const SESSIONS: usize = 2;

const THINKING: Duration = Duration::from_millis(5);

/// How long the other buyers wait before the example checks whether the lock has an expiry.
const WATCHED: Duration = Duration::from_secs(2 * SHORT_LEASE.as_secs());
/// How many times the example checks whether the lock has an expiry. If every check finds an expiry, but no other buyer
/// gets the lock, the example fails.
const PATIENCE: u32 = 30;

/// The effect of a buyer's death on the other buyers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// The dead buyer held no lock.
    NothingHeld,
    /// The next buyer got the lock after this time, counted from the kill.
    Free(Duration),
    /// No buyer gets the lock until somebody deletes it by hand.
    StandsStill,
}

/// The result of a sale in which a buyer was killed during its purchase.
#[derive(Debug)]
pub(crate) struct Death {
    pub(crate) aftermath: Aftermath,
    pub(crate) audit: Audit,
}

/// The result of a sale in which a buyer was slower than its lease.
#[derive(Debug)]
pub(crate) struct Late {
    /// Whether other buyers bought items before the slow buyer had finished.
    pub(crate) others_came_in: bool,
    pub(crate) ended: Outcome,
    pub(crate) audit: Audit,
}

/// A sale in which an accident happens.
struct Fixture {
    sale: String,
    sessions: Vec<Session>,
    unlucky: Buyer,
}

impl Fixture {
    /// Opens the sale, starts the unlucky buyer, and waits until it has read the stock.
    async fn open(servers: &Servers, guard: Guard, pace: Pace) -> Result<Self, Failure> {
        let (sale, urls) = (Uuid::new_v4().simple().to_string(), servers.urls(guard));
        let sessions = Session::open_many(guard, &urls, &sale, SESSIONS, SESSIONS).await?;
        sessions[0].shop.put_on_sale(ITEMS).await?;
        let order = Order {
            guard,
            pace,
            sale: sale.clone(),
            urls,
        };
        Ok(Self {
            unlucky: Buyer::send_in(&order).await?,
            sale,
            sessions,
        })
    }

    /// Starts a task in which the other buyers make this number of purchases, or fewer if the items sell out earlier.
    /// The task returns the purchases.
    fn others(&self, wishes: u64) -> JoinHandle<Result<Vec<Visit>, Failure>> {
        let sessions = self.sessions.clone();
        tokio::spawn(async move {
            let mut bought = Vec::new();
            for (number, session) in sessions.iter().cycle().enumerate() {
                if bought.len() as u64 == wishes {
                    break;
                }
                let buyer = format!("other-{}-{number}", Uuid::new_v4());
                let visit = session.visit(buyer, Pace::Thinks(THINKING), Lease::Short);
                match visit.await? {
                    visit if visit.outcome == Outcome::Sold => bought.push(visit),
                    visit if visit.outcome == Outcome::SoldOut => break,
                    // On a busy machine, the lease can end before the write. The loop then tries again with another
                    // buyer.
                    _ => {}
                }
            }
            Ok(bought)
        })
    }

    /// Waits until the other buyers have bought, and returns their purchases. Returns `None` if the buyers wait for a
    /// lock that never expires.
    async fn come_in(
        &self,
        others: &mut JoinHandle<Result<Vec<Visit>, Failure>>,
    ) -> Result<Option<Vec<Visit>>, Failure> {
        for _ in 0..PATIENCE {
            match timeout(WATCHED, &mut *others).await {
                Ok(bought) => return Ok(Some(bought??)),
                Err(_) if self.sessions[0].has_no_end().await? => return Ok(None),
                Err(_) => {}
            }
        }
        Err("no other buyer gets the lock, although the lock has an expiry".into())
    }

    async fn close(self) -> Result<Audit, Failure> {
        let audit = self.sessions[0].shop.audit(ITEMS).await?;
        for session in &self.sessions {
            session.close().await;
        }
        Ok(audit)
    }
}

/// Runs a sale in which a buyer is killed during its purchase. Afterwards, the other buyers buy the remaining items,
/// unless no buyer can get the lock.
pub(crate) async fn death(servers: &Servers, guard: Guard) -> Result<Death, Failure> {
    let mut fixture = Fixture::open(servers, guard, Pace::Dies).await?;
    let held = servers.is_held(guard, &lock_key(&fixture.sale)).await;
    let mut others = fixture.others(1);
    fixture.unlucky.kill();
    let killed = Instant::now();
    let aftermath = match fixture.come_in(&mut others).await? {
        Some(bought) if held => {
            let next = bought.first().ok_or("nobody bought")?;
            Aftermath::Free(next.entered.saturating_duration_since(killed))
        }
        Some(_) => Aftermath::NothingHeld,
        None => {
            others.abort();
            Aftermath::StandsStill
        }
    };
    if aftermath != Aftermath::StandsStill {
        fixture.others(ITEMS).await??;
    }
    Ok(Death {
        aftermath,
        audit: fixture.close().await?,
    })
}

/// Runs a sale with a slow buyer. The slow buyer reads the stock. The slow buyer writes only after other buyers have
/// bought some items, or after it is clear that its lock never expires. Afterwards, the other buyers buy the remaining
/// items.
pub(crate) async fn late(servers: &Servers, guard: Guard, pace: Pace) -> Result<Late, Failure> {
    let mut fixture = Fixture::open(servers, guard, pace).await?;
    let mut others = fixture.others(MEANWHILE);
    let others_came_in = fixture.come_in(&mut others).await?.is_some();
    fixture.sessions[0].shop.give_word().await?;
    let ended = fixture.unlucky.outcome().await?;
    if !others_came_in {
        others.await??;
    }
    fixture.others(2 * ITEMS).await??;
    Ok(Late {
        others_came_in,
        ended,
        audit: fixture.close().await?,
    })
}
