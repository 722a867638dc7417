//! The builder of a client.

use std::{fmt, sync::Arc, time::Duration};

use lock_core::{
    backend::Backend,
    layout::Layout,
    options::{Backoff, Defaults, LockOptions, Release, Strategy},
};

use crate::{
    backend::{
        memory::MemoryBackend,
        redis::{RedisBackend, RedisConfig, url::parse_url},
        redlock::{self, RedlockBackend, RedlockConfig},
    },
    background::Context,
    client::LockClient,
    connect_error::ConnectError,
    events::Counters,
    lease::{scheduler::Renewals, shared::Shared},
    options::ClientHandle,
};

/// The URL scheme of the in-process backend. Clients of this process whose URLs have the same text after the scheme
/// share their locks.
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
    /// The context that the engine runs in; `None` selects the context of the process.
    pub(crate) context: Option<Arc<Context>>,
}

enum Target {
    Url(String),
    Redis(Box<redis::ConnectionInfo>),
}

impl fmt::Debug for Target {
    // Both variants may contain a password, so the output shows neither.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url(_) => "Url(..)",
            Self::Redis(_) => "Redis(..)",
        })
    }
}

impl Target {
    async fn connect(
        self,
        allow_eviction: bool,
        defaults: &Defaults,
        context: &Arc<Context>,
        counters: &Arc<Counters>,
    ) -> Result<Arc<dyn Backend>, ConnectError> {
        let patience = defaults.wait;
        let layout = defaults.layout;
        let native = || match layout {
            Layout::Native => Ok(()),
            Layout::Redisson => Err(ConnectError::UnsupportedLayout),
        };
        let info = match self {
            Self::Url(url) if redlock::is_redlock(&url) => {
                native()?;
                let config = RedlockConfig {
                    nodes: redlock::parse(&url)?,
                    allow_eviction,
                    patience,
                    lease: defaults.lease,
                };
                let backend = RedlockBackend::connect(config, context, counters).await?;
                return Ok(Arc::new(backend));
            }
            Self::Redis(info) => *info,
            Self::Url(url) => match url.strip_prefix(MEMORY_SCHEME) {
                Some(registry) => {
                    native()?;
                    return Ok(Arc::new(MemoryBackend::named(registry, counters.clone())));
                }
                None => parse_url(&url)?,
            },
        };
        let config = RedisConfig {
            info,
            layout,
            allow_eviction,
            patience,
        };
        let backend = RedisBackend::connect(config, context, counters).await?;
        Ok(Arc::new(backend))
    }
}

impl LockClientBuilder {
    pub(crate) fn new() -> Self {
        Self {
            target: None,
            namespace: None,
            defaults: Defaults::default(),
            allow_eviction: false,
            context: None,
        }
    }

