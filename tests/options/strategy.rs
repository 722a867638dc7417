//! `strategy`: how a caller waits. On every backend, callers with different strategies share one lock.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use lock_runtime::{Backoff, Layout, LockClient, LockError, Strategy, distributed_lock};
use support::{
    PATIENCE, assert_busy, epsilon,
    proxy::FaultProxy,
    server::{RedisServer, ask, shared_server},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::stores::{
    MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until, until_waiting,
};

#[distributed_lock(key = "k", wait = "20s")]
async fn as_its_client_says() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", wait = "20s", strategy = spin)]
async fn spinning() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn each_enters_when_the_lock_is_free() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        client.scope(spinning()).await.unwrap();
        for &strategy in store.strategies() {
            let guard = hold(&other, "k").await;
            let lock = client.lock("k").strategy(strategy).wait(20 * SECOND);
            let mut waiting = Box::pin(lock.acquire());
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("{strategy:?} enters a lock that is held"),
                () = sleep(300 * MS) => {}
            }
            let released = Instant::now();
            guard.release().await;
            waiting.await.unwrap().release().await;
            let took = released.elapsed();
            // A caller that spins sleeps for at most 128 ms between two attempts.
            assert!(took < 130 * MS + epsilon(), "{strategy:?}: {took:?}");
        }
        until(async || store.keys().await.is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn all_together_exclude_each_other_and_nobody_starves() {
    on_every_store(|store| async move {
        let (inside, served) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let strategies = store.strategies();
        let mut running = JoinSet::new();
        for process in 0..2 {
            for caller in 0..8 {
                let client = store.client().await;
                let (inside, served) = (inside.clone(), served.clone());
                running.spawn(async move {
                    for turn in 0..10 {
                        let strategy = strategies[(process + caller + turn) % strategies.len()];
                        let lock = client.lock("k").strategy(strategy).wait(60 * SECOND);
                        let body = async {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                            inside.fetch_sub(1, Ordering::SeqCst);
                            served.fetch_add(1, Ordering::SeqCst);
                        };
                        lock.run(body).await.unwrap();
                    }
                });
            }
        }
        running.join_all().await;
        assert_eq!(served.load(Ordering::SeqCst), 160);
        until(async || store.keys().await.is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn those_who_queue_come_first() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&client, "k").await;
        let order = Mutex::new(Vec::new());
        let caller = async |strategy: Strategy| {
            let lock = other.lock("k").strategy(strategy).wait(20 * SECOND);
            let body = async { order.lock().unwrap().push(strategy) };
            lock.run(body).await.unwrap();
        };
        let queued_later = async || {
            // After this pause, the caller with `spin` has been waiting for a while.
            sleep(300 * MS).await;
            caller(Strategy::Handoff).await;
        };
        tokio::join!(
            caller(Strategy::Spin),
            queued_later(),
            queued_later(),
            async {
                sleep(400 * MS).await;
                guard.release().await;
            }
        );
        let order = order.into_inner().unwrap();
        assert_eq!(order[..2], [Strategy::Handoff; 2], "{order:?}");
    })
    .await;
}

#[tokio::test]
async fn a_release_wakes_who_is_notified() {
    let server = RedisServer::start().await;
    let builder = || {
        LockClient::builder()
            .url(server.url())
            .layout(Layout::Redisson)
    };
    let [client, other] = [
        builder().connect_within(PATIENCE).await.unwrap(),
        builder().connect_within(PATIENCE).await.unwrap(),
    ];
    let (lock, other) = (client.lock("k").wait(20 * SECOND), other.lock("k"));
    let mut fastest = SECOND;
    for _ in 0..5 {
        let guard = other.acquire().await.unwrap();
        let before = server.scripts().await;
        let (entered, released) = tokio::join!(lock.acquire(), async {
            // The waiting process has found the lock taken, has subscribed, and has found the lock taken again. Without
            // a message, the process would try again only after 200 ms.
            until(async || server.scripts().await > before + 1).await;
            let released = Instant::now();
            guard.release().await;
            released
        });
        fastest = fastest.min(released.elapsed());
        entered.unwrap().release().await;
    }
    assert!(fastest < 120 * MS, "{fastest:?}");
}

#[tokio::test]
async fn a_try_at_a_lock_that_has_expired_overtakes_nobody() {
    let store = Store::redis().await;
    let (holder, other) = (store.client().await, store.client().await);
    let mut redis = shared_server().await.connection().await;
    let name = store.name("k");
    let gone = hold(&holder, "k").await;
    std::mem::forget(gone);
    let lock = other.lock("k").wait(20 * SECOND);
    let mut waiting = Box::pin(lock.acquire());
    let queued = async { until_waiting(&holder, "k", 1).await };
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("the lock is held"),
        () = queued => {}
    }
    ask::<()>(&mut redis, redis::cmd("DEL").arg(&name)).await;
    let tried = holder.lock("k").try_acquire().await;
    assert_busy(&tried);
    waiting.await.unwrap().release().await;
}

