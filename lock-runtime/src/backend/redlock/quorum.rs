//! The nodes of a client. [`Quorum`] asks all nodes, and counts whether a majority of them agrees.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use lock_core::{
    backend::{BackendError, BoxFuture, Extend, Holder, Released, Renewed, Status},
    fencing::FencingToken,
    key::LockName,
    layout::Layout,
    lease::{CLAIM, Moment},
    owner::OwnerId,
};
use tokio::sync::{Notify, watch};

use crate::{
    backend::{
        redis::{
            protocol::command::whole_millis,
            queue::{grants, renew_commands::renew_on_node, server::Server},
        },
        redlock::node::{LOST, Node, Standing, answer_by},
    },
    background::{Context, TrackedTask, lock, watched::Watched},
    events::{Counters, TARGET, count},
    limits,
};

/// The reason why a node is not asked to renew a grant.
const UNSETTLED: &str = "an earlier request to it is not settled yet";

/// Returns the part of a lease that is certain even if the clocks of node and client drift apart by the allowed
/// maximum.
pub(crate) fn less_node_drift(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}

/// The nodes' answers to a renewal.
type Renewals = FuturesUnordered<BoxFuture<'static, Result<(Arc<Node>, Renewed), BackendError>>>;

/// The nodes of a client, and the state of the client's holds, leases and marks. All tasks of the client share this
/// value.
pub(crate) struct Quorum {
    pub(crate) context: Arc<Context>,
    pub(crate) nodes: Vec<Arc<Node>>,
    counters: Arc<Counters>,
    /// The longest lease that this client has requested, in ms.
    longest_lease: AtomicU64,
    /// The longest lease that the marks of a majority are known to record, in ms.
    marked_lease: AtomicU64,
    /// The holds to which the grants of further nodes can be added.
    holds: Mutex<HashMap<(LockName, FencingToken), Held>>,
    /// Notified when a node has lost its state, and when this `Quorum` is dropped.
    pub(crate) lost: Arc<Notify>,
    /// Whether the client has connected to a majority of the nodes.
    pub(crate) link: Watched<Link>,
}

/// Whether a client has connected to a majority of its nodes.
#[derive(Debug)]
pub(crate) enum Link {
    New,
    /// A task connects the client in the background. The text is the error of the task's most recent try.
    Connecting(Option<String>),
    Connected,
}

/// A hold of this client to which the grants of further nodes can be added.
struct Held {
    owner: OwnerId,
    /// The nodes that possibly store the hold's grant.
    holders: Vec<Arc<Node>>,
    /// Becomes true when the hold is over. The tasks that add the grants of further nodes to the hold watch this value.
    over: watch::Sender<bool>,
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.lost.notify_one();
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.servers()).finish()
    }
}

/// The majority's decision about one request.
enum Verdict<T> {
    /// A majority agreed and gave these answers. The answers of the other nodes are not needed.
    Yes(Vec<T>),
    /// A majority of the nodes declined.
    No,
    /// No majority of the nodes agreed, and no majority declined. The error says why there is no decision.
    Open(BackendError),
}

impl Quorum {
    pub(crate) fn new(
        context: Arc<Context>,
        nodes: Vec<Arc<Node>>,
        counters: Arc<Counters>,
        lost: Arc<Notify>,
    ) -> Self {
        Self {
            context,
            nodes,
            counters,
            longest_lease: AtomicU64::new(0),
            marked_lease: AtomicU64::new(0),
            holds: Mutex::default(),
            lost,
            link: Watched::new(Link::New),
        }
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.nodes.iter().map(|node| node.server())
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(*self.link.get(), Link::Connected)
    }