    /// Sets where the locks live. [`LockClient::connect`] lists the URLs.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.target = Some(Target::Url(url.into()));
        self
    }

    /// Uses the server of an existing client of the redis crate.
    pub fn redis(self, client: &redis::Client) -> Self {
        self.connection_info(client.get_connection_info().clone())
    }

    /// Uses the server that the redis crate's connection info names.
    pub fn connection_info(mut self, info: redis::ConnectionInfo) -> Self {
        self.target = Some(Target::Redis(Box::new(info)));
        self
    }

    /// Sets the namespace, which separates this application's keys from those of others on the same server. The default
    /// is `"lock"`. In [Redisson's layout](Self::layout), the default is no namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets how long an acquisition may take if the call does not set its own limit: 3 s by default. The same limit
    /// applies to connecting.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// Sets the lease of calls that set none: 30 s by default. Such a lease is renewed after each third of its time.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.lease = lease;
        self
    }

    /// Sets the strategy of calls that set none: [`Strategy::Handoff`] by default, and [`Strategy::Notify`] in
    /// [Redisson's layout](Self::layout).
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.defaults.strategy = Some(strategy);
        self
    }

    /// Sets how long callers with [`Strategy::Spin`] sleep between two tries: 1 to 128 ms by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.defaults.backoff = backoff;
        self
    }

    /// Sets the release mode of calls that set none: [`Release::Confirmed`] by default.
    ///
    /// A background release saves a call one round trip. Choose it if nothing that receives the call's result relies on
    /// the lock being free already.
    pub fn release(mut self, release: Release) -> Self {
        self.defaults.release = release;
        self
    }

    /// Sets how the locks of this client are stored.
    ///
    /// With [`Layout::Redisson`], they are stored as Redisson stores an `RLock`, on one Redis server: a Rust call and a
    /// JVM thread that use the same lock exclude each other, and wake each other.
    ///
    /// The name to pass to `getLock` is the key as is, with the prefix `namespace:` if there is a
    /// [`namespace`](Self::namespace). In a key of the attribute, the values of placeholders are escaped. Escaping does
    /// not change letters, digits, `-`, `_`, `.` and `~`, and `<arg:raw>` turns it off.
    ///
    /// Differences from the native layout:
    /// - **No order.** Redisson gives a free lock to the first caller that asks, however long others have waited.
    ///   Callers of this crate do the same: they wait by [`Strategy::Notify`] (the default here) or [`Strategy::Spin`],
    ///   and `handoff` is refused. Calls of one process take turns.
    /// - **Probes.** Callers of this crate are not notified when a Redisson spin lock or fair lock is released, or when
    ///   a lease ends. Each client therefore probes, in each runtime, every lock that a caller waits for, five times a
    ///   second.
    /// - **Fencing tokens** rise across all Rust holders. A plain `RLock` has none. An `RFencedLock` of the same name
    ///   draws from the same rising sequence once its counter `redisson_lock_token:{name}` exists. If Rust has used the
    ///   lock before that, the first token of the `RFencedLock` is still 1, which is lower than the tokens of Rust, so
    ///   a resource refuses it until Rust takes the lock again. To avoid this, `SETNX` that counter to 0 before the
    ///   first Rust holder.
    /// - **Re-entry** is counted in the process. On the server, the field of a Rust holder stores its longest lease in
    ///   ms, whereas the field of a JVM thread stores a count. This crate does not change the counts of JVM threads.
    /// - **Leases** are measured by the server's clock. Setting the clock back makes a lease longer.
    ///
    /// This crate supports the lock names, hashes, channels and messages of Redisson 4.7 on a single server without
    /// sharded channels, for `RLock`, spin locks and fenced locks. Redisson's fair locks exclude the locks of this
    /// crate too. But a waiter of a fair lock is not notified when this crate releases, nor when an `RLock` is
    /// released: it waits until the lease that it saw has ended. Redisson's read/write locks do *not* respect the
    /// holder of a plain lock with the same name, in any language: give them another name.
    ///
    /// A client without this layout stores `order:42` under another name, `{lock:order:42}`, and nothing detects that
    /// these are two different locks. Set the layout in every service that shares locks.
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
    /// client.lock("order:42").run(async { /* alone, JVM included */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`connect`](Self::connect) returns [`ConnectError::UnsupportedLayout`] for in-process locks and for a Redlock,
    ///   and [`ConnectError::InvalidDefaults`] if the client's [`strategy`](Self::strategy) is `handoff`.
    /// - A call with `strategy = handoff` returns [`LockError::InvalidOptions`](crate::LockError::InvalidOptions).
    /// - A call returns [`LockError::WrongLayout`](crate::LockError::WrongLayout) if the server stores other data under
    ///   the lock's name, or a lock in another layout.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.defaults.layout = layout;
        self
    }

    /// Accepts a server whose `maxmemory-policy` evicts keys. Under memory pressure such a server can drop a held lock.
    /// The holder notices the loss at its next renewal or check. Until then two holders may be inside.
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = allow;
        self
    }

    /// Connects the client.
    ///
    /// # Errors
    /// The same as [`LockClient::connect`].
    pub async fn connect(self) -> Result<LockClient, ConnectError> {
        let Self {
            target,
            namespace,
            defaults,
            allow_eviction,
            context,
        } = self;
        LockOptions::default()
            .complete(&defaults)
            .map_err(ConnectError::InvalidDefaults)?;
        if namespace.as_deref() == Some("") {
            return Err(ConnectError::EmptyNamespace);
        }
        let counters = Arc::new(Counters::default());
        let context = context.unwrap_or_else(|| Context::of_process().clone());
        let backend = target
            .ok_or(ConnectError::MissingUrl)?
            .connect(allow_eviction, &defaults, &context, &counters)
            .await?;
        let shared = Arc::new(Shared::new(context, backend, counters));
        Ok(LockClient::new(ClientHandle {
            renewals: Arc::new(Renewals(shared.scheduler.clone())),
            shared,
            namespace: namespace.map(Into::into),
            defaults,
        }))
    }

    /// Blocking version of [`connect`](Self::connect), for code outside async.
    ///
    /// # Errors
    /// The same as [`LockClient::connect`].
    ///
    /// # Panics
    /// If it is called in an async context, where it would block the runtime.
    pub fn blocking_connect(self) -> Result<LockClient, ConnectError> {
        Context::of_process().handle().block_on(self.connect())
    }
}
