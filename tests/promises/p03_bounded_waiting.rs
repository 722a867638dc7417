//! Promise 3: `wait` bounds the time of the whole acquisition.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, future::join_all};
use lock_runtime::{BusyWith, LockClient, LockError};
use support::server::{RedisServer, shared_server};
use support::{assert_busy, proxy::FaultProxy};

use tokio::time::timeout;

use crate::p01_polled_late::poll_once;
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
        let LockError::Busy {
            key, waited, with, ..
        } = refused
        else {
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

/// The holder releases the lock before the end of a call's `wait`. The call is polled only after this end, and enters.
#[tokio::test]
async fn a_lock_that_is_granted_within_wait_is_entered_by_a_poll_after_it() {
    on_stores_with_a_queue(|store| async move {
        let (holder, caller) = (store.client().await, store.client().await);
        let guard = hold(&holder, "k").await;
        let mut late = Box::pin(caller.lock("k").wait(SECOND).acquire());
        while !has_waiter(&holder).await {
            assert!(!poll_once(&mut late).await, "the call did not wait");
        }
        guard.release().await;
        tokio::time::sleep(1300 * MS).await;
        let entered = late.await;
        entered.expect("the lock is free").release().await;
    })
    .await;
}

/// In process, only the caller itself notices the end of its `wait`. If the lock is free when the caller is polled then, the
/// caller enters.
#[tokio::test]
async fn a_lock_that_is_free_when_the_end_of_the_wait_is_polled_is_entered() {
    let client = Store::memory().client().await;
    let guard = hold(&client, "k").await;
    let mut late = Box::pin(client.lock("k").wait(100 * MS).acquire());
    assert!(!poll_once(&mut late).await, "the call did not wait");
    tokio::time::sleep(300 * MS).await;
    guard.release().await;
    let entered = late.await;
    entered.expect("the lock is free").release().await;
}

async fn has_waiter(client: &LockClient) -> bool {
    client.lock("k").status().await.unwrap().waiters == 1
}

#[tokio::test]
async fn one_attempt_neither_queues_nor_overtakes() {
    on_stores_with_a_queue(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        let waiting = tokio::spawn(store.client().await.lock("k").wait(5 * SECOND).acquire());
        until_waiting(&client, "k", 1).await;
        let other = store.client().await;
        let started = Instant::now();
        assert_busy(&other.lock("k").try_acquire().await);
        assert!(started.elapsed() < support::epsilon());
        assert_eq!(client.lock("k").status().await.unwrap().waiters, 1);
        // An attempt that arrives while the lock passes to the waiter does not overtake the waiter.
        let lock = other.lock("k");
        let (_, tried) = tokio::join!(guard.release(), lock.try_acquire());
        assert_busy(&tried);
        waiting.await.unwrap().unwrap().release().await;
    })
    .await;
}

/// The maximum time that a call takes beyond its `wait` if the server is silent. The call spends this time on an
/// attempt to leave the queue.
const LEAVING: Duration = Duration::from_millis(200);

/// The server accepts a request and never answers. The call fails with `Unreachable` when its `wait` is over.
#[tokio::test]
async fn a_silent_server_is_unreachable_within_wait() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let client = Store::on(&proxy.url()).client().await;
    hold(&client, "before").await.release().await;
    proxy.blackhole(true);
    // A call with a `wait` of zero gives up after 0.9 s.
    let started = Instant::now();
    let refused = client.lock("k").try_acquire().await.unwrap_err();
    let took = started.elapsed();
    assert!(
        matches!(refused, LockError::Unreachable { .. }),
        "{refused}"
    );
    assert!(
        (900 * MS..SECOND + support::epsilon()).contains(&took),
        "{took:?}"
    );
    for wait in [300 * MS, 1500 * MS] {
        let started = Instant::now();
        let refused = client.lock("k").wait(wait).acquire().await.unwrap_err();
        let took = started.elapsed();
        assert!(
            matches!(refused, LockError::Unreachable { .. }),
            "{refused}"
        );
        assert!(
            took >= wait && took < wait + LEAVING + support::epsilon(),
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

/// The server is far away, and the lock is taken. Each call gets its answers, so it returns `Busy`.
#[tokio::test]
async fn a_lock_on_a_far_server_is_busy_and_not_unreachable() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    for store in [Store::redis().await, Store::redisson().await] {
        let near = store.client().await;
        let guard = hold(&near, "k").await;
        proxy.delay(Duration::ZERO);
        let far = store.through(&proxy.url()).client().await;
        // The line is slow before the first call of one client, and after that of the other.
        hold(&far, "before").await.release().await;
        for round_trip in [100, 300, 600] {
            proxy.delay(round_trip * MS / 2);
            for strategy in store.strategies() {
                let calls = (0..4).map(|call| {
                    let lock = far.lock("k").strategy(*strategy);
                    lock.wait((2500 + 100 * call) * MS).acquire()
                });
                for refused in join_all(calls).await {
                    assert_busy(&refused);
                }
            }
            let refused = far.lock("k").try_acquire().await;
            assert_busy(&refused);
        }
        guard.release().await;
    }
}

/// The network has forgotten the connections of an idle client. The lock is free, but no answer to the call comes, so
/// nothing is known about the lock: the call does not return `Busy`, and `on_busy` does not apply.
#[tokio::test]
async fn a_call_without_an_answer_does_not_say_that_the_lock_is_busy() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let client = Store::on(&proxy.url()).client().await;
    hold(&client, "before").await.release().await;
    proxy.half_open();
    // During these calls, a new connection answers the engine's check.
    for call in 0..4 {
        match client.lock("k").try_acquire().await {
            Ok(guard) => guard.release().await,
            Err(LockError::Unreachable { .. }) => continue,
            Err(refused) => panic!("call {call}: {refused}"),
        };
    }
    proxy.half_open();
    let outcome = client.lock("k").wait(3 * SECOND).run(async {}).await;
    assert_eq!(outcome, Ok(()));
}

