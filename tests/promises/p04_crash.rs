//! Promise 4: a crash frees the lock. A waiter whose process is dead, but still looks alive to the server, delays other
//! waiters by two seconds at most.

use std::time::{Duration, Instant};

use lock_runtime::LockClient;
use support::{
    proxy::FaultProxy,
    server::{RedisServer, shared_server},
    silent::delayed_by_silent,
};
use tokio::time::{sleep, timeout};

use crate::stores::{MS, SECOND, Store, hold, until_waiting};

/// The test forgets a guard instead of killing the guard's process. For other processes, a forgotten guard has the same
/// effect as a killed process. `tests/faults` kills real processes.
#[tokio::test]
async fn a_holder_that_is_gone_blocks_for_the_rest_of_its_lease() {
    let store = Store::redis().await;
    let (dead, alive) = (store.client().await, store.client().await);
    let guard = dead.lock("k").lease(SECOND).acquire().await.unwrap();
    let started = Instant::now();
    std::mem::forget(guard);
    // The waiter asks for a longer lease, but it waits only for the rest of the holder's lease.
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

#[tokio::test]
async fn a_waiter_that_only_looks_alive_delays_by_two_seconds_at_most() {
    delayed_by_silent(1).await;
}

/// A silent cohort delays others no longer than a single silent waiter does.
#[tokio::test]
async fn a_cohort_that_only_looks_alive_delays_by_two_seconds_at_most() {
    delayed_by_silent(8).await;
}

/// A member of a cohort forgets its guard, and its process continues to run. The other members and the caller behind
/// the cohort enter when the lease has ended.
#[tokio::test]
async fn a_member_of_a_cohort_that_is_gone_blocks_for_the_rest_of_its_lease() {
    const MEMBERS: usize = 4;
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
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
    // When the lease ends, the caller of the other client is in the queue, but the members of the cohort have to queue
    // again. The caller of the other client can therefore enter before the members of the cohort. The members of the
    // cohort enter in their old order.
    callers.retain(|caller| *caller < MEMBERS);
    assert_eq!(callers, [1, 2, 3]);
}

/// Returns for how long the lock would stay taken if its holder's process ended now.
async fn rest(client: &LockClient, key: &str) -> Duration {
    let holder = client.lock(key).status().await.unwrap().holder.unwrap();
    holder.remaining.unwrap()
}

/// A call for several keys renews its earlier locks while it waits for the last one. If the process of the call ends,
/// the earlier locks are free after the length of their lease plus 250 ms at most.
#[tokio::test]
async fn a_call_that_waits_for_another_key_keeps_its_earlier_locks_little_longer_than_their_lease()
{
    const LEASE: Duration = Duration::from_millis(500);
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let guard = hold(&other, "b").await;
    let both = client.locks(["a", "b"]).wait(20 * SECOND).lease(LEASE);
    let waiting = tokio::spawn(both.acquire());
    until_waiting(&other, "b", 1).await;
    let token = other.lock("a").status().await.unwrap().holder.unwrap();
    for _ in 0..60 {
        let rest = rest(&other, "a").await;
        assert!(rest <= LEASE + 250 * MS, "{rest:?}");
        sleep(20 * MS).await;
    }
    let kept = other.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!(kept.token, token.token, "the earlier lock was renewed");
    guard.release().await;
    waiting.await.unwrap().unwrap().release().await;
}

/// A body with `hold_at_least` has returned, and another member of its cohort waits. If the process of the cohort ends,
/// the lock is free after the length of the lease plus 250 ms at most.
#[tokio::test]
async fn a_lock_that_a_cohort_retains_stays_taken_little_longer_than_its_lease() {
    const LEASE: Duration = Duration::from_secs(1);
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let guard = hold(&other, "k").await;
    let mut members = Vec::new();
    for member in 0..2 {
        let lock = client.lock("k").wait(20 * SECOND).lease(LEASE);
        members.push(tokio::spawn(lock.hold_at_least(LEASE).acquire()));
        until_waiting(&other, "k", member + 1).await;
    }
    guard.release().await;
    let second = members.pop().unwrap();
    let first = members.pop().unwrap().await.unwrap().unwrap();
    let entered = Instant::now();
    first.release().await;
    let rest = rest(&other, "k").await;
    assert!(rest <= LEASE + 250 * MS, "{rest:?}");
    let second = second.await.unwrap().unwrap();
    let after = entered.elapsed();
    assert!(
        after >= LEASE - 20 * MS && after < LEASE + 200 * MS + support::epsilon(),
        "{after:?}"
    );
    second.release().await;
}

/// A member of a cohort leaves while its extension of the lease is still under way to the server. The extension does
/// not lengthen the lease of the next member of the cohort.
#[tokio::test]
async fn an_extension_under_way_does_not_reach_the_next_member() {
    const LEASE: Duration = Duration::from_secs(2);
    let store = Store::redis().await;
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let behind = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    let guard = hold(&client, "k").await;
    let mut members = Vec::new();
    for member in 0..2 {
        let lock = behind.lock("k").wait(20 * SECOND).lease(LEASE);
        members.push(tokio::spawn(lock.acquire()));
        until_waiting(&client, "k", member + 1).await;
    }
    proxy.delay(20 * MS);
    guard.release().await;
    let second = members.pop().unwrap();
    let first = members.pop().unwrap().await.unwrap().unwrap();
    let extending = timeout(10 * MS, first.extend(600 * SECOND)).await;
    assert!(extending.is_err(), "the extension was answered");
    first.release().await;
    let second = second.await.unwrap().unwrap();
    assert!(second.remaining() <= LEASE, "{:?}", second.remaining());
    // The second member of the cohort confirms its grant after 100 ms. After this pause, the extension has also reached
    // the server.
    sleep(300 * MS).await;
    let rest = rest(&client, "k").await;
    assert!(rest <= LEASE, "{rest:?}");
    assert!(second.remaining() <= LEASE, "{:?}", second.remaining());
    second.release().await;
}

/// A caller is no longer polled, so it stays in the queue. Once the `wait` of this caller is over, the server does not
/// grant it the lock.
#[tokio::test]
async fn a_place_whose_wait_is_over_is_passed_by() {
    // No other test uses this server, so only this test takes tokens from it.
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [client, other] = store.clients().await;
    let guard = hold(&client, "k").await;
    let mut silent = Box::pin(other.lock("k").wait(300 * MS).acquire());
    tokio::select! {
        biased;
        _ = &mut silent => panic!("the lock is held"),
        () = until_waiting(&client, "k", 1) => {}
    }
    let next = tokio::spawn(client.lock("k").wait(10 * SECOND).acquire());
    until_waiting(&client, "k", 2).await;
    sleep(400 * MS).await;
    let token = guard.token();
    guard.release().await;
    let next = next.await.unwrap().unwrap();
    // The tokens are consecutive, so the server granted the lock to nobody in between.
    assert_eq!(next.token().get(), token.get() + 1);
    next.release().await;
    drop(silent);
}
