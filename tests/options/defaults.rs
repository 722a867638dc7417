//! The options that a call has if neither the call nor its client sets them.

use std::time::Duration;

use lock_runtime::{LockError, distributed_lock};
use support::{assert_lost, epsilon};
use tokio::time::{Instant, sleep};

use crate::stores::{MS, SECOND, Store, hold, until};

#[distributed_lock(key = "k")]
async fn without_options(work: Duration) -> Result<(), LockError> {
    sleep(work).await;
    Ok(())
}

#[distributed_lock(key = "k", renew = false)]
async fn not_renewed(work: Duration) -> Result<(), LockError> {
    sleep(work).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_3_s_and_then_fails() {
    let [client, other] = Store::memory().clients().await;
    let guard = hold(&other, "k").await;
    match client.scope(without_options(SECOND)).await {
        Err(LockError::Busy { waited, .. }) => {
            assert!(
                (3 * SECOND..3 * SECOND + 10 * MS).contains(&waited),
                "{waited:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    guard.release().await;
}

/// Without `lease`, `renew = false` makes the default lease a fixed one.
#[tokio::test(start_paused = true)]
async fn a_lease_of_30_s_is_renewed_unless_the_call_says_otherwise() {
    let client = Store::memory().client().await;
    client.scope(without_options(3600 * SECOND)).await.unwrap();
    client.scope(not_renewed(29 * SECOND)).await.unwrap();
    let begun = Instant::now();
    let lost = client.scope(not_renewed(3600 * SECOND)).await;
    assert_lost(&lost);
    let lasted = begun.elapsed();
    assert!(
        (30 * SECOND - 50 * MS..30 * SECOND + 50 * MS).contains(&lasted),
        "{lasted:?}"
    );
}

#[tokio::test]
async fn a_lease_of_30_s_is_renewed_after_10_s() {
    let client = Store::redis().await.client().await;
    let granted = Instant::now();
    let renewed = hold(&client, "renewed").await;
    let fixed = client.lock("fixed").renew(false).acquire().await.unwrap();
    for guard in [&renewed, &fixed] {
        let left = guard.remaining();
        assert!((29 * SECOND..=30 * SECOND).contains(&left), "{left:?}");
    }
    until(async || client.stats().renewed == 1).await;
    let after = granted.elapsed();
    assert!(
        (9 * SECOND..10 * SECOND + epsilon()).contains(&after),
        "{after:?}"
    );
    assert!(
        renewed.remaining() > 29 * SECOND,
        "{:?}",
        renewed.remaining()
    );
    assert!(fixed.remaining() < 22 * SECOND, "{:?}", fixed.remaining());
}
