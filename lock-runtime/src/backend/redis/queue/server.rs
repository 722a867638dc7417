//! The engine's state for one Redis server or one Redis Cluster: the sessions, the core, and the background tasks.

use std::{
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lock_core::{
    backend::{BackendError, BoxFuture, Request},
    key::LockName,
    layout::Layout,
    lease::{CLAIM, Moment},
};
use tokio::sync::Notify;

use crate::{
    backend::redis::{
        core::Link,
        protocol::{
            command::{Answered, Arg},
            layout::{Names, REDISSON_PROBE, Scripts},
            request::AcquireRequest,
            words,
        },
        session::{Host, Session, shared_core::SharedCore},
        topology::Topology,
        transport::{
            call_error::{CallError, Redirect},
            connector::{Connector, Destination, Place, ServerCheck},
            outage::Outages,
            script::Script,
        },
    },
    background::{Context, ShutdownSignal, TaskTracker, TrackedTask, drained, lock},
    connect_error::ConnectError,
    events::Counters,
    limits, patience,
};

/// When to repeat a command that was not carried out, or whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Repeat the command at once, over another connection. The server may have carried out the command.
    Now,
    /// Repeat the command after [`limits::RETRY_PAUSE`]. The server has not carried out the command.
    Later,
}

/// The state that all sessions with one server or one Redis Cluster share.
pub(crate) struct Server {
    pub(crate) context: Arc<Context>,
    layout: Layout,
    /// The words `application/host/pid` of this process, which scripts write into grants and queue entries.
    pub(crate) process: Arc<str>,
    pub(crate) scripts: &'static Scripts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) sessions: Arc<Topology>,
    pub(crate) core: Arc<SharedCore>,
    outages: Arc<Outages>,
    /// Notified when the engine has to check whether the server still has its grants.
    pub(crate) server_changed: Arc<Notify>,
    /// Signals that the shutdown of the client has begun. During the shutdown, no caller waits or starts to wait.
    pub(crate) shutdown: ShutdownSignal,
    /// The acquisitions that have not ended yet, and the clean-ups of abandoned acquisitions.
    unsettled: TaskTracker,
    /// The tasks that release locks in the background.
    releases: TaskTracker,
    /// The latest end of the leases of all locks that are released in the background. `None` before the first
    /// background release.
    released_by: Mutex<Option<Moment>>,
    /// The number of tasks that had not ended when the connections were closed. They end then, without an answer.
    cut_off: AtomicUsize,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Creates the state for a server, without connecting to the server.
    pub(crate) fn open(
        info: Destination,
        layout: Layout,
        context: &Arc<Context>,
        counters: &Arc<Counters>,
    ) -> Result<Arc<Self>, ConnectError> {
        let scripts = Scripts::of(layout, matches!(info.place, Place::Cluster(_)));
        let (context, counters) = (context.clone(), counters.clone());
        let process = words::of_process(&info.application, &context.process);
        let connectors = Connector::all(&context, info, &scripts.load(), &counters)?;
        let outages = connectors[0].outages.clone();
        let server_changed = connectors[0].server_changed.clone();
        let core = SharedCore::new(context.runtimes());
        Ok(Arc::new_cyclic(|server: &Weak<Self>| Self {
            layout,
            process: process.into(),
            scripts,
            outages,
            server_changed,
            sessions: Arc::new(Topology::new(
                &context,
                connectors,
                Host {
                    core: core.clone(),
                    driver: server.clone(),
                },
            )),
            core,
            context,
            counters,
            shutdown: ShutdownSignal::default(),
            unsettled: TaskTracker::new(),
            releases: TaskTracker::new(),
            released_by: Mutex::default(),
            cut_off: AtomicUsize::new(0),
        }))
    }

    /// Connects to the servers once, and reports problems with them.
    pub(crate) async fn check(
        self: &Arc<Self>,
        allow_eviction: bool,
        patience: Duration,
    ) -> Result<(), ConnectError> {
        let started = self.now();
        let required = self.required(allow_eviction);
        let checked = self.sessions.check(required, patience).await;
        checked.map_err(|failure| {
            let waited = self.now().since(started);
            failure.at(self.address().to_owned(), waited)
        })
    }

    /// Makes the first session check the server before it connects.
    pub(crate) fn check_later(&self, allow_eviction: bool) {
        self.sessions.check_later(self.required(allow_eviction));
    }

