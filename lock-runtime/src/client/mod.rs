//! A client: one set of locks, the defaults of its calls, and how code finds it.

pub(crate) mod url;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use lock_core::{
    backend::Backend,
    error::LockError,
    key::LockKey,
    layout::Layout,
    lease::Moment,
    options::{Backoff, Defaults, LockOptions, Release, Strategy},
};
use once_cell::sync::OnceCell;
use tokio::task::futures::TaskLocalFuture;

use crate::{
    acquire::one,
    backend::{
        memory::MemoryBackend,
        redis::{RedisBackend, RedisConfig},
        redlock::{self, RedlockBackend, RedlockConfig},
    },
    background::{
        self,
        shutdown::{Renewals, ShutdownSignal},
    },
    client::url::ConnectError,
    events::{Counters, Stats},
    lease::{registry::HoldRegistry, scheduler::RenewalScheduler},
    lock::Lock,
    multi_lock::MultiLock,
};

/// The variable that [`LockClient::from_env`] reads.
pub const URL_VARIABLE: &str = "LOCK_URL";

/// How long shutting down waits for the end of what waits.
const WAITING_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for a server that does not answer, while something is held.
const HELD_PATIENCE: Duration = Duration::from_secs(10);
/// How often it asks meanwhile whether the server answers, and how long that may take.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The URLs of the in-process backend; what follows names the locks of this process that clients share.
const MEMORY_SCHEME: &str = "memory:";

static INSTALLED: OnceCell<LockClient> = OnceCell::new();

tokio::task_local! {
    static SCOPED: LockClient;
}

/// The client that is scoped to the code which runs right now.
pub(crate) fn scoped() -> Option<LockClient> {
    SCOPED.try_with(Clone::clone).ok()
}

/// What all clones of a client share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) held: Arc<HoldRegistry>,
    pub(crate) scheduler: Arc<RenewalScheduler>,
    pub(crate) closing: ShutdownSignal,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// Where locks live, and the defaults of the calls that use it. Cheap to clone; all clones are one client.
///
/// A client lives as long as one of its clones, one of its [`Lock`]s or a call. Leases are renewed no longer than that: keep
/// the client for as long as its guards.
///
/// Code finds its client in this order: the one an attribute names with `client = ..`, the one scoped to the task by
/// [`scope`](Self::scope), the one installed for the process by [`install`](Self::install).
///
/// ```
/// use lock_runtime::{LockClient, LockError, distributed_lock};
///
/// #[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s")]
/// async fn pay(id: u64) -> Result<&'static str, LockError> {
///     Ok("paid")
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     LockClient::connect("memory:").await?.install()?;
///     assert_eq!(pay(42).await?, "paid");
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct LockClient {
    shared: Arc<Shared>,
    renewals: Arc<Renewals>,
    namespace: Option<Arc<str>>,
    defaults: Defaults,
}

impl LockClient {
    /// Connects to the locks that a URL names, with the default settings of [`builder`](Self::builder).
    ///
    /// | URL | locks |
    /// |---|---|
    /// | `memory:` | of this client, in this process: for a first run and for unit tests (under tokio's paused clock only without real I/O, see README) |
    /// | `memory:name` | of all clients of this process that name it |
    /// | `redis://[user:password@]host[:port][/db]` | on one Redis server, 6.2 or later, or what speaks its protocol |
    /// | `rediss://…` | the same over TLS (feature `tls`, on by default) |
    /// | `redis+unix:///path/to.sock[?db=1]`, `unix://…` | the same over a unix socket |
    /// | `redlock://[user:password@]host1[:port],host2[:port],host3[:port][/db]` | on a majority of three or more independent Redis servers, see below |
    /// | `redlocks://…` | the same over TLS |
    ///
    /// # Redlock
    /// Not promised: any order or fairness, for nobody queues, and a late caller may be served before an early one;
    /// exclusion when the clock of a server jumps, or differs in speed from the client's by more than 1 % of the lease
    /// and 2 ms, or when a majority of the servers loses its state within one lease; and, as anywhere, that a paused process notices
    /// the end of its lease before what it does next. Send the fencing token with what must not be written twice.
    ///
    /// Locks live on while any majority of the servers does: any one of three may be down, any two of five. A hold that a
    /// server missed is written there by the next renewal, or check of a fixed lease, so that another server may go.
    ///
    /// A server that has lost its state is known by the mark that it has lost with it, `lock:fence:whole`. It is counted
    /// again after the longest lease in use, which clients note in the marks of all servers. Until both others of three
    /// servers have told theirs, or three of the others of five, it is counted after a day at the earliest.
    ///
    /// # Errors
    /// [`ConnectError`] says what is wrong and what to do; a password is never part of it.
    pub async fn connect(url: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder().url(url).connect().await
    }

