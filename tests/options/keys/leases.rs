//! The leases of a call with several locks, and the loss of one of these leases.

use std::{
    cell::Cell,
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use lock_runtime::{BusyWith, LockClient, LockError, LossReason, distributed_lock};
use support::{assert_lost, epsilon, server::ask};
use tokio::time::sleep;

use crate::stores::{
    MS, SECOND, Store, held, hold, on_stores_with_a_queue, until, until_free, until_waiting,
};

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "1s", guard = holds)]
async fn short_lease(body: impl Future<Output = ()>) -> Result<lock_runtime::Holds, LockError> {
    let left = holds.remaining();
    // At least two thirds of the lease were left when the body began. A busy machine can pause the body after that.
    assert!((SECOND / 2..=SECOND).contains(&left), "{left:?}");
    body.await;
    Ok(holds)
}

#[tokio::test]
async fn what_is_had_is_kept_while_the_next_one_is_waited_for_and_begins_anew() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "b").await;
        let overtaken = AtomicBool::new(false);
        let waiting = client.scope(short_lease(std::future::ready(())));
        let holding = async {
            until_waiting(&other, "b", 1).await;
            // This request waits 2.5 s for `a`, the first lock of the waiting call. The lease of `a` lasts 1 s, so the
            // request would be granted `a` if that lease were not renewed.
            let taken = other.lock("a").wait(2500 * MS).acquire().await;
            overtaken.store(taken.is_ok(), Ordering::SeqCst);
            guard.release().await;
        };
        let (entered, ()) = tokio::join!(waiting, holding);
        entered.unwrap();
        assert!(
            !overtaken.into_inner(),
            "another caller was granted the first lock"
        );
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_still_ends_after_a_wait() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "b").await;
        let waiting = client.scope(short_lease(std::future::pending()));
        let (lost, ()) = tokio::join!(waiting, async {
            until_waiting(&other, "b", 1).await;
            guard.release().await;
        });
        match lost {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LossReason::Expired),
            other => panic!("{other:?}"),
        }
        for key in ["a", "b"] {
            other
                .lock(key)
                .wait(5 * SECOND)
                .run(async {})
                .await
                .unwrap();
        }
    })
    .await;
}

#[distributed_lock(keys = ["a", "b"], lease = "1s", renew = true)]
async fn renewed(started: &AtomicBool) -> Result<(), LockError> {
    started.store(true, Ordering::SeqCst);
    std::future::pending().await
}

#[tokio::test]
async fn the_loss_of_one_ends_the_body_and_frees_the_other() {
    for lost in ["a", "b"] {
        let store = Store::redis().await;
        let [client, other] = store.clients().await;
        let server = support::server::shared_server().await;
        let started = AtomicBool::new(false);
        let (ended, ()) = tokio::join!(client.scope(renewed(&started)), async {
            until(async || started.load(Ordering::SeqCst)).await;
            let mut redis = server.connection().await;
            let deleted: u8 = ask(&mut redis, redis::cmd("DEL").arg(store.name(lost))).await;
            assert_eq!(deleted, 1);
        });
        match ended {
            Err(LockError::Lost { key, reason, .. }) => {
                assert_eq!((key.as_str(), reason), (lost, LossReason::NotHeld));
            }
            other => panic!("{other:?}"),
        }
        until_free(&other, "a").await;
        until_free(&other, "b").await;
    }
}

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "1s", renew = true, on_lost = continue)]
async fn patient(ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], wait = "2s", lease = "1s", renew = true, on_lost = continue)]
async fn less_patient(ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

/// A call loses its first lock while it waits for its second lock. The body of the call has not begun, so the call
/// acquires the lost lock again, and does not report the loss.
#[tokio::test]
async fn what_is_lost_while_another_one_is_waited_for_is_taken_again() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let guard = hold(&other, "b").await;
    let ran = AtomicBool::new(false);
    let (ended, ()) = tokio::join!(client.scope(patient(&ran)), async {
        until_waiting(&other, "b", 1).await;
        store.delete("a").await;
        until(async || held(&other, &["a"]).await == ["a"]).await;
        assert!(
            !ran.load(Ordering::SeqCst),
            "the body runs without its locks"
        );
        guard.release().await;
    });
    ended.unwrap();
    assert!(ran.into_inner());
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn what_is_lost_while_another_one_is_waited_for_and_not_free_again_is_busy() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let guard = hold(&other, "b").await;
    let ran = AtomicBool::new(false);
    let (ended, taken) = tokio::join!(client.scope(less_patient(&ran)), async {
        until_waiting(&other, "b", 1).await;
        store.delete("a").await;
        hold(&other, "a").await
    });
    match ended {
        Err(LockError::Busy {
            key, with, waited, ..
        }) => {
            assert_eq!((key.as_str(), with), ("a", BusyWith::AnotherProcess));
            assert!(waited < 2 * SECOND + epsilon(), "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!ran.into_inner());
    guard.release().await;
    taken.release().await;
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "3s")]
async fn three_seconds(begun: &Cell<Option<Instant>>) -> Result<(), LockError> {
    begun.set(Some(Instant::now()));
    std::future::pending().await
}

#[tokio::test]
async fn a_fixed_lease_is_whole_however_long_the_wait() {
    on_stores_with_a_queue(|store| async move {
        for wait in [0, 400, 900] {
            let [client, other] = store.clients().await;
            let guard = hold(&other, "b").await;
            let begun = Cell::new(None);
            let (lost, ()) = tokio::join!(client.scope(three_seconds(&begun)), async {
                until_waiting(&other, "b", 1).await;
                sleep(wait * MS).await;
                guard.release().await;
            });
            let ran = begun.take().unwrap().elapsed();
            assert_lost(&lost);
            // The body begins with at least two thirds of its lease.
            assert!(
                (2 * SECOND..3 * SECOND + epsilon()).contains(&ran),
                "{ran:?}"
            );
        }
    })
    .await;
}

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "100ms")]
async fn short(other: &LockClient) -> Result<(), LockError> {
    let holder = other.lock("a").status().await.unwrap().holder;
    let left = holder.and_then(|holder| holder.remaining).unwrap();
    assert!(left <= 110 * MS, "{left:?}");
    Ok(())
}

#[tokio::test]
async fn a_crash_blocks_no_longer_than_the_lease_after_a_wait() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "b").await;
        let (entered, ()) = tokio::join!(client.scope(short(&other)), async {
            until_waiting(&other, "b", 1).await;
            guard.release().await;
        });
        // The short lease can end before the call returns, so `Lost` is allowed. The body checks the time left of the
        // lease.
        assert!(
            matches!(entered, Ok(()) | Err(LockError::Lost { .. })),
            "{entered:?}"
        );
    })
    .await;
}
