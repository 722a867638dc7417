//! The connections on which calls wait for replicas. While `WAIT` waits, the server answers no other command of the
//! same connection. `WAIT` is therefore not sent over the connection that all callers of a session share.

use std::sync::Mutex;

use redis::{AsyncConnectionConfig, ConnectionAddr, RedisError, aio::MultiplexedConnection};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{backend::redis::transport::connector::Connector, background::lock};

/// How many calls wait for replicas at the same time, each on a connection of its own. Further calls wait for one of
/// these connections.
const AT_MOST: usize = 16;

/// The connections of one session to one server on which calls wait for replicas. When the session connects again, it
/// also replaces these connections.
#[derive(Debug)]
pub(crate) struct WaitConnections {
    idle: Mutex<Vec<MultiplexedConnection>>,
    permits: Semaphore,
}

impl WaitConnections {
    pub(crate) fn new() -> Self {
        Self {
            idle: Mutex::default(),
            permits: Semaphore::new(AT_MOST),
        }
    }

    /// Returns an idle connection, or a new one. Waits while [`AT_MOST`] connections are in use. Fails if the connector
    /// reaches another server than `address`.
    pub(crate) async fn take(
        &self,
        connector: &Connector,
        address: &ConnectionAddr,
    ) -> Result<WaitConnection<'_>, RedisError> {
        let permit = self.permits.acquire().await;
        let permit = permit.expect("the semaphore is never closed");
        let idle = lock(&self.idle).pop();
        let redis = match idle {
            Some(redis) => redis,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(None)
                    .set_response_timeout(None);
                let (redis, reached) = connector.connect(&config).await?;
                if reached != *address {
                    return Err(std::io::Error::other("another server is the primary now").into());
                }
                redis
            }
        };
        Ok(WaitConnection {
            redis,
            all: self,
            _permit: permit,
        })
    }
}

/// A connection for one call. Dropping this value closes the connection, so that an unfinished command of a call that
/// is given up does not delay other calls.
pub(crate) struct WaitConnection<'a> {
    pub(crate) redis: MultiplexedConnection,
    all: &'a WaitConnections,
    _permit: SemaphorePermit<'a>,
}

impl WaitConnection<'_> {
    /// Keeps the connection for another call. All commands that were sent over it must have been answered.
    pub(crate) fn put_back(self) {
        lock(&self.all.idle).push(self.redis);
    }
}
