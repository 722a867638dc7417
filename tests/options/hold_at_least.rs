//! `hold_at_least`: the call returns its value at once, and the lock stays taken until the minimum hold is over.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use lock_runtime::{Hold, LockClient, LockError, OptionsError, distributed_lock};
use support::{
    assert_busy, assert_lost, epsilon,
    server::{RedisServer, ask},
};
use tokio::{sync::Notify, time::Instant};

use crate::stores::{
    MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until_waiting,
};

#[distributed_lock(key = "job", wait = "0s", lease = "20s", hold_at_least = "1s")]
async fn job(result: Result<u8, LockError>) -> Result<u8, LockError> {
    result
}

/// Acquires the lock as soon as it is free, and returns the time since `start`.
async fn next(client: &LockClient, start: Instant) -> Duration {
    client
        .lock("job")
        .wait(10 * SECOND)
        .run(async {})
        .await
        .unwrap();
    start.elapsed()
}

#[tokio::test]
async fn the_value_returns_at_once_and_the_next_one_enters_at_the_end() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        for result in [Ok(7), Err(LockError::NoClient)] {
            let start = Instant::now();
            assert_eq!(client.scope(job(result.clone())).await, result);
            let returned = start.elapsed();
            assert!(returned < SECOND / 2, "{returned:?}");
            // During the minimum hold, the lock is busy even for the client that has held it.
            let busy = client.scope(job(Ok(1))).await;
            assert_busy(&busy);
            let entered = next(&other, start).await;
            assert!(
                (SECOND - 20 * MS..SECOND + 200 * MS + epsilon()).contains(&entered),
                "{entered:?}"
            );
        }
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn those_who_wait_already_enter_at_the_end_in_order() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let start = Instant::now();
        let guard = client
            .lock("job")
            .lease(20 * SECOND)
            .hold_at_least(SECOND)
            .acquire()
            .await
            .unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        let waiter = |number: u8| {
            let (other, order) = (&other, &order);
            async move {
                until_waiting(other, "job", usize::from(number)).await;
                let inside = async { order.lock().unwrap().push((number, start.elapsed())) };
                let lock = other.lock("job").wait(10 * SECOND);
                lock.run(inside).await.unwrap();
            }
        };
        tokio::join!(waiter(0), waiter(1), waiter(2), async {
            until_waiting(&other, "job", 3).await;
            guard.release().await;
        });
        let order = order.into_inner().unwrap();
        let numbers: Vec<u8> = order.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2]);
        let first = order[0].1;
        assert!(
            (SECOND - 20 * MS..SECOND + 200 * MS + epsilon()).contains(&first),
            "{first:?}"
        );
    })
    .await;
}

/// Caller 0 has the turn and requests the confirmation of its grant. Caller 0 is not polled when the answer arrives, so
/// the turn passes to caller 1. Caller 0 enters only after the minimum hold of caller 1 is over.
#[tokio::test]
async fn a_neighbour_that_is_polled_late_waits_for_the_end() {
    const LEAST: Duration = Duration::from_millis(400);
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let guard = hold(&other, "job").await;
    let entered = std::sync::Mutex::new(Vec::new());
    let lock = client.lock("job").lease(10 * SECOND).hold_at_least(LEAST);
    let mut calls: Vec<_> = (0..3)
        .map(|_| {
            let inside = async {
                let token = Hold::current().unwrap().token();
                entered.lock().unwrap().push((Instant::now(), token));
            };
            Some(Box::pin(lock.clone().wait(60 * SECOND).run(inside)))
        })
        .collect();
    let mut poll = |number: usize| {
        let mut cx = Context::from_waker(Waker::noop());
        if let Some(call) = &mut calls[number]
            && let Poll::Ready(done) = call.as_mut().poll(&mut cx)
        {
            done.unwrap();
            calls[number] = None;
        }
        calls.iter().all(Option::is_none)
    };
    for number in 0..3 {
        while other.lock("job").status().await.unwrap().waiters <= number {
            poll(number);
            tokio::time::sleep(MS).await;
        }
    }
    guard.release().await;
    // After this pause, more than a third of the claim (2 s) of the grant has passed. The caller that gets the turn
    // therefore has to confirm the grant.
    tokio::time::sleep(SECOND).await;
    poll(0);
    for _ in 0..250 {
        tokio::time::sleep(10 * MS).await;
        poll(1);
        if !entered.lock().unwrap().is_empty() {
            break;
        }
    }
    while !(0..3).map(&mut poll).fold(false, |_, all_done| all_done) {
        tokio::time::sleep(10 * MS).await;
    }
    drop(calls);
    let entered = entered.into_inner().unwrap();
    for pair in entered.windows(2) {
        let gap = pair[1].0 - pair[0].0;
        assert!(gap >= LEAST - 20 * MS, "{gap:?} after the previous caller");
        assert!(pair[1].1 > pair[0].1, "{entered:?}");
    }
}

