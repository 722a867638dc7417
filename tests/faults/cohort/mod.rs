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

/// How many callers of one client queue, and have the lock as a cohort then. One of another client queues behind them.
const MEMBERS: usize = 5;
const BEHIND: usize = MEMBERS;

/// A key that is held, with callers of one client in its queue and of another one behind them.
struct Fixture {
    server: RedisServer,
    proxy: FaultProxy,
    /// Through the proxy.
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

    /// All have queued.
    async fn queued(&mut self, lease: Duration) {
        let lock = self.behind.lock("k").wait(60 * SECOND).lease(lease);
        self.waiters.queue_many(MEMBERS, &lock).await;
        self.queue_behind().await;
    }

    async fn queue_behind(&mut self) {
        let lock = self.direct.lock("k").wait(60 * SECOND);
        self.waiters.queue(lock).await;
    }

    /// They are a cohort, the first one is inside, and the last one still queues.
    async fn inside(&mut self, lease: Duration) -> (Stored, Entered) {
        let guard = holder(&self.direct).await;
        self.queued(lease).await;
        guard.release().await;
        let cohort = until_cohort(&self.server, MEMBERS).await;
        let first = self.waiters.next().await;
        assert_eq!((first.caller, first.token()), (0, cohort.token));
        (cohort, first)
    }

    /// Nothing is left, and nothing was wrong.
    async fn end(self) {
        until(async || left(&self.server).await.is_empty()).await;
        self.waiters.assert_clean();
    }
}