    /// Returns how many nodes make a majority.
    pub(crate) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.servers().any(|server| server.is_shutting_down())
    }

    pub(crate) fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease.load(Ordering::Acquire))
    }

    pub(crate) fn note_lease(&self, lease: Duration) {
        let lease = whole_millis(lease);
        self.longest_lease.fetch_max(lease, Ordering::AcqRel);
    }

    /// Writes the length of a lease into the marks of a majority of the nodes, before the lease is requested.
    pub(crate) async fn mark(&self, lease: Duration) -> Result<(), BackendError> {
        self.note_lease(lease);
        let length = whole_millis(lease);
        if length <= self.marked_lease.load(Ordering::Acquire) {
            return Ok(());
        }
        // A mark must not count if its node has lost the mark since it was written. The marks are therefore read twice.
        // If both reads find the same marks on a majority, all of these marks existed at the same time, between the two
        // reads.
        let before = self.marks(lease, |_| true).await;
        let after = self.marks(lease, |mark| before.contains(mark)).await;
        if after.len() < self.majority() {
            return Err(self.unreachable(after.len(), None));
        }
        self.marked_lease.fetch_max(length, Ordering::AcqRel);
        Ok(())
    }

    /// Writes the length of a lease into the marks of the nodes that have their state. Returns the marks for which
    /// `counts` is true, at most as many as make a majority. Each returned mark is the number of a node, and the time
    /// at which the last loss of the node's state was seen.
    pub(crate) async fn marks(
        &self,
        lease: Duration,
        counts: impl Fn(&(usize, u64)) -> bool,
    ) -> Vec<(usize, u64)> {
        let nodes = self.nodes.iter().enumerate();
        let probes = nodes.map(|(number, node)| async move {
            match node.probe(lease).await.ok()? {
                Standing::Whole { since, .. } => Some((number, since)),
                Standing::Lost { .. } => {
                    node.not_counted(LOST);
                    None
                }
            }
        });
        let mut probes: FuturesUnordered<_> = probes.collect();
        let mut marks = Vec::new();
        while marks.len() < self.majority()
            && let Some(mark) = probes.next().await
        {
            marks.extend(mark.filter(&counts));
        }
        marks
    }

    /// Returns the owner of this hold, or `None` if the hold has ended.
    fn owner_of(&self, name: &LockName, token: FencingToken) -> Option<OwnerId> {
        let holds = lock(&self.holds);
        holds.get(&(name.clone(), token)).map(|held| held.owner)
    }

    /// Records a hold whose grant is stored on these nodes. The value of the returned receiver becomes true when the
    /// hold is over.
    pub(crate) fn begin_hold(
        &self,
        name: &LockName,
        token: FencingToken,
        owner: OwnerId,
        holders: Vec<Arc<Node>>,
    ) -> watch::Receiver<bool> {
        let (over, is_over) = watch::channel(false);
        let held = Held {
            owner,
            holders,
            over,
        };
        lock(&self.holds).insert((name.clone(), token), held);
        is_over
    }

    /// Records that a node possibly stores the grant of a hold, so that the release is sent to this node too. Returns
    /// `false` if the hold is over, because its release was not sent to this node.
    pub(crate) fn note_holder(
        &self,
        name: &LockName,
        token: FencingToken,
        node: &Arc<Node>,
    ) -> bool {
        let mut holds = lock(&self.holds);
        let Some(held) = holds.get_mut(&(name.clone(), token)) else {
            return false;
        };
        if !held.holders.iter().any(|other| Arc::ptr_eq(other, node)) {
            held.holders.push(node.clone());
        }
        true
    }

    /// Ends a hold, and returns the nodes that possibly still store its grant. Does not return a node whose grant is
    /// not yet part of the hold. The task that would have added that node's grant to the hold gives it back instead.
    /// Returns `None` if the hold has already ended.
    fn end_hold(&self, name: &LockName, token: FencingToken) -> Option<Vec<Arc<Node>>> {
        let held = lock(&self.holds).remove(&(name.clone(), token))?;
        held.over.send_replace(true);
        Some(held.holders)
    }

    /// Returns the newest errors of the nodes, or `None` if no node has a recent error. While the client connects in
    /// the background, returns the error of the most recent try to connect.
    pub(crate) fn last_error(&self) -> Option<String> {
        if let Link::Connecting(error) = &*self.link.get() {
            return error.clone();
        }
        let mut errors = self.servers().filter_map(|server| {
            let last_error = server.last_error()?;
            Some(format!("{}: {last_error}", server.address()))
        });
        let first = errors.next()?;
        Some(errors.fold(first, |all, one| format!("{all}; {one}")))
    }

    /// Returns the error for a request that too few nodes have answered. The error contains the nodes' newest errors,
    /// and the refusal of a node.
    pub(crate) fn unreachable(
        &self,
        answered: usize,
        refusal: Option<&BackendError>,
    ) -> BackendError {
        let (nodes, majority) = (self.nodes.len(), self.majority());
        let last_error = self.last_error().unwrap_or_else(|| "no answer".into());
        let refusal = refusal.map_or(String::new(), |refusal| format!("{refusal}; "));
        BackendError::Unreachable(format!(
            "{answered} of {nodes} nodes answered, {majority} are needed ({refusal}{last_error})"
        ))
    }

    /// Collects answers until a majority agrees or declines, or until all answers have arrived. A node that was not
    /// asked counts as declining.
    async fn decide<A, T>(
        &self,
        answers: &mut FuturesUnordered<impl Future<Output = Result<A, BackendError>>>,
        yes: impl Fn(A) -> Option<T>,
    ) -> Verdict<T> {
        let (mut agreed, mut against) = (Vec::new(), self.nodes.len() - answers.len());
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            match answer.map(&yes) {
                Ok(Some(answer)) => agreed.push(answer),
                Ok(None) => against += 1,
                Err(error @ BackendError::Unreachable(_)) => {
                    failure.get_or_insert(error);
                }
                // A refusal is reported in preference to an unreachable node, because a refusal says more about the
                // cause.
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
            None | Some(BackendError::Unreachable(_)) => self.unreachable(answered, None),
            Some(error) => error,
        })
    }

    /// Asks all nodes to extend or restart a grant, or only to report whether they still have it. If a majority still
    /// has the grant, the other nodes receive it in the background.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        extend: Extend,
    ) -> Result<Renewed, BackendError> {
        let Some(owner) = self.owner_of(name, token) else {
            return Ok(Renewed::NotHeld); // the hold is over
        };
        self.mark(extend.lease()).await?;
        let before = self.context.now();
        let asked = self.nodes.iter().cloned();
        // All nodes are asked, so nodes that answer after the decision extend the grant as well.
        let mut answers: FuturesUnordered<_> = asked
            .map(|node| {
                let (name, context) = (name.clone(), self.context.clone());
                async move {
                    // While a node can still lose its grant because the engine gives it back, the node does not count.
                    let settled = node.settled(owner);
                    let settled = context
                        .timeout_at(before + limits::STRAGGLER_PATIENCE, settled)
                        .await;
                    let extend = match (settled, extend) {
                        (None, _) => return Err(BackendError::Unreachable(UNSETTLED.into())),
                        // A later request may have extended the lease in the meantime.
                        (Some(true), Extend::Restart(lease)) => Extend::To(lease),
                        (Some(_), extend) => extend,
                    };
                    let renewed = renew_on_node(node.server(), &name, token, owner, extend).await;
                    renewed.map(|renewed| (node, renewed))
                }
                .boxed()
            })
            .collect();
        let missing = Mutex::new(Vec::new());
        let until = |(node, renewed)| match renewed {
            Renewed::Until(until) => {
                self.note_holder(name, token, &node);
                Some(until)
            }
            Renewed::NotHeld => {
                lock(&missing).push(node);
                None
            }
        };
        match self.decide(&mut answers, until).await {
            Verdict::Yes(untils) => {
                // After the shortest of these leases has ended, the nodes with the grant can be too few for a majority.
                let until = untils.into_iter().min().unwrap_or(before);
                let until = before + less_node_drift(until.since(before));
                let missing = missing.into_inner().unwrap_or_default();
                if !missing.is_empty() || !answers.is_empty() {
                    let rejoining =
                        self.clone()
                            .rejoin(name.clone(), token, missing, answers, until);
                    self.context.spawn(rejoining);
                }
                Ok(Renewed::Until(until))
            }
            Verdict::No => Ok(Renewed::NotHeld),
            Verdict::Open(error) => Err(error),
        }
    }

    /// Copies the grant of a hold to the nodes that lack the grant, if the lock is free on these nodes. The lease of
    /// each copy ends at `until`.
    pub(crate) async fn rejoin(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        mut missing: Vec<Arc<Node>>,
        mut answers: Renewals,
        until: Moment,
    ) {
        let patience = until.min(self.context.now() + limits::STRAGGLER_PATIENCE);
        while let Some(Some(answer)) = self.context.timeout_at(patience, answers.next()).await {
            match answer {
                Ok((node, Renewed::NotHeld)) => missing.push(node),
                Ok((node, Renewed::Until(_))) => {
                    self.note_holder(&name, token, &node);
                }
                Err(_) => {}
            }
        }
        let rejoining = missing.iter().map(async |node| {
            let Some(owner) = self.owner_of(&name, token) else {
                return;
            };
            // The answer of the node can be lost, so from now on the hold's release is sent to this node too.
            if !self.note_holder(&name, token, node) {
                return;
            }
            let task = node.server().track_acquisition();
            let joined = self.context.timeout_at(patience, node.rejoin(&name, token, owner, until)).await;
            match joined {
                Some(Ok(true)) => {
                    tracing::debug!(target: TARGET, server = %node.server().address(), key = %Layout::Native.key(&name), %token, "a node has joined a hold");
                }
                Some(_) => return,
                None => {}
            }
            // If the hold was released while its grant was copied, the node's grant is given back.
            if self.owner_of(&name, token).is_none() {
                let releasing = grants::release(node.server(), &name, token, None);
                let _ = self.context.timeout_at(until, releasing).await;
            }
            drop(task);
        });
        join_all(rejoining).await;
    }

    /// Releases the lock on all nodes that possibly store the hold's grant. A node that was down when the lock was
    /// granted is sent no release, because such releases would accumulate as tasks during a long outage of the node.
    /// Once a majority has answered, the answers of the other nodes are awaited in the background.
    pub(crate) async fn release(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        let (asked, mut ends) = match self.end_hold(name, token) {
            Some(holders) => (
                holders,
                self.context.now() + self.longest_lease().max(CLAIM),
            ),
            // An earlier release of this hold was sent, and continues in the background.
            None => (self.nodes.clone(), self.context.now() + CLAIM),
        };
        if let Some(until) = retain_until {
            // If a node loses its state, its votes must not count before the lock is free. The time until
            // `retain_until` is therefore written into the nodes' marks, like the length of a lease. If too few marks
            // can be written, the lock stays taken nevertheless.
            let _ = self.mark(until.since(self.context.now())).await;
            ends = ends.max(until);
        }
        let mut answers: FuturesUnordered<_> = asked
            .iter()
            .map(|node| {
                let (server, name) = (node.server().clone(), name.clone());
                let context = self.context.clone();
                // All releases and all requests for locks use the same connection, because they run in tasks of the
                // engine. The next request of this process for the lock therefore reaches the node after the release.
                // The release stops when the lease has ended, because the grants have then expired.
                let releasing = async move {
                    let releasing = grants::release(&server, &name, token, retain_until);
                    answer_by(&context, ends, releasing).await
                };
                self.context.spawn(releasing).map(|ended| {
                    ended.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
                })
            })
            .collect();
        let unsure = AtomicBool::new(false);
        let released = |released| {
            unsure.fetch_or(released == Released::Unknown, Ordering::Relaxed);
            (released == Released::Released).then_some(())
        };
        let verdict = self.decide(&mut answers, released).await;
        // The remaining nodes must release the lock even if a majority answers that the lock is not held. An earlier
        // release may have reached only that majority.
        if !answers.is_empty() {
            let unneeded = self.context.now() + limits::STRAGGLER_PATIENCE;
            let tasks = self.track_releases(unneeded);
            let context = self.context.clone();
            self.context.spawn(async move {
                let mut rest = Box::pin(answers.count());
                if context.timeout_at(unneeded, &mut rest).await.is_none() {
                    drop(tasks);
                    rest.await;
                }
            });
        }
        match verdict {
            Verdict::Yes(_) => Ok(Released::Released),
            Verdict::No if unsure.into_inner() => Ok(Released::Unknown),
            Verdict::No => Ok(Released::NotHeld),
            Verdict::Open(error) => Err(error),
        }
    }

    /// Makes a shutdown wait for a background release on every node. The shutdown need not wait beyond `lease_ends`,
    /// because the lease then expires even if the release fails.
    pub(crate) fn track_releases(&self, lease_ends: Moment) -> Vec<TrackedTask> {
        let servers = self.servers();
        servers
            .map(|server| server.track_release(lease_ends))
            .collect()
    }

    /// Releases a lock in the background. Waits for the release until the lease has ended on the nodes, but at least for a
    /// claim (2 s).
    pub(crate) async fn release_until(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
        latest_end: Moment,
    ) {
        let until = latest_end.max(self.context.now() + CLAIM);
        let released = self
            .context
            .timeout_at(until, self.release(&name, token, retain_until))
            .await;
        let Some(lease_ends) = lease_ends else {
            return; // the loss of the hold was counted when it was noticed
        };
        match released {
            Some(Ok(Released::Released)) => {
                count(&self.counters.released);
                tracing::debug!(target: TARGET, key = %Layout::Native.key(&name), %token, "released in the background");
            }
            // The caller has possibly sent a request to release before, whose answer was not read.
            Some(Ok(Released::NotHeld | Released::Unknown)) if self.context.now() < lease_ends => {
                count(&self.counters.release_unknown);
            }
            Some(Ok(Released::NotHeld | Released::Unknown)) => {}
            Some(Err(error)) => {
                count(&self.counters.release_failed);
                tracing::warn!(target: TARGET, key = %Layout::Native.key(&name), %token, %error, "release failed, the lease ends by itself");
            }
            None => {
                count(&self.counters.release_failed);
                tracing::warn!(target: TARGET, key = %Layout::Native.key(&name), %token, "release not answered by a majority, the lease has ended by itself");
            }
        }
    }

    /// Returns the holder that a majority of the nodes names, if there is one.
    pub(crate) async fn status(&self, name: &LockName) -> Result<Status, BackendError> {
        let until = self.context.now() + limits::ASK_PATIENCE;
        let mut answers: FuturesUnordered<_> = self
            .servers()
            .map(|server| answer_by(&self.context, until, grants::status(server, name)))
            .collect();
        let mut seen: HashMap<OwnerId, Vec<Holder>> = HashMap::new();
        let (mut answered, mut failure) = (0, None);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(status) => {
                    answered += 1;
                    let Some(holder) = status.holder else {
                        continue;
                    };
                    let named = seen.entry(holder.owner).or_default();
                    named.push(holder);
                    // A node that granted the lock late reports the token that it offered, until it knows the token on
                    // which the nodes have agreed. Answers are therefore collected until a majority of the nodes names
                    // the same token.
                    if named_most(named).1 >= self.majority() {
                        break;
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        let named = seen
            .into_values()
            .find(|named| named.len() >= self.majority());
        if let Some(mut named) = named {
            // After the shortest of these leases has ended, the nodes with the grant can be too few for a majority.
            let remaining = named.iter().map(|holder| holder.remaining).min().flatten();
            // A release has reached at least one node, so the hold has ended.
            let kept = named.iter().any(|holder| holder.kept);
            let known = named.iter().position(|holder| holder.caller.is_some());
            let known = known.unwrap_or_default();
            let token = named_most(&named).0;
            // A grant that was copied to a node again does not say where its holder runs.
            let mut holder = named.swap_remove(known);
            (holder.token, holder.remaining, holder.kept) = (token, remaining, kept);
            return Ok(Status::new(Some(holder), 0));
        }
        match failure {
            _ if answered >= self.majority() => Ok(Status::new(None, 0)),
            None | Some(BackendError::Unreachable(_)) => Err(self.unreachable(answered, None)),
            Some(error) => Err(error),
        }
    }
}

/// Returns the most frequent token of these holders, and the number of holders that have this token. If several tokens
/// are equally frequent, returns the greatest of these tokens.
fn named_most(holders: &[Holder]) -> (Option<FencingToken>, usize) {
    let count = |token| {
        holders
            .iter()
            .filter(|holder| holder.token == token)
            .count()
    };
    let tokens = holders
        .iter()
        .map(|holder| (count(holder.token), holder.token));
    let (count, token) = tokens.max().unwrap_or_default();
    (token, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(tokens: &[u64]) -> Vec<Holder> {
        let holder = |token: &u64| {
            let mut holder = Holder::new(OwnerId::from_u128(1));
            holder.token = Some(FencingToken::new(*token));
            holder
        };
        tokens.iter().map(holder).collect()
    }

    #[test]
    fn the_token_of_most_nodes_is_the_quorums() {
        for (named, token, count) in [
            (&[7, 7][..], 7, 2),
            (&[9, 7, 7], 7, 2),
            (&[3, 7, 7], 7, 2),
            (&[3, 7], 7, 1),
        ] {
            let expected = (Some(FencingToken::new(token)), count);
            assert_eq!(named_most(&holders(named)), expected, "{named:?}");
        }
        assert_eq!(named_most(&[]), (None, 0));
    }
}
