//! The backends on which every promise is tested.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

pub use crate::until;
use crate::{
    quorum::shared_quorum,
    server::{ask, shared_server},
};
use lock_runtime::{Layout, LockClient, LockClientBuilder, LockGuard, Strategy};
use uuid::Uuid;

/// A millisecond.
pub const MS: Duration = Duration::from_millis(1);
/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// A backend, and the way in which a process reaches it.
#[derive(Debug, Clone)]
pub struct Store {
    url: String,
    namespace: String,
    layout: Layout,
}

impl Store {
    /// Locks of the in-process backend, separate from those of other tests.
    #[must_use]
    pub fn memory() -> Self {
        Self {
            url: format!("memory:{}", Uuid::new_v4()),
            namespace: "test".into(),
            layout: Layout::Native,
        }
    }

    /// Locks on a real server, separate from those of other tests.
    pub async fn redis() -> Self {
        Self::on(&shared_server().await.url())
    }

    /// Locks on a majority of three real servers, separate from those of other tests.
    pub async fn redlock() -> Self {
        Self::on(&shared_quorum().await.url())
    }

    /// Locks on this server or quorum, separate from those of other tests.
    #[must_use]
    pub fn on(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            namespace: Uuid::new_v4().simple().to_string(),
            layout: Layout::Native,
        }
    }

    /// Locks in Redisson's layout on a real server, separate from those of other tests.
    pub async fn redisson() -> Self {
        Self {
            layout: Layout::Redisson,
            ..Self::redis().await
        }
    }

    /// The same locks, reached through another URL.
    #[must_use]
    pub fn through(&self, url: &str) -> Self {
        Self {
            url: url.to_owned(),
            namespace: self.namespace.clone(),
            layout: self.layout,
        }
    }

    /// Whether the locks are on a single server.
    #[must_use]
    pub fn is_redis(&self) -> bool {
        self.url.starts_with("redis")
    }

    /// Whether the locks are on a quorum.
    #[must_use]
    pub fn is_redlock(&self) -> bool {
        self.url.starts_with("redlock")
    }

    /// Whether locks are stored in Redisson's layout.
    #[must_use]
    pub fn is_redisson(&self) -> bool {
        self.layout == Layout::Redisson
    }

    /// The strategies that this store supports.
    #[must_use]
    pub fn strategies(&self) -> &'static [Strategy] {
        match self.layout {
            Layout::Redisson => &[Strategy::Notify, Strategy::Spin],
            Layout::Native => &[Strategy::Handoff, Strategy::Notify, Strategy::Spin],
        }
    }

    /// A client with its own sessions, owners and places in the queue, like another process.
    pub async fn client(&self) -> LockClient {
        self.builder()
            .connect()
            .await
            .expect("a test store can be connected to")
    }

    /// Several such clients.
    pub async fn clients<const N: usize>(&self) -> [LockClient; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().expect("so many were made")
    }

    /// The builder of such a client.
    pub fn builder(&self) -> LockClientBuilder {
        LockClient::builder()
            .url(&self.url)
            .namespace(&self.namespace)
            .layout(self.layout)
    }

    /// The keys of this store on the server; none in process. The last nodes of a quorum may answer a moment after the
    /// majority, so only keys that stay are returned.
    pub async fn keys(&self) -> Vec<String> {
        let patience = Instant::now() + crate::epsilon();
        loop {
            let keys = if self.is_redis() {
                shared_server().await.keys().await
            } else if self.is_redlock() {
                shared_quorum().await.keys().await
            } else {
                return Vec::new();
            };
            let keys: Vec<_> = keys
                .into_iter()
                .filter(|key| key.contains(&self.namespace))
                .collect();
            if keys.is_empty() || !self.is_redlock() || Instant::now() > patience {
                return keys;
            }
        }
    }

    /// Deletes the lock of a held key on a server, as an operator may.
    ///
    /// # Panics
    /// If the key is not held.
    pub async fn delete(&self, key: &str) {
        let mut redis = shared_server().await.connection().await;
        let deleted: u8 = ask(&mut redis, redis::cmd("DEL").arg(self.name(key))).await;
        assert_eq!(deleted, 1, "`{key}` is not held");
    }

    /// The stored name of a key.
    #[must_use]
    pub fn name(&self, key: &str) -> String {
        match self.layout {
            Layout::Redisson => format!("{}:{key}", self.namespace),
            Layout::Native => format!("{{{}:{key}}}", self.namespace),
        }
    }
}

/// Runs a test on every backend. The output of a panic names the failing backend.
pub async fn on_every_store<F, Fut>(test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    on_stores_with_a_queue(&test).await;
    for store in [Store::redlock().await, Store::redisson().await] {
        eprintln!("on {store:?}");
        test(store).await;
    }
}

/// Runs a test on every backend that promises an order. Quorums and Redisson's layout have no queue, so no order
/// is promised and waiters are not visible.
pub async fn on_stores_with_a_queue<F, Fut>(test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    for store in [Store::memory(), Store::redis().await] {
        eprintln!("on {store:?}");
        test(store).await;
    }
}

/// Waits until this many callers wait for the key.
pub async fn until_waiting(client: &LockClient, key: &str, waiters: usize) {
    until(async || {
        let status = client.lock(key).status().await.expect("the store answers");
        status.waiters == waiters
    })
    .await;
}

/// Waits until nobody holds the key and nobody waits for it.
pub async fn until_free(client: &LockClient, key: &str) {
    until(async || {
        let status = client.lock(key).status().await.expect("the store answers");
        status.waiters == 0 && status.holder.is_none()
    })
    .await;
}

/// Acquires a free key.
///
/// # Panics
/// If the key is not free.
pub async fn hold(client: &LockClient, key: &str) -> LockGuard {
    client.lock(key).acquire().await.expect("the key is free")
}

/// Returns which of these keys are held.
///
/// # Panics
/// If the store does not answer.
pub async fn held<'a>(client: &LockClient, keys: &[&'a str]) -> Vec<&'a str> {
    let mut held = Vec::new();
    for key in keys {
        let status = client.lock(*key).status().await.expect("the store answers");
        if status.holder.is_some() {
            held.push(*key);
        }
    }
    held
}

/// Drops calls for two locks after 0 to 11 polls, and waits after each until both locks are free. In every third round
/// another client holds the second lock, so that a call has the first lock and waits for the second one.
pub async fn drop_at_any_time<C: Future>(
    other: &LockClient,
    [first, second]: [&str; 2],
    calls: usize,
    call: impl Fn() -> C,
) {
    for round in 0..calls {
        let guard = match round % 3 {
            0 => Some(hold(other, second).await),
            _ => None,
        };
        {
            let mut call = pin!(call());
            for _ in 0..round % 12 {
                let mut context = Context::from_waker(Waker::noop());
                if call.as_mut().poll(&mut context).is_ready() {
                    break;
                }
                tokio::time::sleep(MS / 4).await;
            }
        }
        if let Some(guard) = guard {
            guard.release().await;
        }
        until_free(other, first).await;
        until_free(other, second).await;
    }
}
