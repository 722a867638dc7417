//! `keys`: a call acquires several locks in one global order, whatever the order in which it names them.

mod leases;
pub(crate) mod nested;
mod network;

use std::sync::atomic::{AtomicU64, Ordering};

use lock_runtime::{LockError, distributed_lock};
use proptest::prelude::*;
use support::{
    epsilon,
    server::{RedisServer, ask},
};
use tokio::{task::JoinSet, time::sleep};

use crate::stores::{
    MS, SECOND, Store, drop_at_any_time, held, hold, on_every_store, until, until_free,
};

#[distributed_lock(keys = ["account:<from>", "account:<to>"], wait = "60s", guard = holds)]
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
        let [client, other] = store.clients().await;
        let keys = ["account:1", "account:2", "account:3"];
        let body = async |holds: &lock_runtime::Holds| {
            assert_eq!(held(&other, &keys).await, ["account:1", "account:2"]);
            assert_eq!(holds.len(), 2);
            // The holds are in the order in which the attribute names the keys. Each hold has the token of its own
            // lock.
            assert_eq!(holds[0].key().as_str(), "account:2");
            assert_eq!(holds[1].key().as_str(), "account:1");
            let status = other.lock("account:2").status().await.unwrap();
            assert_eq!(Some(holds[0].token()), status.holder.unwrap().token);
            // Each node of a Redlock issues its own tokens, so two keys of a Redlock can have the same token.
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
                            // If two bodies overlapped, an update would be lost.
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
        transfers.join_all().await;
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
    // Each call needs one script to acquire both locks, and one script for each lock to release it.
    assert_eq!(server.scripts().await - before, 10 * 3);
}

#[tokio::test]
async fn a_try_takes_all_or_none() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
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
        let [client, other] = store.clients().await;
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
        // The refused call had acquired `a`, and has released it.
        hold(&other, "a").await.release().await;
        guard.release().await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn dropped_by_the_hundred_they_leave_nothing() {
    let store = Store::redis().await;
    let client = store.client().await;
    for after in 0..20 {
        let scoped = client.clone();
        let calls = tokio::spawn(async move {
            let body = async |_: &lock_runtime::Holds| sleep(20 * SECOND).await;
            // A hundred calls use up the budget after which tokio makes a task yield, so the task can be aborted at any
            // await.
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
    let (seconds, micros): (u64, u64) = ask(&mut redis, &redis::cmd("TIME")).await;
    // A killed waiter with a `wait` of ten minutes would leave this entry in the queue. Nobody holds the lock, as if
    // the holder had been killed too.
    let queue = format!("{}:queue", store.name("account:1"));
    let gone = format!("{:032x}|lock:session:gone|30000|600000|shop/web/1/pay", 1);
    ask::<()>(
        &mut redis,
        redis::cmd("ZADD")
            .arg(&queue)
            .arg(seconds * 1_000_000 + micros)
            .arg(gone),
    )
    .await;
    client.scope(try_transfer(1, 2)).await.unwrap();
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn foreign_data_under_one_of_the_names_is_refused() {
    let store = Store::redis().await;
    let client = store.client().await;
    let mut redis = support::server::shared_server().await.connection().await;
    let name = store.name("account:2");
    ask::<()>(
        &mut redis,
        redis::cmd("HSET").arg(&name).arg("field").arg(1),
    )
    .await;
    for call in [
        client.scope(try_transfer(1, 2)).await,
        client.scope(try_transfer(2, 3)).await,
    ] {
        match call {
            Err(LockError::WrongLayout { key }) => assert_eq!(key.as_str(), "account:2"),
            other => panic!("{other:?}"),
        }
    }
    ask::<()>(&mut redis, redis::cmd("DEL").arg(&name)).await;
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn dropped_at_any_time_it_leaves_nothing() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let body = async |_: &lock_runtime::Holds| sleep(2 * MS).await;
        let call = || client.scope(transfer(1, 2, body));
        drop_at_any_time(&other, ["account:1", "account:2"], 120, call).await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any keys and any nesting of the calls, no two bodies overlap under the same key, and no lock is held at the
    /// end.
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
            running.join_all().await;
            let client = store.client().await;
            assert_eq!(
                held(&client, &["account:0", "account:1", "account:2", "account:3"]).await,
                [] as [&str; 0]
            );
        });
    }
}

#[distributed_lock(keys = ["a", "b"], wait = "20s")]
async fn both_renewed() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], wait = "20s", lease = "30s")]
async fn both_fixed() -> Result<(), LockError> {
    Ok(())
}

/// Returns the number of scripts that a call for `a` and `b` costs if it has to wait for `b`. The number includes the
/// release of `b` by another client. A probe can add a script, so the function returns the smallest of ten costs.
async fn cost_of_waiting(call: impl AsyncFn() -> Result<(), LockError>) -> u64 {
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [client, other] = store.clients().await;
    let mut redis = server.connection().await;
    let queue = format!("{}:queue", store.name("b"));
    let mut least = u64::MAX;
    for _ in 0..10 {
        let guard = hold(&other, "b").await;
        let before = server.scripts().await;
        let (entered, ()) = tokio::join!(client.scope(call()), async {
            until(async || ask::<u64>(&mut redis, redis::cmd("ZCARD").arg(&queue)).await == 1)
                .await;
            guard.release().await;
        });
        entered.unwrap();
        least = least.min(server.scripts().await - before);
    }
    least
}

/// A call first requests all its locks in one script. If a lock is not free, the call then requests each lock
/// separately. If the leases are fixed, the call also extends the lease of its first lock before it waits for the
/// second lock, and restarts that lease when the body starts. The separate requests, the extension and the restart cost
/// one more script each.
#[tokio::test]
async fn locks_that_are_not_free_are_requested_one_by_one() {
    let (together, one_by_one, released) = (1, 2, 2);
    let renewed = cost_of_waiting(both_renewed).await;
    assert_eq!(renewed, together + one_by_one + released + 1);
    let fixed = cost_of_waiting(both_fixed).await;
    assert_eq!(fixed, renewed + 2);
}
