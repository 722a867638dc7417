//! Promise 8: the call returns the result of its body, whatever happens to the lease and the release.

use lock_runtime::{LockError, LossReason, ReleaseOutcome, distributed_lock};
use support::{
    PATIENCE, assert_lost, epsilon, log,
    proxy::FaultProxy,
    quorum::{shared_quorum, url_through},
    server::{RedisServer, ask, shared_server},
};
use tokio::time::Instant;
use tracing::Level;

use crate::stores::{MS, SECOND, Store, on_every_store, until};

#[derive(Debug, PartialEq)]
enum PayError {
    Declined,
    Lock(LockError),
}

impl From<LockError> for PayError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64, fail: bool) -> Result<u64, PayError> {
    if fail {
        Err(PayError::Declined)
    } else {
        Ok(id)
    }
}

#[tokio::test]
async fn values_and_errors_pass_through() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let calls = client
            .scope(async { (pay(7, false).await, pay(7, true).await) })
            .await;
        assert_eq!(calls, (Ok(7), Err(PayError::Declined)));
    })
    .await;
}

/// If a body blocks beyond the end of its lease and then completes, the call returns the value of the body. The client
/// counts the lease as lost.
#[tokio::test]
async fn a_body_that_completes_keeps_its_value_though_the_lease_is_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let blocking = async {
            std::thread::sleep(400 * MS);
            7
        };
        assert_eq!(client.lock("k").lease(300 * MS).run(blocking).await, Ok(7));
        assert_eq!(client.stats().lost, 1);
    })
    .await;
}

/// The server is killed before the body ends. The release fails, but the call returns the value of the body.
#[tokio::test]
async fn a_failed_release_does_not_replace_the_value() {
    log::keep();
    let mut server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let body = async {
        server.kill();
        7
    };
    let lock = client.lock("p08").lease(SECOND);
    assert_eq!(lock.run(body).await, Ok(7));
    until(async || client.stats().release_failed == 1).await;
    assert_eq!(client.stats().released, 0);
    let warned = || {
        log::saying("release").into_iter().filter(|record| {
            let is_ours = record
                .fields
                .get("key")
                .is_some_and(|key| key.ends_with("p08"));
            is_ours && record.level == Level::WARN
        })
    };
    // The warning is logged after the failure is counted.
    until(async || warned().count() == 1).await;
}

/// The release of a guard returns what happened to the lock. A loss is counted once, and is not counted as a failed
/// release.
#[tokio::test]
async fn a_release_says_what_became_of_the_lock() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.lock("k").acquire().await.unwrap();
        let nested = guard.run(async { client.lock("k").acquire().await });
        let nested = nested.await.unwrap().unwrap();
        assert_eq!(guard.release().await, ReleaseOutcome::StillHeld);
        assert_eq!(nested.release().await, ReleaseOutcome::Released);

        let released = client.stats().released;
        let lost = client.lock("k").lease(300 * MS).acquire().await.unwrap();
        let dropped = client.lock("j").lease(300 * MS).acquire().await.unwrap();
        let extended = client.lock("i").lease(300 * MS).acquire().await.unwrap();
        tokio::time::sleep(400 * MS).await;
        // On a busy machine, the engine can hear from the server that the grant is gone before it sees the deadline.
        let outcome = lost.release().await;
        assert!(matches!(outcome, ReleaseOutcome::Lost(_)), "{outcome:?}");
        drop(dropped);
        assert!(extended.extend(SECOND).await.is_err());
        drop(extended);
        client.shutdown().await;
        let stats = client.stats();
        let counted = (stats.lost, stats.released, stats.release_failed);
        assert_eq!(counted, (3, released, 0));
    })
    .await;
}