    /// [`connect`](Self::connect) for code outside async.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_connect(url: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder().url(url).blocking_connect()
    }

    /// Connects to the URL in the environment variable `LOCK_URL`.
    ///
    /// # Errors
    /// [`ConnectError::MissingVariable`] if it is not set or empty: an unset variable never means in-process locks, for
    /// two processes that forgot it would not exclude each other. Else as [`connect`](Self::connect).
    pub async fn from_env() -> Result<Self, ConnectError> {
        match std::env::var(URL_VARIABLE) {
            Ok(url) if !url.is_empty() => Self::connect(url).await,
            _ => Err(ConnectError::MissingVariable),
        }
    }

    /// Settings of a client before it connects.
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    /// Makes this client the process's own, used wherever none is scoped or named.
    ///
    /// # Errors
    /// [`AlreadyInstalled`] if the process has one.
    pub fn install(&self) -> Result<(), AlreadyInstalled> {
        INSTALLED
            .set(self.clone())
            .map_err(|_| AlreadyInstalled(()))
    }

    /// Runs `future` with this client as its own, so that tests run side by side in one process. A task that it spawns
    /// does not inherit it: scope the spawned future too, or take it along with
    /// [`in_current_hold`](crate::InCurrentHold::in_current_hold).
    ///
    /// ```
    /// # use lock_runtime::{LockClient, LockError};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// client.scope(async {
    ///     LockClient::current()?.lock("x").run(async { /* alone */ }).await
    /// }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> TaskLocalFuture<Self, F> {
        SCOPED.scope(self.clone(), future)
    }

    /// Runs `poll` with this client scoped.
    pub(crate) fn around<T>(&self, poll: impl FnOnce() -> T) -> T {
        SCOPED.sync_scope(self.clone(), poll)
    }

    /// The client that calls without one of their own use here.
    ///
    /// # Errors
    /// [`LockError::NoClient`] if none is scoped and none installed.
    pub fn current() -> Result<Self, LockError> {
        scoped()
            .or_else(|| INSTALLED.get().cloned())
            .ok_or(LockError::NoClient)
    }

    /// One lock. The key is taken as it stands: escape what comes from outside with [`escape`](crate::escape).
    pub fn lock(&self, key: impl Into<String>) -> Lock {
        Lock::new(self.clone(), LockKey::new(key))
    }

    /// Several locks, all of which are held at once. Each key is taken as it stands, like that of [`lock`](Self::lock).
    pub fn locks(&self, keys: impl IntoIterator<Item = impl Into<String>>) -> MultiLock {
        MultiLock::new(self.clone(), keys.into_iter().map(LockKey::new))
    }

    /// What this client has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot()
    }

    /// ExitPolicy the client: new acquisitions and those that wait are refused with [`LockError::ShutDown`], then waits until
    /// every hold has ended and every release is confirmed. Bound it with a timeout if a body may hang.
    ///
    /// A server that does not answer is not waited for without end: 2 s for what waits, and for what is held until its
    /// lease has ended, 10 s at most. A body that still runs then runs on, and its lease is not renewed.
    ///
    /// # Cancel safety
    /// Dropped, the client stays closed, and no lease is renewed from then on: what is held ends with its lease, unless it
    /// is released before. Call it again to go on waiting.
    pub async fn shutdown(&self) {
        let shared = &*self.shared;
        let (backend, held) = (&shared.backend, &shared.held);
        let _renewals = Renewals(shared.scheduler.clone());
        let begun = backend.now();
        shared.closing.begin();
        backend.begin_shutdown();
        let nobody_waits = async {
            held.nobody_enters().await;
            backend.cleaned_up().await;
        };
        // A call that is not polled ends when it is.
        one::bounded(backend, begun + WAITING_PATIENCE, nobody_waits).await;
        let silent_since = tokio::select! {
            biased;
            () = held.drained() => backend.now(),
            silent_since = self.held_in_vain() => silent_since,
        };
        backend.close(silent_since + HELD_PATIENCE).await;
        tracing::debug!("lock client shut down");
    }

    /// ExitPolicy when the server has not answered for as long as what is held is waited for. Returns when that began.
    async fn held_in_vain(&self) -> Moment {
        let Shared { backend, held, .. } = &*self.shared;
        if backend.maintains_leases() {
            return std::future::pending().await;
        }
        let mut silent_since: Option<Moment> = None;
        loop {
            let now = backend.now();
            let mut within = ASK_AGAIN;
            if let Some(silent_since) = silent_since {
                let until = (silent_since + HELD_PATIENCE).min(now + held.longest_rest());
                if until <= now {
                    tracing::warn!(
                        "the lock server does not answer, what is held ends with its lease"
                    );
                    return silent_since;
                }
                within = within.min(until.since(now));
            }
            if backend.is_answering(within).await {
                silent_since = None;
            } else {
                silent_since.get_or_insert(now);
            }
            backend.sleep_until(now + within).await;
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn renewals(&self) -> &Arc<Renewals> {
        &self.renewals
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(crate) fn defaults(&self) -> &Defaults {
        &self.defaults
    }
}

/// The process has an installed client already.
#[derive(Debug)]
pub struct AlreadyInstalled(());

impl fmt::Display for AlreadyInstalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a lock client is installed already: install one at start-up, and give others to a task with `client.scope(..)`",
        )
    }
}

