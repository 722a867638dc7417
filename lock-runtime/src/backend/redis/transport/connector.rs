//! The settings for connections to one server, and the state that all these connections share.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{layout::Layout, options::AccessMode};
use redis::{ConnectionAddr, ConnectionInfo, RedisError};

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    backend::redis::transport::{
        access::Access,
        credentials::{Obtained, no_credentials},
        liveness::Readiness,
        outage::Outages,
        sentinel::{SentinelConfig, Sentinels},
        wire::{Arrival, Wire},
    },
    background::{Context, lock},
    connect_error::ConnectError,
    events::Counters,
    patience::{self, Line},
};

/// The addresses of the servers, and the name of this program in the servers' lists of connections.
pub(crate) struct Destination {
    pub(crate) place: Place,
    pub(crate) application: String,
    pub(crate) access: Access,
    pub(crate) needs: Needs,
}

/// The settings of a client that decide which rights its Redis user needs.
#[derive(Debug, Clone)]
pub(crate) struct Needs {
    pub(crate) layout: Layout,
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) access: AccessMode,
    /// Whether the client's calls wait for replicas by default.
    pub(crate) replicas: bool,
    /// Whether the server is a node of a Redlock. Such a node stores a mark beside its token counter.
    pub(crate) is_redlock: bool,
}

/// The addresses of the servers, and the settings for connections to them.
pub(crate) enum Place {
    Server(ConnectionInfo),
    /// Some servers of a Redis Cluster. The settings of the first of these servers also apply to servers that only the
    /// cluster itself reports.
    Cluster(Vec<ConnectionInfo>),
    /// The primary of a group of servers that Sentinels watch.
    Group(SentinelConfig),
}

/// One server, given by its address or by the group of which it is the primary.
enum Server {
    At(ConnectionInfo),
    PrimaryOf(SentinelConfig),
}

/// The server or the group to which the connector connects.
enum Target {
    Server(Box<ConnectionInfo>),
    Group(Arc<Sentinels>),
}

/// The options of the check whether a server can be used for locks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerCheck {
    /// Whether the check accepts a server that evicts keys.
    pub(crate) allow_eviction: bool,
    /// A channel to which the Redis user must be able to subscribe, and on which the user must be able to publish.
    pub(crate) probe_channel: Option<&'static str>,
}

/// The settings for connections to one server, and the state that all these connections share.
pub(crate) struct Connector {
    pub(crate) context: Arc<Context>,
    target: Target,
    pub(crate) access: Access,
    /// The settings that decide which rights the Redis user needs.
    pub(crate) needs: Needs,
    /// The commands that load the scripts of the connection's layout.
    pub(crate) scripts: redis::Pipeline,
    /// The name of this program in the server's list of connections.
    pub(crate) application: String,
    /// The check of the server that has to succeed before the first session connects. `None` if no check is needed.
    check_first: Mutex<Option<ServerCheck>>,
    pub(crate) outages: Arc<Outages>,
    pub(crate) readiness: Arc<Readiness>,
    /// The round trip that the connections to this server have shown.
    pub(crate) line: Arc<Line>,
    pub(crate) counters: Arc<Counters>,
    /// Notified when the slot map of the Redis Cluster may be outdated. `None` outside of a cluster.
    pub(crate) outdated: Option<Arc<Notify>>,
    /// Notified when the session has connected to another server than before, or to a server that has
    /// restarted, and when a primary of the Redis Cluster no longer stores any slot.
    pub(crate) server_changed: Arc<Notify>,
}

