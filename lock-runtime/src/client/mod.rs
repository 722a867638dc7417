//! A client: one set of locks, the defaults of its calls, and how code finds it.

pub(crate) mod builder;

use std::{fmt, future::Future, time::Duration};

use lock_core::{error::LockError, key::LockKey, lease::Moment};
use once_cell::sync::OnceCell;
use tokio::task::futures::TaskLocalFuture;

use crate::{
    acquire::one,
    client::builder::LockClientBuilder,
    connect_error::{ConnectError, URL_VARIABLE},
    events::{Stats, TARGET},
    lease::{scheduler::Renewals, shared::Shared},
    lock::Lock,
    multi_lock::MultiLock,
    options::ClientHandle,
};

/// How long shutting down waits for the end of what waits.
const WAITING_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for a server that does not answer, while something is held.
const HELD_PATIENCE: Duration = Duration::from_secs(10);
/// How often it asks meanwhile whether the server answers, and how long that may take.
const ASK_AGAIN: Duration = Duration::from_millis(500);

static INSTALLED: OnceCell<LockClient> = OnceCell::new();

tokio::task_local! {
    static SCOPED: LockClient;
}

/// The client that is scoped to the code which runs right now.
pub(crate) fn scoped() -> Option<LockClient> {
    SCOPED.try_with(Clone::clone).ok()
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
pub struct LockClient(ClientHandle);

impl LockClient {
    pub(crate) fn new(handle: ClientHandle) -> Self {
        Self(handle)
    }

    pub(crate) fn handle(&self) -> &ClientHandle {
        &self.0
    }

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
        Lock::new(self.0.clone(), LockKey::new(key))
    }

    /// Several locks, all of which are held at once. Each key is taken as it stands, like that of [`lock`](Self::lock).
    pub fn locks(&self, keys: impl IntoIterator<Item = impl Into<String>>) -> MultiLock {
        MultiLock::new(self.0.clone(), keys.into_iter().map(LockKey::new))
    }

    /// What this client has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.shared.counters.snapshot()
    }

    /// Ends the client: new acquisitions and those that wait are refused with [`LockError::ShutDown`], then waits until
    /// every hold has ended and every release is confirmed. Bound it with a timeout if a body may hang.
    ///
    /// A server that does not answer is not waited for without end: 2 s for what waits, and for what is held until its
    /// lease has ended, 10 s at most. A body that still runs then runs on, and its lease is not renewed.
    ///
    /// # Cancel safety
    /// Dropped, the client stays closed, and no lease is renewed from then on: what is held ends with its lease, unless it
    /// is released before. Call it again to go on waiting.
    pub async fn shutdown(&self) {
        let shared = &*self.0.shared;
        let (backend, registry) = (&shared.backend, &shared.registry);
        let _renewals = Renewals(shared.scheduler.clone());
        let begun = backend.now();
        shared.shutdown.cancel();
        backend.begin_shutdown();
        let nobody_waits = async {
            registry.nobody_enters().await;
            backend.cleaned_up().await;
        };
        // A call that is not polled ends when it is.
        one::bounded(backend, begun + WAITING_PATIENCE, nobody_waits).await;
        let silent_since = tokio::select! {
            biased;
            () = registry.drained() => backend.now(),
            silent_since = self.held_in_vain() => silent_since,
        };
        backend.close(silent_since + HELD_PATIENCE).await;
        tracing::debug!(target: TARGET, "lock client shut down");
    }

    /// Ends when the server has not answered for as long as what is held is waited for. Returns when that began.
    async fn held_in_vain(&self) -> Moment {
        let Shared {
            backend, registry, ..
        } = &*self.0.shared;
        if backend.maintains_leases() {
            return std::future::pending().await;
        }
        let mut silent_since: Option<Moment> = None;
        loop {
            let now = backend.now();
            let mut within = ASK_AGAIN;
            if let Some(silent_since) = silent_since {
                let until = (silent_since + HELD_PATIENCE).min(now + registry.longest_rest());
                if until <= now {
                    tracing::warn!(target: TARGET, "the lock server does not answer, what is held ends with its lease"
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