    fn required(&self, allow_eviction: bool) -> ServerCheck {
        ServerCheck {
            allow_eviction,
            probe_channel: (self.layout == Layout::Redisson).then_some(REDISSON_PROBE),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.context.now()
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn names(&self, name: &LockName) -> Names {
        let slotted = self.sessions.is_cluster();
        Names::new(self.layout, name.clone(), slotted)
    }

    /// Returns the key of a lock, as callers write it and as logs show it.
    pub(crate) fn key<'a>(&self, name: &'a LockName) -> &'a str {
        self.layout.key(name)
    }

    pub(crate) fn address(&self) -> &str {
        self.outages.address()
    }

    /// Builds the request for an acquisition in this session.
    pub(crate) fn acquire_request(&self, request: &Request, session: &Session) -> AcquireRequest {
        let session_id = session.session_id.clone();
        let names = self.names(&request.name);
        AcquireRequest::new(
            self.context.clone(),
            self.scripts,
            names,
            request,
            session_id,
            self.process.clone(),
        )
    }

    /// Records an error of the server. A later failure reports this error as its reason.
    pub(crate) fn note(&self, error: String) {
        self.outages.note(error);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.outages.last_error()
    }

    /// Records why a command failed, and returns when to repeat the command. If the server refused the command, returns
    /// the refusal as an error, and records nothing.
    pub(crate) fn note_failure(&self, error: CallError) -> Result<Retry, BackendError> {
        let (detail, retry) = match error {
            CallError::Refused(error) => return Err(error),
            CallError::Broken(detail) => (detail, Retry::Now),
            CallError::NotReady(detail) | CallError::Demoted(detail) => (detail, Retry::Later),
            CallError::Moved(to) => {
                self.sessions.moved(&to);
                return Ok(Retry::Later);
            }
            CallError::Ask(_) => return Ok(Retry::Later),
        };
        self.note(detail);
        Ok(retry)
    }

    /// Records why a command failed, and waits until the command can be repeated. If the server refused the command,
    /// returns the refusal as an error.
    pub(crate) async fn recover(&self, error: CallError) -> Result<Retry, BackendError> {
        let retry = self.note_failure(error)?;
        if retry == Retry::Later {
            self.context.sleep(limits::RETRY_PAUSE).await;
        }
        Ok(retry)
    }

    /// Returns whether the lock has moved away from the server of this session. If the lock has moved, removes the
    /// lock's waiters from the session, and they queue again on the other server.
    pub(crate) fn dismiss_moved(&self, session: &Arc<Session>, name: &LockName) -> bool {
        let has_moved = !self.sessions.serves(session, name);
        if has_moved {
            session.dismiss(|moved| moved == name);
        }
        has_moved
    }

    /// Ends the cohort whose first member has this token, because the server no longer has the cohort's grant. Queues
    /// the waiting members of the cohort again.
    pub(crate) fn lose_cohort(&self, name: &LockName, first: u64) {
        if let Some(link) = self.core.with(|core| core.lose(name, first)) {
            self.requeue(link, name);
        }
    }

    /// Queues the callers of this session that wait for a lock again.
    pub(crate) fn requeue(&self, link: Link, name: &LockName) {
        if let Some(session) = self.sessions.linked(link) {
            session.requeue(Some(name));
        }
    }

