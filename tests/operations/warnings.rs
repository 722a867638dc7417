//! Tests of the hooks that are called when a lease is lost, and when a body has used most of its lease and the lease is
//! not renewed.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_runtime::{Hold, LockClient, LockError, LossReason, OnLost, distributed_lock};
use support::server::RedisServer;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// An extension moves the moment of the warning.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_extended_in_time_is_not_reported() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = warnings.clone();
    let client = LockClient::builder()
        .url("memory:")
        .on_lease_warning(move |warning| told.lock().unwrap().push(warning.remaining))
        .connect()
        .await
        .unwrap();
    let lock = client.lock("extended").lease(10 * SECOND);
    let body = lock.run(async {
        let hold = Hold::current().expect("the body runs within a hold");
        for _ in 0..10 {
            sleep(5 * SECOND).await;
            hold.extend(5 * SECOND)
                .await
                .expect("the lease is not over");
        }
        sleep(7 * SECOND).await;
        assert_eq!(warnings.lock().unwrap().len(), 0);
        sleep(2 * SECOND).await;
    });
    body.await.unwrap();
    assert_eq!(*warnings.lock().unwrap(), [2 * SECOND]);
}

/// The hook is called once for each body that takes longer than 80 % of a lease that is not renewed, and for no other
/// body.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_nearly_over_is_reported_once() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = warnings.clone();
    let client = LockClient::builder()
        .url("memory:")
        .on_lease_warning(move |warning| told.lock().unwrap().push(warning.clone()))
        .connect()
        .await
        .unwrap();
    let lock = client.lock("warned").label("job").lease(10 * SECOND);
    lock.run(sleep(7 * SECOND)).await.unwrap();
    client
        .lock("renewed")
        .lease(10 * SECOND)
        .renew(true)
        .run(sleep(60 * SECOND))
        .await
        .unwrap();
    assert!(warnings.lock().unwrap().is_empty());

    let late = lock.run(async {
        sleep(9 * SECOND).await;
        warnings.lock().unwrap().len()
    });
    assert_eq!(
        late.await.unwrap(),
        1,
        "the body is still inside when the hook is called"
    );
    let lost = lock.run(sleep(60 * SECOND)).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })));

    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].token < warnings[1].token);
    for warning in &*warnings {
        assert_eq!(warning.key.as_str(), "warned");
        assert_eq!(warning.label, "job");
        assert_eq!(warning.lease, 10 * SECOND);
        assert_eq!(warning.remaining, 2 * SECOND);
    }
}

#[distributed_lock(key = "told:<id>", lease = "10s")]
async fn told(id: u64) -> Result<(), LockError> {
    sleep(id as u32 * SECOND).await;
    Ok(())
}

/// The hook `on_lost` is called once for each lost lease, with the function and the reason. If the hook panics, the call
/// still returns `Lost`.
#[tokio::test(start_paused = true)]
async fn each_loss_is_reported_once() {
    let losses = Arc::new(Mutex::new(Vec::new()));
    let seen = losses.clone();
    let client = LockClient::builder()
        .url("memory:")
        .on_lost(move |loss| {
            seen.lock().unwrap().push(loss.clone());
            assert_ne!(loss.label, "panics", "the hook panics");
        })
        .connect()
        .await
        .unwrap();
    client.scope(told(5)).await.unwrap();
    let lost = client.scope(told(60)).await;
    let Err(LockError::Lost { token, .. }) = lost else {
        panic!("{lost:?}");
    };
    let goes_on = client.lock("goes on").label("job").lease(10 * SECOND);
    let goes_on = goes_on.on_lost(OnLost::Continue);
    goes_on.run(sleep(60 * SECOND)).await.unwrap();
    let panics = client.lock("k").label("panics").lease(SECOND);
    let lost = panics.run(sleep(60 * SECOND)).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })));

    let losses = losses.lock().unwrap();
    let [first, second, third] = &losses[..] else {
        panic!("{losses:?}");
    };
    assert_eq!((first.key.as_str(), first.token), ("told:60", token));
    assert_eq!(first.label, "told:<id>");
    assert_eq!(first.function, concat!(module_path!(), "::told"));
    assert_eq!(first.reason, LossReason::Expired);
    assert_eq!((second.function, second.label), ("job", "job"));
    assert_eq!(third.label, "panics");
}

/// The engine calls the hook `on_lost` although nobody polls the call, and renews the other leases of the client after a
/// panic of the hook.
#[tokio::test]
async fn a_panic_of_the_hook_ends_no_renewal() {
    let server = RedisServer::start().await;
    let losses = Arc::new(Mutex::new(Vec::new()));
    let seen = losses.clone();
    let client = LockClient::builder()
        .url(server.url())
        .on_lost(move |loss| {
            let thread = std::thread::current().name().map(str::to_owned);
            seen.lock().unwrap().push((loss.reason, thread));
            panic!("the hook panics");
        });
    let client = client.connect().await.unwrap();
    let renewed = client.lock("kept").lease(SECOND).renew(true);
    let renewed = renewed.acquire().await.unwrap();
    let lost = client.lock("deleted").lease(SECOND).renew(true);
    let lost = lost.acquire().await.unwrap();
    let mut connection = server.connection().await;
    let _: i64 = redis::cmd("DEL")
        .arg("{lock:deleted}")
        .query_async(&mut connection)
        .await
        .unwrap();
    support::until(async || !losses.lock().unwrap().is_empty()).await;
    let engine = Some("lock-runtime".to_owned());
    assert_eq!(*losses.lock().unwrap(), [(LossReason::NotHeld, engine)]);
    let before = client.stats().renewed;
    support::until(async || client.stats().renewed >= before + 3).await;
    assert_eq!(renewed.loss(), None);
    assert_eq!(lost.loss(), Some(LossReason::NotHeld));
}
