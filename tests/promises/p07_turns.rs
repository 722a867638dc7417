//! Promise 7: siblings, which are calls for one key that one task runs concurrently, take turns. A turn that a sibling
//! does not take passes to the next sibling.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
    time::{Duration, Instant},
};

use lock_core::advice::advised;
use lock_runtime::{BusyWith, InCurrentHold, LockClient, LockError, distributed_lock};
use support::{Room, assert_busy, epsilon};
use tokio::time::sleep;

use crate::stores::{
    MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until, until_free,
};

/// The maximum time by which a sibling that is not polled delays the next sibling: a claim (2 s).
const DELAY: Duration = Duration::from_secs(2);

/// Runs three siblings in one task. The body of each sibling takes 10 ms.
async fn siblings(client: &LockClient) {
    let inside = Room::default();
    let sibling = || client.lock("k").wait(5 * SECOND).run(inside.stay(10 * MS));
    let (a, b, c) = tokio::join!(sibling(), sibling(), sibling());
    a.and(b).and(c).unwrap();
}

#[tokio::test]
async fn siblings_in_one_task_take_turns() {
    on_every_store(|store| async move { siblings(&store.client().await).await }).await;
}

#[tokio::test]
async fn siblings_under_an_ancestor_that_holds_the_key_take_turns() {
    on_every_store(|store| async move {
        let client = store.client().await;
        client.lock("k").run(siblings(&client)).await.unwrap();
        client
            .lock("k")
            .run(client.lock("x").run(siblings(&client)))
            .await
            .unwrap()
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_sibling_in_the_way_is_named() {
    on_every_store(|store| async move {
        let client = store.client().await;
        client
            .lock("k")
            .run(async {
                let long = client.lock("k").run(sleep(100 * MS));
                let short = client.lock("k").wait(10 * MS).run(async {});
                let (long, short) = tokio::join!(long, short);
                long.unwrap();
                let refused = short.unwrap_err();
                assert!(matches!(
                    refused,
                    LockError::Busy {
                        with: BusyWith::Sibling,
                        ..
                    }
                ));
                assert!(
                    advised(&refused).contains(".in_current_hold()"),
                    "{refused}"
                );
            })
            .await
            .unwrap();
    })
    .await;
}

/// A sibling's turn lasts until everything that is nested in it has ended. A call that is first polled in the turn, and
/// later polled outside the turn, is nested. A task that was started in the turn with `in_current_hold` is nested too.
#[tokio::test]
async fn whatever_was_begun_in_a_turn_keeps_the_next_sibling_waiting() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").wait(5 * SECOND);
        let inside = Room::default();
        let body = || inside.stay(30 * MS);
        lock.run(async {
            let mut begun = Box::pin(lock.run(body()));
            let poll_once = std::future::poll_fn(|cx| {
                assert!(begun.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            });
            lock.run(poll_once).await.unwrap();
            let (begun, sibling) = tokio::join!(begun, lock.run(body()));
            begun.and(sibling).unwrap();
        })
        .await
        .unwrap();
        lock.run(async {
            let mut task = None;
            lock.run(async {
                let lock = lock.clone();
                let nested = async move { lock.run(sleep(30 * MS)).await };
                task = Some(tokio::spawn(nested.in_current_hold()));
            })
            .await
            .unwrap();
            let started = Instant::now();
            lock.run(async {}).await.unwrap();
            assert!(started.elapsed() >= 20 * MS, "{:?}", started.elapsed());
            task.unwrap().await.unwrap().unwrap();
        })
        .await
        .unwrap();
    })
    .await;
}

async fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// A sibling gets its turn while it is not polled. The next sibling enters after a claim (2 s), and the first sibling
/// enters once it is polled again.
#[tokio::test]
async fn a_turn_that_is_not_taken_is_passed_on() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").wait(20 * SECOND);
        let inside = Room::default();
        let body = || inside.stay(10 * MS);
        lock.run(async {
            let first = lock.acquire().await.unwrap();
            let mut forgotten = Box::pin(lock.run(body()));
            assert!(!poll_once(&mut forgotten).await);
            first.release().await;
            let released = Instant::now();
            lock.run(body()).await.unwrap();
            let took = released.elapsed();
            assert!(took < DELAY + epsilon(), "{took:?}");
            let (late, other) = tokio::join!(forgotten, lock.run(body()));
            late.and(other).unwrap();
        })
        .await
        .unwrap();
    })
    .await;
}

