//! Functions that have other attributes beside `#[distributed_lock]`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lock_runtime::{LockClient, distributed_lock};
use support::guarded::{Probe, guarded, stay};
use tokio::sync::OnceCell;

use crate::Locked;

/// This doc comment is above the attribute.
#[must_use = "and not to be thrown away"]
#[distributed_lock(key = "<id>")]
/// This doc comment is below the attribute.
#[inline]
#[allow(unused_variables, clippy::needless_return)]
#[cfg(test)]
#[cfg_attr(test, doc = "Under a condition.")]
async fn many(id: u64) -> Locked<u64> {
    //! This doc comment is inside the body.
    #![allow(unused_assignments)]
    let unused = 1;
    stay().await;
    return Ok(id);
}

#[tokio::test]
async fn lints_documents_and_hints() {
    guarded("7", Ok(7), async || many(7).await).await;
}

#[distributed_lock(key = "main", client = locks)]
#[tokio::main(flavor = "current_thread")]
async fn main_of_its_own(
    #[allow(unused_variables)] locks: LockClient,
    probe: Probe,
) -> Locked<u64> {
    probe.stay().await;
    Ok(1)
}

/// A function with `#[tokio::main]` starts its own runtime and blocks the calling thread, so the test calls it on
/// another thread.
#[tokio::test]
async fn above_tokio_main() {
    guarded("main", Ok(1), async || {
        let (locks, probe) = (LockClient::current().unwrap(), Probe::current());
        let main = tokio::task::spawn_blocking(|| main_of_its_own(locks, probe));
        main.await.unwrap()
    })
    .await;
}

static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Returns one client for all tests of this process. With one client for all tests, the tests of a suite can lock a
/// resource that they share.
async fn shared() -> &'static LockClient {
    static SHARED: OnceCell<LockClient> = OnceCell::const_new();
    let connect = async || LockClient::connect("memory:").await.unwrap();
    SHARED.get_or_init(connect).await
}

async fn alone() {
    assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
    let status = shared().await.lock("suite").status().await.unwrap();
    assert!(status.holder.is_some());
    tokio::task::yield_now().await;
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

#[distributed_lock(key = "suite", client = *shared().await, wait = "1m")]
#[tokio::test]
async fn above_tokio_test() -> Locked<()> {
    alone().await;
    Ok(())
}

#[distributed_lock(key = "suite", client = *shared().await, wait = "1m")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_tokio_test_with_options() -> Locked<()> {
    alone().await;
    Ok(())
}

#[distributed_lock(key = "arc", client = *locks)]
async fn client_behind_a_pointer(locks: Arc<LockClient>) -> Locked<Arc<LockClient>> {
    stay().await;
    Ok(locks)
}

#[tokio::test]
async fn a_client_that_an_argument_is() {
    guarded("arc", Ok(1), async || {
        let locks = client_behind_a_pointer(Arc::new(LockClient::current()?)).await;
        locks.map(|locks| Arc::strong_count(&locks))
    })
    .await;
}