#[tokio::test]
async fn each_is_busy_at_the_end_of_its_wait_and_leaves_nothing() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "k").await;
        for &strategy in store.strategies() {
            let lock = client.lock("k").strategy(strategy).wait(300 * MS);
            match lock.acquire().await {
                Err(LockError::Busy { waited, .. }) => {
                    let bound = 300 * MS..300 * MS + epsilon();
                    assert!(bound.contains(&waited), "{strategy:?}: {waited:?}");
                }
                other => panic!("{strategy:?}: {other:?}"),
            }
            // A caller that is dropped while it waits leaves no key behind.
            let lock = client.lock("k").strategy(strategy).wait(20 * SECOND);
            let dropped = tokio::time::timeout(100 * MS, lock.acquire()).await;
            assert!(dropped.is_err());
            until_waiting(&other, "k", 0).await;
        }
        guard.release().await;
        until(async || store.keys().await.is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_no_busy_lock() {
    for store in [Store::redis().await, Store::redisson().await] {
        for &strategy in store.strategies() {
            let proxy = FaultProxy::start(shared_server().await.port()).await;
            let client = store.through(&proxy.url()).client().await;
            let guard = hold(&store.client().await, "k").await;
            let lock = client.lock("k").strategy(strategy).wait(1200 * MS);
            // The server is silent from the start, or becomes silent during the wait.
            for gone in [0, 500] {
                let silence = async {
                    sleep(gone * MS).await;
                    proxy.blackhole(true);
                };
                let (first, second, ()) = tokio::join!(lock.acquire(), lock.acquire(), silence);
                for told in [first, second] {
                    let unreachable = matches!(told, Err(LockError::Unreachable { .. }));
                    assert!(
                        unreachable,
                        "{strategy:?}, server silent after {gone} ms: {told:?}"
                    );
                }
                proxy.blackhole(false);
                let busy = lock.acquire().await;
                let is_busy = matches!(busy, Err(LockError::Busy { .. }));
                assert!(is_busy, "{strategy:?}: {busy:?}");
            }
            guard.release().await;
        }
    }
}

#[tokio::test]
async fn each_enters_after_a_holder_that_is_gone() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        for &strategy in store.strategies() {
            // A forgotten guard is never released, so only the end of its lease ends the hold.
            let gone = other.lock("k").lease(400 * MS).acquire().await.unwrap();
            std::mem::forget(gone);
            let start = Instant::now();
            let lock = client.lock("k").strategy(strategy).wait(20 * SECOND);
            lock.run(async {}).await.unwrap();
            let took = start.elapsed();
            assert!(took < 600 * MS + epsilon(), "{strategy:?}: {took:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_has_a_default_and_shuts_down_in_any() {
    for store in [Store::redis().await, Store::redisson().await] {
        let holder = store.client().await;
        let guard = hold(&holder, "k").await;
        for &strategy in store.strategies() {
            let client = store
                .builder()
                .strategy(strategy)
                .backoff(Backoff {
                    first: 5 * MS,
                    most: 10 * MS,
                })
                .connect_within(support::PATIENCE)
                .await
                .unwrap();
            let lock = client.lock("k").wait(60 * SECOND);
            let (ended, ()) = tokio::join!(lock.acquire(), async {
                sleep(50 * MS).await;
                client.shutdown().await;
            });
            assert_eq!(ended.err(), Some(LockError::ShutDown), "{strategy:?}");
        }
        guard.release().await;
    }
}

/// A call without `strategy` waits with the strategy of its client. If the client has no strategy either, the call
/// queues, as with `handoff`.
#[tokio::test]
async fn a_call_waits_as_its_client_says_and_queues_by_default() {
    let store = Store::redis().await;
    let holder = store.client().await;
    let guard = hold(&holder, "k").await;
    for (strategy, queues) in [
        (None, true),
        (Some(Strategy::Handoff), true),
        (Some(Strategy::Spin), false),
    ] {
        let mut builder = store.builder();
        if let Some(strategy) = strategy {
            builder = builder.strategy(strategy);
        }
        let client = builder.connect_within(support::PATIENCE).await.unwrap();
        let mut waiting = Box::pin(client.scope(as_its_client_says()));
        let waiters = async || holder.lock("k").status().await.unwrap().waiters;
        // A caller that spins sends one request after another.
        let waits = until(async || match queues {
            true => waiters().await == 1,
            false => client.stats().commands > 5,
        });
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the lock is held"),
            () = waits => {}
        }
        assert_eq!(waiters().await, usize::from(queues), "{strategy:?}");
        drop(waiting);
        until_waiting(&holder, "k", 0).await;
    }
    guard.release().await;
}

/// The server grants the lock to the last try of a caller, and the caller's `wait` ends before the answer arrives. The
/// caller then enters, and does not refuse itself.
#[tokio::test]
async fn a_try_that_is_granted_at_the_end_of_the_wait_is_entered() {
    let store = Store::redisson().await;
    let holder = store.client().await;
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let caller = store.through(&proxy.url()).client().await;
    let guard = hold(&holder, "k").await;
    let lock = caller.lock("k").strategy(Strategy::Notify).wait(SECOND);
    let end = Instant::now() + SECOND;
    let waiting = tokio::spawn(lock.acquire());
    sleep(300 * MS).await;
    proxy.hold_requests(true);
    let tried = proxy.wait_for_request(b"EVALSHA");
    guard.release().await;
    tried.await;
    proxy.hold_replies(true);
    proxy.hold_requests(false);
    until(async || holder.lock("k").status().await.unwrap().holder.is_some()).await;
    sleep_until(end + 20 * MS).await;
    proxy.hold_replies(false);
    let entered = waiting.await.unwrap();
    entered.expect("the lock was granted").release().await;
}

/// On a Redlock every caller tries again and again. Only a caller with `spin` uses the pauses that its client sets.
#[tokio::test]
async fn on_a_redlock_a_caller_that_does_not_spin_uses_the_default_pauses() {
    let store = Store::redlock().await;
    let other = store.client().await;
    let pause = Backoff {
        first: 60 * SECOND,
        most: 60 * SECOND,
    };
    let client = store
        .builder()
        .backoff(pause)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    for &strategy in store.strategies() {
        let guard = hold(&other, "k").await;
        let before = client.stats().commands;
        let lock = client.lock("k").strategy(strategy).wait(30 * SECOND);
        let mut waiting = Box::pin(lock.acquire());
        let tried = async {
            until(async || client.stats().commands >= before + 3).await;
            // The `status` requests use the same connections as the first try, so their answers arrive after the
            // answers to the try.
            client.lock("k").status().await.unwrap();
        };
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the lock is held"),
            () = tried => {}
        }
        guard.release().await;
        let entered = timeout(130 * MS + epsilon(), waiting).await;
        assert_eq!(entered.is_ok(), strategy != Strategy::Spin, "{strategy:?}");
        if let Ok(guard) = entered {
            guard.unwrap().release().await;
        }
    }
}

