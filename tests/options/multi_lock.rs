//! `client.locks(..)`: several locks whose keys are known only at run time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use lock_runtime::{
    BusyWith, Hold, Holds, KeyError, LockClient, LockError, LossReason, MAX_KEYS, MultiLock,
    OnLost, OptionsError, ReleaseOutcome,
};
use support::{
    Room, assert_busy, epsilon, poll_unread,
    quorum::{Quorum, url_through},
    server::RedisServer,
};
use tokio::task::JoinSet;

use crate::{
    keys::nested::out_of_order,
    stores::{
        MS, SECOND, Store, drop_at_any_time, held, hold, on_every_store, on_stores_with_a_queue,
        until, until_free, until_waiting,
    },
};

fn names(holds: &[Hold]) -> Vec<&str> {
    holds.iter().map(|hold| hold.key().as_str()).collect()
}

async fn nothing_is_left(store: &Store, client: &LockClient, keys: &[&str]) {
    for key in keys {
        until_free(client, key).await;
    }
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn a_guard_holds_all_in_the_order_of_the_caller() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let keys = ["c", "a", "b"];
        let guard = client.locks(keys).acquire().await.unwrap();
        assert_eq!(held(&other, &keys).await, keys);
        assert_eq!(names(&guard), keys);
        for (key, hold) in keys.iter().zip(guard.iter()) {
            let status = other.lock(*key).status().await.unwrap();
            assert_eq!(Some(hold.token()), status.holder.unwrap().token);
        }
        assert!(guard.remaining() > 20 * SECOND);
        assert_eq!(guard.loss(), None);
        assert_eq!(guard.release().await, [ReleaseOutcome::Released; 3]);
        nothing_is_left(&store, &other, &keys).await;
    })
    .await;
}

#[tokio::test]
async fn a_body_has_the_holds_in_the_order_of_the_caller() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let keys: Vec<String> = ["c", "a", "b"].map(String::from).into();
        let inside = client.locks(&keys).run(async {
            assert_eq!(held(&other, &["a", "b", "c"]).await.len(), 3);
            names(&Holds::current().unwrap()) == keys
        });
        assert!(inside.await.unwrap());
        nothing_is_left(&store, &other, &["a", "b", "c"]).await;
    })
    .await;
}

#[tokio::test]
async fn without_keys_nothing_runs() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let none = client.locks([] as [&str; 0]);
        let ran = none.run(async { unreachable!("the body runs without a lock") });
        let refused = [
            ran.await.err(),
            none.acquire().await.err(),
            none.try_acquire().await.err(),
        ];
        for error in refused {
            let Some(LockError::InvalidKey(KeyError::NoKeys)) = error else {
                panic!("{error:?}");
            };
        }
    })
    .await;
}

#[tokio::test]
async fn one_key_or_option_that_is_invalid_refuses_all() {
    let store = Store::memory();
    let client = store.client().await;
    let refused = client.locks(["a", ""]).acquire().await;
    assert!(
        matches!(refused, Err(LockError::InvalidKey(KeyError::Empty))),
        "{refused:?}"
    );
    let refused = client.locks(["a", "b"]).lease(MS).acquire().await;
    assert!(
        matches!(
            refused,
            Err(LockError::InvalidOptions(OptionsError::LeaseTooShort))
        ),
        "{refused:?}"
    );
    assert_eq!(held(&client, &["a", "b"]).await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_key_that_is_named_twice_is_one_lock() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let guard = client.locks(["b", "a", "b"]).acquire().await.unwrap();
        assert_eq!(names(&guard), ["b", "a", "b"]);
        assert_eq!(guard[0].token(), guard[2].token());
        assert_eq!(guard.release().await, [ReleaseOutcome::Released; 3]);
        client.locks(["a", "a"]).run(async {}).await.unwrap();
        nothing_is_left(&store, &other, &["a", "b"]).await;
    })
    .await;
}

