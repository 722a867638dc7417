//! Locks on a majority of several independent Redis servers: Redlock.
//!
//! Not promised: any order, for nobody queues here, and a late caller may be served before an early one; exclusion when
//! the clock of a node jumps or runs faster than the drift allowed for (1 % of the lease and 2 ms), or when enough nodes
//! lose their state within one lease; and a body that stops at the end of its lease although its own process is paused.
//! What must not be written twice is guarded by the fencing token, as on one server.
//!
//! What it does promise is that locks survive the loss of any minority of the nodes, without a failover. A lock is held
//! while a majority says so: it is asked of all nodes at once, has the time before the first request as its
//! beginning, and is given up everywhere when no majority grants it soon enough. Whoever waits tries again after a
//! random pause that grows to 128 ms.
//!
//! **Tokens** rise strictly in grant order. Each node's own counter offers one; the lock's is the greatest that was
//! offered, and before the body starts a majority knows it: the nodes that offered it, and others into whose counter it
//! is written. The majority of the next grant has a node in common with these, and that node, which grants only after
//! the earlier hold is over there, offers a greater one. A node that lost its counter begins anew at its own clock, which
//! may be behind the one that an earlier token came from.
//!
//! **Restarts.** A node that comes back without its state would help to grant a lock that it has granted before. Such a
//! node is known by a token counter that is missing, or lower than it was; it is not counted before it has run for the
//! longest lease that this client knows of, its default one included: by then what it forgot has ended. Only where
//! every node is reached when the client connects, and none has ever given a token, this is a new installation, and all
//! count at once. Not noticed are a `FLUSHALL` on a living node, and what a node with a lagging persistence
//! (`appendfsync everysec`) forgot of the keys that this client never saw: use `always`, or none at all.

mod attempt;
mod url;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use lock_core::{
    backend::{
        Answer, Attempt, Backend, BackendError, BoxFuture, Holder, Released, Renewed, Request,
        Status, Together,
    },
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Grant, Moment},
    owner::OwnerId,
};
use tokio::sync::watch;

use self::attempt::RedlockAttempt;
pub(crate) use self::url::{is_redlock, parse};
use super::redis::node::Node;
use crate::{
    clock::boot as clock,
    connect::ConnectError,
    engine,
    held::HeldHere,
    stats::{Counters, count},
    sync::lock,
};

/// How long the other nodes may take at connect once a majority is there.
const STRAGGLER_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at nodes of which some are new and some are in use, and how many there are.
const MIXED_PAUSE: Duration = Duration::from_millis(50);
const MIXED_LOOKS: usize = 3;
/// How long the status of a lock may go unanswered by a node.
const STATUS_PATIENCE: Duration = Duration::from_millis(500);
/// How long shutting down waits for the nodes that have not confirmed what a majority has.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// How to reach the nodes.
pub(crate) struct RedlockConfig {
    pub(crate) nodes: Vec<redis::ConnectionInfo>,
    pub(crate) allow_eviction: bool,
    pub(crate) patience: Duration,
    /// The default lease of the client.
    pub(crate) lease: Duration,
}

/// What is left of a lease when the clocks of node and client differ as much as is allowed for.
fn less_node_drift(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}

/// The nodes, as all that runs for the client sees them.
struct Quorum {
    nodes: Vec<Arc<Node>>,
    counters: Arc<Counters>,
    /// The longest lease that was asked for, in ms.
    longest_lease: AtomicU64,
    /// The holds that nodes are still joining, and how to tell them that it is over.
    joining: Mutex<HashMap<(LockName, FencingToken), watch::Sender<bool>>>,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.nodes.iter().map(|node| node.server());
        f.debug_list().entries(servers).finish()
    }
}

/// What the nodes' answers to one question come to.
enum Verdict<T> {
    /// As many as a majority gave this answer, the others are not needed.
    Yes(Vec<T>),
    /// A majority answered in the negative.
    No,
    /// Neither, and this is what kept some of them from answering.
    Open(BackendError),
}

impl Quorum {
    /// How many nodes are a majority.
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn is_refusing(&self) -> bool {
        self.nodes.iter().any(|node| node.server().is_refusing())
    }

    fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease.load(Ordering::Acquire))
    }

    fn note_lease(&self, lease: Duration) {
        let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.longest_lease.fetch_max(lease, Ordering::AcqRel);
    }

    /// Nodes that are still joining this hold give back what they have.
    fn end_joining(&self, name: &LockName, token: FencingToken) {
        let mut joining = lock(&self.joining);
        if joining.is_empty() {
            return;
        }
        if let Some(over) = joining.remove(&(name.clone(), token)) {
            over.send_replace(true);
        }
    }

    /// What some node is in trouble with.
    fn trouble(&self) -> Option<String> {
        let mut troubles = self.nodes.iter().filter_map(|node| {
            let trouble = node.server().trouble()?;
            Some(format!("{}: {trouble}", node.server().address()))
        });
        let first = troubles.next()?;
        Some(troubles.fold(first, |all, one| format!("{all}; {one}")))
    }

    /// Too few nodes answered, or granted, and why.
    fn unreachable(&self, answered: usize) -> BackendError {
        let (nodes, majority) = (self.nodes.len(), self.majority());
        let trouble = self.trouble().unwrap_or_else(|| "no answer".into());
        BackendError::Unreachable(format!(
            "{answered} of {nodes} nodes answered, {majority} are needed ({trouble})"
        ))
    }

    /// Collects answers until they decide.
    async fn decide<A, T>(
        &self,
        answers: &mut FuturesUnordered<impl Future<Output = Result<A, BackendError>>>,
        yes: impl Fn(A) -> Option<T>,
    ) -> Verdict<T> {
        let (mut agreed, mut against) = (Vec::new(), 0);
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            match answer.map(&yes) {
                Ok(Some(answer)) => agreed.push(answer),
                Ok(None) => against += 1,
                Err(error @ BackendError::Unreachable(_)) => {
                    failure.get_or_insert(error);
                }
                // Says more than that another node cannot be reached.
                Err(error) => failure = Some(error),
            }
            if agreed.len() >= self.majority() {
                return Verdict::Yes(agreed);
            }
            if against >= self.majority() {
                return Verdict::No;
            }
        }
        let answered = agreed.len() + against;
        Verdict::Open(match failure {
            None | Some(BackendError::Unreachable(_)) => self.unreachable(answered),
            Some(error) => error,
        })
    }

    /// Asks all nodes to extend a grant, to begin it anew, or whether it stands.
    async fn renew(
        &self,
        name: &LockName,
        token: FencingToken,
        lease: Duration,
        how: &str,
    ) -> Result<Renewed, BackendError> {
        self.note_lease(lease);
        let before = clock::now();
        let asked = self.nodes.iter();
        // Each is asked at the first poll: those that answer after the decision have extended it, too.
        let mut answers: FuturesUnordered<_> = asked
            .map(|node| node.server().renew(name, token, lease, how))
            .collect();
        let until = |renewed| match renewed {
            Renewed::Until(until) => Some(until),
            Renewed::NotHeld => None,
        };
        match self.decide(&mut answers, until).await {
            Verdict::Yes(untils) => {
                // From its end on less than a majority stands.
                let until = untils.into_iter().min().unwrap_or(before);
                Ok(Renewed::Until(
                    before + less_node_drift(until.since(before)),
                ))
            }
            Verdict::No => Ok(Renewed::NotHeld),
            Verdict::Open(error) => Err(error),
        }
    }

    /// Releases on all nodes; those that have not answered when a majority has are seen to in the background.
    async fn release(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        self.end_joining(name, token);
        let asked = self.nodes.iter();
        let mut answers: FuturesUnordered<_> = asked
            .map(|node| {
                let (server, name) = (node.server().clone(), name.clone());
                async move { server.release(&name, token, keep_until).await }
            })
            .collect();
        let released = |released| (released == Released::Released).then_some(());
        let verdict = self.decide(&mut answers, released).await;
        // Also when a majority does not hold it any more: an earlier request may have been carried out there only.
        if !answers.is_empty() {
            let duties: Vec<_> = self.duties();
            let ends = clock::now() + self.longest_lease();
            let unneeded = clock::now() + REST_PATIENCE;
            engine::spawn(async move {
                let mut rest = Box::pin(answers.count());
                if clock::timeout_at(unneeded, &mut rest).await.is_none() {
                    drop(duties);
                    clock::timeout_at(ends, rest).await;
                }
            });
        }
        match verdict {
            Verdict::Yes(_) => Ok(Released::Released),
            Verdict::No => Ok(Released::NotHeld),
            Verdict::Open(error) => Err(error),
        }
    }

    fn duties<T: FromIterator<super::redis::Duty>>(&self) -> T {
        self.nodes
            .iter()
            .map(|node| node.server().begin_duty())
            .collect()
    }

    /// Releases in the background, tried again until the lease has ended by itself.
    async fn release_until(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
        lease_ends: Option<Moment>,
    ) {
        let lease_ends = lease_ends.unwrap_or_else(clock::now);
        let until = lease_ends.max(clock::now() + CLAIM);
        match clock::timeout_at(until, self.release(&name, token, keep_until)).await {
            Some(Ok(Released::Released)) => {
                count(&self.counters.released);
                tracing::debug!(lock = %name, %token, "released in the background");
            }
            // A first request was carried out and its answer not read.
            Some(Ok(Released::NotHeld)) if clock::now() < lease_ends => {
                count(&self.counters.released);
            }
            Some(Ok(Released::NotHeld)) => {}
            Some(Err(error)) => {
                count(&self.counters.release_failed);
                tracing::warn!(lock = %name, %token, %error, "release failed, the lease ends by itself");
            }
            None => {
                count(&self.counters.release_failed);
                tracing::warn!(lock = %name, %token, "release not answered by a majority, the lease has ended by itself");
            }
        }
    }

    /// Whoever a majority names.
    async fn status(&self, name: &LockName) -> Result<Status, BackendError> {
        let until = clock::now() + STATUS_PATIENCE;
        let asked = self.nodes.iter();
        let mut answers: FuturesUnordered<_> = asked
            .map(|node| async {
                let status = clock::timeout_at(until, node.server().status(name)).await;
                status.unwrap_or_else(|| Err(BackendError::Unreachable("no answer".into())))
            })
            .collect();
        let mut seen: HashMap<Option<OwnerId>, Vec<Holder>> = HashMap::new();
        let (mut answered, mut failure) = (0, None);
        while let Some(answer) = answers.next().await {
            let status = match answer {
                Ok(status) => status,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            answered += 1;
            let owner = status.holder.as_ref().map(|holder| holder.owner);
            let named = seen.entry(owner).or_default();
            match status.holder {
                Some(holder) => named.push(holder),
                // Nobody, which is named as often.
                None => named.extend(None),
            }
            if named.len() >= self.majority() {
                // The newest token, for a node may not know it yet; the shortest lease, for then the majority is gone.
                let token = named.iter().map(|holder| holder.token).max().flatten();
                let remaining = named.iter().map(|holder| holder.remaining).min().flatten();
                let Some(owner) = owner else {
                    continue;
                };
                return Ok(Status {
                    holder: Some(Holder {
                        owner,
                        token,
                        remaining,
                    }),
                    waiters: 0,
                });
            }
        }
        match failure {
            _ if answered >= self.majority() => Ok(Status {
                holder: None,
                waiters: 0,
            }),
            None | Some(BackendError::Unreachable(_)) => Err(self.unreachable(answered)),
            Some(error) => Err(error),
        }
    }
}

