//! `keys`: several locks in one global order, whatever the order in which a call names them.

use std::{
    cell::Cell,
    future::Future,
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Waker},
    time::Instant,
};

use lock_runtime::{BusyWith, LockClient, LockError, LossReason, distributed_lock};
use proptest::prelude::*;
use support::{epsilon, proxy::FaultProxy, server::RedisServer};
use tokio::{task::JoinSet, time::sleep};

use crate::stores::{
    MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until, until_free,
    until_waiting,
};

/// The keys of the locks that are held, of those named.
pub(crate) async fn held<'a>(client: &LockClient, keys: &[&'a str]) -> Vec<&'a str> {
    let mut held = Vec::new();
    for key in keys {
        if client.lock(*key).status().await.unwrap().holder.is_some() {
            held.push(*key);
        }
    }
    held
}

#[distributed_lock(keys = ["account:<from>", "account:<to>"], wait = "20s", guard = holds)]
async fn transfer(
    from: u64,
    to: u64,
    body: impl AsyncFnOnce(&lock_runtime::Holds),
) -> Result<(), LockError> {
    body(&holds).await;
    Ok(())
}

#[distributed_lock(keys = ["account:<from>", "account:<to>"], wait = "0s")]
async fn try_transfer(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn all_are_held_and_all_are_released() {
    on_every_store(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let keys = ["account:1", "account:2", "account:3"];
        let body = async |holds: &lock_runtime::Holds| {
            assert_eq!(held(&other, &keys).await, ["account:1", "account:2"]);
            assert_eq!(holds.len(), 2);
            // In the order of the attribute, each with the token of its own lock.
            assert_eq!(holds[0].key().as_str(), "account:2");
            assert_eq!(holds[1].key().as_str(), "account:1");
            let status = other.lock("account:2").status().await.unwrap();
            assert_eq!(Some(holds[0].token()), status.holder.unwrap().token);
            // The nodes of a quorum count each by itself: there, two keys may have the same token.
            assert!(store.is_redlock() || holds[0].token() != holds[1].token());
            assert!(holds.remaining() > 20 * SECOND);
            assert_eq!(holds.loss(), None);
        };
        client.scope(transfer(2, 1, body)).await.unwrap();
        assert_eq!(held(&other, &keys).await, [] as [&str; 0]);
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_key_that_two_arguments_name_is_one_lock() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let body = async |holds: &lock_runtime::Holds| {
            assert_eq!(holds.len(), 2);
            assert_eq!(holds[0].token(), holds[1].token());
        };
        client.scope(transfer(1, 1, body)).await.unwrap();
        until_free(&client, "account:1").await;
    })
    .await;
}