#[tokio::test]
async fn the_namespace_is_that_of_all() {
    let store = Store::memory();
    let client = store.client().await;
    let elsewhere = client.locks(["a", "b"]).namespace("elsewhere");
    let guard = elsewhere.acquire().await.unwrap();
    assert_eq!(held(&client, &["a", "b"]).await, [] as [&str; 0]);
    let there = client.lock("a").namespace("elsewhere");
    assert!(there.status().await.unwrap().holder.is_some());
    guard.release().await;
}

#[tokio::test]
async fn hold_at_least_keeps_all_of_them() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let kept = client.locks(["a", "b"]).hold_at_least(SECOND);
        let start = Instant::now();
        kept.run(async {}).await.unwrap();
        assert!(start.elapsed() < SECOND, "the value returned too late");
        assert_eq!(held(&other, &["a", "b"]).await, ["a", "b"]);
        let next = other.locks(["a", "b"]).wait(5 * SECOND);
        next.run(async {}).await.unwrap();
        assert!(start.elapsed() >= SECOND, "{:?}", start.elapsed());
    })
    .await;
}

#[tokio::test]
async fn opposite_orders_never_deadlock_and_never_overlap() {
    on_every_store(|store| async move {
        const KEYS: usize = 5;
        let visits = Arc::new([const { AtomicU64::new(0) }; KEYS]);
        let mut calls = JoinSet::new();
        for process in 0..3 {
            let client = store.client().await;
            for task in 0..6 {
                let (client, visits) = (client.clone(), visits.clone());
                calls.spawn(async move {
                    for turn in 0..4 {
                        // The five keys form a ring. Each call names two to four neighbouring keys, in either
                        // direction.
                        let first = process + task + turn;
                        let count = 2 + (task + turn) % 3;
                        let mut keys: Vec<_> = (0..count).map(|i| (first + i) % KEYS).collect();
                        if task % 2 == 0 {
                            keys.reverse();
                        }
                        let locks = client.locks(keys.iter().map(|key| format!("key:{key}")));
                        let locks = locks.wait(60 * SECOND);
                        let visit = async {
                            // If two bodies overlapped, an update would be lost.
                            let seen: Vec<_> = keys
                                .iter()
                                .map(|key| visits[*key].load(Ordering::SeqCst))
                                .collect();
                            tokio::task::yield_now().await;
                            for (key, seen) in keys.iter().zip(seen) {
                                visits[*key].store(seen + 1, Ordering::SeqCst);
                            }
                        };
                        if turn % 2 == 0 {
                            locks.run(visit).await.unwrap();
                        } else {
                            let guard = locks.acquire().await.unwrap();
                            visit.await;
                            guard.release().await;
                        }
                    }
                });
            }
        }
        calls.join_all().await;
        let total: u64 = visits
            .iter()
            .map(|visits| visits.load(Ordering::SeqCst))
            .sum();
        let expected: usize = (0..6)
            .flat_map(|task| (0..4).map(move |turn| 2 + (task + turn) % 3))
            .sum();
        assert_eq!(total, 3 * expected as u64);
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_try_takes_all_or_none() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let keys = ["b", "a", "c"];
        for taken in keys {
            let guard = hold(&other, taken).await;
            match client.locks(keys).try_acquire().await {
                Err(LockError::Busy { key, with, .. }) => {
                    assert_eq!((key.as_str(), with), (taken, BusyWith::AnotherProcess));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(held(&other, &keys).await, [taken]);
            guard.release().await;
        }
        let guard = client.locks(keys).try_acquire().await.unwrap();
        guard.release().await;
        nothing_is_left(&store, &other, &keys).await;
    })
    .await;
}

#[tokio::test]
async fn one_wait_bounds_all_and_busy_leaves_nothing() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "b").await;
        let locks = client.locks(["c", "b", "a"]).wait(300 * MS);
        match locks.acquire().await {
            Err(LockError::Busy { key, waited, .. }) => {
                assert_eq!(key.as_str(), "b");
                assert!(
                    (300 * MS..300 * MS + epsilon()).contains(&waited),
                    "{waited:?}"
                );
            }
            other => panic!("{other:?}"),
        }
        for free in ["a", "c"] {
            hold(&other, free).await.release().await;
        }
        guard.release().await;
        nothing_is_left(&store, &other, &["a", "b", "c"]).await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_waited_holds_all() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let first = hold(&other, "b").await;
        let locks = client.locks(["c", "b", "a"]).wait(20 * SECOND);
        let (guard, ()) = tokio::join!(locks.acquire(), async {
            until_waiting(&other, "b", 1).await;
            first.release().await;
        });
        let guard = guard.unwrap();
        assert_eq!(held(&other, &["a", "b", "c"]).await, ["a", "b", "c"]);
        assert_eq!(names(&guard), ["c", "b", "a"]);
        guard.release().await;
        nothing_is_left(&store, &other, &["a", "b", "c"]).await;
    })
    .await;
}

