//! The builder of a client: its settings, and the choice of the backend by the scheme of the URL.

#[cfg_attr(not(feature = "redis"), path = "no_servers.rs")]
mod servers;

use std::{
    fmt,
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use lock_core::{
    layout::Layout,
    options::{
        AccessMode, Backoff, Defaults, LockOptions, Release, Replicas, Strategy, is_one_attempt,
    },
};

use crate::{
    backend::{
        memory::{Link, MemoryBackend},
        open::Open,
    },
    background::{Context, FORKED, is_forked},
    client::LockClient,
    connect_error::ConnectError,
    credentials::{Credentials, Source},
    events::{Counters, Hook, Hooks, LeaseLoss, LeaseWarning, metrics},
    features,
    lease::{scheduler::Renewals, shared::Shared},
    limits,
    options::ClientHandle,
};

#[cfg(feature = "__tls")]
use crate::backend::redis::transport::{pem::Pem, tls::TlsSettings};

/// The URL scheme of the in-process backend. Clients of this process share their locks if their URLs have the same name
/// after the scheme. A client whose URL has no name shares its locks with no other client.
const MEMORY_SCHEME: &str = "memory:";

/// Collects the settings of a [`LockClient`], and connects it.
///
/// ```
/// # use std::time::Duration;
/// # use lock_runtime::LockClient;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder()
///     .url("memory:")
///     .namespace("shop")
///     .wait(Duration::from_secs(1))
///     .lease(Duration::from_secs(10))
///     .connect()
///     .await?;
/// # let _ = client;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    target: Option<Target>,
    namespace: Option<String>,
    defaults: Defaults,
    allow_eviction: bool,
    access: AccessMode,
    application: Option<String>,
    /// The user and the password for the Sentinels.
    sentinel_credentials: Option<(String, String)>,
    hooks: Hooks,
    provider: Option<Source>,
    #[cfg(feature = "__tls")]
    tls: TlsSettings,
    /// The engine's clock, network and random numbers; `None` selects the context of the process.
    pub(crate) context: Option<Arc<Context>>,
}

enum Target {
    Url(String),
    /// The URLs of the nodes of a Redlock.
    Nodes(Vec<String>),
}

impl fmt::Debug for Target {
    // Each variant can contain a password, so the output names only the variant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url(_) => "Url(..)",
            Self::Nodes(_) => "Nodes(..)",
        })
    }
}

/// A backend, and the link to the in-process locks if the locks are in process.
type Opened = (Arc<dyn Open>, Option<Arc<Link>>);

impl LockClientBuilder {
    pub(crate) fn new() -> Self {
        Self {
            target: None,
            namespace: None,
            defaults: Defaults::default(),
            allow_eviction: false,
            access: AccessMode::default(),
            application: None,
            sentinel_credentials: None,
            hooks: Hooks::default(),
            provider: None,
            #[cfg(feature = "__tls")]
            tls: TlsSettings::default(),
            context: None,
        }
    }

