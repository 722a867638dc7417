//! `wait` bounds the acquisition, end to end.

use std::time::Instant;

use lock_runtime::{BusyWith, LockClient, LockError};
use support::proxy::FaultProxy;
use support::server::{RedisServer, shared_server};

use crate::stores::{
    MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until_waiting,
};

#[tokio::test]
async fn a_wait_ends_in_busy_at_its_time_and_leaves_the_queue() {
    on_every_store(|store| async move {
        let (holder, caller) = (store.client().await, store.client().await);
        let guard = hold(&holder, "k").await;
        let started = Instant::now();
        let refused = caller.lock("k").wait(300 * MS).acquire().await.unwrap_err();
        let took = started.elapsed();
        let LockError::Busy { key, waited, with } = refused else {
            panic!("{refused}");
        };
        assert_eq!(key.as_str(), "k");
        assert_eq!(with, BusyWith::AnotherProcess);
        assert!(
            waited >= 299 * MS && waited <= took,
            "{waited:?} of {took:?}"
        );
        assert!(took < 300 * MS + support::epsilon(), "{took:?}");
        assert_eq!(caller.lock("k").status().await.unwrap().waiters, 0);
        guard.release().await;
        hold(&caller, "k").await.release().await;
    })
    .await;
}

#[tokio::test]
async fn one_attempt_neither_queues_nor_overtakes() {
    on_stores_with_a_queue(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        let waiting = tokio::spawn({
            let client = store.client().await;
            async move { client.lock("k").wait(5 * SECOND).acquire().await }
        });
        until_waiting(&client, "k", 1).await;
        let other = store.client().await;
        let started = Instant::now();
        assert!(matches!(
            other.lock("k").try_acquire().await,
            Err(LockError::Busy { .. })
        ));
        assert!(started.elapsed() < support::epsilon());
        assert_eq!(client.lock("k").status().await.unwrap().waiters, 1);
        // The try comes while the lock changes hands: the waiter is first all the same.
        let lock = other.lock("k");
        let ((), tried) = tokio::join!(guard.release(), lock.try_acquire());
        assert!(matches!(tried, Err(LockError::Busy { .. })));
        waiting.await.unwrap().unwrap().release().await;
    })
    .await;
}

/// The server takes the request and never says a word.
#[tokio::test]
async fn a_silent_server_is_unreachable_within_wait() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let client = Store::on(&proxy.url()).client().await;
    hold(&client, "before").await.release().await;
    proxy.blackhole(true);
    for wait in [300 * MS, 1500 * MS] {
        let started = Instant::now();
        let refused = client.lock("k").wait(wait).acquire().await.unwrap_err();
        let took = started.elapsed();
        assert!(
            matches!(refused, LockError::Unreachable { .. }),
            "{refused}"
        );
        assert!(
            took >= wait && took < wait + support::epsilon(),
            "{took:?} of {wait:?}"
        );
    }
    proxy.blackhole(false);
    client
        .lock("after")
        .wait(5 * SECOND)
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
}

/// The wait outlasts an outage of the server.
#[tokio::test]
async fn a_wait_spans_a_reconnect() {
    let mut server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    hold(&client, "k").await.release().await;
    server.kill();
    let entering = tokio::spawn({
        let client: LockClient = client.clone();
        async move { client.lock("k").wait(10 * SECOND).acquire().await }
    });
    server.restart().await;
    entering.await.unwrap().unwrap().release().await;
}
