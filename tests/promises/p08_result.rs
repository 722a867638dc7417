//! The body's result is the body's, whatever becomes of the lease and the release.

use lock_runtime::{LockError, distributed_lock};
use support::server::RedisServer;

use crate::stores::{MS, SECOND, Store, on_every_store};

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

/// A body that outlasts its lease without a further await still has its value, and the loss is counted.
#[tokio::test]
async fn a_body_that_completes_keeps_its_value_though_the_lease_is_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let blocking = async {
            std::thread::sleep(150 * MS);
            7
        };
        assert_eq!(client.lock("k").lease(100 * MS).run(blocking).await, Ok(7));
        assert_eq!(client.stats().lost, 1);
    })
    .await;
}

/// The server is gone when the body ends: the release fails, the value stays.
#[tokio::test]
async fn a_failed_release_does_not_replace_the_value() {
    let mut server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let body = async {
        server.kill();
        7
    };
    assert_eq!(client.lock("k").lease(SECOND).run(body).await, Ok(7));
    let stats = crate::stores::until(async || client.stats().release_failed == 1);
    stats.await;
    assert_eq!(client.stats().released, 0);
}
