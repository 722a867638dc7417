//! Cohorts: neighbours in the queue, all of one process, that are granted the lock together.

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

/// The number of callers of one client that queue and are then granted the lock as a cohort. A caller of another
/// client, with the number `BEHIND`, queues behind the cohort.
const MEMBERS: usize = 5;
const BEHIND: usize = MEMBERS;

/// A server with two clients. The callers of `behind` form a cohort, and a caller of `direct` queues behind the cohort.
struct Fixture {
    server: RedisServer,
    proxy: FaultProxy,
    /// A client that is connected through the proxy.
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

    /// Queues the callers that will be the cohort's members, with this lease, and then the caller behind the cohort.
    async fn queued(&mut self, lease: Duration) {
        let lock = self.behind.lock("k").wait(60 * SECOND).lease(lease);
        self.waiters.queue_many(MEMBERS, &lock).await;
        self.queue_behind().await;
    }

    async fn queue_behind(&mut self) {
        let lock = self.direct.lock("k").wait(60 * SECOND);
        self.waiters.queue(lock).await;
    }

    /// Queues the members and the caller behind them, and waits until the server has granted the lock to the cohort and
    /// the first member has entered. Returns the grant and the first member.
    async fn inside(&mut self, lease: Duration) -> (Stored, Entered) {
        let guard = holder(&self.direct).await;
        self.queued(lease).await;
        guard.release().await;
        let cohort = until_cohort(&self.server, MEMBERS).await;
        let first = self.waiters.next().await;
        assert_eq!((first.caller, first.token()), (0, cohort.token));
        (cohort, first)
    }

    /// Waits until the server stores no key except token counters. Asserts that the callers excluded each other, had
    /// rising tokens, and entered in order.
    async fn end(self) {
        until(async || left(&self.server).await.is_empty()).await;
        self.waiters.assert_clean();
    }
}
