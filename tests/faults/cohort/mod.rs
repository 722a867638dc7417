//! Cohorts: neighbours of one process in the queue that are granted the lock together.

mod blocked;
mod leaving;
mod losses;
mod members;
mod turns;

use std::time::Duration;

use lock_runtime::LockClient;
use support::{proxy::FaultProxy, server::RedisServer};

use crate::{
    fixture::{SECOND, client, left, until},
    waiters::{Entered, Stored, Waiters, holder, until_cohort},
};

/// The number of callers of one client that queue and then have the lock as a cohort. A caller of another client queues
/// behind them.
const MEMBERS: usize = 5;
const BEHIND: usize = MEMBERS;

/// A held key, with callers of one client in its queue and a caller of another one behind them.
struct Fixture {
    server: RedisServer,
    proxy: FaultProxy,
    /// Connected through the proxy.
    behind: LockClient,
    direct: LockClient,
    waiters: Waiters,
}

impl Fixture {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        Self {
            behind: client(&proxy.url()).await,
            direct: client(&server.url()).await,
            waiters: Waiters::at(&server).await,
            server,
            proxy,
        }
    }

    /// Queues all callers.
    async fn queued(&mut self, lease: Duration) {
        let lock = self.behind.lock("k").wait(60 * SECOND).lease(lease);
        self.waiters.queue_many(MEMBERS, &lock).await;
        self.queue_behind().await;
    }

    async fn queue_behind(&mut self) {
        let lock = self.direct.lock("k").wait(60 * SECOND);
        self.waiters.queue(lock).await;
    }

    /// Returns when the members are a cohort, with the first one inside and the last caller still in the queue.
    async fn inside(&mut self, lease: Duration) -> (Stored, Entered) {
        let guard = holder(&self.direct).await;
        self.queued(lease).await;
        guard.release().await;
        let cohort = until_cohort(&self.server, MEMBERS).await;
        let first = self.waiters.next().await;
        assert_eq!((first.caller, first.token()), (0, cohort.token));
        (cohort, first)
    }

    /// Asserts that nothing is left and that the waiters saw no error.
    async fn end(self) {
        until(async || left(&self.server).await.is_empty()).await;
        self.waiters.assert_clean();
    }
}
