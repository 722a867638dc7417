//! Locks on a majority of several independent Redis servers: Redlock.
//!
//! **Not guaranteed.** There is no order, because there is no queue: a caller can get the lock before callers that have
//! waited longer. Exclusion can fail if the clock of a node jumps, or runs fast by more than the allowed drift (1 % of
//! the lease plus 2 ms). Exclusion can also fail if a majority of the nodes loses its state within one lease. A body is
//! not stopped at the end of its lease while its own process is paused. As with a single server, the fencing token
//! protects data against a holder whose lease has ended.
//!
//! **Guaranteed.** If a minority of the nodes fails, locks can still be acquired, and a hold that all nodes store
//! continues. No failover is needed. A lock is held for as long as a majority of the nodes stores its grant. To acquire
//! a lock, a client runs rounds. A round sends one request to each node, to all nodes at once. The lease counts from
//! the moment before the first request of the round is sent. If no majority grants the lock in time, the round gives
//! back the grants of all nodes. A waiting caller tries again after a random pause that grows to 128 ms.
//!
//! **Tokens** rise strictly in grant order. A grant takes three steps:
//!
//! 1. Each node that grants the lock offers a token from its own counter.
//! 2. When a majority of the nodes has offered tokens, the greatest of these tokens becomes the token of the hold. The
//!    client sends this token to each node that has offered a smaller token, and the node stores it.
//! 3. When a majority of the nodes has stored the token of the hold, the body starts. A node that has offered a greater
//!    token does not count toward this majority.
//!
//! A node that has stored the token of a hold grants the lock again only after that hold is over on the node, and then
//! offers a greater token. Any two majorities share a node, so at least one node that has stored the token takes part
//! in the next grant. A node that has lost its counter starts a new counter at the time of its own clock, so its next
//! offer may be less than an earlier token.
//!
//! **Restarts.** A node that restarts without its state could grant a lock that is still held. With this node's grant,
//! another caller could get a majority. A mark on each node prevents such a grant:
//!
//! - Each node stores a mark beside its locks, and loses the mark when it loses its locks. A node without a mark grants
//!   nothing.
//! - The mark records the longest lease in use. Before a client requests a longer lease, the client raises the recorded
//!   lease on a majority of the nodes.
//! - A node that is seen without a mark is excluded until the longest recorded lease has passed. The longest recorded
//!   lease is known if half of all nodes, rounded up, report their marks (two of three nodes), or if all nodes answer.
//!   If the longest recorded lease is not known, the node is excluded for 24 hours, which is the longest possible
//!   lease.
//! - An installation counts as new only if a client reaches every node when it connects, and no node has a mark. In a
//!   new installation, all nodes count toward a majority at once.
//! - A `FLUSHALL` removes the mark too. A client notices the loss of the mark at its next request to the node.
//! - With lagging persistence (`appendfsync everysec`), a node can lose its newest keys in a restart, but keep its
//!   mark. A client notices the loss of a node's newest keys only if the client has seen a token that the node has
//!   lost. For the nodes of a Redlock, use `appendfsync always`, or no persistence at all.
//!
//! A node is one server. A promoted replica has the mark of its primary, but can lack the newest grants, so a node can
//! be neither a group that Sentinels watch nor a Redis Cluster.
//!
//! **Missed holds.** A minority of the nodes can miss a hold because these nodes were down, silent or without their
//! state when the lock was granted. A node that has missed a hold receives the hold's grant at the next renewal or
//! check, if the lock is free on the node. Once the node has this grant, another node can fail without ending the hold.

mod agreement;
mod attempt;
mod membership;
mod node;
mod quorum;
mod url;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::{
    backend::{
        Attempt, Backend, BackendError, BoxFuture, Extend, MultiAnswer, Released, Renewed, Request,
        Scan, Status, Waiter,
    },
    fencing::FencingToken,
    key::LockName,
    lease::Moment,
};
use tokio::sync::Notify;

pub(crate) use self::url::{is_redlock, parse, parse_nodes};
use self::{
    attempt::{Haste, RedlockAttempt, Round, Taken, round},
    node::Node,
    quorum::Quorum,
};
use crate::{
    backend::{
        open::Open,
        redis::{queue::scan::ServerScan, transport::connector::Destination},
    },
    background::Context,
    connect_error::ConnectError,
    events::Counters,
};

/// The settings for the connections to the nodes, and the lease that the client writes into the nodes' marks when it
/// connects.
pub(crate) struct RedlockConfig {
    pub(crate) nodes: Vec<Destination>,
    pub(crate) allow_eviction: bool,
    /// The default lease of the client.
    pub(crate) lease: Duration,
}

/// Locks on a majority of several Redis servers.
#[derive(Debug)]
pub(crate) struct RedlockBackend {
    quorum: Arc<Quorum>,
}

impl RedlockBackend {
    /// Creates the backend, without connecting to the nodes. The first call connects, unless
    /// [`connect`](Open::connect) has connected before.
    pub(crate) fn open(
        config: RedlockConfig,
        context: &Arc<Context>,
        counters: &Arc<Counters>,
    ) -> Result<Self, ConnectError> {
        let lost = Arc::new(Notify::new());
        let nodes = config.nodes.into_iter().map(|info| {
            let opened = Node::open(info, config.allow_eviction, context, counters, lost.clone());
            opened.map(Arc::new)
        });
        let nodes = nodes.collect::<Result<_, _>>()?;
        let quorum = Quorum::new(context.clone(), nodes, counters.clone(), lost);
        quorum.note_lease(config.lease);
        Ok(Self {
            quorum: Arc::new(quorum),
        })
    }
}

