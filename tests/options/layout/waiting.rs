//! Waiting for locks in Redisson's layout, by this crate and by a JVM.

use lock_runtime::LockError;
use support::{Room, epsilon, proxy::FaultProxy, server::shared_server};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{Jvm, pay};
use crate::stores::{MS, SECOND, Store, hold, until};

#[tokio::test]
async fn the_jvm_enters_when_we_leave_and_we_when_it_leaves() {
    let store = Store::redisson().await;
    for &strategy in store.strategies() {
        let client = store.client().await;
        let mut jvm = Jvm::at(&store, "k").await;
        let guard = hold(&client, "k").await;
        // The JVM has to be notified of the release, because the lease that it has read is longer than this timeout.
        let told = tokio::join!(timeout(10 * SECOND, jvm.lock(10 * SECOND)), async {
            until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
            guard.release().await;
        });
        told.0.expect("the JVM is notified of this crate's release");
        // The JVM reenters the lock, so its first `unlock` does not release the lock.
        assert_eq!(jvm.try_lock(10 * SECOND).await, None);
        let lock = client.lock("k").strategy(strategy).wait(20 * SECOND);
        let mut waiting = Box::pin(lock.acquire());
        assert!(timeout(100 * MS, &mut waiting).await.is_err());
        assert_eq!(jvm.unlock().await, Some(false));
        assert!(timeout(300 * MS, &mut waiting).await.is_err());
        assert_eq!(jvm.unlock().await, Some(true));
        waiting.await.unwrap().release().await;
        until(async || jvm.listeners().await == 0).await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    }
}

#[tokio::test]
async fn a_release_of_the_jvm_wakes_us_without_a_probe() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let mut fastest = SECOND;
    for _ in 0..10 {
        jvm.lock(10 * SECOND).await;
        let lock = client.lock("k").wait(20 * SECOND);
        let acquiring = lock.acquire();
        let (guard, released) = tokio::join!(acquiring, async {
            until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
            // After this pause, this crate's waiter has subscribed, tried again, and found the lock taken.
            sleep(20 * MS).await;
            jvm.unlock().await.unwrap();
            Instant::now()
        });
        fastest = fastest.min(released.elapsed());
        guard.unwrap().release().await;
        until(async || jvm.listeners().await == 0).await;
    }
    // Without messages, a waiter would find the lock free only 90 ms after the release on average.
    assert!(fastest < 40 * MS, "{fastest:?}");
}

#[tokio::test]
async fn services_in_rust_and_on_the_jvm_take_turns_and_nobody_is_missed() {
    let store = Store::redisson().await;
    let inside: &'static Room = Box::leak(Box::default());
    let mut running = JoinSet::new();
    for service in 0..2 {
        let client = store.client().await;
        for caller in 0..4 {
            let strategy = store.strategies()[(service + caller) % 2];
            let client = client.clone();
            running.spawn(async move {
                for _ in 0..10 {
                    assert_eq!(client.scope(pay(7, inside)).await, Ok(7));
                    let lock = client.lock("order:7").strategy(strategy).wait(20 * SECOND);
                    lock.run(inside.stay(MS)).await.unwrap();
                }
            });
        }
    }
    for _ in 0..4 {
        let mut jvm = Jvm::at(&store, "order:7").await;
        running.spawn(async move {
            for _ in 0..20 {
                jvm.lock(10 * SECOND).await;
                inside.stay(MS).await;
                assert_eq!(jvm.unlock().await, Some(true));
            }
        });
    }
    running.join_all().await;
    until(async || store.keys().await.is_empty()).await;
    let mut jvm = Jvm::at(&store, "order:7").await;
    until(async || jvm.listeners().await == 0).await;
}

#[tokio::test]
async fn what_ends_without_a_word_is_noticed() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let lock = client.lock("k").wait(20 * SECOND);
    // In the first half of the test, the JVM's hold expires. In the second half, the JVM's hold is deleted without a
    // message, as when Redisson releases a spin lock.
    assert_eq!(jvm.try_lock(400 * MS).await, None);
    let start = Instant::now();
    lock.run(async {}).await.unwrap();
    let took = start.elapsed();
    assert!(took < 600 * MS + epsilon(), "{took:?}");
    assert_eq!(jvm.try_lock(20 * SECOND).await, None);
    let entering = lock.run(async {});
    let (entered, deleted) = tokio::join!(entering, async {
        sleep(100 * MS).await;
        let name = jvm.lock.clone();
        jvm.ask::<()>("DEL", &[&name]).await;
        Instant::now()
    });
    entered.unwrap();
    let took = deleted.elapsed();
    assert!(took < 200 * MS + epsilon(), "{took:?}");
}

#[tokio::test]
async fn a_caller_that_gives_up_or_is_dropped_unsubscribes() {
    let store = Store::redisson().await;
    let [client, other] = store.clients().await;
    let mut jvm = Jvm::at(&store, "k").await;
    jvm.lock(20 * SECOND).await;
    let lock = client.lock("k").wait(300 * MS);
    for patience in [MS, 2 * MS, 5 * MS, 50 * MS, SECOND] {
        let mut running = JoinSet::new();
        for _ in 0..4 {
            let lock = lock.clone();
            running.spawn(async move { timeout(patience, lock.acquire()).await });
        }
        while let Some(ended) = running.join_next().await {
            if let Ok(ended) = ended.unwrap() {
                let busy = matches!(ended, Err(LockError::Busy { .. }));
                assert!(busy && patience == SECOND, "{ended:?}");
            }
        }
        until(async || jvm.listeners().await == 0).await;
    }
    // A waiter is notified even after the other waiters of its process have left.
    let staying = other.lock("k").wait(20 * SECOND);
    let entering = staying.acquire();
    let (entered, released) = tokio::join!(entering, async {
        for _ in 0..20 {
            let _ = timeout(5 * MS, other.lock("k").wait(SECOND).acquire()).await;
        }
        until(async || jvm.listeners().await == 1).await;
        assert_eq!(jvm.unlock().await, Some(true));
        Instant::now()
    });
    entered.unwrap().release().await;
    assert!(released.elapsed() < 200 * MS + epsilon());
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn a_new_connection_listens_again() {
    let server = shared_server().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::redisson().await;
    let client = store.through(&proxy.url()).client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    jvm.lock(20 * SECOND).await;
    let lock = client.lock("k").wait(20 * SECOND);
    let entering = lock.acquire();
    let (entered, ()) = tokio::join!(entering, async {
        for _ in 0..3 {
            until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
            let connections = proxy.connections();
            proxy.cut();
            until(async || proxy.connections() > connections).await;
        }
        until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
        jvm.unlock().await.unwrap();
    });
    entered.unwrap().release().await;
    assert_eq!(store.keys().await, [] as [String; 0]);
}
