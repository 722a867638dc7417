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

/// The URL scheme of the in-process backend. Clients of this process share their locks if their URLs have the same name
/// after the scheme. A client whose URL has no name has locks of its own.
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

    /// Sets the URL, which says where the locks are stored. [`LockClient::connect`] lists the supported URLs.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.target = Some(Target::Url(url.into()));
        self
    }

    /// Uses the server of an existing client of the redis crate.
    pub fn redis(self, client: &redis::Client) -> Self {
        self.connection_info(client.get_connection_info().clone())
    }

    /// Uses the server that a `ConnectionInfo` of the redis crate names.
    pub fn connection_info(mut self, info: redis::ConnectionInfo) -> Self {
        self.target = Some(Target::Redis(Box::new(info)));
        self
    }

    /// Sets the namespace, which separates this application's keys from the keys of other applications on the same
    /// server. The default is `"lock"`. In [Redisson's layout](Self::layout), there is no namespace by default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets how long an acquisition may take if the call sets no `wait`: 3 s by default. The same limit applies to
    /// [`connect`](Self::connect).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// Sets the lease time of calls that set none: 30 s by default. Unless such a call turns renewal off, its lease is
    /// renewed after each third of that time.
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
    /// [`Release::Background`] saves each call one round trip. Choose it only if no code that acts on a call's result
    /// relies on the lock being free by then.
    pub fn release(mut self, release: Release) -> Self {
        self.defaults.release = release;
        self
    }

    /// Sets how the locks of this client are stored.
    ///
    /// With [`Layout::Redisson`], they are stored on one Redis server, in the way in which Redisson stores an `RLock`.
    /// A Rust call and a JVM thread that use the same lock exclude each other, and a release by one wakes the other.
    ///
    /// In Redisson, pass the unchanged key to `getLock`, with the prefix `namespace:` if there is a
    /// [`namespace`](Self::namespace). The attribute escapes the values of the placeholders in its key. Escaping does
    /// not change letters, digits, `-`, `_`, `.` and `~`, and `<arg:raw>` turns escaping off.
    ///
    /// Differences from the native layout:
    /// - **No order.** Redisson gives a free lock to the first caller that asks, however long others have waited.
    ///   Callers of this crate have no order either: they wait by [`Strategy::Notify`] (the default in this layout) or
    ///   [`Strategy::Spin`], and `handoff` is refused. Callers of one process that wait by `Notify` take turns at
    ///   trying.
    /// - **Probes.** Callers of this crate are not notified when a Redisson spin lock or fair lock is released, or when
    ///   a lease ends. Each client therefore probes, in each runtime, every lock that a caller waits for, five times a
    ///   second.
    /// - **Fencing tokens** rise across all Rust holders. A plain `RLock` has none. An `RFencedLock` of the same name
    ///   draws from the same rising sequence once its counter `redisson_lock_token:{name}` exists. If Rust has used the
    ///   lock before that, the first token of the `RFencedLock` is still 1, which is lower than the tokens of Rust, so
    ///   a resource refuses it until Rust takes the lock again. To avoid this, set that counter to 0 with `SETNX`
    ///   before Rust first takes the lock.
    /// - **Re-entry** is counted in the process. On the server, the field of a Rust holder stores the holder's longest
    ///   lease in ms, whereas the field of a JVM thread stores a count. This crate does not change the counts of JVM
    ///   threads.
    /// - **Leases** are measured by the server's clock. Setting that clock back makes a lease longer.
    ///
    /// This crate supports the lock names, hashes, channels and messages of Redisson 4.7 on a single server without
    /// sharded channels, for `RLock`, spin locks and fenced locks. Redisson's fair locks and the locks of this crate
    /// exclude each other too. But a waiter of a fair lock is not notified when this crate or an `RLock` releases the
    /// lock: the waiter waits until the lease that it saw has ended. Redisson's read/write locks do *not* respect the
    /// holder of a plain lock with the same name, whether that holder is a Rust call or a JVM thread. Give read/write
    /// locks other names.
    ///
    /// A client without this layout stores `order:42` under another name, `{lock:order:42}`, and nothing detects that
    /// these are two different locks. Set the same layout in every service that shares the locks.
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

    /// Sets whether to accept a server whose `maxmemory-policy` evicts keys: `false` by default. Under memory pressure,
    /// such a server can drop a held lock. The holder notices the loss at its next renewal or check. Until then, two
    /// holders may be inside.
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
