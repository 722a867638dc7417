//! The topology of a Redis Cluster: a map from hash slots to primaries (the slot map), which the engine reads again
//! after `MOVED`.
//!
//! The servers report which server stores a slot. The answer to `CLUSTER SLOTS` describes all slots. A server that does
//! not store the slot of a command answers the command with a redirection. The engine reads the slot map again after
//! each `MOVED` redirection, when a connection is lost, and when a server cannot carry out a command.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lock_core::{backend::BackendError, key::LockName, lease::Moment};
use redis::{
    ConnectionAddr, ErrorKind, FromRedisValue, ParsingError, RedisError, ServerErrorKind, Value,
};
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    backend::redis::{
        core::Link,
        preflight::{Failure, check},
        protocol::slot::{SLOTS, slot_of},
        session::{Host, Session},
        topology::node::Node,
        transport::{
            call_error::Redirect,
            connection::{Connection, field},
            connector::{Connector, ServerCheck},
        },
    },
    background::{Context, lock, watched::Watched},
    events::TARGET,
    limits,
};

/// The shortest and the longest time between two tries to read the slot map. The time doubles while the slot map does
/// not change.
const READ_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// The primaries of a cluster, each with its session.
pub(crate) struct Cluster {
    context: Arc<Context>,
    /// The servers that the URL names.
    seeds: Vec<Connector>,
    host: Host,
    map: Watched<SlotMap>,
    /// Notified when the slot map may be outdated.
    outdated: Arc<Notify>,
    /// The task that reads the slot map, or `None` before the task is started.
    reading: Mutex<Option<AbortHandle>>,
    shutting_down: AtomicBool,
    closed: AtomicBool,
}

/// The slot map: which primary stores which slot.
#[derive(Clone, Default)]
struct SlotMap {
    /// The primaries by address.
    nodes: BTreeMap<String, Arc<Node>>,
    /// The primary of each slot, or `None` for a slot that no primary stores. The list is empty before the slot map is
    /// read.
    slots: Vec<Option<Arc<Node>>>,
    /// The servers to which an `ASK` redirection has sent a command, by address, with the time of the newest such
    /// redirection.
    asked: BTreeMap<String, Moment>,
}

impl SlotMap {
    fn node(&self, slot: u16) -> Option<&Arc<Node>> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    /// Returns the primaries that store a slot.
    fn primaries(&self) -> BTreeSet<*const Node> {
        self.slots.iter().flatten().map(Arc::as_ptr).collect()
    }
}

/// One server's description of the cluster.
struct View {
    /// Decides which server's description the engine uses. The description of a server that considers the cluster to be
    /// working takes precedence. Of two such descriptions, the one with the newer configuration epoch is used.
    newness: (bool, u64),
    /// The ranges of slots, each as its first slot, its last slot and its primary.
    ranges: Vec<(u16, u16, ConnectionAddr)>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("nodes", &self.map.get().nodes.keys())
            .finish_non_exhaustive()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(reading) = lock(&self.reading).take() {
            reading.abort();
        }
    }
}