    /// Runs a script over the session that serves a lock. Repeats the command, over new connections if necessary, until
    /// the server answers or refuses the command. The calling code has to limit the time.
    pub(crate) async fn run(
        &self,
        name: &LockName,
        script: &Script,
        keys: &[&str],
        args: &[Arg<'_>],
    ) -> Result<Answered, BackendError> {
        let answered = self.run_while(name, script, keys, args, &|| true).await?;
        Ok(answered.expect("the command is always wanted"))
    }

    /// Runs a script as [`run`](Self::run) does, and calls `is_wanted` each time before it sends the command. If
    /// `is_wanted` returns false, sends nothing more and returns `None`.
    pub(crate) async fn run_while(
        &self,
        name: &LockName,
        script: &Script,
        keys: &[&str],
        args: &[Arg<'_>],
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Answered>, BackendError> {
        let mut again = false;
        // A redirection is rare. It is boxed, so that the future of a call stays small.
        let mut redirect: Option<Box<Redirect>> = None;
        loop {
            let (connection, moving) = match redirect.take() {
                None => (self.sessions.connected(name).await?.1, false),
                Some(redirect) => {
                    let connecting: BoxFuture<'_, _> =
                        Box::pin(self.sessions.redirected(&redirect));
                    let Ok((_, connection)) = connecting.await else {
                        // The slot map no longer contains the server to which the command was redirected, or the client
                        // is closed.
                        self.context.sleep(limits::RETRY_PAUSE).await;
                        continue;
                    };
                    (connection, true)
                }
            };
            if !is_wanted() {
                return Ok(None);
            }
            let running = {
                let now = self.now();
                let args: Vec<_> = args.iter().map(|arg| arg.over(&connection, now)).collect();
                if moving {
                    connection.run_while_moving(script, keys, &args)
                } else {
                    connection.run_while(script, keys, &args, is_wanted)
                }
            };
            match running.await {
                Ok((value, sent)) => return Ok(Some(Answered { value, sent, again })),
                Err(CallError::Ask(to)) => redirect = Some(Box::new(to)),
                Err(error) => again |= self.recover(error).await? == Retry::Now,
            }
        }
    }

    /// Returns whether the server answers within this time and can carry out requests. In a Redis Cluster, asks the
    /// server that stores `name`, or all servers if `name` is `None`.
    pub(crate) async fn is_answering(&self, name: Option<&LockName>, within: Duration) -> bool {
        let nodes = self.sessions.nodes_of(name);
        let asking = nodes.iter().map(|node| node.is_answering(within));
        let answering = join_all(asking).await;
        !answering.is_empty() && answering.into_iter().all(|answers| answers)
    }

    /// Returns the round trip that the connections to the server that stores `name` have shown.
    pub(crate) fn round_trip(&self, name: &LockName) -> Duration {
        let nodes = self.sessions.nodes_of(Some(name));
        let lines = nodes.iter().map(|node| node.connector().line.round_trip());
        lines.max().unwrap_or_default()
    }

    /// Returns how long to wait for an answer of the server that stores `name`, if `near` is enough for a near server.
    pub(crate) fn patience(&self, name: &LockName, near: Duration) -> Duration {
        patience::for_answer(near, self.round_trip(name))
    }

    /// Begins the shutdown of the client. After this call, no caller keeps waiting or starts to wait for a lock.
    pub(crate) fn begin_shutdown(&self) {
        self.shutdown.begin();
        self.sessions.dismiss_waiters();
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutdown.has_begun()
    }

    /// Tracks a task of an acquisition, so that the shutdown waits for the end of the task. During the shutdown, no
    /// acquisition begins. A task that begins during the shutdown therefore belongs to a lock that is held, and is
    /// tracked as a release.
    pub(crate) fn track_acquisition(&self) -> TrackedTask {
        if self.is_shutting_down() {
            self.track_release(self.now() + CLAIM)
        } else {
            self.track_cleanup()
        }
    }

    /// Tracks the clean-up of an abandoned acquisition. The shutdown waits until the clean-up has ended.
    pub(crate) fn track_cleanup(&self) -> TrackedTask {
        self.unsettled.token()
    }

    /// Tracks a background release. The shutdown need not wait beyond `lease_ends`, because the lease expires by that
    /// moment.
    pub(crate) fn track_release(&self, lease_ends: Moment) -> TrackedTask {
        let mut released_by = lock(&self.released_by);
        *released_by = (*released_by).max(Some(lease_ends));
        self.releases.token()
    }

    /// Returns the number of acquisitions, clean-ups and background releases that have not ended, or had not when the
    /// connections were closed.
    pub(crate) fn unconfirmed(&self) -> usize {
        let now = self.unsettled.len() + self.releases.len();
        now.max(self.cut_off.load(Ordering::Acquire))
    }

    /// Waits until all acquisitions have ended, or are cleaned up.
    pub(crate) async fn cleaned_up(&self) {
        drained(&self.unsettled).await;
    }

    /// Waits until all background releases have ended. The wait ends early at `until`, or when the last lease of the
    /// released locks has ended. After the wait, closes all connections.
    pub(crate) async fn close(&self, until: Moment) {
        let released_by = lock(&self.released_by).unwrap_or(until);
        let released = drained(&self.releases);
        self.context
            .timeout_at(released_by.min(until), released)
            .await;
        self.cut_off.store(self.unconfirmed(), Ordering::Release);
        self.sessions.close();
    }

    /// Closes all connections after the last background task has ended.
    pub(crate) async fn close_behind(&self) {
        self.cleaned_up().await;
        drained(&self.releases).await;
        self.sessions.close();
    }
}
