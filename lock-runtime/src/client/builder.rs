//! The settings of a client before it connects.

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

/// The URLs of the in-process backend; what follows names the locks of this process that clients share.
const MEMORY_SCHEME: &str = "memory:";

/// Settings of a [`LockClient`] before it connects.
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
    /// What the engine runs on, if it is not the process.
    pub(crate) context: Option<Arc<Context>>,
}

enum Target {
    Url(String),
    Redis(Box<redis::ConnectionInfo>),
}

impl fmt::Debug for Target {
    // Both forms may carry a password.
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

    /// Where the locks live, see [`LockClient::connect`].
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.target = Some(Target::Url(url.into()));
        self
    }

    /// The server of an existing client of the redis crate.
    pub fn redis(self, client: &redis::Client) -> Self {
        self.connection_info(client.get_connection_info().clone())
    }

    /// The server that the redis crate's connection info names.
    pub fn connection_info(mut self, info: redis::ConnectionInfo) -> Self {
        self.target = Some(Target::Redis(Box::new(info)));
        self
    }

    /// What separates this application's keys from those of others on the same server: `"lock"` by default, and nothing in
    /// [Redisson's layout](Self::layout).
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How long an acquisition may take that does not say so itself: 3 s by default. It also bounds the connecting.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// The renewed lease of calls that name none: 30 s by default.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.lease = lease;
        self
    }

    /// How calls wait that do not say so themselves: [`Strategy::Handoff`] by default, and [`Strategy::Notify`] in
    /// [Redisson's layout](Self::layout).
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.defaults.strategy = Some(strategy);
        self
    }

    /// How callers with [`Strategy::Spin`] sleep between two tries: 1 to 128 ms by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.defaults.backoff = backoff;
        self
    }

    /// When calls return that do not say so themselves: [`Release::Confirmed`] by default. Releasing in the background saves
    /// a call one round trip; choose it where nobody acts on a result before the lock is free.
    pub fn release(mut self, release: Release) -> Self {
        self.defaults.release = release;
        self
    }

    /// How the locks of this client are stored. With [`Layout::Redisson`] they are those of Redisson's `RLock`, on one
    /// Redis server: a Rust call and a JVM thread that name one lock exclude each other, and wake each other.
    ///
    /// The name is what is given to `getLock`: the key as it stands, after `namespace:` if there is a
    /// [`namespace`](Self::namespace). A value is escaped in a key, which leaves letters, digits, `-`, `_` and `.` as
    /// they are; `<arg:raw>` leaves all as it is.
    ///
    /// What differs from the native layout:
    /// - **No order.** Redisson takes a lock that is free, whoever has waited longer; so do callers of ours, by
    ///   [`Strategy::Notify`] (the default here) or [`Strategy::Spin`]. `handoff` is refused. Calls of one process take
    ///   turns. Each client looks five times a second without being woken, for Redisson's spin locks, its fair locks and a lock that
    ///   expires say nothing.
    /// - **Fencing tokens** rise over all holders in Rust. A plain `RLock` has none. Where Redisson's `RFencedLock` is
    ///   used under the same name both draw from one rising sequence, once its counter `redisson_lock_token:{name}`
    ///   exists: its very first token is 1, lower than what Rust has given by then, and a resource refuses it until
    ///   Rust takes the lock again. `SETNX` that counter to 0 before the first Rust holder to avoid this.
    /// - **Entering again** is counted in the process, and Redisson sees a count of one. What the JVM counts stands.
    /// - A lease is as long as it was on the server's clock; one that is set back makes it longer.
    ///
    /// Redisson's lock names, hashes, channels and messages of version 4.7 on a single server are meant, without sharded
    /// channels, and its `RLock`, spin and fenced locks. Its fair locks exclude ours too, but one that waits hears
    /// nothing of a release of ours, as of one of `RLock`'s: it waits until the lease that it saw has ended. Its
    /// read/write locks do *not* respect who holds the plain lock of the same name, in whatever language: give those
    /// another name.
    ///
    /// A client without this layout stores `order:42` under another name, `{lock:order:42}`, and nothing notices that
    /// the two are not one lock: set the layout in every service that shares locks.
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
    /// [`connect`](Self::connect) refuses it with [`ConnectError::UnsupportedLayout`] in process and on a Redlock, and
    /// with `handoff` as the client's [`strategy`](Self::strategy); a call with `strategy = handoff` is refused with
    /// [`LockError::InvalidOptions`](crate::LockError::InvalidOptions). Something else under the lock's own name, be it a lock
    /// in the other layout or other data, gives [`LockError::WrongLayout`](crate::LockError::WrongLayout).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.defaults.layout = layout;
        self
    }

    /// Accepts a server whose `maxmemory-policy` evicts keys. Such a server can drop a lock that is held, under memory
    /// pressure; the holder is told at its next renewal or check, and until then two may be inside.
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = allow;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`LockClient::connect`].
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

    /// [`connect`](Self::connect) for code outside async.
    ///
    /// # Errors
    /// As [`LockClient::connect`].
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_connect(self) -> Result<LockClient, ConnectError> {
        Context::of_process().handle().block_on(self.connect())
    }
}