/// A nested call has to extend the lease of the enclosing call, and the server is silent. The nested call stops waiting
/// for the extension when its `wait` is over.
#[tokio::test]
async fn an_extension_by_a_nested_call_ends_with_its_wait() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let client = Store::on(&proxy.url()).client().await;
    let outer = client.lock("k").lease(20 * SECOND);
    let refused = outer.run(async {
        proxy.blackhole(true);
        let inner = client.lock("k").wait(100 * MS).lease(60 * SECOND);
        let started = Instant::now();
        let refused = inner.run(async {}).await.unwrap_err();
        let took = started.elapsed();
        proxy.blackhole(false);
        (refused, took)
    });
    let (refused, took) = refused.await.unwrap();
    assert!(
        matches!(refused, LockError::Unreachable { .. }),
        "{refused}"
    );
    assert!(
        (100 * MS..100 * MS + LEAVING + support::epsilon()).contains(&took),
        "{took:?}"
    );
}

/// A nested call that extends the lease of the enclosing call is not polled for 2.5 s, which is longer than its `wait`
/// (1 s) and longer than a claim (2 s). At the next poll, the nested call returns `Busy`.
#[tokio::test]
async fn a_nested_call_that_is_polled_rarely_ends_after_its_wait() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let client = Store::on(&proxy.url()).client().await;
    let outer = client.lock("k").lease(20 * SECOND);
    let body = async {
        let inner = client.lock("k").wait(SECOND).lease(60 * SECOND);
        let mut inner = Box::pin(inner.run(async {}));
        // Without an answer, the first poll cannot complete the call.
        proxy.blackhole(true);
        assert!(
            (&mut inner).now_or_never().is_none(),
            "the nested call did not wait for the extension"
        );
        proxy.blackhole(false);
        tokio::time::sleep(2500 * MS).await;
        inner
            .now_or_never()
            .expect("the nested call ends after its `wait`")
    };
    assert_busy(&outer.run(body).await.unwrap());
}

/// A call for several keys has a lease of a few round trips, and gets its last key shortly before its `wait` ends.
/// While the call confirms one of its leases, the other leases become too short for a body. The call ends in time
/// nevertheless, and leaves no grant behind.
#[tokio::test]
async fn several_keys_over_a_slow_line_end_in_time() {
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let store = Store::redis().await;
    let (other, client) = (
        store.client().await,
        store.through(&proxy.url()).client().await,
    );
    hold(&client, "before").await.release().await;
    for (one_way, lease) in [(15 * MS, 110 * MS), (60 * MS, 400 * MS)] {
        proxy.delay(one_way);
        let guard = hold(&other, "z").await;
        let started = Instant::now();
        let both = client.locks(["a", "z"]).wait(SECOND).lease(lease);
        let release = async {
            tokio::time::sleep(850 * MS).await;
            guard.release().await;
        };
        let (entered, ()) = tokio::join!(
            async {
                let entered = timeout(5 * SECOND, both.acquire()).await;
                (entered.expect("the call ends"), started.elapsed())
            },
            release
        );
        let (entered, took) = entered;
        assert!(took < SECOND + LEAVING + support::epsilon(), "{took:?}");
        drop(entered);
        for key in ["a", "z"] {
            hold(&other, key).await.release().await;
        }
        let free = started.elapsed() - took;
        assert!(free < lease + support::epsilon(), "{free:?}");
    }
}

/// A call that begins while the server is down waits until the server is back, and then gets the lock.
#[tokio::test]
async fn a_wait_spans_a_reconnect() {
    let mut server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    hold(&client, "k").await.release().await;
    server.kill();
    let entering = tokio::spawn(client.lock("k").wait(10 * SECOND).acquire());
    server.restart().await;
    entering.await.unwrap().unwrap().release().await;
}

/// A service can pass the time left until its own deadline as `wait`. If this time is less than a millisecond, the
/// service's call makes one attempt.
#[tokio::test]
async fn a_wait_of_less_than_a_millisecond_is_one_attempt() {
    on_every_store(|store| async move {
        let client = store.client().await;
        for wait in [1, 1_000, 999_999].map(Duration::from_nanos) {
            for _ in 0..20 {
                let entered = client.lock("k").wait(wait).acquire().await;
                entered.expect("the lock is free").release().await;
            }
            let held = client.lock("k").acquire().await.unwrap();
            let busy = client.lock("k").wait(wait).acquire().await;
            assert_busy(&busy);
            held.release().await;
        }
    })
    .await;
}
