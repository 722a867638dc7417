//! The servers of a client, and which of them stores a lock.
//!
//! In a Redis Cluster, a lock can move to another server. The callers that wait for a lock that has moved get a new
//! session with the other server, and keep their places in the queue.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, BoxFuture},
    key::LockName,
    lease::Moment,
};
use redis::ConnectionAddr;
use tokio::sync::Notify;

use self::node::Node;
use crate::{
    backend::redis::{
        core::Link,
        preflight::{Failure, check},
        protocol::slot::slot_of,
        session::{Host, Session},
        transport::{
            call_error::Redirect,
            connection::Connection,
            connector::{Connector, ServerCheck},
        },
    },
    background::{Context, watched::Watched},
    events::TARGET,
    limits,
};

#[cfg(feature = "cluster")]
mod cluster;
pub(crate) mod node;

/// The servers of a client, each with its session.
pub(crate) struct Topology {
    context: Arc<Context>,
    host: Host,
    /// The only server, or the primary of a group that Sentinels watch. `None` for a Redis Cluster.
    only: Option<Arc<Node>>,
    /// The servers of a Redis Cluster that the URL names.
    seeds: Vec<Connector>,
    map: Watched<SlotMap>,
    /// Notified when the slot map may be outdated.
    outdated: Arc<Notify>,
    /// The task that reads the slot map.
    #[cfg(feature = "cluster")]
    reading: cluster::Reading,
    shutting_down: AtomicBool,
    closed: AtomicBool,
}

/// The slot map of a Redis Cluster: which primary stores which slot.
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
}