/// A lock that was taken as one of several. Dropped before all are, it is released in the background.
struct OneOfSeveral<'a> {
    backend: &'a RedlockBackend,
    name: LockName,
    grant: Option<Grant>,
}

impl OneOfSeveral<'_> {
    async fn release(mut self) {
        if let Some(grant) = self.grant {
            let releasing = self.backend.release(&self.name, grant.token, None);
            if releasing.await.is_ok() {
                self.grant = None;
            }
        }
    }
}

impl Drop for OneOfSeveral<'_> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.backend
                .release_in_background(&self.name, grant.token, None, grant.valid_until);
        }
    }
}

/// Locks on a majority of several Redis servers.
#[derive(Debug)]
pub(crate) struct RedlockBackend {
    quorum: Arc<Quorum>,
}

impl RedlockBackend {
    /// Connects to the nodes, of which a majority has to be there and fit for locks.
    pub(crate) async fn connect(
        config: RedlockConfig,
        counters: Arc<Counters>,
        held: Arc<HeldHere>,
    ) -> Result<Self, ConnectError> {
        let nodes = config.nodes.into_iter().map(|info| {
            let (counters, held) = (counters.clone(), held.clone());
            Node::open(info, config.allow_eviction, counters, held).map(Arc::new)
        });
        let quorum = Quorum {
            nodes: nodes.collect::<Result<_, _>>()?,
            counters,
            longest_lease: AtomicU64::new(0),
            joining: Mutex::default(),
        };
        quorum.note_lease(config.lease);
        // Whatever becomes of it, its links are closed.
        let backend = Self {
            quorum: Arc::new(quorum),
        };
        backend.quorum.connect(config.patience).await?;
        Ok(backend)
    }
}

