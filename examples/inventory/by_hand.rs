//! Hand-written locks that are common in articles. A caller that finds its lock taken sleeps for 50 ms and tries again.
//! The hand-written locks never renew a lease.

use std::{sync::LazyLock, time::Duration};

use redis::{
    AsyncCommands, Client, ExistenceCheck, RedisResult, Script, SetExpiry, SetOptions,
    aio::MultiplexedConnection,
};
use support::server::connect;
use tokio::time::sleep;

/// How long a caller sleeps between two tries.
const SPIN: Duration = Duration::from_millis(50);

/// The reply of `PTTL` for a key that never expires.
const NO_END: i64 = -1;

static COMPARE_AND_DELETE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("compare_and_delete.lua")));
static REENTRANT_LOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("reentrant_lock.lua")));
static REENTRANT_UNLOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("reentrant_unlock.lua")));

/// A kind of hand-written lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    SetNx,
    SetPx,
    Reentrant,
}

/// A client that uses hand-written locks of one kind.
#[derive(Debug, Clone)]
pub(crate) struct ByHand {
    kind: Kind,
    connection: MultiplexedConnection,
}

impl ByHand {
    pub(crate) async fn connect(kind: Kind, url: &str) -> RedisResult<Self> {
        let mut connection = connect(&Client::open(url)?).await?;
        for script in [&COMPARE_AND_DELETE, &REENTRANT_LOCK, &REENTRANT_UNLOCK] {
            script.prepare_invoke().load_async(&mut connection).await?;
        }
        Ok(Self { kind, connection })
    }

    /// Tries to acquire the lock until the caller has it.
    pub(crate) async fn lock(&self, key: &str, owner: &str, lease: Duration) -> RedisResult<()> {
        while !self.try_lock(key, owner, lease).await? {
            sleep(SPIN).await;
        }
        Ok(())
    }

    async fn try_lock(&self, key: &str, owner: &str, lease: Duration) -> RedisResult<bool> {
        let mut connection = self.connection.clone();
        let lease = lease.as_millis() as u64;
        match self.kind {
            // In articles, a caller sends `SETNX` and then `EXPIRE`. If the caller dies between these two commands, its
            // lock never expires. This example shows such a lock, and therefore never sends `EXPIRE`.
            Kind::SetNx => connection.set_nx(key, owner).await,
            Kind::SetPx => {
                let options = SetOptions::default()
                    .conditional_set(ExistenceCheck::NX)
                    .with_expiration(SetExpiry::PX(lease));
                connection.set_options(key, owner, options).await
            }
            Kind::Reentrant => {
                let mut lock = REENTRANT_LOCK.key(key);
                lock.arg(owner).arg(lease);
                lock.invoke_async(&mut connection).await
            }
        }
    }

    pub(crate) async fn unlock(&self, key: &str, owner: &str) -> RedisResult<()> {
        let mut connection = self.connection.clone();
        let script = match self.kind {
            Kind::SetNx => return connection.del(key).await,
            Kind::SetPx => &COMPARE_AND_DELETE,
            Kind::Reentrant => &REENTRANT_UNLOCK,
        };
        script
            .key(key)
            .arg(owner)
            .invoke_async(&mut connection)
            .await
    }

    /// Returns whether the lock is taken and never expires, so that somebody must delete it by hand.
    pub(crate) async fn has_no_end(&self, key: &str) -> RedisResult<bool> {
        let left: i64 = self.connection.clone().pttl(key).await?;
        Ok(left == NO_END)
    }
}
