//! The promises that readers and permits share with writers: each test runs for both of them. `tests/options/{readers,semaphore}.rs`
//! test what they have of their own.

use std::{
    future::{Future, pending},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use lock_runtime::{LockClient, LockError, LockGuard};
use support::{poll_unread, proxy::FaultProxy, server::RedisServer};

use crate::stores::{MS, SECOND, Store, on_stores_with_a_queue, until_free, until_waiting};

/// A caller that shares a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharer {
    Reader,
    /// A caller that takes one of two permits.
    Permit,
}

const SHARERS: [Sharer; 2] = [Sharer::Reader, Sharer::Permit];

impl Sharer {
    fn key(self) -> &'static str {
        match self {
            Self::Reader => "k",
            Self::Permit => "permits:k",
        }
    }

    fn acquire(
        self,
        client: &LockClient,
        wait: Duration,
    ) -> BoxFuture<'static, Result<LockGuard, LockError>> {
        match self {
            Self::Reader => client.lock("k").read().wait(wait).acquire().boxed(),
            Self::Permit => client.semaphore("k", 2).wait(wait).acquire().boxed(),
        }
    }

    /// Runs a body under a renewed lease, or under this fixed one.
    async fn run<T>(
        self,
        client: &LockClient,
        lease: Option<Duration>,
        body: impl Future<Output = T>,
    ) -> Result<T, LockError> {
        let (lock, permits) = (client.lock("k").read(), client.semaphore("k", 2));
        let call = match (self, lease) {
            (Self::Reader, None) => lock.run(body),
            (Self::Reader, Some(lease)) => lock.lease(lease).run(body),
            (Self::Permit, None) => permits.run(body),
            (Self::Permit, Some(lease)) => permits.lease(lease).run(body),
        };
        call.await
    }

    /// Keeps all sharers out: holds the lock as a writer, or takes all permits.
    async fn keep_out(self, client: &LockClient) -> LockGuard {
        let entered = match self {
            Self::Reader => client.lock("k").wait(60 * SECOND).acquire().await,
            Self::Permit => {
                client
                    .semaphore("k", 2)
                    .wait(60 * SECOND)
                    .acquire_many(2)
                    .await
            }
        };
        entered.unwrap()
    }
}

/// Promise 3.
#[tokio::test]
async fn p03_a_wait_ends_in_busy_and_leaves_the_queue() {
    on_stores_with_a_queue(async |store| {
        let [holder, caller] = store.clients().await;
        for sharer in SHARERS {
            let guard = sharer.keep_out(&holder).await;
            let refused = sharer.acquire(&caller, 300 * MS).await.map(drop);
            let Err(LockError::Busy { waited, .. }) = refused else {
                panic!("{sharer:?}: {refused:?}");
            };
            assert!(waited >= 299 * MS, "{waited:?}");
            assert_eq!(caller.lock(sharer.key()).status().await.unwrap().waiters, 0);
            guard.release().await;
            until_free(&caller, sharer.key()).await;
        }
    })
    .await;
}

/// Promise 5.
#[tokio::test]
async fn p05_a_body_whose_lease_is_lost_is_dropped() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        for sharer in SHARERS {
            let beside = sharer.acquire(&two, SECOND).await.unwrap();
            let lost = sharer.run(&one, Some(200 * MS), pending::<()>()).await;
            assert!(
                matches!(lost, Err(LockError::Lost { .. })),
                "{sharer:?}: {lost:?}"
            );
            assert_eq!(beside.loss(), None, "{sharer:?}");
            beside.release().await;
            until_free(&two, sharer.key()).await;
        }
    })
    .await;
}

/// Promise 6: calls are dropped before their first poll, with a request that is not answered, in the queue, and after their
/// turn has come.
#[tokio::test]
async fn p06_a_dropped_call_leaves_nothing() {
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [dropping, other] = store.clients().await;
    for sharer in SHARERS {
        // From here on, the connection is open, and the server knows the script.
        sharer
            .acquire(&dropping, SECOND)
            .await
            .unwrap()
            .release()
            .await;
        for _ in 0..50 {
            drop(sharer.acquire(&dropping, SECOND));
            let mut unanswered = sharer.acquire(&dropping, SECOND);
            assert!(!poll_unread(&dropping, unanswered.as_mut()).await);
            drop(unanswered);
        }
        until_free(&other, sharer.key()).await;
        for leaves in [false, true] {
            let guard = sharer.keep_out(&other).await;
            let mut calls: Vec<_> = (0..50)
                .map(|_| sharer.acquire(&dropping, 60 * SECOND))
                .collect();
            for call in &mut calls {
                assert!(futures_util::poll!(call).is_pending());
            }
            until_waiting(&other, sharer.key(), 50).await;
            if leaves {
                guard.release().await;
                drop(calls);
            } else {
                drop(calls);
                until_waiting(&other, sharer.key(), 0).await;
                guard.release().await;
            }
            until_free(&other, sharer.key()).await;
            // Nothing that a dropped call has left keeps the next one out.
            sharer.keep_out(&other).await.release().await;
        }
    }
}

/// Promises 8 and 9.
#[tokio::test]
async fn p08_a_call_returns_the_result_of_its_body() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        for sharer in SHARERS {
            assert_eq!(sharer.run(&client, None, async { 7 }).await, Ok(7));
            let early = sharer
                .run(&client, None, async {
                    None::<u8>?;
                    Some(1)
                })
                .await;
            assert_eq!(early, Ok(None), "{sharer:?}");
            until_free(&client, sharer.key()).await;
        }
    })
    .await;
}

/// Promise 10.
#[tokio::test]
async fn p10_no_body_runs_without_a_grant() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = Store::on(&proxy.url()).client().await;
    proxy.refuse(true);
    proxy.cut();
    for sharer in SHARERS {
        let body = async { unreachable!("nothing is granted") };
        let refused: Result<(), _> = sharer.run(&client, None, body).await;
        assert!(
            matches!(refused, Err(LockError::Unreachable { .. })),
            "{refused:?}"
        );
    }
}

/// Promise 12.
#[tokio::test]
async fn p12_one_script_in_and_one_out_also_beside_others() {
    let server = RedisServer::start().await;
    let [client, other] = Store::on(&server.url()).clients().await;
    for sharer in SHARERS {
        sharer.run(&client, None, async {}).await.unwrap();
        let beside = sharer.acquire(&other, SECOND).await.unwrap();
        let before = server.scripts().await;
        for _ in 0..50 {
            sharer.run(&client, None, async {}).await.unwrap();
        }
        assert_eq!(server.scripts().await - before, 100, "{sharer:?}");
        beside.release().await;
    }
}
