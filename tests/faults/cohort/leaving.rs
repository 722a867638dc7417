//! Members that leave a cohort, and releases that continue in the background.

use std::time::{Duration, Instant};

use lock_runtime::Release;
use support::{
    epsilon,
    proxy::FaultProxy,
    server::RedisServer,
    stores::{MS, SECOND, Store, hold, until_free, until_waiting},
};

use crate::fixture::client;

/// A member of a cohort is dropped after its turn has come, but before it is polled. The dropped call never entered, so
/// the client counts no release for it.
#[tokio::test]
async fn a_turn_that_nobody_takes_is_no_release() {
    for store in [Store::memory(), Store::redis().await] {
        eprintln!("on {store:?}");
        let [client, other] = store.clients().await;
        let guard = hold(&other, "k").await;
        let (entering, mut entered) = tokio::sync::mpsc::unbounded_channel();
        let mut callers = Vec::new();
        for caller in 0..2 {
            let (lock, entering) = (client.lock("k").wait(20 * SECOND), entering.clone());
            callers.push(tokio::spawn(async move {
                entering.send(lock.acquire().await.unwrap()).unwrap();
            }));
            until_waiting(&other, "k", caller + 1).await;
        }
        guard.release().await;
        let first = entered.recv().await.unwrap();
        first.release().await;
        callers[1].abort();
        until_free(&other, "k").await;
        tokio::time::sleep(50 * MS).await;
        let stats = client.stats();
        assert_eq!((stats.acquired, stats.released), (1, 1), "{stats:?}");
    }
}

/// A member of a cohort has left, but its `hold_at_least` keeps the lock taken while another member waits. When the
/// client is shut down, the waiting call returns an error, and the shutdown does not wait for the end of
/// `hold_at_least`. The lock stays taken until the time of `hold_at_least` has passed.
#[tokio::test]
async fn shutting_down_does_not_wait_for_a_lock_that_is_kept() {
    const AT_LEAST: Duration = Duration::from_secs(5);
    for store in [Store::memory(), Store::redis().await] {
        eprintln!("on {store:?}");
        let [client, other] = store.clients().await;
        let guard = hold(&other, "k").await;
        let (entering, mut entered) = tokio::sync::mpsc::unbounded_channel();
        for caller in 0..2 {
            let lock = client.lock("k").wait(20 * SECOND).lease(20 * SECOND);
            let lock = lock.hold_at_least(AT_LEAST);
            let entering = entering.clone();
            tokio::spawn(async move {
                let _ = entering.send(lock.acquire().await);
            });
            until_waiting(&other, "k", caller + 1).await;
        }
        guard.release().await;
        let first = entered.recv().await.unwrap().unwrap();
        let since = Instant::now();
        first.release().await;
        client.shutdown().await;
        let took = since.elapsed();
        assert!(
            entered.recv().await.unwrap().is_err(),
            "the waiting call was not refused"
        );
        assert!(took < SECOND + epsilon(), "the shutdown took {took:?}");
        other
            .lock("k")
            .wait(20 * SECOND)
            .acquire()
            .await
            .unwrap()
            .release()
            .await;
        let free = since.elapsed();
        assert!(
            free > AT_LEAST - 20 * MS && free < AT_LEAST + 200 * MS + epsilon(),
            "{free:?}"
        );
    }
}

/// The first calls of a client do not block one another. Each call finds the lock free, even if the background
/// release of the previous call is not confirmed yet.
#[tokio::test]
async fn the_first_calls_of_a_client_are_not_in_their_own_way() {
    for store in [
        Store::memory(),
        Store::redis().await,
        Store::redisson().await,
        Store::redlock().await,
    ] {
        eprintln!("on {store:?}");
        for _ in 0..20 {
            let client = store.client().await;
            let lock = client
                .lock("k")
                .wait(Duration::ZERO)
                .release(Release::Background);
            if store.is_redlock() {
                // A call can use a majority of the nodes before the client has connected to all of them.
                let patient = client.lock("k").wait(20 * SECOND);
                assert_eq!(patient.run(async {}).await, Ok(()));
                until_free(&client, "k").await;
            }
            for turn in 0..10 {
                assert_eq!(lock.run(async {}).await, Ok(()), "turn {turn}");
            }
            until_free(&client, "k").await;
        }
    }
}

/// A member of a cohort extends its lease, so the other member has to queue again. Before the answer comes, the other
/// member's `wait` ends, and the first member leaves. Nobody queues the other member again, so the next grant is that of
/// the next caller.
#[tokio::test]
async fn a_member_that_leaves_is_not_queued_again() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let (behind, direct) = (client(&proxy.url()).await, client(&server.url()).await);
    let guard = hold(&direct, "k").await;
    let lock = behind.lock("k").lease(10 * SECOND);
    let first = tokio::spawn(lock.clone().wait(20 * SECOND).acquire());
    until_waiting(&direct, "k", 1).await;
    let second = tokio::spawn(lock.wait(SECOND).acquire());
    until_waiting(&direct, "k", 2).await;
    guard.release().await;
    let first = first.await.unwrap().unwrap();
    let token = first.token().get();
    proxy.hold_replies(true);
    let extending = first.extend(40 * SECOND);
    let answer = tokio::time::timeout(1200 * MS, extending).await;
    answer.expect_err("the proxy holds the answer");
    let leaving = tokio::spawn(first.release());
    // The release is sent while the answer to the extension is still missing.
    tokio::time::sleep(100 * MS).await;
    proxy.hold_replies(false);
    leaving.await.unwrap();
    drop(second.await.unwrap());
    until_free(&direct, "k").await;
    // The grant to both members has drawn two tokens, or one, if the second member had left before.
    let next = hold(&direct, "k").await.token().get();
    assert!(next <= token + 2, "{next} follows {token}");
}