impl Open for RedlockBackend {
    /// Connects to the nodes. Fails unless a majority of the nodes is reachable and usable for locks.
    fn connect(&self, patience: Duration) -> BoxFuture<'_, Result<(), ConnectError>> {
        Box::pin(membership::connect(&self.quorum, patience))
    }
}

/// Takes several locks, or none of them. If some locks are not free, the inner error is the index of the first lock
/// that is not free. If the future is dropped, the locks that were taken are given back.
async fn take_together(
    quorum: Arc<Quorum>,
    requests: Vec<Request>,
) -> Result<Result<Vec<Taken>, usize>, BackendError> {
    let rounds = requests.into_iter().map(|request| {
        let quorum = quorum.clone();
        async move { round(&quorum, &request, Haste::Patient).await }
    });
    let mut taken = Vec::new();
    let mut busy = None;
    for (index, round) in join_all(rounds).await.into_iter().enumerate() {
        match round {
            Round::Granted(one) => taken.push(*one),
            Round::Busy => busy = busy.or(Some(index)),
            Round::Unreachable(error) => return Err(error),
        }
    }
    let Some(busy) = busy else {
        return Ok(Ok(taken));
    };
    // The locks that were taken are released before the caller gets the answer, so that its next try does not find them
    // taken.
    join_all(taken.into_iter().map(Taken::release)).await;
    Ok(Err(busy))
}

impl Backend for RedlockBackend {
    fn now(&self) -> Moment {
        self.quorum.context.now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        self.quorum.context.sleep_until(deadline)
    }

    fn maintains_leases(&self) -> bool {
        false
    }

    fn attempt(&self, request: Request) -> Box<dyn Attempt> {
        Box::new(RedlockAttempt::new(self.quorum.clone(), request))
    }

    fn acquire_multi(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<MultiAnswer, BackendError>> {
        let quorum = self.quorum.clone();
        Box::pin(async move {
            loop {
                let taking = quorum
                    .context
                    .run(take_together(quorum.clone(), requests.clone()));
                let taken = match taking.await {
                    Ok(taken) => taken?,
                    Err(panic) => return Err(BackendError::Unreachable(panic.to_string())),
                };
                let taken = match taken {
                    Ok(taken) => taken,
                    Err(busy) => return Ok(MultiAnswer::Busy(busy)),
                };
                if taken.iter().all(Taken::is_young) {
                    // The code from here on must not await, so that either all locks become holds, or none of them.
                    let grants = taken.into_iter().map(Taken::become_hold);
                    return Ok(MultiAnswer::Granted(grants.collect()));
                }
            }
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        Box::pin(self.quorum.release(name, token, retain_until))
    }

    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
        latest_end: Moment,
    ) {
        let now = self.quorum.context.now();
        let ends = lease_ends.map_or(now, |ends| ends.max(latest_end));
        let tasks = self.quorum.track_releases(ends);
        let (quorum, name) = (self.quorum.clone(), name.clone());
        let releasing = quorum.release_until(name, token, retain_until, lease_ends, latest_end);
        self.quorum.context.spawn(async move {
            releasing.await;
            drop(tasks);
        });
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        extend: Extend,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.quorum.renew(name, token, extend))
    }

    fn round_trip(&self, name: &LockName) -> Duration {
        let servers = self.quorum.servers();
        let mut trips: Vec<_> = servers.map(|server| server.round_trip(name)).collect();
        trips.sort_unstable();
        trips[trips.len() / 2] // a majority answers within this time
    }

    fn last_error(&self) -> Option<String> {
        self.quorum.last_error()
    }

    fn server(&self) -> String {
        let addresses: Vec<_> = self
            .quorum
            .servers()
            .map(|server| server.address())
            .collect();
        addresses.join(", ")
    }

    fn unconfirmed(&self) -> usize {
        // A release is in progress on each of the nodes.
        let unconfirmed = self.quorum.servers().map(|server| server.unconfirmed());
        unconfirmed.max().unwrap_or_default()
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        Box::pin(self.quorum.status(name))
    }

    fn scan(&self, part: &str) -> Result<Box<dyn Scan>, BackendError> {
        let servers = self.quorum.servers().cloned();
        Ok(Box::new(ServerScan::new(servers, part)?))
    }

    fn waiters<'a>(
        &'a self,
        _: &'a LockName,
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<Waiter>, BackendError>> {
        Box::pin(std::future::ready(Ok(Vec::new()))) // a Redlock has no queue
    }

    fn begin_shutdown(&self) {
        self.quorum
            .servers()
            .for_each(|server| server.begin_shutdown());
    }

    fn is_answering<'a>(
        &'a self,
        _: Option<&'a LockName>,
        within: Duration,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if !self.quorum.is_connected() {
                return false;
            }
            // A node that has lost its state does not count for locks, so its answer does not count here.
            let counted = self.quorum.nodes.iter().filter(|node| !node.was_lost());
            let asked = counted.map(|node| node.server().is_answering(None, within));
            let answered = join_all(asked).await;
            answered.iter().filter(|answered| **answered).count() >= self.quorum.majority()
        })
    }

    fn cleaned_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            join_all(self.quorum.servers().map(|server| server.cleaned_up())).await;
        })
    }

    fn close(&self, until: Moment) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            join_all(self.quorum.servers().map(|server| server.close(until))).await;
        })
    }
}

impl Drop for RedlockBackend {
    fn drop(&mut self) {
        // Background tasks still need the nodes and their sessions, so the connections are closed after the tasks
        // have ended.
        let quorum = self.quorum.clone();
        self.quorum.context.spawn(async move {
            join_all(quorum.servers().map(|server| server.close_behind())).await;
        });
    }
}
