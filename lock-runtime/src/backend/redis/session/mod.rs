//! A session: one notification channel and the connection behind it, made again whenever it breaks, and the callers that
//! wait on it, with the moment at which each of their locks is probed: at the end of a lease, after 200 ms at most.
//!
//! A session lives on the runtime of those who call, so that a command costs no hop between threads. The engine has one
//! of its own, the home session, for everything that has to outlive a runtime.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{backend::BackendError, key::LockName, lease::Moment};
use tokio::{runtime::Handle, sync::Notify};

use self::{subscribers::Subscribers, unanswered::Unanswered, waiters::Waiters};
use crate::{
    backend::redis::{
        protocol::{grant, request::AcquireRequest},
        transport::{
            connection::{Connection, Connector, Identity, OPEN_PATIENCE, Pushed},
            health::Parking,
            outage::SessionPresence,
        },
    },
    background::{Context, watched::Watched},
    events::TARGET,
};

pub(crate) mod subscribers;
pub(crate) mod unanswered;
pub(crate) mod waiters;

/// The period of the heartbeat: while somebody waits, the locks that are waited for are probed this often.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(200);
/// The pause between two tries to connect: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// After a server that is no master any longer, a connection counts when it has lasted for so long.
const TRIAL: Duration = Duration::from_secs(1);
/// A lock is probed so much later than its lease ends, when the server has seen the end, too.
const LEASE_ENDED: Duration = Duration::from_millis(1);

/// What drives a session: it is told what happens, and decides what is sent.
pub(crate) trait Driver: Send + Sync {
    /// A session begins to run.
    fn started(self: Arc<Self>, session: &Arc<Session>);

    /// The server has pushed a message.
    fn pushed(self: Arc<Self>, session: &Arc<Session>, push: &Pushed);

    /// There are requests to send for waiters of this lock.
    fn enqueue(self: Arc<Self>, session: &Arc<Session>, name: &LockName);

    /// A session has ended.
    fn ended(&self, session: &Arc<Session>);
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Up(Arc<Connection>),
    /// Its runtime has ended, or the client was shut down.
    Ended,
}

pub(crate) struct Session {
    /// Names the notification channel. A secret of this process and of the scripts.
    pub(crate) session_id: Arc<str>,
    channel: String,
    context: Arc<Context>,
    driver: OnceLock<Weak<dyn Driver>>,
    /// Whether somebody was warned of messages that are not signed.
    forged: AtomicBool,
    state: Watched<State>,
    runtime: OnceLock<Handle>,
    /// The callers that queue.
    pub(crate) waiters: Waiters,
    /// The requests that callers have sent by themselves.
    pub(crate) unanswered: Unanswered,
    /// The callers that wait without a queue.
    pub(crate) subscribers: Subscribers,
    /// Where the heartbeat sleeps.
    parking: Arc<Parking>,
    /// A lock is to be probed earlier than the heartbeat would.
    earlier: Notify,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("channel", &self.channel)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session that does not run yet.
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        let session_id = format!("{:032x}", context.unique());
        Arc::new(Self {
            channel: grant::channel(&session_id),
            session_id: session_id.into(),
            context: context.clone(),
            driver: OnceLock::new(),
            forged: AtomicBool::new(false),
            state: Watched::new(State::Connecting),
            runtime: OnceLock::new(),
            waiters: Waiters::default(),
            unanswered: Unanswered::default(),
            subscribers: Subscribers::new(context.clone()),
            parking: Arc::default(),
            earlier: Notify::new(),
        })
    }

    /// Lets the session run on `runtime`. On one that has ended it ends at once.
    pub(crate) fn run(
        self: &Arc<Self>,
        driver: &Weak<dyn Driver>,
        connector: &Arc<Connector>,
        runtime: &Handle,
    ) {
        self.runtime.get_or_init(|| runtime.clone());
        self.driver.get_or_init(|| driver.clone());
        let ending = Ending {
            session: self.clone(),
            driver: driver.clone(),
            connector: connector.clone(),
            presence: connector.outages.session(),
        };
        runtime.spawn(ending.supervise());
        if let Some(driver) = driver.upgrade() {
            driver.started(self);
        }
    }

    /// Lets something run where the session does; it ends with that runtime.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.get();
        runtime
            .unwrap_or_else(|| self.context.handle())
            .spawn(future);
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    pub(crate) fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }

    /// Whether this is the first message here that is not signed.
    pub(crate) fn is_first_forgery(&self) -> bool {
        !self.forged.swap(true, Ordering::AcqRel)
    }

    /// Ends when a lock is to be probed earlier than the heartbeat would.
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// The connection, if there is one right now.
    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        match &*self.state.get() {
            State::Up(connection) if !connection.health.is_broken() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection that was made last, if it was not given up: also one that is broken.
    pub(crate) fn latest(&self) -> Option<Arc<Connection>> {
        match &*self.state.get() {
            State::Up(connection) => Some(connection.clone()),
            State::Connecting | State::Ended => None,
        }
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        let settled = |state: &State| match state {
            State::Up(connection) if !connection.health.is_broken() => Some(Ok(connection.clone())),
            State::Ended => Some(Err(BackendError::ShutDown)),
            State::Connecting | State::Up(_) => None,
        };
        self.state.until(settled).await
    }

    /// Ends when another connection has come after this one; never, if none does.
    pub(crate) async fn succeeds(&self, previous: &Identity) {
        let is_new = |state: &State| match state {
            State::Up(connection) if connection.identity != *previous => Some(()),
            State::Up(_) | State::Connecting | State::Ended => None,
        };
        self.state.until(is_new).await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(&*self.state.get(), State::Ended)
    }

    /// Ends the session: nobody can connect or wait any more.
    pub(crate) fn end(&self) {
        let last = self.state.replace(State::Ended);
        if let State::Up(connection) = last {
            connection.health.mark_broken();
        }
        self.waiters.clear();
        self.parking.leave();
    }

    /// Ends the waiting of all who wait here.
    pub(crate) fn dismiss_waiters(&self) {
        self.subscribers.wake_all();
        self.waiters.clear();
    }

    /// There is something to watch.
    pub(crate) fn watch(&self) {
        self.parking.watch();
    }

    /// Notes the places of callers, and when their lock is probed: at the end of the holder's lease, if that is near.
    pub(crate) fn queued(
        &self,
        name: &LockName,
        places: &[(&AcquireRequest, u64)],
        holder_ends: Moment,
    ) {
        self.waiters.queued(name, places);
        self.probe_after(name, holder_ends);
    }

    /// The lock is probed when the lease of its holder has ended, or before.
    pub(crate) fn probe_after(&self, name: &LockName, holder_ends: Moment) {
        let at = (holder_ends + LEASE_ENDED).min(self.context.now() + HEARTBEAT);
        if self.waiters.probe_at(name, at) {
            self.earlier.notify_one();
        }
    }

    /// Whether nobody waits here, and no command is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let quiet = match &*self.state.get() {
            State::Up(connection) => connection.health.is_idle(),
            State::Connecting | State::Ended => false,
        };
        quiet && self.waiters.is_empty() && self.unanswered.is_empty()
    }

    /// Sends the requests of all who were queued again, with their old places: over a new connection, or where the
    /// server has lost the queue of this lock.
    pub(crate) fn requeue(self: &Arc<Self>, only: Option<&LockName>) {
        for name in self.waiters.requeue(only) {
            self.enqueue(&name);
        }
    }

    /// Sends the requests of all who wait for this lock and were not sent for yet.
    pub(crate) fn enqueue(self: &Arc<Self>, name: &LockName) {
        if let Some(driver) = self.driver.get().and_then(Weak::upgrade) {
            driver.enqueue(self, name);
        }
    }
}