impl Topology {
    /// Creates the topology of the servers with these connectors, without connecting to them.
    pub(crate) fn new(context: &Arc<Context>, mut connectors: Vec<Connector>, host: Host) -> Self {
        let outdated = connectors[0].outdated.clone();
        let only = outdated
            .is_none()
            .then(|| Arc::new(Node::new(connectors.swap_remove(0), host.clone())));
        Self {
            context: context.clone(),
            host,
            only,
            seeds: connectors,
            map: Watched::default(),
            outdated: outdated.unwrap_or_default(),
            #[cfg(feature = "cluster")]
            reading: cluster::Reading::default(),
            shutting_down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns the only server. Must be called only for a node of a Redlock, which is a single server.
    pub(crate) fn only(&self) -> &Arc<Node> {
        let only = self.only.as_ref();
        only.expect("a node of a Redlock is a single server")
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.only.is_none()
    }

    /// Returns a number that is the same for all locks whose keys one script can use together. In a Redis Cluster, the
    /// number is the hash slot of the lock.
    pub(crate) fn shard(&self, name: &LockName) -> u16 {
        match self.is_cluster() {
            true => slot_of(name.as_str()),
            false => 0,
        }
    }

    /// Returns the session that serves a lock.
    pub(crate) async fn session(
        self: &Arc<Self>,
        name: &LockName,
    ) -> Result<Arc<Session>, BackendError> {
        Ok(self.node(name).await?.session().clone())
    }

    /// Returns the server that stores the lock. In a Redis Cluster, waits until the slot map names this server.
    async fn node(self: &Arc<Self>, name: &LockName) -> Result<Arc<Node>, BackendError> {
        if let Some(only) = &self.only {
            return Ok(only.clone());
        }
        #[cfg(feature = "cluster")]
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

    /// Returns the server that stores a lock, or `None` if the slot map names no primary for the lock.
    fn known_node(&self, name: &LockName) -> Option<Arc<Node>> {
        let only = self.only.clone();
        only.or_else(|| self.map.get().node(slot_of(name.as_str())).cloned())
    }

    /// Returns all known servers that store locks.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.only {
            Some(only) => vec![only.clone()],
            None => self.map.get().nodes.values().cloned().collect(),
        }
    }

    /// Returns the known servers that store locks. If `name` is given, returns only the server that stores this lock.
    pub(crate) fn nodes_of(&self, name: Option<&LockName>) -> Vec<Arc<Node>> {
        match name {
            Some(name) => self.known_node(name).into_iter().collect(),
            None => self.nodes(),
        }
    }

    /// Returns the server of this session. Returns `None` if that server stores no locks any longer.
    pub(crate) fn node_of(&self, session: &Arc<Session>) -> Option<Arc<Node>> {
        let nodes = self.nodes();
        nodes.into_iter().find(|node| node.has(session))
    }

    /// Returns the session with this number, if its server still stores locks.
    pub(crate) fn linked(&self, link: Link) -> Option<Arc<Session>> {
        self.nodes().iter().find_map(|node| node.linked(link))
    }

    /// Returns whether the session connects to the server that stores the lock.
    pub(crate) fn serves(&self, session: &Arc<Session>, name: &LockName) -> bool {
        self.only.is_some() || self.known_node(name).is_some_and(|node| node.has(session))
    }

    /// Waits until `node` is no longer the server that stores the lock.
    async fn moves_from(&self, node: &Arc<Node>, name: &LockName) {
        let slot = slot_of(name.as_str());
        let elsewhere = |map: &SlotMap| {
            let stays = map.node(slot).is_some_and(|now| Arc::ptr_eq(now, node));
            (!stays).then_some(())
        };
        self.map.until(elsewhere).await;
    }

    /// Waits for a connection to the server that stores a lock. Also returns this server.
    pub(crate) async fn connected(
        self: &Arc<Self>,
        name: &LockName,
    ) -> Result<(Arc<Node>, Arc<Connection>), BackendError> {
        if let Some(only) = &self.only {
            return Ok((only.clone(), only.connection().await?));
        }
        // The future is boxed, so that the future of a call to a single server stays small.
        let connecting: BoxFuture<'_, _> = Box::pin(async {
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
        });
        connecting.await
    }

    /// Waits for a connection of this session. Fails if the session has ended, or no longer serves the lock.
    pub(crate) async fn connection(
        &self,
        session: &Arc<Session>,
        name: &LockName,
    ) -> Result<Arc<Connection>, BackendError> {
        if self.only.is_some() {
            return session.connection().await;
        }
        let elsewhere = || BackendError::Unreachable("the lock has moved to another server".into());
        let node = self.known_node(name).filter(|node| node.has(session));
        let node = node.ok_or_else(elsewhere)?;
        let connecting: BoxFuture<'_, _> = Box::pin(async {
            tokio::select! {
                biased;
                connection = session.connection() => connection,
                () = self.moves_from(&node, name) => Err(elsewhere()),
            }
        });
        connecting.await
    }

    /// Waits for a connection to the server to which an `ASK` error has redirected a command. Also returns this server.
    pub(crate) async fn redirected(
        &self,
        redirect: &Redirect,
    ) -> Result<(Arc<Node>, Arc<Connection>), BackendError> {
        let now = self.context.now();
        let node = self.map.change(|map| {
            let node = self.node_at(map, redirect.address.clone());
            map.asked.insert(redirect.address.to_string(), now);
            node
        });
        let connection = node.connection().await?;
        Ok((node, connection))
    }

    /// Records that another server stores the locks of a slot.
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

    /// Connects to the servers once, and reports problems with them.
    pub(crate) async fn check(
        self: &Arc<Self>,
        required: ServerCheck,
        patience: Duration,
    ) -> Result<(), Failure> {
        let (topology, context) = (self.clone(), &self.context);
        let until = context.now() + patience;
        let checked = context.spawn(async move {
            match &topology.only {
                Some(only) => check(only.connector(), required, patience)
                    .await
                    .map(|()| only.connector().note_checked()),
                #[cfg(feature = "cluster")]
                None => topology.check_primaries(required, until).await,
                #[cfg(not(feature = "cluster"))]
                None => unreachable!("the builder has refused the URL of a cluster"),
            }
        });
        let failure = match context.timeout_at(until, checked).await {
            Some(Ok(Ok(()))) => return Ok(()),
            Some(Ok(Err(failure))) => failure,
            Some(Err(panic)) => Failure::Refused(panic.to_string()),
            None => Failure::Unreachable("no answer".into()),
        };
        Err(match failure {
            // All servers have the same provider of credentials.
            Failure::Unreachable(_) if self.connector().waits_for_credentials() => {
                Failure::of(&self.connector().no_answer(patience))
            }
            failure => failure,
        })
    }

    /// Returns the connector to the first server that the user has named.
    fn connector(&self) -> &Connector {
        match &self.only {
            Some(only) => only.connector(),
            None => &self.seeds[0],
        }
    }

    /// Makes the first session with each server check the server before it connects.
    pub(crate) fn check_later(&self, required: ServerCheck) {
        self.connector().check_first(required);
    }

    /// Starts to connect to the servers, so that the first call finds a connection.
    pub(crate) fn connect(&self) {
        for node in self.nodes() {
            node.session();
        }
    }

    /// Ends the wait of all callers, and of those that wait until the slot map names the primary of their lock.
    pub(crate) fn dismiss_waiters(&self) {
        for node in self.nodes() {
            node.dismiss_waiters();
        }
        self.shutting_down.store(true, Ordering::Release);
        self.map.change(|_| ());
    }

    /// Returns whether all connections of this client were given up.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives up all connections of this client.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for node in self.nodes() {
            node.close();
        }
        self.map.change(|_| ());
        #[cfg(feature = "cluster")]
        self.reading.stop();
    }
}