impl Cluster {
    pub(crate) fn new(
        context: Arc<Context>,
        seeds: Vec<Connector>,
        outdated: Arc<Notify>,
        host: Host,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            seeds,
            host,
            map: Watched::default(),
            outdated,
            reading: Mutex::default(),
            shutting_down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Waits until the slot map names a primary that stores the lock, and returns that primary.
    pub(crate) async fn node(self: &Arc<Self>, name: &LockName) -> Result<Arc<Node>, BackendError> {
        self.follow();
        let slot = slot_of(name.as_str());
        let find = |map: &SlotMap| match map.node(slot) {
            _ if self.is_closed() => Some(Err(BackendError::ShutDown)),
            Some(node) => Some(Ok(node.clone())),
            None if self.shutting_down.load(Ordering::Acquire) => Some(Err(BackendError::ShutDown)),
            None => None,
        };
        loop {
            // No session notices that the slot map names no primary for a slot. The waiting callers themselves
            // therefore make the engine read the slot map again.
            if self.known_node(name).is_none() {
                self.outdated.notify_one();
            }
            let patience = self.context.now() + limits::SLOT_PAUSE;
            let found = self.context.timeout_at(patience, self.map.until(find));
            if let Some(found) = found.await {
                return found;
            }
        }
    }

    /// Returns the primary that stores a lock, or `None` if the slot map names no primary for the lock.
    pub(crate) fn known_node(&self, name: &LockName) -> Option<Arc<Node>> {
        self.map.get().node(slot_of(name.as_str())).cloned()
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map.get().nodes.values().cloned().collect()
    }

    /// Returns the primary to which this session connects.
    pub(crate) fn node_of(&self, session: &Arc<Session>) -> Option<Arc<Node>> {
        let nodes = self.nodes();
        nodes.into_iter().find(|node| node.has(session))
    }

    /// Returns the session with this number.
    pub(crate) fn linked(&self, link: Link) -> Option<Arc<Session>> {
        self.nodes().iter().find_map(|node| node.linked(link))
    }

    /// Returns whether the session connects to the primary that stores the lock.
    pub(crate) fn serves(&self, session: &Arc<Session>, name: &LockName) -> bool {
        self.known_node(name).is_some_and(|node| node.has(session))
    }

    /// Waits until `node` is no longer the primary that stores the lock.
    async fn moves_from(&self, node: &Arc<Node>, name: &LockName) {
        let slot = slot_of(name.as_str());
        let elsewhere = |map: &SlotMap| {
            let stays = map.node(slot).is_some_and(|now| Arc::ptr_eq(now, node));
            (!stays).then_some(())
        };
        self.map.until(elsewhere).await;
    }

    /// Waits for a connection to the primary that stores a lock. Also returns this primary.
    pub(crate) async fn connected(
        self: &Arc<Self>,
        name: &LockName,
    ) -> Result<(Arc<Node>, Arc<Connection>), BackendError> {
        loop {
            let node = self.node(name).await?;
            tokio::select! {
                biased;
                connection = node.connection() => match connection {
                    Err(_) if !self.is_closed() => {}
                    connection => return Ok((node, connection?)),
                },
                () = self.moves_from(&node, name) => continue,
            }
            // The session has ended, because its primary stores no slot any longer.
            self.moves_from(&node, name).await;
        }
    }

    /// Waits for a connection of `session`. Fails if the session has ended, or if another primary stores the lock.
    pub(crate) async fn connection(
        &self,
        session: &Arc<Session>,
        name: &LockName,
    ) -> Result<Arc<Connection>, BackendError> {
        let elsewhere = || BackendError::Unreachable("the lock has moved to another server".into());
        let node = self.known_node(name).filter(|node| node.has(session));
        let node = node.ok_or_else(elsewhere)?;
        tokio::select! {
            biased;
            connection = session.connection() => connection,
            () = self.moves_from(&node, name) => Err(elsewhere()),
        }
    }

    /// Returns the server to which a command was redirected.
    pub(crate) fn at(&self, redirect: &Redirect) -> Arc<Node> {
        let now = self.context.now();
        self.map.change(|map| {
            let node = self.node_at(map, redirect.address.clone());
            map.asked.insert(redirect.address.to_string(), now);
            node
        })
    }

    /// Records the primary that stores a slot, according to a redirection.
    pub(crate) fn moved(&self, redirect: &Redirect) {
        let from = self.map.change(|map| {
            let node = self.node_at(map, redirect.address.clone());
            let slot = map.slots.get_mut(usize::from(redirect.slot))?;
            slot.replace(node.clone())
                .filter(|from| !Arc::ptr_eq(from, &node))
        });
        if let Some(from) = from {
            tracing::debug!(target: TARGET, slot = redirect.slot, to = %redirect.address, "a slot has moved");
            from.dismiss(|name| slot_of(name.as_str()) == redirect.slot);
        }
        self.outdated.notify_one();
    }

    fn node_at(&self, map: &mut SlotMap, address: ConnectionAddr) -> Arc<Node> {
        let node = map.nodes.entry(address.to_string());
        let new = || Arc::new(Node::new(self.seeds[0].beside(address), self.host.clone()));
        let node = node.or_insert_with(new).clone();
        if self.is_closed() {
            node.close();
        }
        node
    }

    /// Returns the connector to the first server that the user has named.
    pub(crate) fn seed(&self) -> &Connector {
        &self.seeds[0]
    }

    /// Connects to the servers of the cluster, reads the slot map, and checks all primaries. Succeeds if more than half
    /// of the primaries answer, and all of the answering primaries pass the check. The cluster can then replace the
    /// other primaries. A primary that does not answer now is checked later, before a session connects to it.
    pub(crate) async fn check(
        self: &Arc<Self>,
        required: ServerCheck,
        until: Moment,
    ) -> Result<(), Failure> {
        self.read().await.map_err(|error| match error.kind() {
            // A server that belongs to no cluster refuses to describe the slots.
            ErrorKind::Server(ServerErrorKind::ResponseError) => Failure::NoCluster,
            _ => Failure::of(&error).of_user(&self.seeds[0]),
        })?;
        let nodes = self.nodes();
        if nodes.is_empty() {
            let detail = "no server of the cluster stores a slot";
            return Err(Failure::Unreachable(detail.into()));
        }
        let mut until = until;
        let left = until.since(self.context.now());
        let checks = nodes.iter().map(|node| async move {
            let checked = check(node.connector(), required, left).await;
            (node, checked)
        });
        let mut checks: FuturesUnordered<_> = checks.collect();
        let (mut usable, mut unreachable) = (0, None);
        while let Some(Some((node, checked))) = self.context.timeout_at(until, checks.next()).await
        {
            match checked {
                Ok(()) => {
                    node.connector().note_checked();
                    usable += 1;
                    if 2 * usable > nodes.len() {
                        until = until.min(self.context.now() + limits::ASK_PATIENCE);
                    }
                }
                // A primary that cannot be reached now can answer later, or the cluster can replace it, so the check
                // continues.
                Err(failure @ (Failure::Unreachable(_) | Failure::Closed(_))) => {
                    unreachable = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        if 2 * usable <= nodes.len() {
            let failure = unreachable.unwrap_or_else(|| Failure::Unreachable("no answer".into()));
            return Err(failure);
        }
        self.follow();
        Ok(())
    }

    /// Makes the first session with each primary check the primary before it connects.
    pub(crate) fn check_later(&self, required: ServerCheck) {
        self.seeds[0].check_first(required);
    }

    /// Starts the task that reads the slot map, unless this task is running.
    fn follow(self: &Arc<Self>) {
        let mut reading = lock(&self.reading);
        if reading.is_none() && !self.is_closed() {
            let (cluster, outdated) = (Arc::downgrade(self), self.outdated.clone());
            let following = follow(self.context.clone(), cluster, outdated);
            *reading = Some(self.context.spawn(following).abort_handle());
        }
    }

    /// Asks all servers for the slot map, and applies the newest answer. Returns whether the slot map has changed.
    async fn read(&self) -> Result<bool, RedisError> {
        let nodes = self.nodes();
        let others = self.seeds.iter().filter(|seed| {
            let known = nodes.iter().map(|node| node.connector().server_address());
            !known
                .into_iter()
                .any(|known| known == seed.server_address())
        });
        let asked = nodes.iter().map(|node| node.connector()).chain(others);
        let mut until = self.context.now() + limits::ASK_PATIENCE;
        let mut answers: FuturesUnordered<_> = asked.map(|server| self.ask(server)).collect();
        let (asked, mut heard) = (answers.len(), 0);
        let (mut newest, mut failure): (Option<View>, _) = (None, None);
        while let Some(Some(answer)) = self.context.timeout_at(until, answers.next()).await {
            match answer {
                Ok(view) => {
                    heard += 1;
                    if 2 * heard > asked {
                        until = until.min(self.context.now() + limits::SLOTS_REST);
                    }
                    if newest.as_ref().is_none_or(|now| now.newness < view.newness) {
                        newest = Some(view);
                    }
                }
                // An error in the answer of a server is preferred, because it says more about the cause than a failed
                // connection does.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) =>
                {
                    failure = Some(error);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (newest, failure) {
            (Some(view), _) => Ok(self.apply(view)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    async fn ask(&self, server: &Connector) -> Result<View, RedisError> {
        let (mut wire, address) = server.connect().await?;
        let mut asking = redis::pipe();
        asking.cmd("CLUSTER").arg("INFO");
        asking.cmd("CLUSTER").arg("SLOTS");
        let (info, slots): (String, Vec<Value>) = asking.query_async(&mut wire).await?;
        let epoch = field(&info, "cluster_current_epoch");
        let view = View {
            newness: (
                field(&info, "cluster_state") == Some("ok"),
                epoch
                    .and_then(|epoch| epoch.parse().ok())
                    .unwrap_or_default(),
            ),
            ranges: slots
                .into_iter()
                .map(|range| read_range(range, &address))
                .collect::<Result<_, _>>()?,
        };
        Ok(view)
    }

    /// Replaces the slot map. Closes the connections to servers that store no slot any longer. Callers that wait for
    /// locks in moved slots get a new session. Returns whether the slot map has changed.
    fn apply(&self, view: View) -> bool {
        let (before, now) = self.map.change(|map| {
            let before = map.clone();
            map.slots = vec![None; SLOTS.into()];
            let mut nodes = BTreeMap::new();
            for (first, last, address) in view.ranges {
                let node = self.node_at(map, address);
                nodes.insert(node.connector().server_address(), node.clone());
                for slot in first..=last.min(SLOTS - 1) {
                    map.slots[usize::from(slot)] = Some(node.clone());
                }
            }
            let now = self.context.now();
            map.asked
                .retain(|_, asked| now < *asked + limits::ASKED_FOR);
            for address in map.asked.keys() {
                if let Some(node) = before.nodes.get(address) {
                    nodes.entry(address.clone()).or_insert_with(|| node.clone());
                }
            }
            map.nodes = nodes;
            (before, map.clone())
        });
        let has_moved = |slot: u16| match (before.node(slot), now.node(slot)) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
            (Some(_), None) => true,
            (None, _) => false,
        };
        for (address, node) in &before.nodes {
            if now
                .nodes
                .get(address)
                .is_some_and(|now| Arc::ptr_eq(now, node))
            {
                node.dismiss(|name| has_moved(slot_of(name.as_str())));
            } else {
                tracing::debug!(target: TARGET, server = %address, "a server stores no slot any longer");
                node.dismiss_waiters();
                node.close();
            }
        }
        // The primary has probably been replaced by one of its replicas, which may lack grants.
        if !now.primaries().is_superset(&before.primaries()) {
            self.seeds[0].server_changed.notify_one();
        }
        (0..SLOTS).any(|slot| match (before.node(slot), now.node(slot)) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
            (before, now) => before.is_some() != now.is_some(),
        })
    }

    /// Ends the calls that wait until the slot map names the primary of their lock. These calls return an error.
    pub(crate) fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Release);
        self.map.change(|_| ());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for node in self.nodes() {
            node.close();
        }
        self.map.change(|_| ());
        if let Some(reading) = lock(&self.reading).as_ref() {
            reading.abort();
        }
    }
}

/// Reads the slot map, and reads it again whenever it may be outdated.
async fn follow(context: Arc<Context>, cluster: Weak<Cluster>, outdated: Arc<Notify>) {
    let mut is_known = cluster
        .upgrade()
        .is_some_and(|cluster| !cluster.nodes().is_empty());
    let mut pause = READ_PAUSE.0;
    loop {
        if is_known {
            let asked = context.now();
            outdated.notified().await;
            if asked + READ_PAUSE.1 < context.now() {
                pause = READ_PAUSE.0;
            }
        }
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        let read = cluster.read().await;
        is_known = read.is_ok() && !cluster.nodes().is_empty();
        pause = match read {
            Ok(true) => READ_PAUSE.0,
            _ => (pause * 2).min(READ_PAUSE.1),
        };
        if let Err(error) = read {
            cluster.seeds[0].outages.note(error.to_string());
            tracing::debug!(target: TARGET, %error, "no server of the cluster has reported the slot map");
        }
        drop(cluster);
        context.sleep(pause).await;
    }
}

/// Reads one range of the answer to `CLUSTER SLOTS`: the first slot, the last slot, and the host and the port of the
/// primary.
fn read_range(
    range: Value,
    asked: &ConnectionAddr,
) -> Result<(u16, u16, ConnectionAddr), ParsingError> {
    let fields = Vec::<Value>::from_redis_value(range)?;
    let mut fields = fields.into_iter();
    let mut next = || fields.next().unwrap_or(Value::Nil);
    let (first, last) = (
        u16::from_redis_value(next())?,
        u16::from_redis_value(next())?,
    );
    let primary = Vec::<Value>::from_redis_value(next())?;
    let mut primary = primary.into_iter();
    let mut next = || primary.next().unwrap_or(Value::Nil);
    let host = Option::<String>::from_redis_value(next())?.unwrap_or_default();
    let port = u16::from_redis_value(next())?;
    Ok((first, last, Redirect::address(&host, port, asked)))
}
