//! `extend`: from which moment the added time counts, and when an extension fails.

use std::{
    future::{Future, poll_fn},
    task::Poll,
    thread,
};

use lock_runtime::{LockError, OptionsError};
use support::assert_lost;

use crate::stores::{
    MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until_waiting,
};

#[tokio::test]
async fn extensions_called_one_after_the_other_add_up() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.lock("k").lease(10 * SECOND).acquire().await.unwrap();
        guard.extend(5 * SECOND).await.unwrap();
        let left = guard.extend(5 * SECOND).await.unwrap();
        assert!((19 * SECOND..=20 * SECOND).contains(&left), "{left:?}");
        let too_long = guard.extend(86_400 * SECOND).await;
        let refused = LockError::InvalidOptions(OptionsError::LeaseTooLong);
        assert_eq!(too_long, Err(refused));
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn extensions_called_together_do_not_add_up() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.lock("k").lease(10 * SECOND).acquire().await.unwrap();
        let (one, other) = tokio::join!(guard.extend(5 * SECOND), guard.extend(5 * SECOND));
        for left in [one.unwrap(), other.unwrap(), guard.remaining()] {
            assert!((14 * SECOND..=15 * SECOND).contains(&left), "{left:?}");
        }
        guard.release().await;
    })
    .await;
}

/// A release passes its lock to a waiter. Until the waiter confirms this grant, the grant lasts only for a claim (2 s).
/// An extension nevertheless counts from the end of the whole lease that the waiter requested.
#[tokio::test]
async fn a_hold_that_was_handed_on_is_extended_from_the_end_of_its_lease() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "k").await;
        let lock = client.lock("k").lease(30 * SECOND).wait(20 * SECOND);
        let (handed_on, ()) = tokio::join!(lock.acquire(), async {
            until_waiting(&other, "k", 1).await;
            guard.release().await;
        });
        let handed_on = handed_on.unwrap();
        let left = handed_on.extend(10 * SECOND).await.unwrap();
        assert!((39 * SECOND..=40 * SECOND).contains(&left), "{left:?}");
        handed_on.release().await;
    })
    .await;
}

/// The caller's thread is blocked for longer than the lease. The extension succeeds, because the engine renews the
/// lease meanwhile.
#[tokio::test]
async fn an_extension_lasts_as_long_as_the_lease_is_renewed() {
    for store in [Store::redis().await, Store::redlock().await] {
        let client = store.client().await;
        let lock = client.lock("k").lease(SECOND).renew(true);
        let guard = lock.acquire().await.unwrap();
        let mut extending = Box::pin(guard.extend(5 * SECOND));
        // The engine's answer to the extension can arrive during this first poll, so the poll may complete the
        // extension.
        let first = poll_fn(|cx| Poll::Ready(extending.as_mut().poll(cx))).await;
        thread::sleep(1500 * MS);
        let left = match first {
            Poll::Ready(left) => left.unwrap(),
            Poll::Pending => extending.as_mut().await.unwrap(),
        };
        drop(extending);
        assert!(left > 3 * SECOND, "{left:?}");
        assert_eq!(guard.loss(), None);
        guard.release().await;
    }
}

#[tokio::test]
async fn an_extension_of_a_lost_lease_is_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.lock("k").lease(300 * MS).acquire().await.unwrap();
        // The caller's thread is blocked until after the end of the lease.
        thread::sleep(350 * MS);
        // On a busy machine, the engine can hear from the server that the grant is gone before it sees the deadline.
        assert_lost(&guard.extend(SECOND).await);
        assert!(guard.loss().is_some());
    })
    .await;
}
