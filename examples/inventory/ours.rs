//! Ours, as the author of a service writes it. A strategy is one word, and so is a lease.

use std::time::Duration;

use lock_runtime::distributed_lock;

use crate::{
    Failure,
    errand::{Errand, Outcome},
    till::{Lease, SHORT_LEASE},
};

/// How a caller waits whose lock is not free. On a Redlock all spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Handoff,
    Notify,
    Spin,
}

/// Nothing comes near it: here nobody gives up.
const WAIT: Duration = Duration::from_secs(300);

#[distributed_lock(key = "stock:<sale>", wait = WAIT, guard = hold)]
async fn handoff(sale: &str, errand: &mut Errand<'_>) -> Result<Outcome, Failure> {
    errand.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, strategy = notify, guard = hold)]
async fn notify(sale: &str, errand: &mut Errand<'_>) -> Result<Outcome, Failure> {
    errand.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, strategy = spin, guard = hold)]
async fn spin(sale: &str, errand: &mut Errand<'_>) -> Result<Outcome, Failure> {
    errand.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, lease = SHORT_LEASE, guard = hold)]
async fn short_handoff(sale: &str, errand: &mut Errand<'_>) -> Result<Outcome, Failure> {
    errand.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, lease = SHORT_LEASE, strategy = notify, guard = hold)]
async fn short_notify(sale: &str, errand: &mut Errand<'_>) -> Result<Outcome, Failure> {
    errand.run(Some(hold.token())).await
}

#[distributed_lock(key = "stock:<sale>", wait = WAIT, lease = SHORT_LEASE, strategy = spin, guard = hold)]
async fn short_spin(sale: &str, errand: &mut Errand<'_>) -> Result<Outcome, Failure> {
    errand.run(Some(hold.token())).await
}

/// Runs an errand under the lock of its sale, with the client that is scoped to it.
pub(crate) async fn run(
    way: Way,
    lease: Lease,
    sale: &str,
    errand: &mut Errand<'_>,
) -> Result<Outcome, Failure> {
    match (way, lease) {
        (Way::Handoff, Lease::Ample) => handoff(sale, errand).await,
        (Way::Notify, Lease::Ample) => notify(sale, errand).await,
        (Way::Spin, Lease::Ample) => spin(sale, errand).await,
        (Way::Handoff, Lease::Short) => short_handoff(sale, errand).await,
        (Way::Notify, Lease::Short) => short_notify(sale, errand).await,
        (Way::Spin, Lease::Short) => short_spin(sale, errand).await,
    }
}
