//! Tests of the hook that is called when a body has used most of its lease, and the lease is not renewed.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_runtime::{Hold, LockClient, LockError};
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