/// Ends a session when its supervisor ends, be it by the end of the runtime that it runs on.
struct Ending {
    session: Arc<Session>,
    driver: Weak<dyn Driver>,
    connector: Arc<Connector>,
    presence: SessionPresence,
}

impl Ending {
    /// Connects, again and again, until the session has ended.
    async fn supervise(mut self) {
        let mut previous: Option<Identity> = None;
        let mut demoted = false;
        let mut backoff = BACKOFF.0;
        loop {
            if self.driver.strong_count() == 0 {
                return;
            }
            let (session, driver) = (Arc::downgrade(&self.session), self.driver.clone());
            let on_push = move |push| {
                if let (Some(session), Some(driver)) = (session.upgrade(), driver.upgrade()) {
                    driver.pushed(&session, &push);
                }
            };
            let opened = Connection::open(
                &self.connector,
                &self.session.channel,
                previous.clone(),
                self.session.parking.clone(),
                OPEN_PATIENCE,
                on_push,
            )
            .await;
            match opened {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    tracing::debug!(target: TARGET, server = %self.connector.address(), channel = self.session.channel, "connected");
                    backoff = BACKOFF.0;
                    previous = Some(connection.identity.clone());
                    let connecting = |state: &State| matches!(state, State::Connecting);
                    let up = State::Up(connection.clone());
                    if self.session.state.replace_if(connecting, up).is_none() {
                        return;
                    }
                    self.session.requeue(None);
                    // A replica can be connected to: that ends no outage that a replica has begun.
                    let trial = if demoted { TRIAL } else { Duration::ZERO };
                    let is_trial_over = self.connector.context.sleep(trial);
                    tokio::select! {
                        biased;
                        () = connection.health.until_broken() => {}
                        () = is_trial_over => {
                            self.presence.connected();
                            connection.health.until_broken().await;
                        }
                    }
                    demoted = connection.health.is_demoted();
                    if let Some(error) = connection.health.lost() {
                        self.presence.disconnected(error);
                    }
                    drop(connection);
                    tracing::debug!(target: TARGET, channel = self.session.channel, "connection lost");
                    let up = |state: &State| matches!(state, State::Up(_));
                    self.session.state.replace_if(up, State::Connecting);
                    if demoted {
                        self.connector.context.sleep(BACKOFF.1).await;
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    tracing::debug!(target: TARGET, server = %self.connector.address(), %error, "cannot connect to the lock server");
                    self.presence.disconnected(&error);
                    self.connector.outages.note(error);
                    let pause = self.connector.context.sleep(backoff);
                    backoff = (backoff * 2).min(BACKOFF.1);
                    let ended = |state: &State| matches!(state, State::Ended).then_some(());
                    tokio::select! {
                        biased;
                        () = pause => {}
                        () = self.session.state.until(ended) => {}
                    }
                }
            }
            if self.session.has_ended() {
                return;
            }
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.session.end();
        if let Some(driver) = self.driver.upgrade() {
            driver.ended(&self.session);
        }
    }
}
