//! Calls with several keys that are nested in other calls, or that are siblings in one task.

use std::future::Future;

use lock_runtime::{BusyWith, LockError, distributed_lock};
use support::Room;

use super::transfer;
use crate::stores::{
    MS, SECOND, Store, held, hold, on_every_store, on_stores_with_a_queue, until_waiting,
};

#[distributed_lock(keys = ["a", "c"], wait = "5s")]
async fn a_and_c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["b", "d"], wait = "5s")]
async fn b_and_d(nested: impl Future<Output = Result<(), LockError>>) -> Result<(), LockError> {
    nested.await
}

#[distributed_lock(key = "a", wait = "5s")]
async fn only_a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "e", wait = "5s")]
async fn only_e() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn a_nested_call_tries_what_stands_before_once_and_waits_for_what_stands_behind() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        // A nested call acquires a free lock even if the lock is out of order, that is, if its name sorts before the
        // name of a lock that the enclosing call holds.
        client.scope(b_and_d(a_and_c())).await.unwrap();
        client.scope(b_and_d(only_a())).await.unwrap();
        let guard = hold(&other, "a").await;
        out_of_order(client.scope(b_and_d(a_and_c())).await);
        out_of_order(client.scope(b_and_d(only_a())).await);
        // A nested call also fails at a taken lock that is out of order if the enclosing call has one key, and the
        // nested call has several.
        let under_one = client.lock("b").run(client.scope(a_and_c())).await;
        out_of_order(under_one.unwrap());
        // If both calls have only one key, the user is responsible for the order, and the nested call waits for the
        // lock.
        let (waited, ()) = tokio::join!(client.lock("b").run(client.scope(only_a())), async {
            until_waiting(&other, "a", 1).await;
            guard.release().await;
        });
        waited.unwrap().unwrap();

        let guard = hold(&other, "e").await;
        let (waited, ()) = tokio::join!(client.scope(b_and_d(only_e())), async {
            until_waiting(&other, "e", 1).await;
            guard.release().await;
        });
        waited.unwrap();
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn nested_in_itself_it_enters_again() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let nothing = async |_: &lock_runtime::Holds| {};
        let body = async |outer: &lock_runtime::Holds| {
            let tokens = [outer[0].token(), outer[1].token()];
            let inner = async |holds: &lock_runtime::Holds| {
                assert_eq!([holds[1].token(), holds[0].token()], tokens);
                // This call reenters `account:2`, and acquires `account:3`.
                transfer(2, 3, nothing).await.unwrap();
                assert_eq!(
                    held(&other, &["account:2", "account:3"]).await,
                    ["account:2"]
                );
            };
            transfer(2, 1, inner).await.unwrap();
            // After the nested calls, the outer call holds both of its locks.
            assert_eq!(held(&other, &["account:1", "account:2"]).await.len(), 2);
        };
        client.scope(transfer(1, 2, body)).await.unwrap();
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn siblings_take_turns_in_the_same_order() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let inside = Room::default();
        let body = async |_: &lock_runtime::Holds| {
            let alone = async |_: &lock_runtime::Holds| inside.stay(5 * MS).await;
            // The calls take turns at the locks of the enclosing call. The third call also acquires a lock that the
            // enclosing call does not hold.
            let (a, b, c) = tokio::join!(
                transfer(1, 2, alone),
                transfer(2, 1, alone),
                transfer(2, 3, async |_: &lock_runtime::Holds| {}),
            );
            a.and(b).and(c).unwrap();
        };
        client.scope(transfer(1, 2, body)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn two_clients_of_one_server_keep_one_order() {
    let store = Store::memory();
    let [outer, inner, other] = store.clients().await;
    let guard = hold(&other, "a").await;
    out_of_order(outer.scope(b_and_d(inner.scope(a_and_c()))).await);
    guard.release().await;
}

#[track_caller]
pub(crate) fn out_of_order(result: Result<(), LockError>) {
    match result {
        Err(LockError::Busy {
            key, with, waited, ..
        }) => {
            assert_eq!((key.as_str(), with), ("a", BusyWith::OutOfOrder));
            assert!(waited < SECOND, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
}