impl Connector {
    fn new(
        context: Arc<Context>,
        server: Server,
        application: String,
        access: Access,
        needs: Needs,
        scripts: redis::Pipeline,
        counters: Arc<Counters>,
    ) -> Result<Self, ConnectError> {
        access.check(match &server {
            Server::At(info) => info.addr(),
            Server::PrimaryOf(config) => config.server.addr(),
        })?;
        let (target, address) = match server {
            Server::At(info) => {
                let address = info.addr().to_string();
                (Target::Server(Box::new(info)), address)
            }
            Server::PrimaryOf(config) => {
                let sentinels = Arc::new(Sentinels::new(config, access.of_sentinels()));
                sentinels.listen(&context);
                let address = sentinels.to_string();
                (Target::Group(sentinels), address)
            }
        };
        Ok(Self {
            outages: Outages::new(context.clone(), address),
            context,
            target,
            access,
            needs,
            scripts,
            application,
            check_first: Mutex::new(None),
            readiness: Arc::default(),
            line: Arc::default(),
            counters,
            outdated: None,
            server_changed: Arc::default(),
        })
    }

    /// Returns one connector for a single server or a group, or one connector for each server of a Redis Cluster that
    /// `place` names.
    pub(crate) fn all(
        context: &Arc<Context>,
        Destination {
            place,
            application,
            access,
            needs,
        }: Destination,
        scripts: &redis::Pipeline,
        counters: &Arc<Counters>,
    ) -> Result<Vec<Self>, ConnectError> {
        let connector = |place| {
            let application = application.clone();
            Self::new(
                context.clone(),
                place,
                application,
                access.clone(),
                needs.clone(),
                scripts.clone(),
                counters.clone(),
            )
        };
        let servers = match place {
            Place::Server(info) => return Ok(vec![connector(Server::At(info))?]),
            Place::Group(config) => return Ok(vec![connector(Server::PrimaryOf(config))?]),
            Place::Cluster(servers) => servers,
        };
        let outdated = Arc::new(Notify::new());
        let addresses: Vec<_> = servers.iter().map(|info| info.addr().to_string()).collect();
        let url = format!("redis+cluster://{}", addresses.join(","));
        let outages = Outages::new(context.clone(), url);
        let connectors = servers.into_iter().map(|info| {
            Ok(Self {
                outages: outages.clone(),
                outdated: Some(outdated.clone()),
                ..connector(Server::At(info))?
            })
        });
        connectors.collect()
    }

    /// Returns the connector for another server of the same cluster.
    pub(crate) fn beside(&self, address: ConnectionAddr) -> Self {
        let target = match &self.target {
            Target::Server(info) => Target::Server(Box::new((**info).clone().set_addr(address))),
            Target::Group(sentinels) => Target::Group(sentinels.clone()),
        };
        Self {
            context: self.context.clone(),
            target,
            access: self.access.clone(),
            needs: self.needs.clone(),
            scripts: self.scripts.clone(),
            application: self.application.clone(),
            check_first: Mutex::new(self.pending_check()),
            outages: self.outages.clone(),
            readiness: Arc::default(),
            line: Arc::default(),
            counters: self.counters.clone(),
            outdated: self.outdated.clone(),
            server_changed: self.server_changed.clone(),
        }
    }

    /// Returns the address of this server. In a Redis Cluster, [`address`](Self::address) returns the name of the
    /// cluster instead.
    pub(crate) fn server_address(&self) -> String {
        match &self.target {
            Target::Server(info) => info.addr().to_string(),
            Target::Group(sentinels) => sentinels.to_string(),
        }
    }

    /// Returns the name of the Redis user.
    pub(crate) fn user(&self) -> String {
        let of_provider = self
            .access
            .provider
            .as_ref()
            .and_then(|provider| provider.user());
        let settings = match &self.target {
            Target::Server(info) => info.redis_settings(),
            Target::Group(sentinels) => sentinels.settings(),
        };
        let of_url = || settings.username().map(str::to_owned);
        of_provider
            .or_else(of_url)
            .unwrap_or_else(|| "default".into())
    }

    /// Records that a connection was lost, or could not be made. In a Redis Cluster, the engine then reads the slot map
    /// again.
    pub(crate) fn note_lost(&self) {
        if let Some(outdated) = &self.outdated {
            outdated.notify_one();
        }
    }

    pub(crate) fn address(&self) -> &str {
        self.outages.address()
    }

