//! Locks on a majority of several independent Redis servers: Redlock.
//!
//! Not promised: any order, for nobody queues here, and a late caller may be served before an early one; exclusion when
//! the clock of a node jumps or runs faster than the drift allowed for (1 % of the lease and 2 ms), or when a
//! majority of the nodes loses its state within one lease; and a body that stops at the end of its lease although its own process is paused.
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
//! **Restarts.** A node that comes back without its state would help to grant a lock that it has granted before. Each
//! node stores a mark with its locks, loses both together, and grants only while it has one. The mark holds the longest
//! lease in use: a client writes a longer lease into the marks of a majority before it asks for one. A node that is seen
//! without a mark is counted again after the longest lease in use, which the marks of the other nodes tell: of two in a
//! quorum of three, of `n / 2 + 1` (rounded down) in one of `n`. With fewer marks, and not all nodes answering, it is
//! counted after the longest lease that there can be, a day. Only where every node is reached when a client connects,
//! and none has a mark, this is a new installation, and all count at once. A `FLUSHALL` takes the mark along, and is
//! noticed at the next request. Not noticed is what a node with a lagging persistence (`appendfsync everysec`) forgot of
//! the keys that this client never saw: use `always`, or none at all. Exclusion is not promised when a majority of the
//! nodes loses its state within one lease.
//!
//! **A minority that missed a hold** gets it at the next renewal or check: a node that was down, silent or without its
//! state when the lock was granted, where the lock is free. So another node may go after that.

mod attempt;
mod node;
mod url;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use lock_core::{
    backend::{
        Attempt, Backend, BackendError, BoxFuture, Holder, MultiAnswer, Released, Renewed, Request,
        Status,
    },
    fencing::FencingToken,
    key::LockName,
    layout::Layout,
    lease::{CLAIM, MAX_LEASE, Moment},
    owner::OwnerId,
};
use tokio::sync::{Notify, watch};

pub(crate) use self::url::{is_redlock, parse};
use crate::{
    backend::{
        redis::queue::renew::Extend,
        redlock::{
            attempt::{Haste, RedlockAttempt, Round, Taken, offered, round},
            node::{LOST, Node, Standing},
        },
    },
    background::{self, clock::boot as clock, sync::lock},
    client::url::ConnectError,
    events::{Counters, count},
};

/// How long the other nodes may take at connect once a majority is there.
const STRAGGLER_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at nodes of which some are new and some are in use, and how many there are.
const MIXED_PAUSE: Duration = Duration::from_millis(50);
const MIXED_LOOKS: usize = 3;
/// How long a node may take to tell its mark.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at nodes that have lost their state.
const LOST_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
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

/// Milliseconds, rounded up.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What is left of a lease when the clocks of node and client differ as much as is allowed for.
fn less_node_drift(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}

/// What nodes answer to a renewal.
type Renewals = FuturesUnordered<BoxFuture<'static, Result<(Arc<Node>, Renewed), BackendError>>>;

/// The nodes, as all that runs for the client sees them.
struct Quorum {
    nodes: Vec<Arc<Node>>,
    counters: Arc<Counters>,
    /// The longest lease that was asked for, in ms.
    longest_lease: AtomicU64,
    /// The longest lease that the marks of a majority have, in ms.
    marked_lease: AtomicU64,
    /// The holds that nodes may still join.
    holds: Mutex<HashMap<(LockName, FencingToken), Held>>,
    /// Where nodes tell that they have lost their state.
    lost: Arc<Notify>,
}

/// A hold of this client.
struct Held {
    owner: OwnerId,
    /// Tells nodes that are still joining that it is over.
    over: watch::Sender<bool>,
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.lost.notify_one();
    }
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

fn panicked(panic: &tokio::task::JoinError) -> BackendError {
    BackendError::Unreachable(panic.to_string())
}

