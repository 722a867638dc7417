//! `map_err`: converts a `LockError` into the function's error type, which need not implement `From<LockError>`.

use lock_runtime::{LockError, distributed_lock};

use crate::stores::{hold, on_every_store};

#[derive(Debug, PartialEq)]
enum PayError {
    Lock(LockError),
    Told(String),
}

fn told(error: LockError) -> PayError {
    PayError::Told(error.to_string())
}

#[distributed_lock(key = "k", wait = "0s", map_err = PayError::Lock)]
async fn by_variant() -> Result<u8, PayError> {
    Ok(1)
}

#[distributed_lock(key = "k", wait = "0s", map_err = told)]
async fn by_function() -> Result<u8, PayError> {
    Err(PayError::Told("the body's own".into()))
}

#[distributed_lock(key = "k", wait = "0s", map_err = told, on_busy = skip)]
async fn skipped() -> Result<Option<u8>, PayError> {
    Ok(Some(1))
}

#[tokio::test]
async fn a_failure_goes_through_the_named_function_and_a_value_does_not() {
    on_every_store(|store| async move {
        let client = store.client().await;
        assert_eq!(client.scope(by_variant()).await, Ok(1));
        assert_eq!(
            client.scope(by_function()).await,
            Err(PayError::Told("the body's own".into()))
        );
        assert_eq!(client.scope(skipped()).await, Ok(Some(1)));

        let guard = hold(&client, "k").await;
        assert!(matches!(
            client.scope(by_variant()).await,
            Err(PayError::Lock(LockError::Busy { .. }))
        ));
        assert!(matches!(
            client.scope(by_function()).await,
            Err(PayError::Told(text)) if text.contains("`k` is busy")
        ));
        assert_eq!(client.scope(skipped()).await, Ok(None));
        guard.release().await;
    })
    .await;
    // A call without a client fails with an error, and is not skipped as busy.
    assert!(matches!(
        skipped().await,
        Err(PayError::Told(text)) if text.contains("no lock client")
    ));
}
