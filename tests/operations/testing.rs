//! Tests of the failures that a user's test causes on an in-process client.

use std::time::Duration;

use lock_runtime::{
    LockClient, LockError, LossReason, OnLost, ReleaseOutcome, Testing, distributed_lock,
};
use support::server::RedisServer;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

async fn client() -> (LockClient, Testing) {
    let client = LockClient::connect("memory:").await.unwrap();
    let testing = client.testing().expect("the client is in-process");
    (client, testing)
}

#[distributed_lock(key = "testing:<id>", wait = "5s")]
async fn work(id: &str, time: Duration) -> Result<&'static str, LockError> {
    sleep(time).await;
    Ok("done")
}

#[distributed_lock(key = "testing:zero", wait = "0s")]
async fn at_once() -> Result<(), LockError> {
    Ok(())
}

/// A body whose lease a test ends is dropped, and its call returns `Lost`. The next caller enters at once, with a higher
/// token. A lock that the client does not hold cannot be lost.
#[tokio::test(start_paused = true)]
async fn a_test_ends_the_lease_of_a_call() {
    let (client, testing) = client().await;
    assert!(!testing.lose("testing:a"));
    let losing = async {
        sleep(SECOND).await;
        assert!(testing.lose("testing:a"));
        assert!(!testing.lose("testing:a"), "the lease is lost only once");
    };
    let call = client.scope(work("a", 60 * SECOND));
    let next = async {
        sleep(SECOND / 2).await;
        client.lock("testing:a").wait(5 * SECOND).acquire().await
    };
    let started = Instant::now();
    let (lost, (), next) = tokio::join!(call, losing, next);
    let next = next.unwrap();
    let Err(LockError::Lost { token, reason, .. }) = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(reason, LossReason::NotHeld);
    assert!(token < next.token());
    assert_eq!(started.elapsed(), SECOND);
    assert_eq!(next.loss(), None);
    assert_eq!(next.release().await, ReleaseOutcome::Released);
    assert_eq!(client.stats().lost, 1);
}

/// A guard is told that a test has ended its lease. A body under `on_lost = continue` runs to its end.
#[tokio::test(start_paused = true)]
async fn a_test_ends_the_lease_of_a_guard() {
    let (client, testing) = client().await;
    let guard = client.lock("guard").acquire().await.unwrap();
    assert!(testing.lose("guard"));
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    let next = client.lock("guard").try_acquire().await.unwrap();
    assert_eq!(
        guard.release().await,
        ReleaseOutcome::Lost(LossReason::NotHeld)
    );
    assert_eq!(next.release().await, ReleaseOutcome::Released);

    let lock = client.lock("goes on").on_lost(OnLost::Continue);
    let body = lock.run(async {
        assert!(testing.lose("goes on"));
        sleep(SECOND).await;
        "done"
    });
    assert_eq!(body.await.unwrap(), "done");
    assert_eq!(client.stats().lost, 2);
}

/// During a pretended outage, a call returns `Unreachable` at the end of its `wait`. A call with a longer `wait` enters
/// after the outage. Other clients of the registry are not affected.
#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_end_of_an_outage() {
    let connect = async || LockClient::connect("memory:outage").await.unwrap();
    let (client, other) = (connect().await, connect().await);
    let testing = client.testing().unwrap();
    testing.unreachable(20 * SECOND);
    let started = Instant::now();
    let call = client.scope(work("b", SECOND)).await;
    assert!(matches!(call, Err(LockError::Unreachable { .. })));
    assert!((5 * SECOND..6 * SECOND).contains(&started.elapsed()));
    let call = client.scope(at_once()).await;
    assert!(matches!(call, Err(LockError::Unreachable { .. })));
    let both = client.locks(["x", "y"]).wait(SECOND).run(async {}).await;
    assert!(
        matches!(both, Err(LockError::Unreachable { .. })),
        "{both:?}"
    );
    let status = client.lock("x").wait(SECOND).status().await;
    assert!(matches!(status, Err(LockError::Unreachable { .. })));
    assert!(client.ping(SECOND).await.is_err());
    other.lock("testing:b").run(async {}).await.unwrap();

    let lock = client.lock("testing:b").wait(60 * SECOND);
    lock.run(async {}).await.unwrap();
    assert_eq!(started.elapsed(), 20 * SECOND);
    assert_eq!(client.ping(SECOND).await, Ok(()));

    testing.unreachable(3600 * SECOND);
    testing.unreachable(Duration::ZERO);
    client.scope(at_once()).await.unwrap();
}

/// A caller that waits in the queue when an outage begins is not granted the lock during the outage.
#[tokio::test(start_paused = true)]
async fn a_waiter_enters_after_the_outage() {
    let (client, testing) = client().await;
    let started = Instant::now();
    let holder = client.lock("queue").run(sleep(2 * SECOND));
    let waiter = client.lock("queue").wait(60 * SECOND).run(async {
        assert_eq!(started.elapsed(), 11 * SECOND);
    });
    let outage = async {
        sleep(SECOND).await;
        testing.unreachable(10 * SECOND);
    };
    let (held, entered, ()) = tokio::join!(holder, waiter, outage);
    held.unwrap();
    entered.unwrap();
}

/// An outage that is longer than a renewed lease ends the lease, also if nested calls enter and leave meanwhile. A
/// shorter outage ends no lease, and a fixed lease ends at its own time.
#[tokio::test(start_paused = true)]
async fn an_outage_that_outlasts_a_lease_ends_it() {
    let (client, testing) = client().await;
    let renewed = client.lock("renewed").lease(10 * SECOND).renew(true);
    let started = Instant::now();
    let lost = renewed.run(async {
        testing.unreachable(9 * SECOND);
        sleep(100 * SECOND).await;
        testing.unreachable(60 * SECOND);
        for _ in 0..100 {
            sleep(SECOND).await;
            renewed.run(async {}).await.unwrap();
        }
    });
    let lost = lost.await;
    let Err(LockError::Lost { reason, .. }) = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(reason, LossReason::Expired);
    assert_eq!(started.elapsed(), 110 * SECOND);

    testing.unreachable(Duration::ZERO);
    let fixed = client.lock("fixed").lease(30 * SECOND);
    let body = fixed.run(async {
        testing.unreachable(60 * SECOND);
        sleep(29 * SECOND).await;
        "done"
    });
    assert_eq!(body.await.unwrap(), "done");
}

/// A body that ends during an outage keeps its value. A guard's release is not confirmed, and its lease cannot be
/// extended.
#[tokio::test(start_paused = true)]
async fn a_release_during_an_outage_is_not_confirmed() {
    let (client, testing) = client().await;
    let guard = client.lock("guard").acquire().await.unwrap();
    let value = client.lock("body").run(async {
        testing.unreachable(5 * SECOND);
        "done"
    });
    assert_eq!(value.await.unwrap(), "done");
    let extended = guard.extend(SECOND).await;
    assert!(matches!(extended, Err(LockError::Unreachable { .. })));
    assert_eq!(guard.release().await, ReleaseOutcome::InBackground);
    sleep(5 * SECOND).await;
    for key in ["guard", "body"] {
        let next = client.lock(key).try_acquire().await.unwrap();
        next.release().await;
    }
}

/// Only an in-process client can pretend failures.
#[tokio::test]
async fn a_client_of_a_server_pretends_nothing() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    assert!(client.testing().is_none());
}