/// If no message arrives, all callers that wait with `notify` in one session make five tries a second in total, however
/// many they are.
#[tokio::test]
async fn a_session_that_waits_for_a_message_tries_five_times_a_second() {
    let server = RedisServer::start().await;
    let builder = || {
        LockClient::builder()
            .url(server.url())
            .layout(Layout::Redisson)
    };
    let (client, other) = (
        builder().connect_within(support::PATIENCE).await.unwrap(),
        builder().connect_within(support::PATIENCE).await.unwrap(),
    );
    let guard = hold(&other, "k").await;
    let lock = client.lock("k").wait(20 * SECOND);
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let lock = lock.clone();
        callers.spawn(async move { lock.run(async {}).await.unwrap() });
    }
    let asked = server.scripts().await;
    until(async || server.scripts().await > asked + 1).await;
    let before = server.scripts().await;
    sleep(2 * SECOND).await;
    let tries = server.scripts().await - before;
    assert!((4..=11).contains(&tries), "{tries} in two seconds");
    guard.release().await;
    callers.join_all().await;
}

/// Runs `callers` callers in one process. Each caller holds the lock for `body`. Returns the average number of scripts
/// per caller, and the number of scripts that the process sends per second.
async fn cost(
    layout: Layout,
    strategy: Strategy,
    callers: u32,
    body: std::time::Duration,
) -> (f64, f64) {
    let server = RedisServer::start().await;
    let builder = LockClient::builder().url(server.url()).layout(layout);
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    let before = server.scripts().await;
    let start = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..callers {
        let client: LockClient = client.clone();
        running.spawn(async move {
            let lock = client.lock("k").strategy(strategy).wait(120 * SECOND);
            lock.run(async { sleep(body).await }).await.unwrap();
        });
    }
    running.join_all().await;
    let sent = f64::from(u32::try_from(server.scripts().await - before).unwrap());
    (
        sent / f64::from(callers),
        sent / start.elapsed().as_secs_f64(),
    )
}