#[distributed_lock(client = client, keys = ["k", "x"], wait = "1s")]
async fn k_and_x(client: &LockClient, ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

/// A sibling has its turn at one lock, waits for another lock, and is no longer polled. The turn of the sibling that is
/// no longer polled passes to the next sibling.
#[tokio::test]
async fn a_turn_whose_body_has_not_begun_is_passed_on() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "x").await;
        let lock = client.lock("k").wait(20 * SECOND);
        let ran = AtomicBool::new(false);
        lock.run(async {
            let mut forgotten = Box::pin(k_and_x(&client, &ran));
            until(async || {
                assert!(!poll_once(&mut forgotten).await);
                other.lock("x").status().await.unwrap().waiters == 1
            })
            .await;
            let left = Instant::now();
            lock.run(async {}).await.unwrap();
            // The turn passes to the next sibling at most a claim (2 s) after the end of the first sibling's `wait`.
            let took = left.elapsed();
            assert!(took < SECOND + DELAY + epsilon(), "{took:?}");
            guard.release().await;
            let late = forgotten.await;
            assert_busy(&late);
            // Both the lock of `x` and the turn at the lock of `k` are free again.
            until_free(&other, "x").await;
            lock.run(async {}).await.unwrap();
        })
        .await
        .unwrap();
        assert!(!ran.into_inner(), "two siblings were inside");
    })
    .await;
}

/// A nested call is waiting for another lock when the enclosing call returns. The nested call does not keep the lock of
/// the enclosing call taken, and later acquires both locks itself.
#[tokio::test]
async fn a_hold_is_not_kept_for_a_body_that_has_not_begun() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "x").await;
        let lock = client.lock("k").wait(20 * SECOND);
        let ran = AtomicBool::new(false);
        let mut left_behind = Box::pin(k_and_x(&client, &ran));
        let begin = until(async || {
            assert!(!poll_once(&mut left_behind).await);
            other.lock("x").status().await.unwrap().waiters == 1
        });
        lock.run(begin).await.unwrap();
        hold(&other, "k").await.release().await;
        guard.release().await;
        left_behind.await.unwrap();
        assert!(ran.into_inner());
        until_free(&other, "k").await;
        until_free(&other, "x").await;
    })
    .await;
}

/// A sibling has its turn and has requested a longer lease, but it is not polled when the answer arrives. The turn of
/// the sibling that is no longer polled passes to the next sibling.
#[tokio::test]
async fn a_turn_is_passed_on_whose_extension_is_not_read() {
    for store in [Store::redis().await, Store::redlock().await] {
        let client = store.client().await;
        let lock = client.lock("k").wait(20 * SECOND);
        let inside = Room::default();
        let body = || inside.stay(10 * MS);
        let outer = lock.clone().lease(20 * SECOND);
        outer
            .run(async {
                let longer = lock.clone().lease(60 * SECOND);
                let forgotten = loop {
                    let mut call = Box::pin(longer.run(body()));
                    assert!(!poll_once(&mut call).await, "the body ended too early");
                    if !inside.is_taken() {
                        break call;
                    }
                    // The answer arrived during the poll, so the body has begun. The test needs a call whose body has
                    // not begun, so it tries again.
                    call.await.unwrap();
                };
                let left = Instant::now();
                lock.run(body()).await.unwrap();
                let took = left.elapsed();
                assert!(took < DELAY + epsilon(), "{took:?}");
                let (late, other) = tokio::join!(forgotten, lock.run(body()));
                late.and(other).unwrap();
            })
            .await
            .unwrap();
    }
}