#[tokio::test]
async fn dropped_at_any_time_it_leaves_nothing() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let locks = client.locks(["b", "a"]).wait(20 * SECOND);
        drop_at_any_time(&other, ["a", "b"], 60, || locks.acquire()).await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_releases_all() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        drop(client.locks(["b", "a"]).acquire().await.unwrap());
        nothing_is_left(&store, &other, &["a", "b"]).await;
    })
    .await;
}

#[tokio::test]
async fn what_runs_in_a_guard_enters_again() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let guard = client.locks(["b", "a"]).acquire().await.unwrap();
        // Only code that runs in `guard.run` can reenter the guard's locks.
        for key in ["a", "b"] {
            let stranger = client.lock(key).try_acquire().await;
            assert_busy(&stranger);
        }
        let inside = guard.run(async {
            assert_eq!(names(&Holds::current().unwrap()), ["b", "a"]);
            assert!(client.lock("a").is_held_here() && client.lock("b").is_held_here());
            client.lock("a").run(async {}).await.unwrap();
            let nested = client.locks(["c", "a", "b"]).acquire().await.unwrap();
            assert_eq!(nested[1].token(), guard[1].token());
            assert_eq!(
                nested.release().await,
                [
                    ReleaseOutcome::Released,
                    ReleaseOutcome::StillHeld,
                    ReleaseOutcome::StillHeld
                ]
            );
            held(&other, &["a", "b", "c"]).await
        });
        assert_eq!(inside.await.unwrap(), ["a", "b"]);
        guard.release().await;
        nothing_is_left(&store, &other, &["a", "b", "c"]).await;
    })
    .await;
}

#[tokio::test]
async fn two_runs_of_one_guard_take_turns() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.locks(["b", "a"]).acquire().await.unwrap();
        let inside = Room::default();
        let turn = async |keys: [&str; 2]| {
            let alone = inside.stay(5 * MS);
            let locks: MultiLock = client.locks(keys).wait(20 * SECOND);
            guard.run(locks.run(alone)).await.unwrap()
        };
        let (one, two) = tokio::join!(turn(["a", "b"]), turn(["b", "a"]));
        one.and(two).unwrap();
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn nested_in_a_guard_nothing_waits_out_of_order() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let taken = hold(&other, "a").await;
        let guard = client.locks(["d", "b"]).acquire().await.unwrap();
        let single = client.lock("a").wait(5 * SECOND);
        out_of_order(guard.run(single.run(async {})).await.unwrap());
        let several = client.locks(["c", "a"]).wait(5 * SECOND);
        out_of_order(guard.run(several.run(async {})).await.unwrap());
        guard.release().await;
        taken.release().await;
        nothing_is_left(&store, &other, &["a", "b", "c", "d"]).await;
    })
    .await;
}

