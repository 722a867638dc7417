//! A crash frees the lock; a waiter that only looks alive delays by two seconds at most.

use std::time::Instant;

use lock_runtime::LockClient;
use support::proxy::FaultProxy;
use support::server::shared_server;

use crate::stores::{MS, SECOND, Store, hold, until_waiting};

/// The process is not killed here but forgets its hold, which is the same to the server; `tests/faults` kills some.
#[tokio::test]
async fn a_holder_that_is_gone_blocks_for_the_rest_of_its_lease() {
    let store = Store::redis().await;
    let (dead, alive) = (store.client().await, store.client().await);
    let guard = dead.lock("k").lease(SECOND).acquire().await.unwrap();
    let started = Instant::now();
    std::mem::forget(guard);
    // The waiters' own leases are longer, and do not count.
    let entered = alive
        .lock("k")
        .wait(10 * SECOND)
        .lease(60 * SECOND)
        .acquire()
        .await
        .unwrap();
    let took = started.elapsed();
    assert!(
        took >= 900 * MS && took < SECOND + support::epsilon(),
        "{took:?}"
    );
    entered.release().await;
}

/// Queued, then cut off without a word: the server still believes in the connection, and gives it the lock.
#[tokio::test]
async fn a_waiter_that_only_looks_alive_delays_by_two_seconds_at_most() {
    let store = Store::redis().await;
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let behind: LockClient = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    let guard = hold(&client, "k").await;
    let silent = tokio::spawn(async move {
        behind
            .lock("k")
            .wait(20 * SECOND)
            .lease(60 * SECOND)
            .acquire()
            .await
    });
    until_waiting(&client, "k", 1).await;
    let next = tokio::spawn({
        let client = store.client().await;
        async move { client.lock("k").wait(20 * SECOND).acquire().await }
    });
    until_waiting(&client, "k", 2).await;
    proxy.blackhole(true);
    let started = Instant::now();
    guard.release().await;
    let entered = next.await.unwrap().unwrap();
    let took = started.elapsed();
    assert!(took < 2 * SECOND + support::epsilon(), "{took:?}");
    entered.release().await;
    proxy.blackhole(false);
    silent.abort();
}

/// Several of one process, given the lock at once: they delay no longer than one.
#[tokio::test]
async fn a_block_that_only_looks_alive_delays_by_two_seconds_at_most() {
    let store = Store::redis().await;
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let behind: LockClient = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    let guard = hold(&client, "k").await;
    let mut silent = tokio::task::JoinSet::new();
    for waiters in 1..=8 {
        let lock = behind.lock("k").wait(20 * SECOND).lease(60 * SECOND);
        silent.spawn(async move { lock.acquire().await });
        until_waiting(&client, "k", waiters).await;
    }
    let next = client.lock("k").wait(20 * SECOND);
    let next = tokio::spawn(async move { next.acquire().await });
    until_waiting(&client, "k", 9).await;
    proxy.blackhole(true);
    let started = Instant::now();
    guard.release().await;
    let entered = next.await.unwrap().unwrap();
    let took = started.elapsed();
    assert!(took < 2 * SECOND + support::epsilon(), "{took:?}");
    entered.release().await;
    proxy.blackhole(false);
}

/// One of several that were given the lock at once forgets its hold, and its process lives: the others enter when the lease
/// has ended, as does who queued behind them.
#[tokio::test]
async fn a_member_of_a_block_that_is_gone_blocks_for_the_rest_of_its_lease() {
    const MEMBERS: usize = 4;
    let store = Store::redis().await;
    let (client, other) = (store.client().await, store.client().await);
    let guard = hold(&other, "k").await;
    let (entering, mut entered) = tokio::sync::mpsc::unbounded_channel();
    for caller in 0..=MEMBERS {
        let client = if caller < MEMBERS { &client } else { &other };
        let (lock, entering) = (client.lock("k"), entering.clone());
        let lock = lock.wait(20 * SECOND).lease(SECOND);
        tokio::spawn(async move { entering.send((caller, lock.acquire().await.unwrap())) });
        until_waiting(&other, "k", caller + 1).await;
    }
    let started = Instant::now();
    guard.release().await;
    let (first, forgotten) = entered.recv().await.unwrap();
    assert_eq!(first, 0);
    std::mem::forget(forgotten);
    let mut callers = Vec::new();
    for _ in 0..MEMBERS {
        let (caller, guard) = entered.recv().await.unwrap();
        let took = started.elapsed();
        assert!(
            took >= 900 * MS && took < SECOND + 200 * MS + support::epsilon(),
            "{caller}: {took:?}"
        );
        guard.release().await;
        callers.push(caller);
    }
    // Whoever stood in the queue when the lease ended may be first; the others come back in their order.
    callers.retain(|caller| *caller < MEMBERS);
    assert_eq!(callers, [1, 2, 3]);
}