    /// Sets the URL, which says where the locks are stored. [`LockClient::connect`] lists the supported URLs.
    ///
    /// In a URL, a user name and a password are percent-escaped, because they may contain `@`, `:` or `/`.
    /// [`escape`](crate::escape) escapes them. A [provider](Self::credentials_provider) returns them as they are.
    ///
    /// ```no_run
    /// # async fn example(host: &str, password: &str) -> Result<(), lock_runtime::ConnectError> {
    /// use lock_runtime::{LockClient, escape};
    ///
    /// let url = format!("rediss://locks:{}@{host}/2", escape(password));
    /// let client = LockClient::builder().url(url).connect().await?;
    /// # let _ = client;
    /// # Ok(())
    /// # }
    /// ```
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.target = Some(Target::Url(url.into()));
        self
    }

    /// Keeps each lock on a majority of these nodes: a Redlock. Each URL names one node, which is one server
    /// (`redis://`, `rediss://`, `unix:`), with its own user, password and database. A URL `redlock://a,b,c` is shorter
    /// if all nodes have the same user. [`LockClient::connect`] describes what a Redlock guarantees.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lock_runtime::ConnectError> {
    /// use lock_runtime::LockClient;
    ///
    /// let nodes = [
    ///     "redis://locks:secret-a@a.internal/",
    ///     "redis://locks:secret-b@b.internal/2",
    ///     "rediss://locks:secret-c@c.internal/",
    /// ];
    /// let client = LockClient::builder().redlock_nodes(nodes).connect().await?;
    /// # let _ = client;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`connect`](Self::connect) returns [`ConnectError::TooFewServers`] for fewer than three nodes,
    /// [`ConnectError::SameServerTwice`] if two URLs name the same server, [`ConnectError::ClusterNode`] for a Redis
    /// Cluster, [`ConnectError::SentinelNode`] for a group that Sentinels watch, and [`ConnectError::MissingFeature`] if
    /// the feature `redlock` is off.
    pub fn redlock_nodes<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.target = Some(Target::Nodes(urls.into_iter().map(Into::into).collect()));
        self
    }

    /// Sets the namespace, which separates this application's keys from the keys of other applications on the same
    /// server. The default namespace is `"lock"`. In [Redisson's layout](Self::layout), a client has no namespace by
    /// default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets the longest time that an acquisition can take if the call sets no `wait`: 3 s by default.
    /// [`connect`](Self::connect) takes at most `wait`, too, or 1 s if `wait` is zero.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// Sets the lease time of calls that set no lease: 30 s by default. The lease of such a call is renewed after each
    /// third of the lease time, unless the call turns renewal off.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.lease = lease;
        self
    }

    /// Sets the strategy of calls that set no strategy: [`Strategy::Handoff`] by default, and [`Strategy::Notify`] in
    /// [Redisson's layout](Self::layout). Outside Redisson's layout, [`connect`](Self::connect) refuses
    /// [`Strategy::Notify`], unless the locks are in process.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.defaults.strategy = Some(strategy);
        self
    }

    /// Sets how long callers with [`Strategy::Spin`] sleep between two tries: 1 to 128 ms by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.defaults.backoff = backoff;
        self
    }

    /// Sets the release mode of calls that set no release mode: [`Release::Confirmed`] by default.
    ///
    /// [`Release::Background`] saves each call one round trip. The lock can then still be held when the call returns,
    /// so do not choose `Background` if code that receives a call's result relies on a free lock.
    pub fn release(mut self, release: Release) -> Self {
        self.defaults.release = release;
        self
    }

    /// Sets how many replicas of a lock's server must have acknowledged a grant before the body starts: 0 by default.
    /// The number applies to calls that set no number of replicas. `within` is how long each call waits for the
    /// replicas: 1 s by default.
    ///
    /// The wait for the replicas is part of the acquisition, so `wait` bounds it too. If too few replicas acknowledge
    /// the grant in time, the call gives the lock back and returns
    /// [`LockError::NotReplicated`](crate::LockError::NotReplicated). [`Lock::replicas`](crate::Lock::replicas) says
    /// what a lock with replicas promises. Each acquisition takes two more round trips and the time of the replication,
    /// on a connection that no other call uses during this time, and in a Redis Cluster a third round trip. The Redis
    /// user needs the additional right `+wait`.
    pub fn replicas(mut self, count: usize, within: Duration) -> Self {
        self.defaults.replicas = Replicas { count, within };
        self
    }

    /// Sets how the locks of this client are stored.
    ///
    /// With [`Layout::Redisson`], the locks are stored in the same form as a Redisson `RLock`: on one Redis server, on
    /// the primary of a group that Sentinels watch, or in a Redis Cluster. A Rust call and a JVM thread that use the
    /// same lock exclude each other, and a release in one language wakes a waiter in the other.
    ///
    /// On the JVM, pass the same key to Redisson's `getLock`, with the prefix `namespace:` if the Rust client has a
    /// [`namespace`](Self::namespace). The attribute `distributed_lock` escapes the values of the placeholders in its
    /// key. Escaping does not change letters, digits, `-`, `_`, `.` and `~`, and `<arg:raw>` turns escaping off.
    ///
    /// Differences from the native layout:
    /// - **No order.** Redisson gives a free lock to the first caller that requests it, even if other callers have
    ///   waited longer. Callers of this crate enter in no particular order: they wait by [`Strategy::Notify`] (the
    ///   default in this layout) or [`Strategy::Spin`], and `handoff` is refused. Callers of one process that wait by
    ///   `Notify` take turns: only one of them at a time tries to take the lock.
    /// - **Probes.** Callers of this crate are not notified when a Redisson spin lock or fair lock is released, or when
    ///   a lease ends. Each client therefore probes every lock that its callers wait for, five times a second in each
    ///   runtime.
    /// - **Fencing tokens** rise across all Rust holders. A plain `RLock` has no token. An `RFencedLock` of the same
    ///   name takes its tokens from the same rising sequence once its counter `redisson_lock_token:{name}` exists. If
    ///   Rust has used the lock before the counter exists, the `RFencedLock` still begins with token 1, which is lower
    ///   than the tokens of Rust. A resource that has seen a token of Rust then refuses the tokens of the `RFencedLock`
    ///   until Rust takes the lock again and raises the counter. To avoid such low tokens, set the counter
    ///   `redisson_lock_token:{name}` to 0 with `SETNX` before Rust first takes the lock.
    /// - **Re-entry** of Rust calls is counted in the Rust process. On the server, the field of a Rust holder stores
    ///   the holder's longest lease in ms. In contrast, the field of a JVM thread stores how often the thread has
    ///   entered the lock. This crate does not change the fields of JVM threads.
    /// - **Leases** are measured by the server's clock. Setting the server's clock back makes a lease longer.
    ///
    /// This crate supports the lock names, hashes, channels and messages of Redisson 4.7 for `RLock`, spin locks and
    /// fenced locks. In a Redis Cluster with Redis 7.0 or later, the messages go over shard channels, as Redisson sends
    /// them unless its `shardedSubscriptionMode` is `OFF`. Redisson's fair locks and the locks of this crate exclude
    /// each other too. However, a waiter of a fair lock is not notified when this crate or an `RLock` releases the
    /// lock. Such a waiter waits until the end of the lease that the server reported to it. Redisson's read/write locks
    /// do *not* respect the holder of a plain lock with the same name, whether that holder is a Rust call or a JVM
    /// thread. Give read/write locks names that no other lock has.
    ///
    /// A client in the native layout stores the lock `order:42` under another name, `{lock:order:42}`. Two clients with
    /// different layouts therefore do not exclude each other, and no error reports the mistake. Set the same layout in
    /// every service that shares the locks.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_runtime::{Layout, LockClient};
    ///
    /// let client = LockClient::builder()
    ///     .url("redis://127.0.0.1/")
    ///     .layout(Layout::Redisson)
    ///     .connect()
    ///     .await?;
    /// // Excludes `redisson.getLock("order:42")`.
    /// client.lock("order:42").run(async { /* no other Rust call or JVM thread is inside */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`connect`](Self::connect) returns [`ConnectError::UnsupportedLayout`] for in-process locks and a Redlock, and
    ///   [`ConnectError::InvalidDefaults`] if the client's [`strategy`](Self::strategy) is `handoff`.
    /// - [`connect`](Self::connect) returns [`ConnectError::MissingFeature`] if the feature `redisson` is off.
    /// - A call with `strategy = handoff` returns [`LockError::InvalidOptions`](crate::LockError::InvalidOptions).
    /// - A call returns [`LockError::WrongLayout`](crate::LockError::WrongLayout) if the server stores other data under
    ///   the lock's name, or a lock in another layout.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.defaults.layout = layout;
        self
    }

    /// Sets whether to accept a server whose `maxmemory-policy` evicts keys: `false` by default. Under memory pressure,
    /// a server that evicts keys can drop a held lock. The holder notices the loss at its next renewal or check. Until
    /// the holder notices the loss, a second caller can hold the lock too.
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = allow;
        self
    }

    /// Sets what the client does with locks: [`AccessMode::Full`] by default.
    ///
    /// With [`AccessMode::ReadOnly`], the client sends nothing that changes a lock: acquisitions and forced releases
    /// return [`LockError::Refused`](crate::LockError::Refused). The client can still read the
    /// [status](crate::Lock::status) of locks, their [waiters](crate::Lock::waiters) and the [list](LockClient::scan)
    /// of all locks. The client's Redis user needs only the rights of a viewer, which `docs/guides/acl.md` lists. A
    /// client of a Redlock needs all rights, because it writes its longest lease into the nodes when it connects.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_runtime::{AccessMode, LockClient};
    ///
    /// let viewer = LockClient::builder()
    ///     .url("redis://viewer:secret@locks.internal/")
    ///     .access_mode(AccessMode::ReadOnly)
    ///     .connect()
    ///     .await?;
    /// println!("{:?}", viewer.lock("order:42").status().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn access_mode(mut self, access: AccessMode) -> Self {
        self.access = access;
        self
    }

    /// Sets the name of the application: the name of the executable by default.
    ///
    /// Other clients read this name, together with the host and the process id, as the
    /// [`caller`](crate::Holder::caller) of a lock's holder and of each waiter. Only the last 64 bytes of the name are
    /// stored. The connections of this client also have this name in the server's `CLIENT LIST`, where characters that
    /// the server does not accept become `-`.
    pub fn application(mut self, name: impl Into<String>) -> Self {
        self.application = Some(name.into());
        self
    }

    /// Sets the user and the password for the Sentinels of a `redis+sentinel://` URL. The user and the password in the
    /// URL are those of the Redis servers. By default, the client connects to the Sentinels without a password.
    pub fn sentinel_credentials(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.sentinel_credentials = Some((user.into(), password.into()));
        self
    }

    /// Sets a function that is called once for each body that still runs after 80 % of its fixed lease, in addition to
    /// the log event. If the lease was extended, the function is called when less than a fifth of `lease` is left. The
    /// function runs in the task of the call, while the body is polled, so it must not block. If the
    /// function panics, the call panics.
    ///
    /// The function is not called while the body blocks its thread, for instance in a blocking call. For a guard, the
    /// function is called only while [`LockGuard::run`](crate::LockGuard::run) runs a body.
    ///
    /// ```
    /// # use lock_runtime::LockClient;
    /// let builder = LockClient::builder().url("memory:").on_lease_warning(|warning| {
    ///     eprintln!("{} has {:?} left of {:?}", warning.key, warning.remaining, warning.lease);
    /// });
    /// # let _ = builder;
    /// ```
    pub fn on_lease_warning(
        mut self,
        hook: impl Fn(&LeaseWarning) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.lease_warning = Hook::new(hook);
        self
    }

    /// Sets a function that is called once for each lease that is lost while a body runs, or while a guard holds the
    /// lock, in addition to the log event. Use it for an alert or a counter of the service. The call itself gets
    /// [`LockError::Lost`](crate::LockError::Lost), or goes on under `on_lost = continue`.
    ///
    /// The function runs where the loss is noticed first: on the engine's thread, which also renews the other leases, or
    /// in the task of the call. It must not block. If the function panics, the panic is reported by the panic hook, and
    /// changes nothing else.
    ///
    /// ```
    /// # use lock_runtime::LockClient;
    /// let builder = LockClient::builder().url("memory:").on_lost(|loss| {
    ///     eprintln!("{} of {} lost token {}: {:?}", loss.key, loss.function, loss.token, loss.reason);
    /// });
    /// # let _ = builder;
    /// ```
    pub fn on_lost(mut self, hook: impl Fn(&LeaseLoss) + Send + Sync + 'static) -> Self {
        self.hooks.lost = Hook::new(hook);
        self
    }

    /// Sets a provider of the user and the password, for tokens that expire and for passwords that change. With a
    /// provider, the user and the password in the URL are not used. All connections to Redis servers use the provider;
    /// Sentinels have [credentials of their own](Self::sentinel_credentials).
    ///
    /// The engine calls the provider for each new connection, also when it reconnects after a connection is lost.
    /// Connections that are made at the same time share one call of the provider. The provider is allowed to block its
    /// thread. The engine waits at most 10 s for the provider's result, but cannot stop a provider that blocks for
    /// longer. The next try to connect then calls the provider on another thread. At most four calls of the provider
    /// run at the same time. If the provider returns an error, or does not answer before [`connect`](Self::connect) gives
    /// up, `connect` returns [`ConnectError::NoCredentials`]. A client that was connected before tries again until it has a
    /// connection.
    /// Acquisitions that need this connection wait for it, up to their `wait`. The text of the provider's error appears
    /// in logs and errors, so this text must not contain secrets.
    ///
    /// An open connection keeps the credentials with which it has logged in. If the password of a user changes, Redis
    /// keeps the user's connections open. If a user is deleted, Redis closes the user's connections. Some services
    /// close a connection when its token expires. For such a service, return [`Credentials::valid_for`]. Each
    /// connection then logs in again before its token expires.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use lock_runtime::{Credentials, LockClient};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder()
    ///     .url("rediss://locks.example.net/")
    ///     .credentials_provider(async || {
    ///         let token = tokio::fs::read_to_string("/run/secrets/redis-token").await?;
    ///         Ok::<_, std::io::Error>(
    ///             Credentials::new("locks", token.trim()).valid_for(Duration::from_secs(3600)),
    ///         )
    ///     })
    ///     .connect()
    ///     .await?;
    /// # let _ = client;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials_provider<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.provider = Some(Source::new(provider));
        self
    }

    /// Sets the certificates of the authorities that the client trusts, instead of the authorities that the operating
    /// system trusts. The certificates apply to all TLS connections of the client, also to the connections with
    /// Sentinels.
    ///
    /// ```no_run
    /// use lock_runtime::{LockClient, Pem};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder()
    ///     .url("rediss://10.0.0.7:6380/")
    ///     .tls_root_certificates(Pem::file("/etc/tls/ca.pem"))
    ///     .tls_client_certificate(Pem::file("/etc/tls/client.pem"), Pem::file("/etc/tls/client.key"))
    ///     .tls_server_name("redis.internal")
    ///     .connect()
    ///     .await?;
    /// # let _ = client;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Connecting returns [`ConnectError::InvalidTls`] if a file cannot be read or used, if the key does not belong to
    /// the client certificate, or if the URL does not ask for TLS. If the handshake with the server fails, connecting
    /// returns [`ConnectError::Tls`].
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub fn tls_root_certificates(mut self, certificates: Pem) -> Self {
        self.tls.root_certificates = Some(certificates);
        self
    }

    /// Sets the certificate with which the client identifies itself, and the private key of this certificate. If the
    /// server needs the certificates of the issuers, append them to the client's certificate.
    ///
    /// # Errors
    /// Connecting returns the same errors as for [`tls_root_certificates`](Self::tls_root_certificates).
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub fn tls_client_certificate(mut self, certificate: Pem, key: Pem) -> Self {
        self.tls.client_certificate = Some((certificate, key));
        self
    }

    /// Sets the name that the certificates of the servers have to contain, instead of the host in the server's address.
    /// The client also sends this name to the server (SNI). Set this name if the address is an IP address or a tunnel,
    /// or if a Redis Cluster or Sentinels name the servers by IP addresses.
    ///
    /// # Errors
    /// Connecting returns the same errors as for [`tls_root_certificates`](Self::tls_root_certificates).
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.server_name = Some(name.into());
        self
    }

    /// Connects the client. Fails at once if no server can be reached, and after the client's [`wait`](Self::wait) (3 s by
    /// default) if the server is silent. [`connect_within`](Self::connect_within) waits for a server that is starting.
    ///
    /// # Errors
    /// Returns the same errors as [`LockClient::connect`].
    pub async fn connect(self) -> Result<LockClient, ConnectError> {
        let patience = match self.defaults.wait {
            // The calls of this client make one attempt. The server nevertheless needs time to answer.
            wait if is_one_attempt(wait) => limits::OPEN_PATIENCE,
            wait => wait,
        };
        let unconnected = self.open()?;
        unconnected.backend.connect(patience).await?;
        Ok(unconnected.into_client())
    }

    /// Connects the client, and waits up to `patience` for the server to start. The method tries again 200 ms after a
    /// failed try if no server answered, if the server closed the connection, if the Sentinels named no primary, if the
    /// provider returned no credentials, or if too few nodes of a Redlock answered. All other errors of connecting are
    /// returned at once. One try lasts for at most half of the time that is left, but for up to 1 s.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use lock_runtime::{ConnectError, LockClient};
    /// # async fn example() -> Result<(), ConnectError> {
    /// let builder = LockClient::builder().url("redis://127.0.0.1/");
    /// let client = builder.connect_within(Duration::from_secs(30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`LockClient::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection remains.
    pub async fn connect_within(self, patience: Duration) -> Result<LockClient, ConnectError> {
        let unconnected = self.open()?;
        let context = unconnected.context.clone();
        let until = context.now() + patience;
        loop {
            let left = until.since(context.now());
            // A far server needs many round trips, and a server that hangs must not use up the whole time.
            let limit = left.min(limits::OPEN_PATIENCE.max(left / 2));
            let Err(error) = unconnected.backend.connect(limit).await else {
                return Ok(unconnected.into_client());
            };
            let next = context.now() + limits::CONNECT_PAUSE;
            if !error.may_pass() || next >= until {
                return Err(error);
            }
            context.sleep_until(next).await;
        }
    }

    /// Creates the client without connecting it. The first call that uses a lock connects the client, and `wait` bounds
    /// that call as usual. Use this method if a service has to start while the server is down.
    ///
    /// The first call also makes the checks that [`connect`](Self::connect) makes. A server can fail these checks, for
    /// instance because it evicts keys. Until the server passes the checks, each call then returns
    /// [`LockError::Unreachable`](crate::LockError::Unreachable) after its `wait`, with the reason as the detail.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_runtime::{LockClient, LockError};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = LockClient::builder().url("redis://127.0.0.1:1/");
    /// let client = builder.wait(Duration::from_millis(200)).connect_lazy()?;
    /// // Nothing listens on port 1.
    /// let entered = client.lock("order:42").run(async { /* alone */ }).await;
    /// assert!(matches!(entered, Err(LockError::Unreachable { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns only errors of the settings, such as [`ConnectError::InvalidUrl`] and [`ConnectError::InvalidDefaults`].
    pub fn connect_lazy(self) -> Result<LockClient, ConnectError> {
        self.open().map(Unconnected::into_client)
    }

    /// Checks the settings, and creates the backend without connecting it.
    fn open(mut self) -> Result<Unconnected, ConnectError> {
        self.defaults.in_process =
            matches!(&self.target, Some(Target::Url(url)) if url.starts_with(MEMORY_SCHEME));
        self.defaults.on_redlock = self.target.as_ref().is_some_and(servers::is_redlock);
        LockOptions::default()
            .complete(&self.defaults)
            .map_err(ConnectError::InvalidDefaults)?;
        if self.namespace.as_deref() == Some("") {
            return Err(ConnectError::EmptyNamespace);
        }
        let counters = Arc::new(Counters::default());
        let context = self.context.clone();
        let context = context.unwrap_or_else(|| Context::of_process().clone());
        let (backend, link) = self.backend(&context, &counters)?;
        if is_forked() && link.is_none() {
            return Err(ConnectError::Unreachable {
                server: backend.server(),
                waited: Duration::ZERO,
                detail: FORKED.into(),
            });
        }
        Ok(Unconnected {
            backend,
            link,
            context,
            counters,
            namespace: self.namespace,
            defaults: self.defaults,
            access: self.access,
            hooks: self.hooks,
        })
    }

    /// Creates the backend.
    fn backend(
        &self,
        context: &Arc<Context>,
        counters: &Arc<Counters>,
    ) -> Result<Opened, ConnectError> {
        let target = self.target.as_ref().ok_or(ConnectError::MissingUrl)?;
        let application = self.application.clone().unwrap_or_else(name_of_program);
        match target {
            Target::Url(url) => match url.strip_prefix(MEMORY_SCHEME) {
                Some(registry) => {
                    self.require_native_layout()?;
                    let backend = MemoryBackend::named(registry, application, counters.clone());
                    let link = backend.link().clone();
                    return Ok((Arc::new(backend), Some(link)));
                }
                None => features::check_url(url)?,
            },
            Target::Nodes(urls) => features::check_nodes(urls)?,
        }
        let backend = servers::open(self, target, application, context, counters)?;
        Ok((backend, None))
    }

    fn require_native_layout(&self) -> Result<(), ConnectError> {
        match self.defaults.layout {
            Layout::Native => Ok(()),
            Layout::Redisson => Err(ConnectError::UnsupportedLayout),
        }
    }

    /// Blocking version of [`connect`](Self::connect), for code outside async.
    ///
    /// # Errors
    /// Returns the same errors as [`LockClient::connect`].
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
    pub fn blocking_connect(self) -> Result<LockClient, ConnectError> {
        Context::of_process().handle().block_on(self.connect())
    }
}

/// A client whose backend has not necessarily connected yet.
struct Unconnected {
    backend: Arc<dyn Open>,
    link: Option<Arc<Link>>,
    context: Arc<Context>,
    counters: Arc<Counters>,
    namespace: Option<String>,
    defaults: Defaults,
    access: AccessMode,
    hooks: Hooks,
}

impl Unconnected {
    fn into_client(self) -> LockClient {
        metrics::start_common();
        let server = self.backend.server().into();
        let shared = Arc::new(Shared::new(
            self.context,
            self.backend,
            self.counters,
            self.hooks,
            self.link,
        ));
        LockClient::new(ClientHandle {
            renewals: Arc::new(Renewals(shared.scheduler.clone())),
            shared,
            namespace: self.namespace.map(Into::into),
            server,
            defaults: self.defaults,
            access: self.access,
        })
    }
}

/// Returns the name of this program's executable.
fn name_of_program() -> String {
    let program = std::env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(Path::file_stem);
    name.map_or_else(
        || "lock-runtime".into(),
        |name| name.to_string_lossy().into(),
    )
}
