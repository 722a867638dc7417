//! The runtime of the caller: the locks need neither its timer nor its I/O driver.

use std::{
    future::Future,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Wake},
    thread,
};

use futures_util::{FutureExt, future::BoxFuture};
use lock_runtime::{LockClient, LockError, LossReason};
use support::assert_busy;
use tokio::{runtime::Builder, sync::oneshot};

use crate::stores::{MS, SECOND, Store};

/// Runs a test on three runtimes: one with neither a timer nor an I/O driver, one with only a timer, and one with only
/// an I/O driver.
fn on_bare_runtimes<F, Fut>(store: &Store, test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    for (time, io) in [(false, false), (true, false), (false, true)] {
        let mut builder = Builder::new_current_thread();
        if time {
            builder.enable_time();
        }
        if io {
            builder.enable_io();
        }
        builder.build().unwrap().block_on(test(store.clone()));
    }
}

/// Makes calls wait for everything that needs a timer: for the lock, for a turn among siblings, and for the end of a
/// lease.
async fn enters_waits_and_loses(store: Store) {
    let client = store.client().await;
    client.lock("k").run(async {}).await.unwrap();
    for strategy in store.strategies() {
        let lock = client.lock("k").strategy(*strategy);
        let guard = lock.acquire().await.unwrap();
        let busy = lock.clone().wait(50 * MS).acquire().await;
        assert_busy(&busy);
        let sibling = guard.run(async {
            let sibling = lock.clone().wait(50 * MS);
            let never = std::future::pending::<()>();
            let first = lock.run(never);
            tokio::select! {
                biased;
                _ = first => unreachable!("it never ends"),
                sibling = sibling.run(async {}) => sibling,
            }
        });
        let busy = sibling.await.unwrap();
        assert_busy(&busy);
        guard.extend(SECOND).await.unwrap();
        guard.release().await;
        let lost = lock.lease(100 * MS).run(std::future::pending::<()>()).await;
        let expired = LossReason::Expired;
        assert!(
            matches!(lost, Err(LockError::Lost { reason, .. }) if reason == expired),
            "{lost:?}"
        );
    }
}

#[test]
fn in_process_a_runtime_needs_no_drivers() {
    on_bare_runtimes(&Store::memory(), enters_waits_and_loses);
}

#[test]
fn with_a_server_a_runtime_needs_no_drivers() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(Store::redis());
    on_bare_runtimes(&store, enters_waits_and_loses);
}

/// A caller whose waker polls it at once, on the waking thread.
struct Inline(Mutex<Option<BoxFuture<'static, ()>>>);

impl Inline {
    fn start(caller: impl Future<Output = ()> + Send + 'static) {
        Arc::new(Self(Mutex::new(Some(caller.boxed())))).wake();
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let Some(mut caller) = self.0.lock().unwrap().take() else {
            return; // already being polled, or has ended
        };
        let waker = self.clone().into();
        if caller
            .poll_unpin(&mut Context::from_waker(&waker))
            .is_pending()
        {
            *self.0.lock().unwrap() = Some(caller);
        }
    }
}

/// In the in-process backend, a release and the end of a turn wake the next caller. The waker of that caller can poll
/// it at once, on the same thread.
#[test]
fn a_caller_may_be_polled_by_the_one_that_wakes_it() {
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = LockClient::connect("memory:").await.unwrap();
            let lock = client.lock("k").wait(30 * SECOND);
            let run = |inside: oneshot::Sender<()>| {
                let lock = lock.clone();
                async move {
                    let inside = async { inside.send(()).unwrap() };
                    lock.run(inside).await.unwrap();
                }
            };
            let (inside, is_inside) = oneshot::channel();
            let guard = lock.acquire().await.unwrap();
            Inline::start(run(inside));
            guard.release().await;
            is_inside.await.unwrap();

            let (inside, is_inside) = oneshot::channel();
            let siblings = async {
                let (end, is_over) = oneshot::channel::<()>();
                let mut first = lock.run(is_over).boxed();
                assert!((&mut first).now_or_never().is_none());
                Inline::start(run(inside));
                end.send(()).unwrap();
                first.await.unwrap().unwrap();
                is_inside.await.unwrap();
            };
            lock.run(siblings).await.unwrap();
        });
        ended.send(()).unwrap();
    });
    let ended = has_ended.recv_timeout(10 * SECOND);
    ended.expect("nobody waits for itself");
}