#[tokio::test]
async fn a_slower_body_releases_at_once() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let lock = client.lock("job").lease(20 * SECOND).hold_at_least(20 * MS);
        lock.run(tokio::time::sleep(40 * MS)).await.unwrap();
        let free = next(&other, Instant::now()).await;
        assert!(free < 5 * SECOND, "{free:?}");
    })
    .await;
}

#[tokio::test]
async fn dropped_or_panicking_it_is_free_at_once() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let long = || client.lock("job").hold_at_least(20 * SECOND);
        let free_soon = async || {
            let free = next(&other, Instant::now()).await;
            assert!(free < 5 * SECOND, "{free:?}");
        };

        let mut running = Box::pin(async {
            let _: Result<(), _> = long().run(std::future::pending()).await;
        });
        tokio::select! {
            biased;
            () = &mut running => unreachable!("the body never ends"),
            () = support::until(async || {
                client.lock("job").status().await.unwrap().holder.is_some()
            }) => {}
        }
        drop(running);
        free_soon().await;

        let panicking = {
            let lock = long();
            tokio::spawn(async move { lock.run(async { panic!("as the test wants") }).await })
        };
        let ended: Result<Result<(), LockError>, _> = panicking.await;
        assert!(ended.unwrap_err().is_panic());
        free_soon().await;

        drop(long().acquire().await.unwrap());
        free_soon().await;
    })
    .await;
}

#[distributed_lock(keys = ["job", "other"], lease = "1s", renew = true, hold_at_least = "900ms")]
async fn several(started: &Notify) -> Result<(), LockError> {
    started.notify_one();
    std::future::pending().await
}

#[tokio::test]
async fn after_a_loss_nothing_is_kept() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let started = Notify::new();
    let (lost, ()) = tokio::join!(client.scope(several(&started)), async {
        started.notified().await;
        let mut redis = support::server::shared_server().await.connection().await;
        let name = store.name("other");
        ask::<()>(&mut redis, redis::cmd("DEL").arg(name)).await;
    });
    assert_lost(&lost);
    let kept = other.lock("job").try_acquire().await;
    kept.expect("the other lock is free").release().await;

    // The local deadline ends this hold shortly before its lease ends on the server.
    let lock = client.lock("job").lease(200 * MS).hold_at_least(200 * MS);
    let lost: Result<(), _> = lock.run(std::future::pending()).await;
    assert_lost(&lost);
    let long = client
        .lock("job")
        .lease(SECOND)
        .renew(true)
        .max_hold(100 * MS)
        .hold_at_least(SECOND);
    let lost: Result<(), _> = long.run(std::future::pending()).await;
    assert_lost(&lost);
    let free = next(&other, Instant::now()).await;
    assert!(free < 200 * MS + epsilon(), "{free:?}");
}