/// A nested call reads in one poll that the lock of the enclosing call is lost, and that two other locks were granted.
/// The nested call releases both granted locks.
#[tokio::test]
async fn a_loss_that_is_read_together_with_the_grant_of_others_leaves_nothing() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let outer = client.lock("a").lease(SECOND).renew(true);
    let outer = outer.on_lost(OnLost::Continue);
    let ended = outer.run(async {
        let nested = client.locks(["a", "b", "c"]).lease(SECOND).renew(true);
        let mut nested = Box::pin(nested.acquire());
        assert!(!poll_unread(&client, nested.as_mut()).await);
        until(async || held(&other, &["b", "c"]).await.len() == 2).await;
        store.delete("a").await;
        Hold::current().unwrap().lost().await;
        nested.await.map(drop)
    });
    support::assert_lost(&ended.await.unwrap());
    until_free(&other, "b").await;
    until_free(&other, "c").await;
}

/// A call reads its grant after the lease has ended, and after a newer call of the same client has taken the lock. The
/// newer call keeps the lock.
#[tokio::test]
async fn a_grant_that_is_read_too_late_leaves_a_newer_hold_alone() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let in_the_way = hold(&other, "l").await;
    client.lock("warm").run(async {}).await.unwrap();
    let short = client.lock("k").lease(300 * MS).renew(false);
    let mut late = Box::pin(short.wait(20 * SECOND).acquire());
    assert!(!poll_unread(&client, late.as_mut()).await);
    until(async || !held(&other, &["k"]).await.is_empty()).await;
    // Nobody polls `late`, so the lease of its grant ends, and `k` becomes free.
    until_free(&other, "k").await;
    let both = client.locks(["k", "l"]).wait(20 * SECOND);
    let both = tokio::spawn(async move { both.run(async {}).await });
    until(async || !held(&other, &["k"]).await.is_empty()).await;
    let third = other.lock("k").wait(20 * SECOND);
    let mut third = tokio::spawn(async move { third.run(async {}).await });
    until_waiting(&other, "k", 1).await;
    assert!(
        (&mut late).now_or_never().is_none(),
        "the late call waits again"
    );
    let entered = tokio::time::timeout(300 * MS, &mut third).await;
    assert!(entered.is_err(), "the third call enters first");
    drop(late);
    in_the_way.release().await;
    both.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_loss_of_one_is_told_and_the_other_is_released() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let locks = client.locks(["b", "a"]).lease(SECOND).renew(true);
    let guard = locks.acquire().await.unwrap();
    let ended = guard.run(async {
        store.delete("a").await;
        std::future::pending::<()>().await;
    });
    match ended.await {
        Err(LockError::Lost { key, reason, .. }) => {
            assert_eq!((key.as_str(), reason), ("a", LossReason::NotHeld));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    assert_eq!(guard.loss(), Some(LossReason::NotHeld));
    assert_eq!((guard[0].loss(), guard[1].loss()), (None, guard.loss()));
    assert_eq!(
        guard.release().await,
        [
            ReleaseOutcome::Released,
            ReleaseOutcome::Lost(LossReason::NotHeld)
        ]
    );
    nothing_is_left(&store, &other, &["a", "b"]).await;
}

#[tokio::test]
async fn a_body_ends_with_the_loss_of_one() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let locks = client.locks(["b", "a"]).lease(SECOND).renew(true);
    let ended = locks.run(async {
        store.delete("a").await;
        std::future::pending::<()>().await;
    });
    assert!(matches!(ended.await, Err(LockError::Lost { key, .. }) if key.as_str() == "a"));
    nothing_is_left(&store, &other, &["a", "b"]).await;
}

#[tokio::test]
async fn free_ones_are_taken_in_one_script() {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let locks = client.locks(["c", "a", "b", "a"]);
    locks.acquire().await.unwrap().release().await;
    let before = server.scripts().await;
    for _ in 0..10 {
        locks.acquire().await.unwrap().release().await;
    }
    // Each acquisition needs one script for all three locks, and its release needs one script for each lock.
    assert_eq!(server.scripts().await - before, 10 * 4);
}