#[tokio::test]
async fn one_process_sends_what_its_strategy_needs() {
    let (handoff, _) = cost(Layout::Native, Strategy::Handoff, 50, 5 * MS).await;
    // With handoff, one request and one release serve many callers.
    assert!(handoff <= 0.2, "{handoff}");
    // With `notify`, each caller sends three scripts: an attempt that finds the lock taken, the attempt that enters,
    // and the release.
    let (notify, _) = cost(Layout::Redisson, Strategy::Notify, 50, 5 * MS).await;
    assert!((2.5..3.5).contains(&notify), "{notify}");
    let (spin, _) = cost(Layout::Native, Strategy::Spin, 50, 5 * MS).await;
    assert!(spin > 4.0, "{spin}");
}

/// A lease ends between two attempts of a waiter, and the server sends no message. The waiter tries once more at the
/// end of its `wait`, and enters.
#[tokio::test]
async fn a_lock_that_is_free_when_the_wait_ends_is_entered() {
    on_every_store(|store| async move {
        let other = store.client().await;
        let strategies = store.strategies().iter();
        for &strategy in strategies.filter(|strategy| **strategy != Strategy::Handoff) {
            for lease in [60 * MS, 100 * MS] {
                let pause = Backoff {
                    first: SECOND,
                    most: SECOND,
                };
                let waiting = store
                    .builder()
                    .backoff(pause)
                    .connect_within(support::PATIENCE)
                    .await
                    .unwrap();
                let lock = waiting.lock("k").strategy(strategy);
                // On a busy machine, the first answer can arrive after the end of `wait`.
                until(async || {
                    let guard = other.lock("k").wait(PATIENCE).lease(lease);
                    std::mem::forget(guard.acquire().await.unwrap());
                    let lock = lock.clone().wait(lease + 50 * MS);
                    match lock.acquire().await {
                        Ok(guard) => {
                            guard.release().await;
                            true
                        }
                        Err(_) => false,
                    }
                })
                .await;
            }
        }
    })
    .await;
}

/// One caller of a process waits but is not polled. The other callers of the process enter nevertheless.
#[tokio::test]
async fn a_waiter_that_is_not_polled_keeps_no_turn() {
    const OTHERS: usize = 3;
    let store = Store::redisson().await;
    let (client, holder) = (store.client().await, store.client().await);
    // In each case, the caller is polled for a different time: until its first attempt, until it has begun to wait,
    // or until it has waited for more than one heartbeat.
    for polled in [1, 2, 30] {
        let guard = hold(&holder, "k").await;
        let lock = client
            .lock("k")
            .strategy(Strategy::Notify)
            .wait(20 * SECOND);
        let mut parked = Box::pin(lock.acquire());
        for _ in 0..polled {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(parked.as_mut().poll(&mut cx).is_pending());
            sleep(10 * MS).await;
        }
        let mut others = JoinSet::new();
        for _ in 0..OTHERS {
            let lock = lock.clone();
            others.spawn(async move { lock.acquire().await.unwrap().release().await });
        }
        sleep(100 * MS).await;
        let released = Instant::now();
        guard.release().await;
        others.join_all().await;
        // The bound is the sum of a claim (2 s) and the interval between two heartbeats (200 ms).
        let took = released.elapsed();
        assert!(
            took < 2200 * MS + epsilon(),
            "polled {polled} times: {took:?}"
        );
        parked.await.unwrap().release().await;
    }
}