#[tokio::test]
async fn a_kept_lock_cannot_be_extended() {
    on_every_store(|store| async move {
        let client = store.client().await;
        for lease in [None, Some(20 * SECOND)] {
            let mut lock = client.lock("job").hold_at_least(500 * MS);
            if let Some(lease) = lease {
                lock = lock.lease(lease);
            }
            let start = Instant::now();
            let hold = lock
                .run(async { lock_runtime::Hold::current().unwrap() })
                .await
                .unwrap();
            let extended = hold.extend(3600 * SECOND).await;
            assert_lost(&extended);
            let entered = next(&client, start).await;
            assert!(
                (480 * MS..700 * MS + epsilon()).contains(&entered),
                "{entered:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn sent_late_it_ends_in_time() {
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [client, other] = store.clients().await;
    let start = Instant::now();
    let lock = client
        .lock("job")
        .lease(20 * SECOND)
        .hold_at_least(2 * SECOND);
    let guard = lock.acquire().await.unwrap();
    server.stop_process();
    let releasing = tokio::spawn(guard.release());
    tokio::time::sleep(900 * MS).await;
    server.continue_process();
    releasing.await.unwrap();
    let entered = next(&other, start).await;
    assert!(
        (1980 * MS..2200 * MS + epsilon()).contains(&entered),
        "{entered:?}"
    );
}

#[tokio::test]
async fn a_lease_that_nobody_asked_for_is_extended_for_it() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let lock = client.lock("job").hold_at_least(3600 * SECOND);
    lock.run(async {}).await.unwrap();
    let holder = other.lock("job").status().await.unwrap().holder;
    let left = holder.and_then(|holder| holder.remaining).unwrap();
    assert!(left > 3590 * SECOND, "{left:?}");
}

#[tokio::test]
async fn a_nested_call_keeps_the_lock_of_the_call_around_it() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let start = Instant::now();
        let outer = client.lock("job").lease(20 * SECOND);
        let nested = client.scope(job(Ok(3)));
        assert_eq!(outer.run(nested).await.unwrap(), Ok(3));
        let entered = next(&other, start).await;
        assert!(entered > SECOND - 20 * MS, "{entered:?}");
    })
    .await;
}

const SHORT: Duration = Duration::from_millis(20);

#[distributed_lock(key = "job", lease = SHORT, hold_at_least = "1s")]
async fn longer_than_its_lease() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn longer_than_the_lease_is_refused_before_anything_is_sent() {
    let client = Store::memory().client().await;
    assert_eq!(
        client.scope(longer_than_its_lease()).await,
        Err(LockError::InvalidOptions(
            OptionsError::HoldAtLeastAboveLease
        ))
    );
    hold(&client, "job").await.release().await;
}

/// The cost of a release does not depend on the number of other locks that `hold_at_least` keeps taken.
#[tokio::test]
async fn thousands_of_kept_locks_cost_no_more_each_than_the_first() {
    const MANY: usize = 1000;
    let client = Store::memory().client().await;
    let keep = async |from: usize| {
        let start = Instant::now();
        for number in from..from + MANY {
            let lock = client.lock(format!("job:{number}"));
            let lock = lock.hold_at_least(3600 * SECOND);
            lock.run(async {}).await.unwrap();
        }
        start.elapsed()
    };
    let first = keep(0).await;
    for batch in 1..15 {
        keep(batch * MANY).await;
    }
    let last = keep(15 * MANY).await;
    assert!(last < 3 * first + 100 * MS, "{first:?}, then {last:?}");
}

#[tokio::test(start_paused = true)]
async fn in_process_the_next_one_enters_at_once_at_the_end() {
    let [client, other] = Store::memory().clients().await;
    let start = Instant::now();
    client.scope(job(Ok(7))).await.unwrap();
    let entered = next(&other, start).await;
    assert!((SECOND..SECOND + 5 * MS).contains(&entered), "{entered:?}");
}
