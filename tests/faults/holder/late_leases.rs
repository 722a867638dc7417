//! Callers that read an answer late: the answer to an acquisition, to the confirmation of a lease, or to the restart of
//! a lease. No body starts on a lease that is over or nearly over.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use lock_runtime::{Hold, Holds, LockClient, LockError, distributed_lock};
use support::stores::{Store, hold};
use tokio::time::sleep;

use crate::fixture::{MS, SECOND, epsilon, until};

/// Polls a call once, lets `gap` pass without a poll, and then drives the call to its end.
async fn polled_after<T>(gap: Duration, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    if let Poll::Ready(ended) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
        return ended;
    }
    sleep(gap).await;
    call.await
}

/// Returns a client that already has a connection for this runtime, so that a call sends its request at its first poll.
async fn connected(store: &Store) -> LockClient {
    let client = store.client().await;
    client.lock("first").run(async {}).await.unwrap();
    client
}

async fn stores() -> [Store; 3] {
    [
        Store::redis().await,
        Store::redlock().await,
        Store::redisson().await,
    ]
}

fn left() -> Duration {
    Hold::current().expect("a body has a hold").remaining()
}

#[tokio::test]
async fn a_grant_that_is_read_late_is_confirmed_before_the_body_starts() {
    for store in stores().await {
        let client = connected(&store).await;
        let strategies = store.strategies().iter();
        for (strategy, renew) in strategies.flat_map(|s| [(s, true), (s, false)]) {
            let lock = client.lock("k").lease(SECOND).renew(renew);
            let lock = lock.strategy(*strategy);
            let left = polled_after(600 * MS, lock.run(async { left() }))
                .await
                .unwrap();
            assert!(left > 600 * MS, "{strategy:?}, {renew}: {left:?}");
        }
        assert_eq!(client.stats().lost, 0);
    }
}

#[tokio::test]
async fn a_renewed_lease_that_began_late_is_renewed() {
    let store = Store::redis().await;
    let client = connected(&store).await;
    let lock = client.lock("k").lease(SECOND).renew(true);
    let body = async {
        sleep(2500 * MS).await;
        Hold::current().unwrap().loss()
    };
    let lost = polled_after(800 * MS, lock.run(body)).await;
    assert_eq!(lost.unwrap(), None);
}

/// A call reads the answer that grants it the lock only after the lease has ended. The body of the call never began, so
/// the call reports no loss, and acquires the lock again within its `wait`.
#[tokio::test]
async fn a_grant_that_is_read_after_its_end_is_acquired_again() {
    for store in stores().await {
        let client = connected(&store).await;
        for &strategy in store.strategies() {
            let lock = client.lock("k").lease(SECOND).strategy(strategy);
            let lock = lock.wait(20 * SECOND);
            let left = polled_after(1200 * MS, lock.run(async { left() })).await;
            let left = left.unwrap();
            assert!(left > 600 * MS, "{strategy:?}: {left:?}");
        }
        // The client counts no loss, because no body ran under the lease that ended.
        assert_eq!(client.stats().lost, 0, "{store:?}");
    }
}

/// Many calls read their grants only after the leases have ended, while the engine's thread looks for leases that have
/// ended. The client counts no loss for a grant under which no body ran.
#[tokio::test]
async fn many_grants_that_are_read_after_their_end_are_no_losses() {
    let client = connected(&Store::redis().await).await;
    let calls = (0..500).map(|key| {
        let lock = client.lock(format!("k{key}")).lease(SECOND);
        polled_after(1200 * MS, lock.wait(20 * SECOND).run(async {}))
    });
    try_join_all(calls).await.unwrap();
    assert_eq!(client.stats().lost, 0);
}

/// A waiter is polled only after the lease of its grant has ended. The waiter acquires the lock again, and the client
/// counts no loss.
#[tokio::test]
async fn a_turn_that_is_read_after_its_end_is_no_loss() {
    for store in [Store::memory(), Store::redis().await] {
        let client = connected(&store).await;
        let held = client.lock("k").acquire().await.unwrap();
        let lock = client.lock("k").lease(100 * MS).wait(20 * SECOND);
        let mut waiting = Box::pin(lock.run(async { left() }));
        until(async || {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            client.lock("k").status().await.unwrap().waiters == 1
        })
        .await;
        held.release().await;
        sleep(300 * MS).await;
        let left = waiting.await.unwrap();
        assert!(left > 60 * MS, "{left:?}");
        assert_eq!(client.stats().lost, 0, "{store:?}");
    }
}

#[tokio::test]
async fn a_try_whose_lock_is_not_taken_in_time_is_busy() {
    let store = Store::redis().await;
    let client = connected(&store).await;
    let lock = client.lock("k").lease(SECOND).wait(Duration::ZERO);
    let tried = loop {
        let began = Instant::now();
        match polled_after(4 * SECOND, lock.acquire()).await {
            // On a busy machine, the answer can come before the first poll has ended.
            Ok(guard) if began.elapsed() < SECOND => _ = guard.release().await,
            tried => break tried,
        }
    };
    match tried {
        Err(LockError::Busy { key, waited, .. }) => {
            assert_eq!(key.as_str(), "k");
            assert!(
                waited > 2 * SECOND && waited < 4 * SECOND + epsilon(),
                "{waited:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    until(async || client.lock("k").status().await.unwrap().holder.is_none()).await;
    assert_eq!(client.stats().lost, 0);
}

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "1s", guard = holds)]
async fn both() -> Result<Duration, LockError> {
    Ok(Holds::remaining(&holds))
}

#[tokio::test]
async fn several_grants_that_are_read_late_are_confirmed_or_acquired_again() {
    let store = Store::redis().await;
    let client = connected(&store).await;
    for gap in [600 * MS, 1200 * MS] {
        let left = polled_after(gap, client.scope(both())).await;
        let left = left.unwrap();
        assert!(left > 600 * MS, "after {gap:?}: {left:?}");
    }
    assert_eq!(client.stats().lost, 0);
}

/// Polls a call until the other client sees a waiter in the queue of `b`.
async fn until_it_waits<T>(call: &mut Pin<Box<impl Future<Output = T>>>, other: &LockClient) {
    until(async || {
        let is_pending = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "the call for `b` ended without waiting");
        other.lock("b").status().await.unwrap().waiters == 1
    })
    .await;
}

/// A call for two locks restarts the lease of the first lock before the body starts. If the call reads the answer to
/// the restart when the restarted lease is over, or nearly over, the body does not start on that lease.
#[tokio::test]
async fn a_lease_that_was_restarted_late_is_confirmed_or_acquired_again() {
    for gap in [600 * MS, 1200 * MS] {
        let store = Store::redis().await;
        let (client, other) = (connected(&store).await, connected(&store).await);
        let guard = hold(&other, "b").await;
        let mut call = Box::pin(client.scope(both()));
        until_it_waits(&mut call, &other).await;
        guard.release().await;
        until(async || other.lock("b").status().await.unwrap().waiters == 0).await;
        // At its next poll, the call takes its turn for `b`, and requests the restart of the lease of `a`.
        sleep(100 * MS).await;
        let left = polled_after(gap, call).await.unwrap();
        assert!(left > 600 * MS, "after {gap:?}: {left:?}");
    }
}
