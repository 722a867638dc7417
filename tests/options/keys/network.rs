//! Calls with several keys over slow and broken connections.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, distributed_lock};
use support::{
    assert_busy, epsilon,
    proxy::FaultProxy,
    server::{RedisServer, ask, shared_server},
    stores::become_far,
};

use super::{transfer, try_transfer};
use crate::stores::{MS, SECOND, Store, hold, until, until_free};

#[distributed_lock(
    keys = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], wait = "1s", lease = "30s"
)]
async fn ten() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn one_wait_bounds_all_of_them_over_a_slow_line_too() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let (slow, other) = (
        store.through(&proxy.url()).client().await,
        store.client().await,
    );
    slow.scope(ten()).await.unwrap();
    let guard = hold(&other, "9").await;
    for round_trip in [120, 230, 480] {
        proxy.delay(round_trip * MS / 2);
        let start = Instant::now();
        let ended = slow.scope(ten()).await;
        let waited = start.elapsed();
        assert!(ended.is_err());
        // Beyond its `wait`, the call can take 200 ms to leave the queue, and 200 ms to release the locks that it took.
        assert!(waited < SECOND + 400 * MS + epsilon(), "{waited:?}");
    }
    proxy.delay(MS);
    guard.release().await;
    for key in 0..10 {
        until_free(&other, &key.to_string()).await;
    }
}

/// The locks are free, and the server is so far away that its answer comes after the end of `wait`. The call enters, like
/// a call for one lock.
#[tokio::test]
async fn free_locks_on_a_far_server_are_entered_after_the_wait() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    for store in [Store::redis().await, Store::redisson().await] {
        proxy.delay(Duration::ZERO);
        let far = store.through(&proxy.url()).client().await;
        become_far(&proxy, &far, 400 * MS).await;
        let both = far.locks(["k", "other"]);
        for wait in [50 * MS, 300 * MS] {
            both.clone().wait(wait).run(async {}).await.unwrap();
        }
        // If one of the locks is held, the call is refused in the same situation.
        let guard = hold(&far, "other").await;
        assert_busy(&both.wait(50 * MS).run(async {}).await);
        guard.release().await;
    }
}

#[tokio::test]
async fn a_try_whose_reply_is_lost_finds_its_own_grants() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let behind = store.through(&proxy.url()).client().await;
    behind.scope(try_transfer(1, 2)).await.unwrap();
    for _ in 0..20 {
        let before = server.scripts().await;
        proxy.hold_replies(true);
        let (tried, ()) = tokio::join!(behind.scope(try_transfer(1, 2)), async {
            until(async || server.scripts().await > before).await;
            proxy.cut();
            proxy.hold_replies(false);
        });
        tried.unwrap();
    }
    until(async || store_is_empty(&server).await).await;
}

async fn store_is_empty(server: &RedisServer) -> bool {
    server.keys().await.iter().all(|key| key.contains("fence"))
}

#[tokio::test]
async fn where_connections_cannot_be_killed_a_call_that_succeeded_leaves_no_duty() {
    let server = RedisServer::start().await;
    let mut admin = server.connection().await;
    let rules = [
        "SETUSER",
        "default",
        "-client",
        "+client|id",
        "+client|setname",
    ];
    ask::<()>(&mut admin, redis::cmd("ACL").arg(&rules[..])).await;
    let proxy = FaultProxy::start(server.port()).await;
    let behind = Store::on(&proxy.url()).client().await;
    let nothing = async |_: &lock_runtime::Holds| {};
    behind.scope(transfer(1, 2, nothing)).await.unwrap();
    let before = server.scripts().await;
    proxy.hold_replies(true);
    let (entered, ()) = tokio::join!(behind.scope(transfer(1, 2, nothing)), async {
        until(async || server.scripts().await > before).await;
        proxy.cut();
        proxy.hold_replies(false);
    });
    entered.unwrap();
    let start = Instant::now();
    behind.shutdown().await;
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
}
