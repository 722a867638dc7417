//! A check for guarded functions with any signature: two calls with the same key never overlap, a call returns the
//! value of its body, and the key is free after the calls.

use std::{
    fmt::Debug,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lock_runtime::LockClient;
use tokio::{sync::Semaphore, task::futures::TaskLocalFuture};

use crate::until;

tokio::task_local! {
    static PROBE: Probe;
}

/// Counts the calls that are inside the guarded body, and keeps each call there until the test lets it leave.
#[derive(Debug, Clone, Default)]
pub struct Probe(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    entered: AtomicUsize,
    left: AtomicUsize,
    gate: Semaphore,
}

impl Default for Inside {
    fn default() -> Self {
        Self {
            entered: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        }
    }
}

impl Probe {
    /// Returns the probe in whose [scope](Self::scope) the current task runs.
    ///
    /// # Panics
    /// If the current task does not run in the [scope](Self::scope) of a probe.
    #[must_use]
    pub fn current() -> Self {
        PROBE.with(Clone::clone)
    }

    /// Makes [`current`](Self::current) return this probe inside `call`, no matter which task polls the returned
    /// future.
    pub fn scope<F: Future>(&self, call: F) -> TaskLocalFuture<Self, F> {
        PROBE.scope(self.clone(), call)
    }

    /// Waits inside the body until the test lets the call leave.
    pub async fn stay(&self) {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        let permit = self.0.gate.acquire().await;
        permit.expect("the gate is never closed").forget();
        self.0.left.fetch_add(1, Ordering::SeqCst);
    }

    fn entered(&self) -> usize {
        self.0.entered.load(Ordering::SeqCst)
    }

    fn inside(&self) -> usize {
        self.entered() - self.0.left.load(Ordering::SeqCst)
    }

    fn let_one_out(&self) {
        self.0.gate.add_permits(1);
    }
}

/// Serves as the body of a function under test: waits until the test lets the call leave.
pub async fn stay() {
    Probe::current().stay().await;
}

/// Makes two calls at the same time, with a new in-process client. Checks that the two calls hold the lock `key` one
/// after the other, that each call returns `value`, and that the key is free at the end.
///
/// # Panics
/// If one of the checks fails.
pub async fn guarded<T: Debug + PartialEq>(key: &str, value: T, call: impl AsyncFn() -> T) {
    let client = LockClient::connect("memory:").await;
    let client = client.expect("locks in process need no server");
    let probe = Probe::default();
    let mut first = pin!(probe.scope(client.scope(call())));
    let mut second = pin!(probe.scope(client.scope(call())));
    let status = async || client.lock(key).status().await.expect("the store answers");

    while_running(first.as_mut(), async || probe.entered() == 1).await;
    while_running(second.as_mut(), async || {
        let status = status().await;
        probe.inside() == 2 || status.holder.is_none() || status.waiters == 1
    })
    .await;
    assert_eq!(probe.inside(), 1, "two calls overlap");
    let holder = status().await.holder.map(|holder| holder.owner);
    assert!(holder.is_some(), "the body runs, but nobody holds {key:?}");

    probe.let_one_out();
    assert_eq!(first.await, value, "the first call's value");
    let next = status().await.holder.map(|holder| holder.owner);
    assert_ne!(
        next, holder,
        "the first call has ended, but still holds the key"
    );
    while_running(second.as_mut(), async || probe.entered() == 2).await;
    probe.let_one_out();
    assert_eq!(second.await, value, "the second call's value");
    assert_eq!(status().await.holder, None, "both calls have ended");
}

/// Polls `call` until `event` returns true. Panics if the call ends before that.
async fn while_running<T: Debug>(
    call: Pin<&mut impl Future<Output = T>>,
    event: impl AsyncFnMut() -> bool,
) {
    tokio::select! {
        biased;
        ended = call => panic!("the call ended, but it has to run its body or wait in the queue: {ended:?}"),
        () = until(event) => {}
    }
}

#[cfg(test)]
mod tests {
    use lock_runtime::{LockError, distributed_lock};

    use super::*;

    #[distributed_lock(key = "k")]
    async fn locked() -> Result<u8, LockError> {
        stay().await;
        Ok(1)
    }

    async fn unlocked() -> Result<u8, LockError> {
        stay().await;
        Ok(1)
    }

    /// Releases the lock too early, so that another call can enter the body while this call still runs its body.
    async fn released_early() -> Result<u8, LockError> {
        let guard = LockClient::current()?.lock("k").acquire().await?;
        guard.release().await;
        unlocked().await
    }

    async fn never_released() -> Result<u8, LockError> {
        let guard = LockClient::current()?.lock("k").acquire().await?;
        stay().await;
        std::mem::forget(guard);
        Ok(1)
    }

    #[distributed_lock(key = "k", wait = "0s")]
    async fn not_waiting() -> Result<u8, LockError> {
        stay().await;
        Ok(1)
    }

    #[tokio::test]
    async fn a_locked_function_passes() {
        guarded("k", Ok(1), locked).await;
    }

    #[tokio::test]
    #[should_panic(expected = "two calls overlap")]
    async fn an_unlocked_function_is_caught() {
        guarded("k", Ok(1), unlocked).await;
    }

    #[tokio::test]
    #[should_panic(expected = "two calls overlap")]
    async fn an_early_release_is_caught() {
        guarded("k", Ok(1), released_early).await;
    }

    #[tokio::test]
    #[should_panic(expected = "has ended, but still holds the key")]
    async fn a_missing_release_is_caught() {
        guarded("k", Ok(1), never_released).await;
    }

    #[tokio::test]
    #[should_panic(expected = "nobody holds \"other\"")]
    async fn another_key_is_caught() {
        guarded("other", Ok(1), locked).await;
    }

    #[tokio::test]
    #[should_panic(expected = "the first call's value")]
    async fn another_value_is_caught() {
        guarded("k", Ok(2), locked).await;
    }

    #[tokio::test]
    #[should_panic(expected = "the call ended, but")]
    async fn a_call_that_does_not_wait_is_caught() {
        guarded("k", Ok(1), not_waiting).await;
    }
}