impl std::error::Error for AlreadyInstalled {}

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
                let backend = RedlockBackend::connect(config, counters.clone()).await?;
                return Ok(Arc::new(backend));
            }
            Self::Redis(info) => *info,
            Self::Url(url) => match url.strip_prefix(MEMORY_SCHEME) {
                Some(registry) => {
                    native()?;
                    return Ok(Arc::new(MemoryBackend::named(registry, counters.clone())));
                }
                None => url::parse_url(&url)?,
            },
        };
        let config = RedisConfig {
            info,
            layout,
            allow_eviction,
            patience,
        };
        let backend = RedisBackend::connect(config, counters.clone()).await?;
        Ok(Arc::new(backend))
    }
}

impl LockClientBuilder {
    fn new() -> Self {
        Self {
            target: None,
            namespace: None,
            defaults: Defaults::default(),
            allow_eviction: false,
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
    ///   turns. In vain a process looks five times a second, for Redisson's spin locks, its fair locks and a lock that
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
    /// [`LockError::InvalidOptions`]. Something else under the lock's own name, be it a lock
    /// in the other layout or other data, gives [`LockError::WrongLayout`].
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
        } = self;
        LockOptions::default()
            .complete(&defaults)
            .map_err(ConnectError::InvalidDefaults)?;
        if namespace.as_deref() == Some("") {
            return Err(ConnectError::EmptyNamespace);
        }
        let counters = Arc::new(Counters::default());
        let held = Arc::new(HoldRegistry::default());
        let backend = target
            .ok_or(ConnectError::MissingUrl)?
            .connect(allow_eviction, &defaults, &counters)
            .await?;
        let scheduler = Arc::new(RenewalScheduler::default());
        Ok(LockClient {
            renewals: Arc::new(Renewals(scheduler.clone())),
            shared: Arc::new(Shared {
                backend,
                counters,
                held,
                scheduler,
                closing: ShutdownSignal::default(),
            }),
            namespace: namespace.map(Into::into),
            defaults,
        })
    }

    /// [`connect`](Self::connect) for code outside async.
    ///
    /// # Errors
    /// As [`LockClient::connect`].
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_connect(self) -> Result<LockClient, ConnectError> {
        background::handle().block_on(self.connect())
    }
}
