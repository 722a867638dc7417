//! The places where locks live that every promise is tested on.

use std::{future::Future, time::Duration};

use crate::server::shared_server;
pub use crate::until;
use lock_runtime::{LockClient, LockClientBuilder, LockGuard};
use uuid::Uuid;

/// A millisecond.
pub const MS: Duration = Duration::from_millis(1);
/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// One place, and how a process reaches it.
#[derive(Debug, Clone)]
pub struct Store {
    url: String,
    namespace: String,
}

impl Store {
    /// Locks of the in-process backend that no other test sees.
    #[must_use]
    pub fn memory() -> Self {
        Self {
            url: format!("memory:{}", Uuid::new_v4()),
            namespace: "test".into(),
        }
    }

    /// Locks on a real server that no other test sees.
    pub async fn redis() -> Self {
        Self::on(&shared_server().await.url())
    }

    /// Locks on this server that no other test sees.
    #[must_use]
    pub fn on(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            namespace: Uuid::new_v4().simple().to_string(),
        }
    }

    /// The same locks, reached by another way.
    #[must_use]
    pub fn through(&self, url: &str) -> Self {
        Self {
            url: url.to_owned(),
            namespace: self.namespace.clone(),
        }
    }

    /// Whether a server stands behind it.
    #[must_use]
    pub fn is_redis(&self) -> bool {
        self.url.starts_with("redis")
    }

    /// A client with links, owners and queue places of its own, as another process would have.
    pub async fn client(&self) -> LockClient {
        self.builder()
            .connect()
            .await
            .expect("a test store can be connected to")
    }

    /// The settings of such a client.
    pub fn builder(&self) -> LockClientBuilder {
        LockClient::builder()
            .url(&self.url)
            .namespace(&self.namespace)
    }

    /// The names that the server has for this store; none in process.
    pub async fn keys(&self) -> Vec<String> {
        if !self.is_redis() {
            return Vec::new();
        }
        let keys = shared_server().await.keys().await;
        keys.into_iter()
            .filter(|key| key.contains(&self.namespace))
            .collect()
    }

    /// The stored name of a key.
    #[must_use]
    pub fn name(&self, key: &str) -> String {
        format!("{{{}:{key}}}", self.namespace)
    }
}

/// Runs a test on every backend. The failing one is named by the panic's output.
pub async fn on_every_store<F, Fut>(test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    for store in [Store::memory(), Store::redis().await] {
        eprintln!("on {store:?}");
        test(store).await;
    }
}

/// Waits until so many wait for the key.
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

/// Holds a key that is free.
///
/// # Panics
/// If it is not.
pub async fn hold(client: &LockClient, key: &str) -> LockGuard {
    client.lock(key).acquire().await.expect("the key is free")
}