    /// Makes the sessions check the server before the first session connects.
    pub(crate) fn check_first(&self, check: ServerCheck) {
        *lock(&self.check_first) = Some(check);
    }

    /// Returns the check of the server that has to succeed before a session connects.
    pub(crate) fn pending_check(&self) -> Option<ServerCheck> {
        *lock(&self.check_first)
    }

    /// Records that the check of the server has succeeded.
    pub(crate) fn note_checked(&self) {
        *lock(&self.check_first) = None;
    }

    /// Returns the time limit for one try to connect, if `near` is the time limit for a near server.
    pub(crate) fn open_patience(&self, near: Duration) -> Duration {
        patience::for_connection(near, self.line.round_trip())
    }

    /// Returns whether Sentinels name the address of the server.
    pub(crate) fn is_group(&self) -> bool {
        matches!(self.target, Target::Group(_))
    }

    /// Returns whether another server can replace this server without notice to a client that is connected to this
    /// server.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.is_group() || self.outdated.is_some()
    }

    /// Returns the address of the server, or `None` if Sentinels name the server's address.
    pub(crate) fn fixed_address(&self) -> Option<&ConnectionAddr> {
        match &self.target {
            Target::Server(info) => Some(info.addr()),
            Target::Group(_) => None,
        }
    }

    /// Makes a connection that receives no push messages. Returns the connection with the address of its server.
    pub(crate) async fn connect(&self) -> Result<(Wire, ConnectionAddr), RedisError> {
        let (wire, address, _) = self.log_in(|_| {}).await?;
        Ok((wire, address))
    }

    /// Makes a connection, and passes everything that arrives to `receive`. Returns the connection with the address of
    /// its server, and with the credentials of the provider, if there is a provider.
    pub(crate) async fn log_in(
        &self,
        receive: impl Fn(Arrival) + Send + Sync + 'static,
    ) -> Result<(Wire, ConnectionAddr, Option<Obtained>), RedisError> {
        let info = match &self.target {
            Target::Server(info) => Cow::Borrowed(&**info),
            Target::Group(sentinels) => {
                let address = sentinels.primary(&self.context).await?;
                Cow::Owned(sentinels.server_at(address))
            }
        };
        let connecting = self.access.connect(&self.context, &info, receive);
        let (wire, obtained) = connecting.await?;
        Ok((wire, info.addr().clone(), obtained))
    }

    /// Returns the error of a try to connect that has taken longer than `patience`.
    pub(crate) fn no_answer(&self, patience: Duration) -> RedisError {
        if self.waits_for_credentials() {
            return no_credentials(&format!("no answer within {patience:?}"));
        }
        let detail = "the server did not answer the handshake";
        std::io::Error::new(std::io::ErrorKind::TimedOut, detail).into()
    }

    /// Returns whether the provider of credentials has been asked and has not answered yet.
    pub(crate) fn waits_for_credentials(&self) -> bool {
        let provider = self.access.provider.as_ref();
        provider.is_some_and(|provider| provider.is_asked())
    }

    /// Starts a task that logs in again before the credentials of the provider expire. Starts no task if these
    /// credentials do not expire.
    pub(crate) fn keep_logged_in(
        &self,
        wire: &Wire,
        obtained: Option<Obtained>,
    ) -> Option<AbortOnDropHandle<()>> {
        let obtained = obtained?;
        obtained.login_again()?;
        let (provider, context) = (self.access.provider.clone()?, self.context.clone());
        let server = self.address().to_owned();
        let task = provider.keep_logged_in(context, server, wire.clone(), obtained);
        Some(AbortOnDropHandle::new(self.context.spawn(task)))
    }

    /// Waits until a Sentinel reports that a server other than `address` has become the primary. Without Sentinels, the
    /// returned future never completes.
    pub(crate) async fn moves_from(&self, address: &ConnectionAddr) {
        match &self.target {
            Target::Server(_) => std::future::pending().await,
            Target::Group(sentinels) => sentinels.moves_from(address).await,
        }
    }
}