impl Quorum {
    /// How many nodes are a majority.
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn is_shutting_down(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| node.server().is_shutting_down())
    }

    fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease.load(Ordering::Acquire))
    }

    fn note_lease(&self, lease: Duration) {
        self.longest_lease.fetch_max(ms(lease), Ordering::AcqRel);
    }

    /// Writes a lease into the marks of a majority, before the lease is asked for.
    async fn mark(&self, lease: Duration) -> Result<(), BackendError> {
        self.note_lease(lease);
        if ms(lease) <= self.marked_lease.load(Ordering::Acquire) {
            return Ok(());
        }
        // A mark that was written before the node lost its state is none. Found twice, the marks of a majority stand between
        // the two looks, all at once.
        let before = self.marks(lease, |_| true).await;
        let after = self.marks(lease, |mark| before.contains(mark)).await;
        if after.len() < self.majority() {
            return Err(self.unreachable(after.len()));
        }
        self.marked_lease.fetch_max(ms(lease), Ordering::AcqRel);
        Ok(())
    }

    /// Writes a lease into the marks of whole nodes. Returns those that count, each with its node and the node's last loss, of
    /// a majority at most.
    async fn marks(
        &self,
        lease: Duration,
        counts: impl Fn(&(usize, u64)) -> bool,
    ) -> Vec<(usize, u64)> {
        let until = clock::now() + LOOK_PATIENCE;
        let nodes = self.nodes.iter().enumerate();
        let looks = nodes.map(|(number, node)| async move {
            match clock::timeout_at(until, node.look(lease)).await?.ok()? {
                Standing::Whole { since, .. } => Some((number, since)),
                Standing::Lost { .. } => {
                    node.not_counted(LOST);
                    None
                }
            }
        });
        let mut looks: FuturesUnordered<_> = looks.collect();
        let mut marks = Vec::new();
        while marks.len() < self.majority()
            && let Some(mark) = looks.next().await
        {
            marks.extend(mark.filter(&counts));
        }
        marks
    }

    /// Whether this hold has not been released.
    fn holds(&self, name: &LockName, token: FencingToken) -> bool {
        lock(&self.holds).contains_key(&(name.clone(), token))
    }

    /// Notes a hold. The receiver is told when it is over.
    fn begin_hold(
        &self,
        name: &LockName,
        token: FencingToken,
        owner: OwnerId,
    ) -> watch::Receiver<bool> {
        let (over, is_over) = watch::channel(false);
        lock(&self.holds).insert((name.clone(), token), Held { owner, over });
        is_over
    }

    /// Nodes that are still joining this hold give back what they have.
    fn end_hold(&self, name: &LockName, token: FencingToken) {
        if let Some(held) = lock(&self.holds).remove(&(name.clone(), token)) {
            held.over.send_replace(true);
        }
    }

    /// What some node is in last_error with.
    fn last_error(&self) -> Option<String> {
        let mut troubles = self.nodes.iter().filter_map(|node| {
            let last_error = node.server().last_error()?;
            Some(format!("{}: {last_error}", node.server().address()))
        });
        let first = troubles.next()?;
        Some(troubles.fold(first, |all, one| format!("{all}; {one}")))
    }

    /// Too few nodes answered, or granted, and why.
    fn unreachable(&self, answered: usize) -> BackendError {
        let (nodes, majority) = (self.nodes.len(), self.majority());
        let last_error = self.last_error().unwrap_or_else(|| "no answer".into());
        BackendError::Unreachable(format!(
            "{answered} of {nodes} nodes answered, {majority} are needed ({last_error})"
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

    /// Asks all nodes to extend a grant, to restart it, or whether it stands. Nodes that miss it get it in the background.
    async fn renew(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        extend: Extend,
    ) -> Result<Renewed, BackendError> {
        self.mark(extend.lease()).await?;
        let before = clock::now();
        let asked = self.nodes.iter().cloned();
        // Each is asked at the first poll: those that answer after the decision have extended it, too.
        let mut answers: FuturesUnordered<_> = asked
            .map(|node| {
                let name = name.clone();
                async move {
                    let renewed = node.server().renew(&name, token, extend).await;
                    renewed.map(|renewed| (node, renewed))
                }
                .boxed()
            })
            .collect();
        let missing = Mutex::new(Vec::new());
        let until = |(node, renewed)| match renewed {
            Renewed::Until(until) => Some(until),
            Renewed::NotHeld => {
                lock(&missing).push(node);
                None
            }
        };
        match self.decide(&mut answers, until).await {
            Verdict::Yes(untils) => {
                // From its end on less than a majority stands.
                let until = untils.into_iter().min().unwrap_or(before);
                let until = before + less_node_drift(until.since(before));
                let missing = missing.into_inner().unwrap_or_default();
                if !missing.is_empty() || !answers.is_empty() {
                    let rejoining =
                        self.clone()
                            .rejoin(name.clone(), token, missing, answers, until);
                    background::spawn(rejoining);
                }
                Ok(Renewed::Until(until))
            }
            Verdict::No => Ok(Renewed::NotHeld),
            Verdict::Open(error) => Err(error),
        }
    }

    /// Gives the hold that a majority has until then to nodes that miss it, where the lock is free.
    async fn rejoin(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        mut missing: Vec<Arc<Node>>,
        mut answers: Renewals,
        until: Moment,
    ) {
        let patience = until.min(clock::now() + REST_PATIENCE);
        while let Some(Some(answer)) = clock::timeout_at(patience, answers.next()).await {
            if let Ok((node, Renewed::NotHeld)) = answer {
                missing.push(node);
            }
        }
        let rejoining = missing.iter().map(async |node| {
            let Some(owner) = lock(&self.holds)
                .get(&(name.clone(), token))
                .map(|held| held.owner)
            else {
                return;
            };
            let task = node.server().track_acquisition();
            let joined = clock::timeout_at(patience, node.rejoin(&name, token, owner, until)).await;
            match joined {
                Some(Ok(true)) => {
                    tracing::debug!(server = %node.server().address(), key = %Layout::Native.key(&name), %token, "a node has joined a hold");
                }
                Some(_) => return,
                None => {}
            }
            // Released meanwhile, it is given back.
            if !self.holds(&name, token) {
                let releasing = node.server().release(&name, token, None);
                let _ = clock::timeout_at(until, releasing).await;
            }
            drop(task);
        });
        join_all(rejoining).await;
    }

    /// Releases on all nodes; those that have not answered when a majority has are seen to in the background.
    async fn release(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        self.end_hold(name, token);
        let asked = self.nodes.iter();
        let mut answers: FuturesUnordered<_> = asked
            .map(|node| {
                let (server, name) = (node.server().clone(), name.clone());
                // On the engine, as the rounds: the next round of this process comes after the release.
                background::spawn(async move { server.release(&name, token, retain_until).await })
                    .map(|ended| ended.unwrap_or_else(|panic| Err(panicked(&panic))))
            })
            .collect();
        let released = |released| (released == Released::Released).then_some(());
        let verdict = self.decide(&mut answers, released).await;
        // Also when a majority does not hold it any more: an earlier request may have been carried out there only.
        if !answers.is_empty() {
            let ends = clock::now() + self.longest_lease();
            let unneeded = clock::now() + REST_PATIENCE;
            let duties = self.track_releases(unneeded);
            background::spawn(async move {
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

    /// A release in the background, of a lease that ends by itself then.
    fn track_releases(&self, lease_ends: Moment) -> Vec<crate::backend::redis::TrackedTask> {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| node.server().track_release(lease_ends))
            .collect()
    }

    /// Releases in the background, tried again until the lease has ended by itself.
    async fn release_until(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
    ) {
        let claim_ends = clock::now() + CLAIM;
        let until = lease_ends.map_or(claim_ends, |ends| ends.max(claim_ends));
        let released = clock::timeout_at(until, self.release(&name, token, retain_until)).await;
        let Some(lease_ends) = lease_ends else {
            return; // lost before: that is counted
        };
        match released {
            Some(Ok(Released::Released)) => {
                count(&self.counters.released);
                tracing::debug!(key = %Layout::Native.key(&name), %token, "released in the background");
            }
            // A first request was carried out and its answer not read.
            Some(Ok(Released::NotHeld)) if clock::now() < lease_ends => {
                count(&self.counters.released);
            }
            Some(Ok(Released::NotHeld)) => {}
            Some(Err(error)) => {
                count(&self.counters.release_failed);
                tracing::warn!(key = %Layout::Native.key(&name), %token, %error, "release failed, the lease ends by itself");
            }
            None => {
                count(&self.counters.release_failed);
                tracing::warn!(key = %Layout::Native.key(&name), %token, "release not answered by a majority, the lease has ended by itself");
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

/// Takes several locks, or none: `Err` with the index of the first that is not free. Dropped, they are given back.
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
    // Given back before the caller is told, who shall find none of them taken.
    join_all(taken.into_iter().map(Taken::release)).await;
    Ok(Err(busy))
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
    ) -> Result<Self, ConnectError> {
        let lost = Arc::new(Notify::new());
        let nodes = config.nodes.into_iter().map(|info| {
            let (counters, lost) = (counters.clone(), lost.clone());
            Node::open(info, config.allow_eviction, counters, lost).map(Arc::new)
        });
        let quorum = Quorum {
            nodes: nodes.collect::<Result<_, _>>()?,
            counters,
            longest_lease: AtomicU64::new(0),
            marked_lease: AtomicU64::new(0),
            holds: Mutex::default(),
            lost: lost.clone(),
        };
        quorum.note_lease(config.lease);
        // Whatever becomes of it, its sessions are closed.
        let backend = Self {
            quorum: Arc::new(quorum),
        };
        backend.quorum.connect(config.patience).await?;
        background::spawn(admit_lost(Arc::downgrade(&backend.quorum), lost));
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
                    // A session of its own tells that nothing answers.
                    if !matches!(error, ConnectError::Unreachable { .. }) {
                        tracing::warn!(server = %node.server().address(), %error, "a server of the quorum cannot be used");
                    }
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
        self.begin().await;
        // What keeps a majority from being marked is told to those who ask for locks.
        let _ = self.mark(self.longest_lease()).await;
        Ok(())
    }

    /// Reads the marks of all nodes; `None` for those that do not answer.
    async fn look(&self) -> Vec<(&Arc<Node>, Option<Standing>)> {
        let until = clock::now() + LOOK_PATIENCE;
        let lease = self.longest_lease();
        let nodes = self.nodes.iter();
        join_all(nodes.map(|node| async move {
            let looked = clock::timeout_at(until, node.look(lease)).await;
            (node, looked.and_then(Result::ok))
        }))
        .await
    }

    /// Where all nodes are there and none has a mark, nothing can have been forgotten.
    async fn begin(&self) {
        for _ in 0..MIXED_LOOKS {
            let looked = self.look().await;
            let lost: Vec<_> = looked
                .iter()
                .filter_map(|(node, standing)| match standing {
                    Some(Standing::Lost { since, .. }) => Some((*node, *since)),
                    _ => None,
                })
                .collect();
            if lost.is_empty() || looked.iter().any(|(_, standing)| standing.is_none()) {
                return;
            }
            if lost.len() == self.nodes.len() {
                let longest = self.longest_lease();
                let begun = lost.iter().map(|(node, since)| {
                    clock::timeout_at(
                        clock::now() + LOOK_PATIENCE,
                        node.admit(*since, Duration::ZERO, longest),
                    )
                });
                join_all(begun).await;
            } else {
                // Another client may be writing the first marks right now.
                clock::sleep_until(clock::now() + MIXED_PAUSE).await;
            }
        }
    }

    /// Lets nodes grant again that have been without their state for longer than any lease in use. Returns how long the next
    /// one has to wait; `None` if all have their state.
    async fn admit(&self, told: &mut Told) -> Option<Duration> {
        let looked = self.look().await;
        let mut next = None;
        for (number, (node, standing)) in looked.iter().enumerate() {
            let left = match *standing {
                Some(Standing::Lost { since, age }) => {
                    match self.quarantine(&looked, told, (number, since)) {
                        None => LOST_PAUSE.0,
                        Some((longest, quarantine)) if age >= quarantine => {
                            let until = clock::now() + LOOK_PATIENCE;
                            let admitting = node.admit(since, quarantine, longest);
                            let _ = clock::timeout_at(until, admitting).await;
                            Duration::ZERO
                        }
                        Some((_, quarantine)) => quarantine - age,
                    }
                }
                Some(Standing::Whole { .. }) => {
                    told.retain(|(lost, _), _| *lost != number);
                    continue;
                }
                None if node.was_lost() => LOST_PAUSE.1,
                None => continue,
            };
            next = Some(next.map_or(left, |next: Duration| next.min(left)));
        }
        next
    }

    /// The longest lease in use, and how long a node that lost its state is not counted; `None` at the first sight of the loss.
    fn quarantine(
        &self,
        looked: &[(&Arc<Node>, Option<Standing>)],
        told: &mut Told,
        lost: (usize, u64),
    ) -> Option<(Duration, Duration)> {
        let whole =
            looked
                .iter()
                .enumerate()
                .filter_map(|(number, (_, standing))| match standing {
                    Some(Standing::Whole { longest, .. }) => Some((number, *longest)),
                    _ => None,
                });
        // What was read along with the first sight of the loss may be older than the loss.
        match told.entry(lost) {
            Entry::Vacant(entry) => {
                entry.insert(HashMap::new());
                return None;
            }
            Entry::Occupied(mut entry) => entry.get_mut().extend(whole),
        }
        let told = &told[&lost];
        let longest = told
            .values()
            .copied()
            .fold(self.longest_lease(), Duration::max);
        // A lease is in the marks of a majority. So many other nodes have one of these among them.
        let enough = self.nodes.len() - self.majority() + 1;
        let all_answer = looked.iter().all(|(_, standing)| standing.is_some());
        let known = told.len() >= enough || all_answer;
        Some((longest, if known { longest } else { MAX_LEASE }))
    }
}

/// The leases that the marks of whole nodes told after another one had lost its state, by that node and its loss.
type Told = HashMap<(usize, u64), HashMap<usize, Duration>>;

/// Sees to nodes that have lost their state. It ends with its client.
async fn admit_lost(quorum: Weak<Quorum>, lost: Arc<Notify>) {
    let mut told = Told::new();
    loop {
        lost.notified().await;
        loop {
            let Some(quorum) = quorum.upgrade().filter(|quorum| !quorum.is_shutting_down()) else {
                return;
            };
            let next = quorum.admit(&mut told).await;
            drop(quorum);
            let Some(next) = next else { break };
            let pause = next.clamp(LOST_PAUSE.0, LOST_PAUSE.1);
            clock::sleep_until(clock::now() + pause).await;
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
                let taking = take_together(quorum.clone(), requests.clone());
                let Some(taken) = offered(taking).await else {
                    continue; // the caller came too late, and asks again
                };
                let taken = match taken? {
                    Ok(taken) => taken,
                    Err(busy) => return Ok(MultiAnswer::Busy(busy)),
                };
                if taken.iter().all(Taken::is_young) {
                    // No await from here on: all of them become holds at once.
                    let grants = taken.into_iter().map(Taken::keep);
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
    ) {
        let ends = lease_ends.unwrap_or_else(clock::now);
        let duties = self.quorum.track_releases(ends);
        let releasing =
            self.quorum
                .clone()
                .release_until(name.clone(), token, retain_until, lease_ends);
        background::spawn(async move {
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
        Box::pin(self.quorum.renew(name, token, Extend::To(lease)))
    }

    fn restart<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.quorum.renew(name, token, Extend::Restart(lease)))
    }

    fn check<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.quorum.renew(name, token, Extend::To(Duration::ZERO)))
    }

    fn last_error(&self) -> Option<String> {
        self.quorum.last_error()
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        Box::pin(self.quorum.status(name))
    }

    fn begin_shutdown(&self) {
        for node in &self.quorum.nodes {
            node.server().begin_shutdown();
        }
    }

    fn is_answering(&self, within: Duration) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            // A node that is not counted answers in vain.
            let counted = self.quorum.nodes.iter().filter(|node| !node.was_lost());
            let asked = counted.map(|node| node.server().is_answering(within));
            let answered = join_all(asked).await;
            answered.iter().filter(|answered| **answered).count() >= self.quorum.majority()
        })
    }

    fn cleaned_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let nodes = self.quorum.nodes.iter();
            join_all(nodes.map(|node| node.server().cleaned_up())).await;
        })
    }

    fn close(&self, until: Moment) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let nodes = self.quorum.nodes.iter();
            join_all(nodes.map(|node| node.server().close(until))).await;
        })
    }
}

impl Drop for RedlockBackend {
    fn drop(&mut self) {
        // What still runs in the background keeps the nodes, and with them their home sessions, until it is done.
        let quorum = self.quorum.clone();
        background::spawn(async move {
            join_all(quorum.nodes.iter().map(|node| node.server().close_behind())).await;
        });
    }
}
