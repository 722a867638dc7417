//! The locks of this project, as the author of a service would write them. Each attribute has one option for the
//! strategy and one option for the lease.

use std::time::Duration;

use lock_runtime::distributed_lock;

use crate::{
    Failure,
    purchase::{Outcome, Purchase},
    session::{Lease, SHORT_LEASE},
};

/// The strategy: how a caller waits if its lock is not free. On a Redlock, callers spin (try again after short pauses)
/// regardless of the strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Handoff,
    Notify,
    Spin,
}

/// The `wait` of the locks. This `wait` is far longer than any buyer really waits, so that no buyer gives up.
const WAIT: Duration = Duration::from_secs(300);

#[distributed_lock(key = "stock:<sale>", wait = WAIT, guard = hold)]
async fn handoff(sale: &str, purchase: &mut Purchase<'_>) -> Result<Outcome, Failure> {
    purchase.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, strategy = notify, guard = hold)]
async fn notify(sale: &str, purchase: &mut Purchase<'_>) -> Result<Outcome, Failure> {
    purchase.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, strategy = spin, guard = hold)]
async fn spin(sale: &str, purchase: &mut Purchase<'_>) -> Result<Outcome, Failure> {
    purchase.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, lease = SHORT_LEASE, guard = hold)]
async fn short_handoff(sale: &str, purchase: &mut Purchase<'_>) -> Result<Outcome, Failure> {
    purchase.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, lease = SHORT_LEASE, strategy = notify, guard = hold)]
async fn short_notify(sale: &str, purchase: &mut Purchase<'_>) -> Result<Outcome, Failure> {
    purchase.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, lease = SHORT_LEASE, strategy = spin, guard = hold)]
async fn short_spin(sale: &str, purchase: &mut Purchase<'_>) -> Result<Outcome, Failure> {
    purchase.run(Some(hold.token())).await
}

/// Runs a purchase under the lock of its sale. The lock uses the client in whose scope the call runs.
pub(crate) async fn run(
    way: Way,
    lease: Lease,
    sale: &str,
    purchase: &mut Purchase<'_>,
) -> Result<Outcome, Failure> {
    match (way, lease) {
        (Way::Handoff, Lease::Ample) => handoff(sale, purchase).await,
        (Way::Notify, Lease::Ample) => notify(sale, purchase).await,
        (Way::Spin, Lease::Ample) => spin(sale, purchase).await,
        (Way::Handoff, Lease::Short) => short_handoff(sale, purchase).await,
        (Way::Notify, Lease::Short) => short_notify(sale, purchase).await,
        (Way::Spin, Lease::Short) => short_spin(sale, purchase).await,
    }
}
