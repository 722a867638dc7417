//! The connections on which calls wait for replicas, with the command `WAIT`. While `WAIT` waits, the server answers no
//! other command of the same connection. `WAIT` is therefore not sent over the connection that all callers of a session
//! share.

use std::sync::Mutex;

use lock_core::lease::Moment;
use redis::{ConnectionAddr, RedisError};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    backend::redis::transport::{connector::Connector, wire::Wire},
    background::lock,
};

/// How many calls wait for replicas at the same time, each on a connection of its own. Further calls wait until one of
/// these connections is idle.
const AT_MOST: usize = 16;

/// The connections of one session to one server on which calls wait for replicas. When the session connects again, it
/// also replaces these connections.
#[derive(Debug)]
pub(crate) struct WaitConnections {
    idle: Mutex<Vec<Idle>>,
    permits: Semaphore,
}

/// A connection that no call uses.
#[derive(Debug)]
struct Idle {
    redis: Wire,
    /// The moment after which the connection is not used any longer, because its credentials may expire.
    until: Option<Moment>,
}

impl WaitConnections {
    pub(crate) fn new() -> Self {
        Self {
            idle: Mutex::default(),
            permits: Semaphore::new(AT_MOST),
        }
    }

    /// Closes the connections that no call uses.
    pub(crate) fn forget_idle(&self) {
        lock(&self.idle).clear();
    }

    /// Waits while [`AT_MOST`] connections are in use.
    pub(crate) async fn permit(&self) -> SemaphorePermit<'_> {
        let permit = self.permits.acquire().await;
        permit.expect("the semaphore is never closed")
    }

    /// Returns an idle connection, or makes a new one. Fails if the connector reaches a server other than `address`.
    pub(crate) async fn take<'a>(
        &'a self,
        permit: SemaphorePermit<'a>,
        connector: &Connector,
        address: &ConnectionAddr,
    ) -> Result<WaitConnection<'a>, RedisError> {
        let idle = {
            let mut idle = lock(&self.idle);
            let now = connector.context.now();
            idle.retain(|idle| idle.until.is_none_or(|until| now < until));
            idle.pop()
        };
        let idle = match idle {
            Some(idle) => idle,
            None => {
                let (redis, reached, obtained) = connector.log_in(|_| {}).await?;
                if reached != *address {
                    return Err(std::io::Error::other("another server is the primary now").into());
                }
                let until = obtained.and_then(|obtained| Some(obtained.login_again()?.0));
                Idle { redis, until }
            }
        };
        Ok(WaitConnection {
            redis: idle.redis,
            until: idle.until,
            all: self,
            _permit: permit,
        })
    }
}

/// A connection for one call. Dropping this value closes the connection. An unfinished command of a call that is given
/// up thus does not delay other calls.
pub(crate) struct WaitConnection<'a> {
    pub(crate) redis: Wire,
    until: Option<Moment>,
    all: &'a WaitConnections,
    _permit: SemaphorePermit<'a>,
}

impl WaitConnection<'_> {
    /// Keeps the connection for another call. The server must have answered all commands that were sent over the
    /// connection.
    pub(crate) fn put_back(self) {
        lock(&self.all.idle).push(Idle {
            redis: self.redis,
            until: self.until,
        });
    }
}
