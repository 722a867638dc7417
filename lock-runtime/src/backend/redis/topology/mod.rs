//! The topologies. A topology determines which server stores a lock, and so which session serves the lock.
//!
//! In a Redis Cluster, a lock can move to another server. The callers that wait for a lock that has moved get a new
//! session with the other server, and keep their places in the queue.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{BackendError, BoxFuture},
    key::LockName,
};

use self::{cluster::Cluster, node::Node};
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
    background::Context,
};

#[cfg_attr(not(feature = "cluster"), path = "no_cluster.rs")]
pub(crate) mod cluster;
pub(crate) mod node;

/// The servers of a client, each with its session.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server, or the primary of a group that Sentinels watch.
    Single(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Creates the topology of the servers with these connectors, without connecting to them.
    pub(crate) fn new(context: &Arc<Context>, mut connectors: Vec<Connector>, host: Host) -> Self {
        match connectors[0].outdated.clone() {
            None => Self::Single(Arc::new(Node::new(connectors.swap_remove(0), host))),
            Some(outdated) => {
                let cluster = Cluster::new(context.clone(), connectors, outdated, host);
                Self::Cluster(cluster)
            }
        }
    }

    /// Returns the only server. Must be called only for a node of a Redlock, which is a single server.
    pub(crate) fn only(&self) -> &Arc<Node> {
        match self {
            Self::Single(node) => node,
            Self::Cluster(_) => unreachable!("a node of a Redlock is a single server"),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns a number that is the same for all locks whose keys one script can use together. In a Redis Cluster, the
    /// number is the hash slot of the lock.
    pub(crate) fn shard(&self, name: &LockName) -> u16 {
        match self {
            Self::Single(_) => 0,
            Self::Cluster(_) => slot_of(name.as_str()),
        }
    }

    /// Returns the session that serves a lock.
    pub(crate) async fn session(&self, name: &LockName) -> Result<Arc<Session>, BackendError> {
        match self {
            Self::Single(node) => Ok(node.session().clone()),
            Self::Cluster(cluster) => Ok(cluster.node(name).await?.session().clone()),
        }
    }

    /// Waits for a connection to the server that stores a lock. Also returns this server.
    pub(crate) async fn connected(
        &self,
        name: &LockName,
    ) -> Result<(Arc<Node>, Arc<Connection>), BackendError> {
        match self {
            Self::Single(node) => Ok((node.clone(), node.connection().await?)),
            // The future is boxed, so that the future of a call to a single server stays small.
            Self::Cluster(cluster) => {
                let connecting: BoxFuture<'_, _> = Box::pin(cluster.connected(name));
                connecting.await
            }
        }
    }

    /// Waits for a connection of this session. Fails if the session has ended, or no longer serves the lock.
    pub(crate) async fn connection(
        &self,
        session: &Arc<Session>,
        name: &LockName,
    ) -> Result<Arc<Connection>, BackendError> {
        match self {
            Self::Single(_) => session.connection().await,
            Self::Cluster(cluster) => {
                let connecting: BoxFuture<'_, _> = Box::pin(cluster.connection(session, name));
                connecting.await
            }
        }
    }

    /// Returns the server of this session, in a Redis Cluster. Returns `None` outside of a cluster, or if that server
    /// stores no locks any longer.
    pub(crate) fn shard_of(&self, session: &Arc<Session>) -> Option<Arc<Node>> {
        match self {
            Self::Single(_) => None,
            Self::Cluster(cluster) => cluster.node_of(session),
        }
    }

    /// Waits for a connection to the server to which an `ASK` error has redirected a command. Also returns this server.
    pub(crate) async fn redirected(
        &self,
        redirect: &Redirect,
    ) -> Result<(Arc<Node>, Arc<Connection>), BackendError> {
        let node = match self {
            Self::Single(node) => node.clone(),
            Self::Cluster(cluster) => cluster.at(redirect),
        };
        let connection = node.connection().await?;
        Ok((node, connection))
    }

    /// Returns whether the session connects to the server that stores the lock.
    pub(crate) fn serves(&self, session: &Arc<Session>, name: &LockName) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Cluster(cluster) => cluster.serves(session, name),
        }
    }

    /// Records that another server stores the locks of a slot.
    pub(crate) fn moved(&self, redirect: &Redirect) {
        if let Self::Cluster(cluster) = self {
            cluster.moved(redirect);
        }
    }

    /// Connects to the servers once, and reports problems with them.
    pub(crate) async fn check(
        self: &Arc<Self>,
        context: &Arc<Context>,
        required: ServerCheck,
        patience: Duration,
    ) -> Result<(), Failure> {
        let topology = self.clone();
        let until = context.now() + patience;
        let checked = context.spawn(async move {
            match &*topology {
                Self::Single(node) => check(node.connector(), required, patience).await,
                Self::Cluster(cluster) => cluster.check(required, until).await,
            }
        });
        let failure = match context.timeout_at(until, checked).await {
            Some(Ok(Ok(()))) => {
                // `Cluster::check` has recorded which servers of the cluster were checked, because some of the servers
                // may not have answered.
                if let Self::Single(node) = &**self {
                    node.connector().note_checked();
                }
                return Ok(());
            }
            Some(Ok(Err(failure))) => failure,
            Some(Err(panic)) => Failure::Refused(panic.to_string()),
            None => Failure::Unreachable("no answer".into()),
        };
        let connector = match &**self {
            Self::Single(node) => node.connector(),
            Self::Cluster(cluster) => cluster.seed(),
        };
        Err(match failure {
            // All servers have the same provider of credentials.
            Failure::Unreachable(_) if connector.waits_for_credentials() => {
                Failure::of(&connector.no_answer(patience))
            }
            failure => failure,
        })
    }

    /// Makes the first session with each server check the server before it connects.
    pub(crate) fn check_later(&self, required: ServerCheck) {
        match self {
            Self::Single(node) => node.connector().check_first(required),
            Self::Cluster(cluster) => cluster.check_later(required),
        }
    }

    /// Returns the known servers that store locks. If `name` is given, returns only the server that stores this lock.
    pub(crate) fn nodes_of(&self, name: Option<&LockName>) -> Vec<Arc<Node>> {
        match (self, name) {
            (Self::Cluster(cluster), Some(name)) => cluster.known_node(name).into_iter().collect(),
            _ => self.nodes(),
        }
    }

    /// Returns the session with this number, if its server still stores locks.
    pub(crate) fn linked(&self, link: Link) -> Option<Arc<Session>> {
        match self {
            Self::Single(node) => Some(node.session().clone()),
            Self::Cluster(cluster) => cluster.linked(link),
        }
    }

    /// Returns all known servers that store locks.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::Single(node) => vec![node.clone()],
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Starts to connect to the servers, so that the first call finds a connection.
    pub(crate) fn connect(&self) {
        for node in self.nodes() {
            node.session();
        }
    }

    /// Ends the wait of all callers.
    pub(crate) fn dismiss_waiters(&self) {
        for node in self.nodes() {
            node.dismiss_waiters();
        }
        if let Self::Cluster(cluster) = self {
            cluster.begin_shutdown();
        }
    }

    /// Returns whether all connections of this client were given up.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Single(node) => node.is_closed(),
            Self::Cluster(cluster) => cluster.is_closed(),
        }
    }

    /// Gives up all connections of this client.
    pub(crate) fn close(&self) {
        match self {
            Self::Single(node) => node.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}