#[tokio::test]
async fn a_thousand_are_taken_and_released() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let locks = client.locks((0..1000).map(|key| format!("key:{key}")));
        let start = Instant::now();
        let guard = locks.wait(60 * SECOND).acquire().await.unwrap();
        let taken = start.elapsed();
        assert!(other.lock("key:999").try_acquire().await.is_err());
        let outcomes = guard.release().await;
        eprintln!(
            "taken within {taken:?}, released within {:?}",
            start.elapsed() - taken
        );
        let released = outcomes.iter().filter(|outcome| {
            matches!(
                outcome,
                ReleaseOutcome::Released | ReleaseOutcome::InBackground
            )
        });
        assert_eq!(released.count(), 1000);
        until(async || store.keys().await.is_empty()).await;
        nothing_is_left(&store, &other, &["key:0", "key:999"]).await;
    })
    .await;
}

/// The number of keys is limited, because a server serves no other client while it grants the locks of one call.
#[tokio::test]
async fn a_list_of_more_keys_than_allowed_is_refused() {
    on_every_store(|store| async move {
        let client = store.client().await;
        for keys in [MAX_KEYS + 1, 100_000] {
            let locks = client.locks((0..keys).map(|key| format!("key:{key}")));
            let refused = locks.run(async { panic!("nothing is locked") }).await;
            let refused: Result<(), _> = refused;
            let too_many = LockError::InvalidKey(KeyError::TooManyKeys);
            assert_eq!(refused, Err(too_many));
        }
        assert_eq!(client.stats().acquired, 0);
    })
    .await;
}

/// Over a slow connection, the duration of a call shows that the requests for all keys are under way at the same time.
#[tokio::test]
async fn on_a_redlock_several_keys_are_requested_in_parallel() {
    const KEYS: usize = 5;
    const ROUND_TRIP: Duration = Duration::from_millis(200);
    let quorum = Quorum::start(3).await.in_use().await;
    let proxies = quorum.proxies().await;
    let client = Store::on(&url_through(&proxies)).client().await;
    let locks = client.locks((0..KEYS).map(|key| format!("key:{key}")));
    for _ in 0..3 {
        locks.acquire().await.unwrap().release().await;
    }
    until(async || client.stats().connections >= 3).await;
    locks.acquire().await.unwrap().release().await;
    until(async || quorum.keys().await.is_empty()).await;
    proxies.iter().for_each(|proxy| proxy.delay(ROUND_TRIP / 2));
    let before = client.stats().commands;
    let start = Instant::now();
    let guard = locks.acquire().await.unwrap();
    let took = start.elapsed();
    // The bound is two round trips, because a second round trip follows if the nodes offer different tokens.
    assert!(took < 2 * ROUND_TRIP + epsilon(), "{took:?}");
    let sent = client.stats().commands - before;
    assert!(sent >= 3 * KEYS as u64, "{sent} commands");
    proxies.iter().for_each(|proxy| proxy.delay(Duration::ZERO));
    guard.release().await;
}

/// A nested call enters an enclosing lock again, waits for another lock, and is then never polled again. Its lease, which
/// is renewed, does not keep the lease of the enclosing call alive.
#[tokio::test(start_paused = true)]
async fn a_nested_call_that_is_forgotten_demands_no_renewals() {
    let client = LockClient::connect("memory:").await.unwrap();
    let taken = client.lock("x").acquire().await.unwrap();
    let outer = client.lock("k").lease(10 * SECOND);
    let body = async {
        let nested = client.locks(["k", "x"]).wait(SECOND);
        let mut nested = Box::pin(nested.run(async {}));
        assert!((&mut nested).now_or_never().is_none());
        tokio::time::sleep(3600 * SECOND).await;
    };
    let began = tokio::time::Instant::now();
    let lost = outer.run(body).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    // The nested call demands renewals for its `wait` and a claim (2 s). A lease of 30 s follows.
    assert!(began.elapsed() <= 34 * SECOND, "{:?}", began.elapsed());
    taken.release().await;
}