impl Quorum {
    async fn connect(&self, patience: Duration) -> Result<(), ConnectError> {
        let connecting = self.nodes.iter().map(|node| async move {
            let connected = node.connect(patience).await;
            (node, connected)
        });
        let mut connecting: FuturesUnordered<_> = connecting.collect();
        let (mut reached, mut failures) = (Vec::new(), Vec::new());
        let mut until = clock::now() + patience;
        while let Some(Some((node, connected))) = clock::timeout_at(until, connecting.next()).await
        {
            match connected {
                Ok(()) => reached.push(node),
                Err(error) => {
                    tracing::warn!(%error, "a node of the quorum is not usable");
                    failures.push(error);
                }
            }
            if reached.len() == self.majority() {
                until = until.min(clock::now() + STRAGGLER_PATIENCE);
            }
        }
        drop(connecting);
        if reached.len() < self.majority() {
            return Err(ConnectError::NoQuorum {
                reached: reached.len(),
                needed: self.majority(),
                failures,
            });
        }
        let mut servers: Vec<_> = reached.iter().map(|node| node.run_id()).collect();
        servers.sort();
        if servers
            .windows(2)
            .any(|pair| pair[0] == pair[1] && !pair[0].is_empty())
        {
            return Err(ConnectError::SameServerTwice {
                server: "one of them, by two names".into(),
            });
        }
        self.look_for_a_beginning(&reached).await;
        Ok(())
    }

    /// Where all nodes are there and none has ever given a token, nothing can have been forgotten.
    async fn look_for_a_beginning(&self, reached: &[&Arc<Node>]) {
        let blank = || reached.iter().filter(|node| node.is_blank());
        for _ in 0..MIXED_LOOKS {
            if blank().count() == self.nodes.len() {
                self.nodes.iter().for_each(|node| node.trust());
                return;
            }
            if blank().count() == 0 {
                return;
            }
            // Another client may be giving the first token right now.
            clock::sleep_until(clock::now() + MIXED_PAUSE).await;
            let asked = blank().map(|node| node.ask_again());
            let asking = join_all(asked.collect::<Vec<_>>());
            clock::timeout_at(clock::now() + STRAGGLER_PATIENCE, asking).await;
        }
    }
}

impl Backend for RedlockBackend {
    fn now(&self) -> Moment {
        clock::now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        clock::sleep_until(deadline)
    }

    fn keeps_leases(&self) -> bool {
        false
    }

    fn attempt(&self, request: Request) -> Box<dyn Attempt> {
        Box::new(RedlockAttempt::new(self.quorum.clone(), request))
    }

    fn acquire_together(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<Together, BackendError>> {
        Box::pin(async move {
            let tried = requests.into_iter().map(async |mut request| {
                request.wait = Duration::ZERO;
                let name = request.name.clone();
                let answer = RedlockAttempt::new(self.quorum.clone(), request)
                    .enter()
                    .await?;
                Ok::<_, BackendError>(match answer {
                    Answer::Granted(grant) => Some(OneOfSeveral {
                        backend: self,
                        name,
                        grant: Some(grant),
                    }),
                    Answer::Busy => None,
                })
            });
            let tried: Vec<_> = join_all(tried)
                .await
                .into_iter()
                .collect::<Result<_, _>>()?;
            if let Some(busy) = tried.iter().position(Option::is_none) {
                let others = tried.into_iter().flatten();
                join_all(others.map(OneOfSeveral::release)).await;
                return Ok(Together::Busy(busy));
            }
            let taken = tried.into_iter().flatten();
            let grants = taken.filter_map(|mut one| one.grant.take());
            Ok(Together::Granted(grants.collect()))
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        Box::pin(self.quorum.release(name, token, keep_until))
    }

    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
        lease_ends: Option<Moment>,
    ) {
        let duties: Vec<_> = self.quorum.duties();
        let releasing =
            self.quorum
                .clone()
                .release_until(name.clone(), token, keep_until, lease_ends);
        engine::spawn(async move {
            releasing.await;
            drop(duties);
        });
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.quorum.renew(name, token, lease, ""))
    }

    fn restart<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.quorum.renew(name, token, lease, "anew"))
    }

    fn check<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.quorum.renew(name, token, Duration::ZERO, ""))
    }

    fn trouble(&self) -> Option<String> {
        self.quorum.trouble()
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        Box::pin(self.quorum.status(name))
    }

    fn refuse(&self) {
        for node in &self.quorum.nodes {
            node.server().refuse();
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            join_all(self.quorum.nodes.iter().map(|node| node.server().close())).await;
        })
    }
}

impl Drop for RedlockBackend {
    fn drop(&mut self) {
        // What still runs in the background keeps the nodes, and with them their home links, until it is done.
        let quorum = self.quorum.clone();
        engine::spawn(async move {
            join_all(quorum.nodes.iter().map(|node| node.server().close())).await;
        });
    }
}
