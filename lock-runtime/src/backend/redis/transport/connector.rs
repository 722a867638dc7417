//! The settings for connections to one server, and the state that all these connections share.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ProtocolVersion, RedisError, aio::MultiplexedConnection,
};

use crate::{
    backend::redis::transport::{
        liveness::Readiness,
        outage::Outages,
        sentinel::{SentinelConfig, Sentinels},
    },
    background::{Context, sync::lock},
    connect_error::ConnectError,
    events::Counters,
};

/// Where a server is, and the name of this program in the server's list of connections.
pub(crate) struct Destination {
    pub(crate) place: Place,
    pub(crate) client_name: String,
}

/// Where a server is.
pub(crate) enum Place {
    Server(redis::ConnectionInfo),
    /// The primary of a group of servers that Sentinels watch.
    Group(SentinelConfig),
}

/// Where the next connection leads.
enum Target {
    Server(Box<redis::Client>),
    Group(Arc<Sentinels>),
}

/// What to check about a server, besides whether it can be used at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerCheck {
    /// Whether the server may evict keys.
    pub(crate) allow_eviction: bool,
    /// A channel that the user must be able to use.
    pub(crate) probe_channel: Option<&'static str>,
}

/// The settings for connections to one server, and the state that all these connections share.
pub(crate) struct Connector {
    pub(crate) context: Arc<Context>,
    target: Target,
    /// The commands that load the scripts of the connection's layout.
    pub(crate) scripts: redis::Pipeline,
    /// The name of this program in the server's list of connections.
    pub(crate) client_name: String,
    /// The check of the server that has to succeed before the first session connects; `None` once it has succeeded, or
    /// if the client checks the server itself.
    check_first: Mutex<Option<ServerCheck>>,
    pub(crate) outages: Arc<Outages>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) counters: Arc<Counters>,
}

impl Connector {
    pub(crate) fn new(
        context: Arc<Context>,
        Destination { place, client_name }: Destination,
        scripts: redis::Pipeline,
        counters: Arc<Counters>,
    ) -> Result<Self, ConnectError> {
        #[cfg(feature = "tls")]
        install_tls();
        let invalid = |error: RedisError| ConnectError::InvalidUrl {
            detail: error.category().to_owned(),
        };
        let (target, address) = match place {
            Place::Server(info) => {
                let client = redis::Client::open(with_settings(info)).map_err(invalid)?;
                let address = client.get_connection_info().addr().to_string();
                (Target::Server(Box::new(client)), address)
            }
            Place::Group(config) => {
                let config = SentinelConfig {
                    group: config.group,
                    sentinels: config.sentinels.into_iter().map(with_settings).collect(),
                    server: with_settings(config.server),
                };
                let sentinels = Arc::new(Sentinels::new(config).map_err(invalid)?);
                sentinels.listen(&context);
                let address = sentinels.to_string();
                (Target::Group(sentinels), address)
            }
        };
        Ok(Self {
            outages: Outages::new(context.clone(), address),
            context,
            target,
            scripts,
            client_name,
            check_first: Mutex::new(None),
            readiness: Arc::default(),
            counters,
        })
    }

    pub(crate) fn address(&self) -> &str {
        self.outages.address()
    }

    /// Makes the sessions check the server before the first of them connects.
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

    /// Returns whether Sentinels name the server.
    pub(crate) fn is_group(&self) -> bool {
        matches!(self.target, Target::Group(_))
    }

    /// Returns the client of the server; `None` if Sentinels name the server.
    pub(crate) fn client(&self) -> Option<&redis::Client> {
        match &self.target {
            Target::Server(client) => Some(client),
            Target::Group(_) => None,
        }
    }

    /// Makes a connection. Returns the address of its server, too.
    pub(crate) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, ConnectionAddr), RedisError> {
        let network = self.context.network();
        match &self.target {
            Target::Server(client) => {
                let address = client.get_connection_info().addr().clone();
                Ok((network.connect(client, config).await?, address))
            }
            Target::Group(sentinels) => {
                let address = sentinels.primary(&self.context).await?;
                let client = redis::Client::open(sentinels.server_at(address.clone()))?;
                Ok((network.connect(&client, config).await?, address))
            }
        }
    }

    /// Waits until a Sentinel tells that another server has become the primary. Never completes without Sentinels.
    pub(crate) async fn moves_from(&self, address: &ConnectionAddr) {
        match &self.target {
            Target::Server(_) => std::future::pending().await,
            Target::Group(sentinels) => sentinels.moves_from(address).await,
        }
    }
}

/// Adds the settings that every connection of the engine has.
fn with_settings(info: redis::ConnectionInfo) -> redis::ConnectionInfo {
    // With RESP3, grants are pushed on the connection that carries the commands.
    let settings = info.redis_settings().clone();
    let info = with_tcp_settings(info);
    info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
}

/// Makes the operating system notice a peer that disappears silently.
fn with_tcp_settings(info: redis::ConnectionInfo) -> redis::ConnectionInfo {
    let settings = info.tcp_settings().clone().set_nodelay(true).set_keepalive(
        redis::io::tcp::socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(5))
            .with_interval(Duration::from_secs(2)),
    );
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    info.set_tcp_settings(settings)
}

/// Installs a TLS implementation, as rustls requires once per process. Keeps an implementation that the process has
/// installed before.
#[cfg(feature = "tls")]
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
