//! The servers of the example: one for the stock, one for the locks, and five for the Redlock. The stock has its own
//! server, so that the commands for the stock do not count as commands of a lock.

use support::{quorum::Quorum, sent::Sent, server::RedisServer};

use crate::guard::Guard;

/// The number of servers of a Redlock.
const QUORUM: usize = 5;

/// All servers of a run. The servers stop when the program ends.
#[derive(Debug)]
pub(crate) struct Servers {
    stock: RedisServer,
    locks: RedisServer,
    quorum: Quorum,
}

/// The URLs of the stock and of the locks of one guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Urls {
    pub(crate) stock: String,
    pub(crate) locks: String,
}

impl Servers {
    pub(crate) async fn start() -> Self {
        Self {
            stock: RedisServer::start().await,
            locks: RedisServer::start().await,
            quorum: Quorum::start(QUORUM).await.in_use().await,
        }
    }

    pub(crate) fn urls(&self, guard: Guard) -> Urls {
        let locks = match guard {
            Guard::Redlock => self.quorum.url(),
            _ => self.locks.url(),
        };
        Urls {
            stock: self.stock.url(),
            locks,
        }
    }

    /// Returns the servers on which the commands of `guard` are counted. The guard `WATCH` has no lock server, so its
    /// commands are counted on the stock's server.
    fn of(&self, guard: Guard) -> &[RedisServer] {
        use std::slice::from_ref;
        match guard {
            Guard::Nothing => &[],
            Guard::Watch => from_ref(&self.stock),
            Guard::Redlock => &self.quorum.servers,
            _ => from_ref(&self.locks),
        }
    }

    /// Returns the number of commands that the clients of `guard` have sent so far.
    pub(crate) async fn sent(&self, guard: Guard) -> u64 {
        let mut commands = 0;
        for server in self.of(guard) {
            commands += Sent::so_far(server, guard.plain()).await.commands;
        }
        commands
    }

    /// Returns the Redis version of the servers.
    pub(crate) async fn version(&self) -> String {
        let info: redis::RedisResult<redis::InfoDict> = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut self.stock.connection().await)
            .await;
        let version = info.ok().and_then(|info| info.get("redis_version"));
        version.unwrap_or_else(|| "of an unknown version".into())
    }

    /// Returns whether a lock is held, that is, whether a lock server stores a value under this key.
    pub(crate) async fn is_held(&self, guard: Guard, key: &str) -> bool {
        let server = match guard {
            Guard::Redlock => &self.quorum.servers[0],
            _ => &self.locks,
        };
        let keys = server.keys().await;
        keys.iter().any(|stored| stored.contains(key))
    }
}