#[tokio::test]
async fn opposite_orders_never_deadlock_and_never_overlap() {
    on_every_store(|store| async move {
        const ACCOUNTS: u64 = 4;
        let balances = std::sync::Arc::new([const { AtomicU64::new(1000) }; ACCOUNTS as usize]);
        let mut transfers = JoinSet::new();
        for process in 0..4 {
            let client = store.client().await;
            for task in 0..8 {
                let (client, balances) = (client.clone(), balances.clone());
                transfers.spawn(async move {
                    for turn in 0..4 {
                        let from = (process + task + turn) % ACCOUNTS;
                        let to = (from + 1 + (task + turn) % (ACCOUNTS - 1)) % ACCOUNTS;
                        let moving = async |_: &lock_runtime::Holds| {
                            // Two that overlap would lose an update.
                            let balance = |account: u64| &balances[account as usize];
                            let (a, b) = (
                                balance(from).load(Ordering::SeqCst),
                                balance(to).load(Ordering::SeqCst),
                            );
                            tokio::task::yield_now().await;
                            balance(from).store(a - 1, Ordering::SeqCst);
                            balance(to).store(b + 1, Ordering::SeqCst);
                        };
                        client.scope(transfer(from, to, moving)).await.unwrap();
                    }
                });
            }
        }
        while let Some(ended) = transfers.join_next().await {
            ended.unwrap();
        }
        let total: u64 = balances
            .iter()
            .map(|balance| balance.load(Ordering::SeqCst))
            .sum();
        assert_eq!(total, 1000 * ACCOUNTS);
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn free_ones_are_taken_in_one_script() {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let nothing = async |_: &lock_runtime::Holds| {};
    client.scope(transfer(1, 2, nothing)).await.unwrap();
    let before = server.scripts().await;
    for _ in 0..10 {
        client.scope(transfer(2, 1, nothing)).await.unwrap();
    }
    // One in, and one out for each lock.
    assert_eq!(server.scripts().await - before, 10 * 3);
}

#[tokio::test]
async fn a_try_takes_all_or_none() {
    on_every_store(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        client.scope(try_transfer(1, 2)).await.unwrap();
        for taken in ["account:1", "account:2"] {
            let guard = hold(&other, taken).await;
            match client.scope(try_transfer(2, 1)).await {
                Err(LockError::Busy { key, .. }) => assert_eq!(key.as_str(), taken),
                other => panic!("{other:?}"),
            }
            assert_eq!(held(&other, &["account:1", "account:2"]).await, [taken]);
            guard.release().await;
        }
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[distributed_lock(keys = ["b", "a"], wait = "300ms")]
async fn impatient() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn one_wait_bounds_all_of_them() {
    on_every_store(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let guard = hold(&other, "b").await;
        match client.scope(impatient()).await {
            Err(LockError::Busy { key, waited, .. }) => {
                assert_eq!(key.as_str(), "b");
                assert!(
                    (300 * MS..300 * MS + epsilon()).contains(&waited),
                    "{waited:?}"
                );
            }
            other => panic!("{other:?}"),
        }
        // What it had taken meanwhile is free, at once.
        hold(&other, "a").await.release().await;
        guard.release().await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "1s", guard = holds)]
async fn short_lease(body: impl Future<Output = ()>) -> Result<lock_runtime::Holds, LockError> {
    let left = holds.remaining();
    assert!((800 * MS..=SECOND).contains(&left), "{left:?}");
    body.await;
    Ok(holds)
}

#[tokio::test]
async fn what_is_had_is_kept_while_the_next_one_is_waited_for_and_begins_anew() {
    on_stores_with_a_queue(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let guard = hold(&other, "b").await;
        let overtaken = AtomicBool::new(false);
        let waiting = client.scope(short_lease(std::future::ready(())));
        let holding = async {
            until_waiting(&other, "b", 1).await;
            // For longer than the lease of the first one lasts.
            let taken = other.lock("a").wait(2500 * MS).acquire().await;
            overtaken.store(taken.is_ok(), Ordering::SeqCst);
            guard.release().await;
        };
        let (entered, ()) = tokio::join!(waiting, holding);
        entered.unwrap();
        assert!(!overtaken.into_inner(), "the first lock was given away");
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_still_ends_after_a_wait() {
    on_stores_with_a_queue(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
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
        let (client, other) = (store.client().await, store.client().await);
        let server = support::server::shared_server().await;
        let started = AtomicBool::new(false);
        let (ended, ()) = tokio::join!(client.scope(renewed(&started)), async {
            until(async || started.load(Ordering::SeqCst)).await;
            let mut redis = server.connection().await;
            let deleted: u8 = redis::cmd("DEL")
                .arg(store.name(lost))
                .query_async(&mut redis)
                .await
                .unwrap();
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

#[track_caller]
pub(crate) fn out_of_order(result: Result<(), LockError>) {
    match result {
        Err(LockError::Busy { key, with, waited }) => {
            assert_eq!((key.as_str(), with), ("a", BusyWith::OutOfOrder));
            assert!(waited < SECOND, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_nested_call_tries_what_stands_before_once_and_waits_for_what_stands_behind() {
    on_stores_with_a_queue(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        // Free, it is had.
        client.scope(b_and_d(a_and_c())).await.unwrap();
        client.scope(b_and_d(only_a())).await.unwrap();
        let guard = hold(&other, "a").await;
        out_of_order(client.scope(b_and_d(a_and_c())).await);
        out_of_order(client.scope(b_and_d(only_a())).await);
        // Also under a call with one key, if the nested one has several.
        let under_one = client.lock("b").run(client.scope(a_and_c())).await;
        out_of_order(under_one.unwrap());
        // Two calls with one key each nest as their author wants: `wait` is the bound.
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
        let (client, other) = (store.client().await, store.client().await);
        let nothing = async |_: &lock_runtime::Holds| {};
        let body = async |outer: &lock_runtime::Holds| {
            let tokens = [outer[0].token(), outer[1].token()];
            let inner = async |holds: &lock_runtime::Holds| {
                assert_eq!([holds[1].token(), holds[0].token()], tokens);
                // One of them again, and one more.
                transfer(2, 3, nothing).await.unwrap();
                assert_eq!(
                    held(&other, &["account:2", "account:3"]).await,
                    ["account:2"]
                );
            };
            transfer(2, 1, inner).await.unwrap();
            // The outer call is inside both still.
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
        let inside = AtomicU64::new(0);
        let body = async |_: &lock_runtime::Holds| {
            let alone = async |_: &lock_runtime::Holds| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                sleep(5 * MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
            };
            // The first two exclude each other by turns, the third by a lock that is not held yet.
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

pub(crate) async fn delete_a(store: &Store) {
    let mut redis = support::server::shared_server().await.connection().await;
    let deleted: u8 = redis::cmd("DEL")
        .arg(store.name("a"))
        .query_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(deleted, 1);
}

/// The call is not inside while it waits, so it is not told of a loss.
#[tokio::test]
async fn what_is_lost_while_another_one_is_waited_for_is_taken_again() {
    let store = Store::redis().await;
    let (client, other) = (store.client().await, store.client().await);
    let guard = hold(&other, "b").await;
    let ran = AtomicBool::new(false);
    let (ended, ()) = tokio::join!(client.scope(patient(&ran)), async {
        until_waiting(&other, "b", 1).await;
        delete_a(&store).await;
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
    let (client, other) = (store.client().await, store.client().await);
    let guard = hold(&other, "b").await;
    let ran = AtomicBool::new(false);
    let (ended, taken) = tokio::join!(client.scope(less_patient(&ran)), async {
        until_waiting(&other, "b", 1).await;
        delete_a(&store).await;
        hold(&other, "a").await
    });
    match ended {
        Err(LockError::Busy { key, with, waited }) => {
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
        // Leaving the queue, and then the locks that were had, may take 200 ms each.
        assert!(waited < SECOND + 400 * MS + epsilon(), "{waited:?}");
    }
    proxy.delay(MS);
    guard.release().await;
    for key in 0..10 {
        until_free(&other, &key.to_string()).await;
    }
}

#[tokio::test]
async fn dropped_by_the_hundred_they_leave_nothing() {
    let store = Store::redis().await;
    let client = store.client().await;
    for after in 0..20 {
        let scoped = client.clone();
        let calls = tokio::spawn(async move {
            let body = async |_: &lock_runtime::Holds| sleep(20 * SECOND).await;
            // More than what one task may do before it has to yield, so that it yields at any await.
            let calls = (0..100).map(|call| scoped.scope(transfer(2 * call, 2 * call + 1, body)));
            futures_util::future::join_all(calls).await
        });
        sleep(after * MS).await;
        calls.abort();
        assert!(calls.await.unwrap_err().is_cancelled());
        until(async || store.keys().await.is_empty()).await;
    }
    client.shutdown().await;
}

#[tokio::test]
async fn those_who_queued_and_are_gone_keep_no_try_out() {
    let store = Store::redis().await;
    let client = store.client().await;
    let mut redis = support::server::shared_server().await.connection().await;
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut redis).await.unwrap();
    // A process that was killed while it waited, for ten minutes, and whose holder was killed too.
    let queue = format!("{}:queue", store.name("account:1"));
    let gone = format!("{:032x}|lock:session:gone|30000|600000", 1);
    let mut queued = redis::cmd("ZADD");
    queued
        .arg(&queue)
        .arg(seconds * 1_000_000 + micros)
        .arg(gone);
    queued.exec_async(&mut redis).await.unwrap();
    client.scope(try_transfer(1, 2)).await.unwrap();
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
            let (client, other) = (store.client().await, store.client().await);
            let guard = hold(&other, "b").await;
            let begun = Cell::new(None);
            let (lost, ()) = tokio::join!(client.scope(three_seconds(&begun)), async {
                until_waiting(&other, "b", 1).await;
                sleep(wait * MS).await;
                guard.release().await;
            });
            let ran = begun.take().unwrap().elapsed();
            assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
            assert!(
                (2900 * MS..3 * SECOND + epsilon()).contains(&ran),
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
        let (client, other) = (store.client().await, store.client().await);
        let guard = hold(&other, "b").await;
        let (entered, ()) = tokio::join!(client.scope(short(&other)), async {
            until_waiting(&other, "b", 1).await;
            guard.release().await;
        });
        // The lease may be over before it was looked at; what is wrong is caught inside.
        assert!(
            matches!(entered, Ok(()) | Err(LockError::Lost { .. })),
            "{entered:?}"
        );
    })
    .await;
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
    let rules = ["SETUSER", "default", "-@all", "+@all", "-client|kill"];
    redis::cmd("ACL")
        .arg(&rules[..])
        .exec_async(&mut admin)
        .await
        .unwrap();
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

#[tokio::test]
async fn foreign_data_under_one_of_the_names_is_refused() {
    let store = Store::redis().await;
    let client = store.client().await;
    let mut redis = support::server::shared_server().await.connection().await;
    let name = store.name("account:2");
    let mut foreign = redis::cmd("HSET");
    foreign.arg(&name).arg("field").arg(1);
    foreign.exec_async(&mut redis).await.unwrap();
    for call in [
        client.scope(try_transfer(1, 2)).await,
        client.scope(try_transfer(2, 3)).await,
    ] {
        match call {
            Err(LockError::WrongLayout { key }) => assert_eq!(key.as_str(), "account:2"),
            other => panic!("{other:?}"),
        }
    }
    redis::cmd("DEL")
        .arg(&name)
        .exec_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn two_clients_of_one_server_keep_one_order() {
    let store = Store::memory();
    let (outer, inner, other) = (
        store.client().await,
        store.client().await,
        store.client().await,
    );
    let guard = hold(&other, "a").await;
    out_of_order(outer.scope(b_and_d(inner.scope(a_and_c()))).await);
    guard.release().await;
}

/// Polls `call` so often, letting the world go on between, and drops it.
pub(crate) async fn drop_after(call: impl Future, polls: usize) {
    let mut call = pin!(call);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if call.as_mut().poll(&mut context).is_ready() {
            return;
        }
        sleep(MS / 4).await;
    }
}

#[tokio::test]
async fn dropped_at_any_time_it_leaves_nothing() {
    on_every_store(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        for polls in 0..120 {
            // Every third time with the second one held, so that the first is had and waited with.
            let guard = if polls % 3 == 0 {
                Some(hold(&other, "account:2").await)
            } else {
                None
            };
            let body = async |_: &lock_runtime::Holds| sleep(2 * MS).await;
            drop_after(client.scope(transfer(1, 2, body)), polls % 12).await;
            if let Some(guard) = guard {
                guard.release().await;
            }
            until_free(&other, "account:1").await;
            until_free(&other, "account:2").await;
        }
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However calls nest, name and try, nothing is held in the end, and no two bodies of one key overlap.
    #[test]
    fn no_set_of_calls_overlaps_or_leaves_anything(
        calls in prop::collection::vec((0_u64..4, 0_u64..4, prop::bool::ANY), 2..10)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let store = Store::memory();
            let inside = std::sync::Arc::new([const { AtomicU64::new(0) }; 4]);
            let mut running = JoinSet::new();
            for (from, to, nests) in calls {
                let (client, inside) = (store.client().await, inside.clone());
                running.spawn(async move {
                    let body = async |_: &lock_runtime::Holds| {
                        let mut mine = vec![from, to];
                        mine.dedup();
                        for key in &mine {
                            assert_eq!(inside[*key as usize].fetch_add(1, Ordering::SeqCst), 0);
                        }
                        sleep(MS).await;
                        if nests {
                            let _ = try_transfer(to, from).await;
                            let _ = try_transfer(from, (to + 1) % 4).await;
                        }
                        for key in &mine {
                            inside[*key as usize].fetch_sub(1, Ordering::SeqCst);
                        }
                    };
                    client.scope(transfer(from, to, body)).await.unwrap();
                });
            }
            while let Some(ended) = running.join_next().await {
                ended.unwrap();
            }
            let client = store.client().await;
            assert_eq!(
                held(&client, &["account:0", "account:1", "account:2", "account:3"]).await,
                [] as [&str; 0]
            );
        });
    }
}
