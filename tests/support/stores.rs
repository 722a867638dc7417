//! The backends on which the promises are tested.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

pub use crate::until;
use crate::{
    PATIENCE,
    cluster::shared_cluster,
    proxy::FaultProxy,
    quorum::shared_quorum,
    sentinels::shared_group,
    server::{ask, shared_server},
};
use lock_runtime::{Layout, LockClient, LockClientBuilder, LockGuard, Strategy};
use uuid::Uuid;

/// A millisecond.
pub const MS: Duration = Duration::from_millis(1);
/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// The locks of one test on a backend, and the URL by which clients reach them.
#[derive(Debug, Clone)]
pub struct Store {
    url: String,
    namespace: String,
    layout: Layout,
}

impl Store {
    /// Returns locks of the in-process backend, separate from those of other tests.
    #[must_use]
    pub fn memory() -> Self {
        Self {
            url: format!("memory:{}", Uuid::new_v4()),
            namespace: "test".into(),
            layout: Layout::Native,
        }
    }

    /// Returns locks on a real server, separate from those of other tests.
    pub async fn redis() -> Self {
        Self::on(&shared_server().await.url())
    }

    /// Returns the locks of a Redlock on three real servers, separate from the locks of other tests.
    pub async fn redlock() -> Self {
        Self::on(&shared_quorum().await.url())
    }

    /// Returns locks in a Redis Cluster of three real servers, separate from those of other tests.
    pub async fn cluster() -> Self {
        Self::on(&shared_cluster().await.url())
    }

    /// Returns locks on the primary of a group that real Sentinels watch, separate from those of other tests.
    pub async fn sentinel() -> Self {
        Self::on(&shared_group().await.url())
    }

    /// Returns locks on the server or servers with this URL, separate from those of other tests.
    #[must_use]
    pub fn on(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            namespace: Uuid::new_v4().simple().to_string(),
            layout: Layout::Native,
        }
    }

    /// Returns locks in Redisson's layout on a real server, separate from those of other tests.
    pub async fn redisson() -> Self {
        Self {
            layout: Layout::Redisson,
            ..Self::redis().await
        }
    }

    /// Returns locks in Redisson's layout in a Redis Cluster of three real servers, separate from those of other tests.
    pub async fn redisson_in_cluster() -> Self {
        Self {
            layout: Layout::Redisson,
            ..Self::cluster().await
        }
    }

    /// Returns the same locks, reached through another URL.
    #[must_use]
    pub fn through(&self, url: &str) -> Self {
        Self {
            url: url.to_owned(),
            namespace: self.namespace.clone(),
            layout: self.layout,
        }
    }

    /// Returns whether the locks are on a single server.
    #[must_use]
    pub fn is_redis(&self) -> bool {
        self.url.starts_with("redis:")
    }

    /// Returns whether the locks are in a Redis Cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.url.starts_with("redis+cluster:")
    }

    /// Returns whether the locks are on the primary of a group that Sentinels watch.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.url.starts_with("redis+sentinel:")
    }

    /// Returns whether the locks are on a Redlock.
    #[must_use]
    pub fn is_redlock(&self) -> bool {
        self.url.starts_with("redlock")
    }

    /// Returns whether the locks are stored in Redisson's layout.
    #[must_use]
    pub fn is_redisson(&self) -> bool {
        self.layout == Layout::Redisson
    }

    /// Returns the strategies that this store supports.
    #[must_use]
    pub fn strategies(&self) -> &'static [Strategy] {
        match self.layout {
            Layout::Redisson => &[Strategy::Notify, Strategy::Spin],
            Layout::Native => &[Strategy::Handoff, Strategy::Spin],
        }
    }

    /// Connects a client with its own sessions and owners, as if the client were in another process.
    pub async fn client(&self) -> LockClient {
        self.builder()
            .connect_within(PATIENCE)
            .await
            .expect("a client can connect to the test store")
    }

    /// Connects `N` clients, each like one from [`client`](Self::client).
    pub async fn clients<const N: usize>(&self) -> [LockClient; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().expect("`N` clients were made")
    }

    /// Returns a builder for clients that use these locks.
    pub fn builder(&self) -> LockClientBuilder {
        LockClient::builder()
            .url(&self.url)
            .namespace(&self.namespace)
            .layout(self.layout)
    }

    /// Returns the keys of this store on its servers. A store of the in-process backend has no keys. The last node of a
    /// Redlock can remove a key a moment after the majority has removed it. On a Redlock, this method therefore waits
    /// up to [`epsilon`](crate::epsilon) until the keys have disappeared.
    pub async fn keys(&self) -> Vec<String> {
        let patience = Instant::now() + crate::epsilon();
        loop {
            let keys = if self.is_redis() {
                shared_server().await.keys().await
            } else if self.is_cluster() {
                shared_cluster().await.keys().await
            } else if self.is_group() {
                shared_group().await.servers[0].keys().await
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

    /// Deletes the lock of a held key on the server, as an operator might.
    ///
    /// # Panics
    /// If the key is not held.
    pub async fn delete(&self, key: &str) {
        let mut redis = if self.is_cluster() {
            let cluster = shared_cluster().await;
            let primary = cluster.primary_of(cluster.slot_of(&self.name(key)).await);
            cluster.servers[primary.await].connection().await
        } else if self.is_group() {
            shared_group().await.servers[0].connection().await
        } else {
            shared_server().await.connection().await
        };
        let deleted: u8 = ask(&mut redis, redis::cmd("DEL").arg(self.name(key))).await;
        assert_eq!(deleted, 1, "`{key}` is not held");
    }

    /// Returns the name under which the server stores a key's lock.
    #[must_use]
    pub fn name(&self, key: &str) -> String {
        match self.layout {
            Layout::Redisson => format!("{}:{key}", self.namespace),
            Layout::Native => format!("{{{}:{key}}}", self.namespace),
        }
    }
}

/// Runs a test on every backend. The output names the backend before each run.
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

/// Runs a test on every backend that promises an order. Quorums and Redisson's layout have no queue, so they promise no
/// order, and a test cannot learn from the server which callers wait.
pub async fn on_stores_with_a_queue<F, Fut>(test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    for store in [
        Store::memory(),
        Store::redis().await,
        Store::cluster().await,
    ] {
        eprintln!("on {store:?}");
        test(store).await;
    }
}

/// Runs a test on every backend that promises an order, and on a group that Sentinels watch. A client of a group
/// differs from a client of a single server only in how it finds its server, so few tests run on a group.
pub async fn on_every_topology_with_a_queue<F, Fut>(test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    on_stores_with_a_queue(&test).await;
    let store = Store::sentinel().await;
    eprintln!("on {store:?}");
    test(store).await;
}

/// Waits until this many callers wait for the key.
pub async fn until_waiting(client: &LockClient, key: &str, waiters: usize) {
    until(async || {
        let status = client.lock(key).status().await.expect("the store answers");
        status.waiters == waiters
    })
    .await;
}

/// Gives the line through this proxy a round trip of this length, and lets the client see it.
pub async fn become_far(proxy: &FaultProxy, client: &LockClient, round_trip: Duration) {
    proxy.delay(round_trip / 2);
    // The line has shown the shortest round trip of the four newest replies. Each of these locks takes two replies.
    for _ in 0..3 {
        hold(client, "before").await.release().await;
    }
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
    let lock = client.lock(key).wait(PATIENCE);
    lock.acquire().await.expect("the key is free")
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

/// Makes calls that take two locks, and drops each call after 0 to 11 polls. After each call, waits until both locks
/// are free. In every third round, the client `other` holds the second lock, so that the call holds the first lock
/// while it waits for the second one.
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
