//! The client: where locks are stored, the default options of calls, and how a call finds its client.

pub(crate) mod builder;
pub(crate) mod leftovers;
pub(crate) mod ping;
pub(crate) mod testing;

use std::{collections::BTreeMap, fmt, future::Future, sync::Mutex, time::Duration};

use futures_util::future::join_all;
use lock_core::{error::LockError, key::LockKey, lease::Moment};
use once_cell::sync::OnceCell;

use crate::{
    acquire::deadline::bounded,
    background::lock,
    client::builder::LockClientBuilder,
    connect_error::{ConnectError, URL_VARIABLE},
    events::{Stats, TARGET},
    latch::Latch,
    leader::Leader,
    lease::{scheduler::Renewals, shared::Shared},
    limits,
    lock::Lock,
    multi_lock::MultiLock,
    options::ClientHandle,
    patience,
    scan::LockScan,
    semaphore::Semaphore,
};

static INSTALLED: OnceCell<LockClient> = OnceCell::new();

tokio::task_local! {
    static SCOPED: LockClient;
}

/// Returns the client that is scoped to the current task, if there is one.
pub(crate) fn scoped() -> Option<LockClient> {
    SCOPED.try_with(Clone::clone).ok()
}

/// A client of a lock server or of in-process locks, with the default options of its calls. Cloning a client is cheap,
/// and all clones use the same connections and counters.
///
/// A client lives for as long as one of its clones, one of its [`Lock`]s or a call that uses it exists. The leases of a
/// client are renewed only while the client lives, so keep the client for at least as long as its guards.
///
/// A call uses the client that the attribute names with `client = ..`. If the attribute names no client, the call uses
/// the client scoped to the task by [`scope`](Self::scope). If no client is scoped, the call uses the client installed
/// for the process by [`install`](Self::install).
///
/// A client has one connection to each server, on a thread of the engine. All calls of the client use this connection,
/// whatever runtimes they run on. The runtimes need neither a timer nor I/O. A process that forks has to do so before its
/// first client is made: in the child, the engine's thread is missing, so calls return
/// [`LockError::Unreachable`] at once.
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
    /// Each kind of server needs a [feature of this crate](crate#features): `redis`, `cluster` or `redlock`. A URL whose
    /// feature is off is refused with [`ConnectError::MissingFeature`].
    ///
    /// | URL | locks |
    /// |---|---|
    /// | `memory:` | in this process, used by this client alone: for a first run and for unit tests. A test may pause tokio's clock, but only if it does no real I/O: a paused clock jumps ahead while I/O is pending, and leases then expire. |
    /// | `memory:name` | in this process, shared by all clients that use this name |
    /// | `redis://[user:password@]host[:port][/db]` | on one server: Redis 6.2 or later, or a server that speaks the same protocol |
    /// | `rediss://…` | like `redis://…`, but over TLS (feature `tls-ring` or `tls-aws-lc`) |
    /// | `redis+unix:///path/to.sock[?db=1]`, `unix://…` | like `redis://…`, but over a unix socket |
    /// | `redis+sentinel://[user:password@]host1[:port],host2,host3/group[/db]` | on the primary of a group that these Sentinels watch. If the primary fails before it has replicated a grant, a second holder can enter, with a greater token. |
    /// | `rediss+sentinel://…` | like `redis+sentinel://…`, but over TLS |
    /// | `redis+cluster://[user:password@]host1[:port],host2,host3` | in a Redis Cluster, on the primary that stores the lock's slot. If the primary fails before it has replicated a grant, a second holder can enter, with a greater token. |
    /// | `rediss+cluster://…` | like `redis+cluster://…`, but over TLS |
    /// | `redlock://[user:password@]host1[:port],host2[:port],host3[:port][/db]` | on a majority of three or more independent Redis servers, see below |
    /// | `redlocks://…` | like `redlock://…`, but over TLS; [`redlock_nodes`](LockClientBuilder::redlock_nodes) also accepts nodes with different users |
    ///
    /// # Redlock
    /// A Redlock does not guarantee the following:
    /// - Order and fairness: there is no queue, so a late caller can enter before an early one.
    /// - Exclusion in all cases: two holders are possible if the clock of a server jumps, or if a majority of the
    ///   servers loses its state within one lease. Two holders are also possible if the clocks of a server and the
    ///   client drift apart by more than 1 % of the lease plus 2 ms within one lease.
    /// - Timely notice of a loss: on every backend, a process that was paused can write before it notices that its
    ///   lease has ended. Send the fencing token with every write that must not happen twice.
    ///
    /// Locks can be acquired and held for as long as a majority of the servers is up: one of three servers can be down,
    /// or two of five. If a server was down when a lock was granted, the next renewal (or the next check of a fixed
    /// lease) writes the hold to that server. After this write, another server can fail without a loss of the lock.
    ///
    /// Each server has a mark, the key `lock:fence:whole`, in which clients record the longest lease in use. Before a
    /// client requests a longer lease, it records the new maximum on a majority of the servers. A server that has lost
    /// its state has lost its mark too. The votes of such a server do not count toward a majority until the time of the
    /// longest recorded lease has passed.
    ///
    /// To find the longest recorded lease, a client reads the marks of the other servers. The client needs two marks if
    /// there are three servers, and three marks if there are five. If all servers answer, fewer marks are enough. If
    /// the client cannot read enough marks, the votes of the server without a mark do not count for a day, which is the
    /// longest possible lease.
    ///
    /// # Errors
    /// [`ConnectError`] says what is wrong and what to do. The error never contains a password.
    pub async fn connect(url: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder().url(url).connect().await
    }

    /// Blocking version of [`connect`](Self::connect), for code outside async.
    ///
    /// # Errors
    /// Returns the same errors as [`connect`](Self::connect).
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
    pub fn blocking_connect(url: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder().url(url).blocking_connect()
    }

    /// Connects to the URL in the environment variable `LOCK_URL`.
    ///
    /// # Errors
    /// Returns [`ConnectError::MissingVariable`] if the variable is unset or empty. The method never falls back to
    /// in-process locks, because two processes without the variable would not exclude each other. All other errors of
    /// `from_env` are those of [`connect`](Self::connect).
    pub async fn from_env() -> Result<Self, ConnectError> {
        match std::env::var(URL_VARIABLE) {
            Ok(url) if !url.is_empty() => Self::connect(url).await,
            _ => Err(ConnectError::MissingVariable),
        }
    }

    /// Returns a builder for the settings of a client.
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    /// Installs this client for the process. A call uses the installed client if the call names no client and none is
    /// scoped to its task.
    ///
    /// # Errors
    /// Returns [`AlreadyInstalled`] if the process already has an installed client.
    pub fn install(&self) -> Result<(), AlreadyInstalled> {
        INSTALLED
            .set(self.clone())
            .map_err(|_| AlreadyInstalled(()))
    }

    /// Runs `future` with this client as its scoped client, so that tests with different clients can run side by side
    /// in one process. Tasks that `future` spawns do not inherit the client: scope the spawned future as well, or spawn
    /// it with [`in_current_hold`](crate::InCurrentHold::in_current_hold).
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
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        SCOPED.scope(self.clone(), future)
    }

    /// Runs `poll` with this client as the scoped client.
    pub(crate) fn around<T>(&self, poll: impl FnOnce() -> T) -> T {
        SCOPED.sync_scope(self.clone(), poll)
    }

    /// Returns the client that a call uses if it names no client: the client scoped to the current task, or otherwise
    /// the installed client.
    ///
    /// # Errors
    /// Returns [`LockError::NoClient`] if no client is scoped and none is installed.
    pub fn current() -> Result<Self, LockError> {
        scoped()
            .or_else(|| INSTALLED.get().cloned())
            .ok_or(LockError::NoClient)
    }

    /// Returns the lock with this key. The key is used as is: escape untrusted parts with [`escape`](crate::escape).
    pub fn lock(&self, key: impl Into<String>) -> Lock {
        Lock::new(self.0.clone(), LockKey::new(key))
    }

    /// Returns the locks with these keys, to be acquired and held together. Each key is used as is, like the key of
    /// [`lock`](Self::lock).
    pub fn locks(&self, keys: impl IntoIterator<Item = impl Into<String>>) -> MultiLock {
        MultiLock::new(self.0.clone(), keys.into_iter().map(LockKey::new))
    }

    /// Returns the semaphore with this name, of which all processes together take at most `permits` permits at a time. The
    /// name is part of a key, so it is used as is, like the key of [`lock`](Self::lock).
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.0.clone(), name.as_ref(), permits)
    }

    /// Returns the latch with this name: it waits until this number of parts is done. A round of the latch lasts for `life`
    /// (10 ms to 24 hours) from its first use. The name is part of a key, so it is used as is, like the key of
    /// [`lock`](Self::lock).
    pub fn latch(&self, name: impl AsRef<str>, parts: u32, life: Duration) -> Latch {
        Latch::new(self.0.clone(), name.as_ref(), parts, life)
    }

    /// Returns the leader with this name: a role that one process at a time has. The name is part of a key, so it is used
    /// as is, like the key of [`lock`](Self::lock).
    pub fn leader(&self, name: impl AsRef<str>) -> Leader {
        Leader::new(self.0.clone(), name.as_ref())
    }

    /// Iterates over the keys of the held locks in the client's namespace. Returns only the keys that begin with
    /// `prefix`. An empty prefix selects all locks.
    ///
    /// Each step examines a few hundred keys of one server (`SCAN`). A step takes less than a millisecond of the
    /// server's time, regardless of how many keys the server stores. A lock that is held from the beginning to the end
    /// of the iteration is found, unless the lock moves to another server of a Redis Cluster during the iteration. The
    /// Redis user needs the additional right `+scan`. In [Redisson's layout](crate::Layout::Redisson), the name of a
    /// lock looks like any other key, so each key of the namespace is returned.
    ///
    /// # Errors
    /// Returns [`LockError::InvalidKey`] if the prefix has characters that no key has. In-process locks cannot be
    /// listed: [`next_page`](LockScan::next_page) returns [`LockError::Refused`].
    ///
    /// ```no_run
    /// # async fn example(client: lock_runtime::LockClient) -> Result<(), lock_runtime::LockError> {
    /// let mut scan = client.scan("order:")?;
    /// while let Some(keys) = scan.next_page().await? {
    ///     for key in keys {
    ///         println!("{key}: {:?}", client.lock(key.as_str()).status().await?);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan(&self, prefix: impl Into<String>) -> Result<LockScan, LockError> {
        LockScan::new(self.0.clone(), prefix.into())
    }

    /// Returns the address of the lock server as it was set, without user, password and database. For Sentinels, a Redis
    /// Cluster and a Redlock, the text contains the addresses of all servers that were named. For locks in process, the
    /// text is `memory:`.
    ///
    /// ```
    /// # use lock_runtime::{ConnectError, LockClient};
    /// # fn main() -> Result<(), ConnectError> {
    /// let client = LockClient::builder().url("redis://locks:secret@10.0.0.7/").connect_lazy()?;
    /// assert_eq!(client.server(), "10.0.0.7:6379");
    /// assert_eq!(client.namespace().as_deref(), Some("lock"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn server(&self) -> &str {
        &self.0.server
    }

    /// Returns the namespace, as it is written in the names of the stored locks. Returns `None` for a client without a
    /// namespace in [Redisson's layout](crate::Layout::Redisson).
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        let layout = self.0.defaults.layout;
        layout.stored_namespace(self.0.namespace.as_deref())
    }

    /// Returns the counts of this client's events so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.shared.counters.snapshot()
    }

    /// Shuts the client down. New and waiting acquisitions are refused with [`LockError::ShutDown`]. The method then
    /// waits until every hold has ended and every release is confirmed. If a body can hang, use
    /// [`shutdown_within`](Self::shutdown_within), which also says what is left at its limit.
    ///
    /// A running body goes on: its nested calls still re-enter the locks that their enclosing calls hold, and extend
    /// their leases. A nested call for a lock that no enclosing call holds is a new acquisition, and is refused.
    ///
    /// The method waits in two steps:
    ///
    /// 1. It waits until the refused acquisitions have ended, but at most 2 s.
    /// 2. It waits until the holds have ended. As long as the server answers, this step has no time limit. If the
    ///    server does not answer, this step ends with the last lease, or when the server has not answered for 10 s. In
    ///    a Redis Cluster, the holds on a primary that answers are waited for without a time limit, even if another
    ///    primary does not answer.
    ///
    /// A body that is still running when the method returns continues, but its lease is no longer renewed. The method does
    /// not wait for locks that `hold_at_least` keeps taken after their bodies have ended: the server keeps them without
    /// the client.
    ///
    /// ```no_run
    /// # async fn example(client: lock_runtime::LockClient, sigterm: impl Future<Output = ()>) {
    /// use std::time::Duration;
    ///
    /// sigterm.await; // such as `tokio::signal::unix::signal(SignalKind::terminate())?.recv()`
    /// // The process is killed some time after SIGTERM, so a body that hangs must not use up this time.
    /// if let Err(left) = client.shutdown_within(Duration::from_secs(20)).await {
    ///     eprintln!("{left}");
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, the client stays closed and no lease is renewed from then on: each hold ends with its
    /// lease, unless it is released earlier. Call `shutdown` again to continue waiting.
    pub async fn shutdown(&self) {
        let shared = &*self.0.shared;
        let (backend, registry) = (&shared.backend, &shared.registry);
        let _renewals = Renewals(shared.scheduler.clone());
        let begun = backend.now();
        shared.shutdown.begin();
        backend.begin_shutdown();
        // No body begins any more. A lock whose body has not begun is given back now, and one that is still granted is given
        // back below.
        registry.give_up_unused();
        let nobody_waits = async {
            registry.nobody_enters().await;
            backend.cleaned_up().await;
        };
        // The wait for refused calls has a time limit, because a refused call ends only when its task polls it, which
        // might never happen.
        let refused = bounded(backend, begun + limits::WAITING_PATIENCE, nobody_waits).await;
        registry.give_up_unused();
        let silent_since = Mutex::default();
        tokio::select! {
            biased;
            () = registry.drained() => {}
            () = self.silent_while_held(&silent_since) => {}
        }
        // A release that is not confirmed within a second continues in the background. `close` waits for these
        // releases.
        // If the refused calls have used up their time, the server has possibly been silent since then.
        let silent_since = lock(&silent_since).unwrap_or_else(|| match refused {
            Some(()) => backend.now(),
            None => backend.now() - limits::WAITING_PATIENCE,
        });
        backend.close(silent_since + limits::HELD_PATIENCE).await;
        tracing::debug!(target: TARGET, "lock client shut down");
    }

    /// Completes once it is useless to wait for the servers that store held locks. This is the case if each of these
    /// servers has been silent for [`limits::HELD_PATIENCE`], or is silent when the last of its leases ends. While all of these
    /// servers are silent, stores in `silent_since` the moment at which the last of them stopped answering. Never
    /// completes for in-process locks.
    async fn silent_while_held(&self, silent_since: &Mutex<Option<Moment>>) {
        let Shared {
            backend, registry, ..
        } = &*self.0.shared;
        if backend.maintains_leases() {
            return std::future::pending().await;
        }
        // The shards whose servers are silent, and the moments at which the servers stopped answering.
        let mut silent: BTreeMap<u16, Moment> = BTreeMap::new();
        loop {
            let now = backend.now();
            let held = registry.held_by_shard(|name| backend.shard(name));
            silent.retain(|shard, _| held.contains_key(shard));
            let is_silent = silent.len() == held.len();
            *lock(silent_since) = silent.values().copied().max().filter(|_| is_silent);
            // How long the shutdown still waits for each shard whose server is silent.
            let left = |shard: &u16, rest| {
                let since = *silent.get(shard)?;
                Some((since + limits::HELD_PATIENCE).since(now).min(rest))
            };
            let left: Vec<_> = held
                .iter()
                .map(|(shard, (_, rest))| left(shard, *rest))
                .collect();
            if left.iter().all(|left| *left == Some(Duration::ZERO)) {
                tracing::warn!(target: TARGET, "the lock server does not answer: the locks that are held end with their leases");
                return;
            }
            let bounds = left
                .iter()
                .flatten()
                .copied()
                .filter(|left| !left.is_zero());
            let pause = bounds
                .min()
                .unwrap_or(limits::ASK_AGAIN)
                .min(limits::ASK_AGAIN);
            let asking = held.iter().zip(&left).map(|((_, (name, _)), left)| {
                let name = name.as_ref();
                let round_trip = name.map(|name| backend.round_trip(name));
                let within =
                    patience::for_answer(limits::ASK_AGAIN, round_trip.unwrap_or_default());
                // The shutdown does not wait longer for a silent server than for as long as the server's locks last.
                let within = left.map_or(within, |left| within.min(left).max(pause));
                backend.is_answering(name, within)
            });
            let answering = join_all(asking).await;
            for (shard, answers) in held.keys().zip(answering) {
                if answers {
                    silent.remove(shard);
                } else {
                    silent.entry(*shard).or_insert(now);
                }
            }
            backend.sleep_until(now + pause).await;
        }
    }
}

/// The error of [`LockClient::install`] if the process already has an installed client.
#[derive(Debug)]
pub struct AlreadyInstalled(());

impl fmt::Display for AlreadyInstalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a lock client is installed already: install one client at start-up, and scope any other client to its task with `client.scope(..)`",
        )
    }
}

impl std::error::Error for AlreadyInstalled {}