/// The connection breaks during a release, so the engine sends the release again. A release that finds the grant is
/// confirmed. If the second copy finds no grant, the outcome is not known: the first copy has released the lock, or the
/// lock was lost before, and another caller is inside.
#[tokio::test]
async fn a_release_that_is_sent_again_does_not_claim_a_grant_that_was_gone() {
    for store in [
        Store::redis().await,
        Store::redisson().await,
        Store::redlock().await,
    ] {
        eprintln!("on {store:?}");
        let proxies = if store.is_redlock() {
            shared_quorum().await.proxies().await
        } else {
            vec![FaultProxy::start(shared_server().await.port()).await]
        };
        let url = if store.is_redlock() {
            url_through(&proxies)
        } else {
            proxies[0].url()
        };
        let client = store.through(&url).client().await;
        let other = store.client().await;

        let held = client.lock("held").acquire().await.unwrap();
        for proxy in &proxies {
            proxy.cut_after_request_bytes(0);
        }
        assert_eq!(held.release().await, ReleaseOutcome::Released);
        assert_eq!(client.stats().release_unknown, 0);

        // On a busy machine, the connection can break at the reply to another command.
        until(async || {
            let released = client
                .lock("released")
                .wait(PATIENCE)
                .acquire()
                .await
                .unwrap();
            for proxy in &proxies {
                proxy.cut_after_reply_bytes(0);
            }
            released.release().await == ReleaseOutcome::Unknown
        })
        .await;
        let before = client.stats().released;
        let free = other.lock("released").wait(PATIENCE).acquire().await;
        free.unwrap().release().await;

        let lost = client.lock("lost").acquire().await.unwrap();
        if store.is_redlock() {
            for server in &shared_quorum().await.servers {
                let mut delete = redis::cmd("DEL");
                let deleted = delete.arg(store.name("lost"));
                ask::<usize>(&mut server.connection().await, deleted).await;
            }
        } else {
            store.delete("lost").await;
        }
        let next = other.lock("lost").wait(PATIENCE).acquire().await.unwrap();
        for proxy in &proxies {
            proxy.cut_after_request_bytes(0);
        }
        assert_eq!(lost.release().await, ReleaseOutcome::Unknown);
        assert_eq!(next.release().await, ReleaseOutcome::Released);
        let stats = client.stats();
        assert_eq!((stats.released, stats.release_unknown), (before, 2));
    }
}

/// Calls that lose their leases are counted as lost. A lock that is given back after its loss is not counted as
/// released.
#[tokio::test]
async fn a_lost_hold_is_not_counted_as_released() {
    const CALLS: u64 = 5;
    on_every_store(|store| async move {
        let client = store.client().await;
        for call in 0..CALLS {
            let lock = client.lock(format!("k{call}")).lease(300 * MS);
            let lost: Result<(), _> = lock.run(std::future::pending()).await;
            assert_lost(&lost);
        }
        client.shutdown().await;
        let stats = client.stats();
        let counted = (stats.lost, stats.released, stats.release_failed);
        assert_eq!(counted, (CALLS, 0, 0));
    })
    .await;
}

/// If the server does not answer, a release continues in the background. The release of a lost guard is not counted as
/// failed.
#[tokio::test]
async fn a_release_without_an_answer_goes_on_in_the_background() {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let held = client.lock("k").acquire().await.unwrap();
    let lost = client.lock("j").lease(500 * MS).acquire().await.unwrap();
    server.stop_process();
    tokio::time::sleep(600 * MS).await;
    let expired = LossReason::Expired;
    assert_eq!(lost.release().await, ReleaseOutcome::Lost(expired));
    let asked = Instant::now();
    assert_eq!(held.release().await, ReleaseOutcome::InBackground);
    let took = asked.elapsed();
    assert!((SECOND..SECOND + epsilon()).contains(&took), "{took:?}");
    // After this pause, the client no longer tries to release the lost lock.
    tokio::time::sleep(3 * SECOND).await;
    let stats = client.stats();
    assert_eq!((stats.lost, stats.release_failed), (1, 0));
    server.continue_process();
}
