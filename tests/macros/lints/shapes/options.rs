//! The options of the attribute.

use super::{Failed, Locked, LockError, Order, pause, used};
use lock_runtime::LockClient;

type Seconds = core::time::Duration;

pub(crate) const WAIT: Seconds = seconds(5);

pub(crate) const LEASE: Seconds = seconds(6);

pub(crate) const fn seconds(number: u64) -> Seconds {
    Seconds::from_secs(number)
}

/// Has a client.
pub struct Ledger {
    /// Is it.
    pub locks: LockClient,
    /// Is its name.
    pub name: String,
}

// shape: literal_durations
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", wait = "5s", lease = "30s", renew = true, max_hold = "10m", hold_at_least = "10s"))]
pub async fn literal_durations(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: constant_durations
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", wait = WAIT, lease = LEASE))]
pub async fn constant_durations(id: u64) -> Locked<u64> {
    #[cfg(not(annotated))] used((WAIT, LEASE));
    pause().await;
    Ok(id)
}

// shape: durations_of_arguments
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", wait = limit, lease = seconds(lease)))]
pub async fn durations_of_arguments(id: u64, limit: Seconds, lease: u64) -> Locked<u64> {
    #[cfg(not(annotated))] used((limit, lease));
    pause().await;
    Ok(id)
}

// shape: words_that_name_no_argument
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", wait = Seconds::from_secs(5)))]
pub async fn words_that_name_no_argument(id: u64, from_secs: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: skip
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", wait = "0s", on_busy = skip))]
pub async fn skip(id: u64) -> Result<Option<u64>, LockError> {
    pause().await;
    Ok(Some(id))
}

// shape: fallback
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", on_busy = fallback(later)))]
pub async fn fallback(id: u64, order: Order) -> Result<u64, Failed> {
    #[cfg(not(annotated))] drop(later(id, order.clone(), Failed::Other));
    pause().await;
    Ok(id ^ order.id)
}

async fn later<T>(id: u64, order: Order, error: T) -> Result<u64, Failed> {
    pause().await;
    used(error);
    Ok(id ^ order.id)
}

// shape: fallback_of_a_method
impl Ledger {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", on_busy = fallback(Self::later)))]
    pub async fn fallback_of_a_method(&self, id: u64, other: String) -> Result<u64, Failed> {
        #[cfg(not(annotated))] drop(Self::later(self, id, other.clone(), Failed::Other));
        pause().await;
        Ok(id)
    }

    async fn later<T>(&self, id: u64, other: String, error: T) -> Result<u64, Failed> {
        pause().await;
        used((error, other, &self.name));
        Ok(id)
    }

    // shape: client_of_self
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.name>", client = self.locks, guard = hold))]
    pub async fn client_of_self(&self, id: u64) -> Locked<u64> {
        #[cfg(not(annotated))] let hold = &self.locks;
        pause().await;
        used(&hold);
        Ok(id)
    }

    // shape: boxed_options
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", client = self.locks, wait = "5s", map_err = Failed::Lock))]
    pub fn boxed_options(&self, id: u64) -> super::boxed::BoxFuture<'_, Result<u64, Failed>> {
        Box::pin(async move {
            pause().await;
            Ok(id ^ u64::from(self.name.is_empty()))
        })
    }
}

// shape: fallback_with_patterns
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", on_busy = fallback(later_pair), wait = "1s"))]
pub async fn fallback_with_patterns((id, mut other): (u64, u64), _: u64) -> Result<u64, Failed> {
    #[cfg(not(annotated))] drop(later_pair((id, 0), 1, Failed::Other));
    pause().await;
    Ok(id)
}

async fn later_pair<T>(pair: (u64, u64), _: u64, error: T) -> Result<u64, Failed> {
    pause().await;
    used(error);
    Ok(pair.0)
}

// shape: map_err_path
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", map_err = Failed::Lock))]
pub async fn map_err_path(id: u64) -> Result<u64, Failed> {
    pause().await;
    Ok(id)
}

// shape: map_err_closure
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", map_err = |error| error.to_string()))]
pub async fn map_err_closure(id: u64) -> Result<u64, String> {
    pause().await;
    Ok(id)
}

// shape: several_keys
#[cfg_attr(annotated, lock_runtime::distributed_lock(keys = ["a:<from.id>", "a:<to.id>"], guard = holds))]
pub async fn several_keys(from: Order, to: Order) -> Locked<u64> {
    #[cfg(not(annotated))] let holds = &from;
    pause().await;
    used(&holds);
    Ok(from.id ^ to.id)
}

// shape: list_of_keys
#[cfg_attr(annotated, lock_runtime::distributed_lock(keys = "a:<ids..>"))]
pub async fn list_of_keys(ids: Vec<u64>) -> Locked<usize> {
    pause().await;
    Ok(ids.len())
}

// shape: list_of_keys_only
#[cfg_attr(annotated, lock_runtime::distributed_lock(keys = ["b", "a:<ids..>", "c:<id>"]))]
pub async fn list_of_keys_only(ids: &[u64], id: u64) -> Locked<u64> {
    #[cfg(not(annotated))] used((ids, id));
    pause().await;
    Ok(1)
}

// shape: list_in_a_pattern
#[cfg_attr(annotated, lock_runtime::distributed_lock(keys = "a:<ids..>"))]
pub async fn list_in_a_pattern((ids, other): (Vec<u64>, u64)) -> Locked<u64> {
    pause().await;
    drop(ids);
    Ok(other)
}

// shape: client_in_a_pattern
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", client = locks))]
pub async fn client_in_a_pattern((locks, id): (LockClient, u64)) -> Locked<u64> {
    #[cfg(not(annotated))] used(&locks);
    pause().await;
    Ok(id)
}

// shape: client_expression
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", client = client_of(id).await, namespace = "shop"))]
pub async fn client_expression(id: u64) -> Locked<u64> {
    #[cfg(not(annotated))] drop(client_of(id));
    pause().await;
    Ok(id)
}

async fn client_of(id: u64) -> LockClient {
    used(id);
    pause().await;
    match LockClient::current() {
        Ok(client) => client,
        Err(_) => loop {
            pause().await;
        },
    }
}

// shape: ways_to_wait
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", strategy = spin, release = background, replicas = 1, on_lost = continue, mode = exclusive))]
pub async fn ways_to_wait(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: several_lines
#[cfg_attr(
    annotated,
    lock_runtime::distributed_lock(
        key = "a:<id>",
        wait = "5s",
        crate = ::lock_runtime,
        on_busy = skip,
        guard = hold,
    )
)]
pub async fn several_lines(
    id: u64,
) -> Result<Option<u64>, LockError> {
    #[cfg(not(annotated))] let hold = &id;
    pause().await;
    used(&hold);
    Ok(Some(id))
}

// shape: unused_guard
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>", guard = _hold))]
pub async fn unused_guard(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: raw_placeholder
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "{a:<order.name:raw>}:<order.size.0>"))]
pub async fn raw_placeholder(order: &Order) -> Locked<u64> {
    pause().await;
    Ok(order.size.1)
}
