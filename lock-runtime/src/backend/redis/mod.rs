//! Locks on one Redis server, 6.2 or later, or on a server that is compatible with Redis.
//!
//! All guarantees hold on a server that keeps its state. A server loses state if it is killed without persistence, if
//! it evicts keys, or if it is a promoted replica that lacks the newest writes. After a loss of its state, the server
//! can grant a held lock to a second caller. The first holder notices the loss only at its next renewal or check, which
//! follows soon after the server has changed, so two callers may hold the lock until then. Fencing tokens keep rising
//! after a loss of state.

pub(crate) mod core;
pub(crate) mod preflight;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod session;
pub(crate) mod topology;
pub(crate) mod transport;
pub(crate) mod url;

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{
        Attempt, Backend, BackendError, BoxFuture, Extend, LatchStep, Led, LimitStep, MultiAnswer,
        Released, Renewed, Replicated, Request, Round, Scan, Status, TermStep, ToRenew, Waiter,
        without_readers,
    },
    fencing::FencingToken,
    key::LockName,
    layout::Layout,
    lease::Moment,
    options::Replicas,
};

use self::{
    queue::{
        attempt::RedisAttempt,
        grants,
        multi::acquire_multi,
        records,
        renew_commands::{BATCH_LIMIT, renew, renew_all},
        replicas::replicate,
        scan::ServerScan,
        server::Server,
    },
    transport::connector::Destination,
};
use crate::{
    backend::open::Open, background::Context, connect_error::ConnectError, events::Counters,
};

/// The settings for the connection to the server.
pub(crate) struct RedisConfig {
    pub(crate) destination: Destination,
    pub(crate) layout: Layout,
    pub(crate) allow_eviction: bool,
}

/// Locks on one Redis server.
#[derive(Debug)]
pub(crate) struct RedisBackend {
    server: Arc<Server>,
    allow_eviction: bool,
}

impl RedisBackend {
    /// Creates the backend, without connecting to the server. The first session checks, before it connects, whether the
    /// server can be used for locks. It skips this check if [`connect`](Open::connect) has already checked the server.
    pub(crate) fn open(
        config: RedisConfig,
        context: &Arc<Context>,
        counters: &Arc<Counters>,
    ) -> Result<Self, ConnectError> {
        let allow_eviction = config.allow_eviction;
        let server = Server::open(config.destination, config.layout, context, counters)?;
        server.check_later(allow_eviction);
        Ok(Self {
            server,
            allow_eviction,
        })
    }
}

impl Open for RedisBackend {
    fn connect(&self, patience: Duration) -> BoxFuture<'_, Result<(), ConnectError>> {
        Box::pin(async move {
            self.server.check(self.allow_eviction, patience).await?;
            self.server.sessions.connect();
            Ok(())
        })
    }
}

impl Backend for RedisBackend {
    fn now(&self) -> Moment {
        self.server.now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        self.server.context.sleep_until(deadline)
    }

    fn maintains_leases(&self) -> bool {
        false
    }

    fn attempt(&self, request: Request) -> Box<dyn Attempt> {
        let server = self.server.clone();
        // A caller that spins makes attempts that do not wait, so a caller that waits in Redisson's layout has `notify`.
        #[cfg(feature = "redisson")]
        if server.layout() == Layout::Redisson && !request.wait.is_zero() {
            return Box::new(queue::notify::NotifiedAttempt::new(server, request));
        }
        Box::new(RedisAttempt::new(server, request))
    }

    fn acquire_multi(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<MultiAnswer, BackendError>> {
        Box::pin(acquire_multi(self.server.clone(), requests))
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        Box::pin(grants::release(&self.server, name, token, retain_until))
    }

    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
        latest_end: Moment,
    ) {
        let server = &self.server;
        grants::release_in_background(server, name, token, retain_until, lease_ends, latest_end);
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        extend: Extend,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(renew(&self.server, name, token, extend))
    }

    fn downgrade<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        if self.server.layout() == Layout::Redisson {
            return Box::pin(std::future::ready(Err(without_readers())));
        }
        Box::pin(grants::downgrade(&self.server, name, token))
    }

    fn lead<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        step: TermStep,
    ) -> BoxFuture<'a, Result<Option<Led>, BackendError>> {
        Box::pin(records::lead(&self.server, name, token, step))
    }

    fn limit<'a>(
        &'a self,
        name: &'a LockName,
        step: LimitStep,
    ) -> BoxFuture<'a, Result<Option<u32>, BackendError>> {
        Box::pin(records::limit(&self.server, name, step))
    }

    fn latch<'a>(
        &'a self,
        name: &'a LockName,
        lock: Option<&'a LockName>,
        step: LatchStep,
    ) -> BoxFuture<'a, Result<Option<Round>, BackendError>> {
        Box::pin(records::latch(&self.server, name, lock, step))
    }

    fn replicate<'a>(
        &'a self,
        grants: &'a [(&'a LockName, FencingToken)],
        replicas: Replicas,
    ) -> BoxFuture<'a, Result<Replicated, BackendError>> {
        Box::pin(replicate(&self.server, grants, replicas))
    }

    fn renewal_batch(&self) -> usize {
        BATCH_LIMIT
    }

    fn renew_all<'a>(
        &'a self,
        grants: &'a [ToRenew<'a>],
    ) -> BoxFuture<'a, Vec<Result<Renewed, BackendError>>> {
        Box::pin(renew_all(&self.server, grants))
    }

    fn server_changed(&self) -> BoxFuture<'static, ()> {
        // Only a session that is connected notices the next change.
        self.server.sessions.connect();
        let changed = self.server.server_changed.clone();
        Box::pin(async move { changed.notified().await })
    }

    fn round_trip(&self, name: &LockName) -> Duration {
        self.server.round_trip(name)
    }

    fn last_error(&self) -> Option<String> {
        self.server.last_error()
    }

    fn server(&self) -> String {
        self.server.address().to_owned()
    }

    fn unconfirmed(&self) -> usize {
        self.server.unconfirmed()
    }

    fn is_cut_off(&self, name: &LockName) -> bool {
        let nodes = self.server.sessions.nodes_of(Some(name));
        nodes.iter().any(|node| node.is_cut_off())
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        Box::pin(grants::status(&self.server, name))
    }

    fn scan(&self, part: &str) -> Result<Box<dyn Scan>, BackendError> {
        Ok(Box::new(ServerScan::new([self.server.clone()], part)?))
    }

    fn waiters<'a>(
        &'a self,
        name: &'a LockName,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Waiter>, BackendError>> {
        Box::pin(grants::waiters(&self.server, name, limit))
    }

    fn begin_shutdown(&self) {
        self.server.begin_shutdown();
    }

    fn shard(&self, name: &LockName) -> u16 {
        self.server.sessions.shard(name)
    }

    fn is_answering<'a>(
        &'a self,
        name: Option<&'a LockName>,
        within: Duration,
    ) -> BoxFuture<'a, bool> {
        Box::pin(self.server.is_answering(name, within))
    }

    fn cleaned_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.server.cleaned_up())
    }

    fn close(&self, until: Moment) -> BoxFuture<'_, ()> {
        Box::pin(self.server.close(until))
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        // Background tasks can still need the server and its session. The connections are therefore closed only
        // after these tasks have ended.
        let server = self.server.clone();
        self.server
            .context
            .spawn(async move { server.close_behind().await });
    }
}
