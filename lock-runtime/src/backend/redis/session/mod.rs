//! A session: a connection to one server, a notification channel, and the callers that wait for messages on this
//! channel. This file decides how long a session pauses before it connects again after its connection broke. It also
//! schedules the probes of the locks for which callers wait. A lock is probed when its holder's lease ends, but at the
//! latest 200 ms after the previous probe.
//!
//! A client has one session with each server, on the engine's thread, whatever runtimes its callers run on. A runtime that
//! is blocked or ends therefore delays nobody else: its callers are only polled late.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{BackendError, BoxFuture},
    key::LockName,
    lease::Moment,
    owner::OwnerId,
};
use tokio::sync::Notify;

use self::{
    shared_core::{Engine, SharedCore},
    subscribers::Subscribers,
};
use crate::{
    backend::redis::{
        core::{Link, waiting::Lines},
        preflight::{Failure, check_first},
        protocol::grant,
        transport::{
            connection::{Connection, Identity, Pushed},
            connector::Connector,
            health::Health,
            outage::{Cause, SessionPresence},
        },
    },
    background::{Context, isolated, parking::Parking, watched::Watched},
    events::TARGET,
    limits,
};

pub(crate) mod shared_core;
pub(crate) mod subscribers;

/// The pause after the first failed try to connect, and the longest pause between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// The time limit for the first try to connect to a near server, and the longest limit. While the server does not answer,
/// the limit doubles with each try.
const OPEN_PATIENCE: (Duration, Duration) = (limits::OPEN_PATIENCE, Duration::from_secs(8));

/// Receives the events of a session, and decides which requests the session sends.
pub(crate) trait Driver: Send + Sync {
    /// Called when a session has started to run.
    fn started(self: Arc<Self>, session: &Arc<Session>);

    /// Called when the server has pushed a message.
    fn pushed(self: Arc<Self>, session: &Arc<Session>, push: &Pushed);

    /// Called when the session has to send the requests of waiters for this lock.
    fn enqueue(self: Arc<Self>, session: &Arc<Session>, name: &LockName);
}

/// The core of the server, and the receiver of the session's events.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) core: Arc<SharedCore>,
    pub(crate) driver: Weak<dyn Driver>,
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Up(Arc<Connection>),
    /// The client was shut down, or the server stores no locks any longer.
    Ended,
}

pub(crate) struct Session {
    /// The secret from which the name of the notification channel is derived. Only this process and the server know the
    /// id of the session.
    pub(crate) session_id: Arc<str>,
    channel: String,
    context: Arc<Context>,
    driver: Weak<dyn Driver>,
    /// Whether a message without a valid signature has arrived. Only the first message without a valid signature is
    /// logged as a warning.
    forged: AtomicBool,
    state: Watched<State>,
    core: Arc<SharedCore>,
    /// The number of this session in the core.
    pub(crate) link: Link,
    /// The callers that wait for a release in Redisson's layout, which has no queue.
    pub(crate) subscribers: Subscribers,
    /// Lets the heartbeat sleep while the session is idle.
    parking: Arc<Parking>,
    /// Notified when a lock has to be probed before the next heartbeat.
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
    /// Creates a session, which does not connect before [`run`](Self::run).
    pub(crate) fn new(context: &Arc<Context>, host: &Host) -> Arc<Self> {
        let session_id: Arc<str> = context.new_session_id().into();
        let link = host.core.with(|core| core.lines.open_link(&session_id));
        Arc::new(Self {
            channel: grant::channel(&session_id),
            session_id,
            context: context.clone(),
            driver: host.driver.clone(),
            forged: AtomicBool::new(false),
            state: Watched::new(State::Connecting),
            core: host.core.clone(),
            link,
            subscribers: Subscribers::new(context.clone()),
            parking: Arc::default(),
            earlier: Notify::new(),
        })
    }

    /// Calls a method of the core about the callers of this session.
    pub(crate) fn lines<T>(&self, method: impl FnOnce(&mut Lines<Engine>, Link) -> T) -> T {
        self.core.with(|core| method(&mut core.lines, self.link))
    }

    /// Starts the session.
    pub(crate) fn run(self: &Arc<Self>, connector: &Arc<Connector>) {
        let ending = Ending {
            session: self.clone(),
            connector: connector.clone(),
            presence: connector.outages.session(),
            previous: None,
            replaced: None,
        };
        self.context.spawn(ending.run());
        if let Some(driver) = self.driver.upgrade() {
            driver.started(self);
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    pub(crate) fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }

    /// Records a message without a valid signature. Returns whether this message is the first one of the session.
    pub(crate) fn is_first_forgery(&self) -> bool {
        !self.forged.swap(true, Ordering::AcqRel)
    }

    /// Waits until a lock has to be probed before the next heartbeat.
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Returns the connection, or `None` while there is no working connection.
    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        match &*self.state.get() {
            State::Up(connection) if !connection.health.is_broken() => Some(connection.clone()),
            _ => None,
        }
    }

    /// Returns the newest connection, even if it is broken. Returns `None` while the session makes a new connection,
    /// and after the session has ended.
    pub(crate) fn latest(&self) -> Option<Arc<Connection>> {
        match &*self.state.get() {
            State::Up(connection) => Some(connection.clone()),
            State::Connecting | State::Ended => None,
        }
    }

    /// Waits for a working connection. Fails if the session has ended.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        let settled = |state: &State| match state {
            State::Up(connection) if !connection.health.is_broken() => Some(Ok(connection.clone())),
            State::Ended => Some(Err(BackendError::ShutDown)),
            State::Connecting | State::Up(_) => None,
        };
        // The future is boxed, so that the future of a caller stays small.
        let waiting: BoxFuture<'_, _> = Box::pin(self.state.until(settled));
        waiting.await
    }

    /// Waits until a connection other than `previous` is up, or until the session has ended. A new connection first closes
    /// the previous one on the server, if that is allowed.
    pub(crate) async fn succeeds(&self, previous: &Connection) {
        let is_new = |state: &State| match state {
            State::Up(connection) if std::ptr::eq(&**connection, previous) => None,
            State::Up(_) | State::Ended => Some(()),
            State::Connecting => None,
        };
        self.state.until(is_new).await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(&*self.state.get(), State::Ended)
    }

    /// Ends the session: gives up its connection, and removes its waiters without offering them a turn. The callers start
    /// over.
    pub(crate) fn end(&self) {
        let last = self.state.replace(State::Ended);
        if let State::Up(connection) = last {
            connection.health.mark_broken();
        }
        self.lines(Lines::end_link);
        self.subscribers.wake_all();
        self.parking.leave();
    }

    /// Makes the callers that wait for these locks start over, because another server stores the locks now.
    pub(crate) fn dismiss(&self, has_moved: impl Fn(&LockName) -> bool) {
        self.subscribers.wake_moved(&has_moved);
        self.lines(|lines, link| lines.dismiss(link, has_moved));
    }

    /// Ends the wait of all callers of this session.
    pub(crate) fn dismiss_waiters(&self) {
        self.subscribers.wake_all();
        self.lines(|lines, link| lines.dismiss(link, |_| true));
    }

    /// Wakes the heartbeat, because the session is no longer idle.
    pub(crate) fn watch(&self) {
        self.parking.watch();
    }

    /// Records the places of callers, and schedules the probe of their lock (see [`probe_after`](Self::probe_after)).
    pub(crate) fn queued(&self, name: &LockName, places: &[(OwnerId, u64)], holder_ends: Moment) {
        self.lines(|lines, link| lines.queued(link, name, places));
        self.probe_after(name, holder_ends);
    }

    /// Schedules a probe of the lock right after the end of its holder's lease, but at the latest one heartbeat from
    /// now.
    pub(crate) fn probe_after(&self, name: &LockName, holder_ends: Moment) {
        let at = (holder_ends + limits::LEASE_ENDED).min(self.context.now() + limits::HEARTBEAT);
        if self.lines(|lines, link| lines.probe_at(link, name, at)) {
            self.earlier.notify_one();
        }
    }

    /// Returns whether the session is connected and idle: no command is under way, and no caller waits in the queue.
    pub(crate) fn is_idle(&self) -> bool {
        let quiet = match &*self.state.get() {
            State::Up(connection) => connection.is_idle(),
            State::Connecting | State::Ended => false,
        };
        quiet && self.lines(|lines, link| lines.is_empty(link))
    }

    /// Sends the requests of the queued callers again, with their old places. Sends only the requests for the lock
    /// `only`, or all requests if `only` is `None`. The engine calls this method after a reconnect, after the server
    /// has lost a queue or a grant, and after the local deadline of a grant has passed.
    pub(crate) fn requeue(self: &Arc<Self>, only: Option<&LockName>) {
        for name in self.lines(|lines, link| lines.requeue(link, only)) {
            self.enqueue(&name);
        }
    }

    /// Sends the requests of this lock's waiters that have not been sent yet.
    pub(crate) fn enqueue(self: &Arc<Self>, name: &LockName) {
        if let Some(driver) = self.driver.upgrade() {
            driver.enqueue(self, name);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.lines(Lines::forget_link);
    }
}

/// Ends a session when the task that supervises it ends.
struct Ending {
    session: Arc<Session>,
    connector: Arc<Connector>,
    presence: SessionPresence,
    /// The connection that the next one closes on the server.
    previous: Option<Identity>,
    replaced: Option<Arc<Health>>,
}

impl Ending {
    /// Connects to the server. If a check of the server is pending, carries out the check first. `near` is the time
    /// limit of each of the two for a near server.
    async fn open(
        &self,
        previous: Option<Identity>,
        near: Duration,
        on_push: impl Fn(Pushed) + Send + Sync + 'static,
    ) -> Result<Connection, Cause> {
        let (session, connector) = (&self.session, &self.connector);
        let checked = check_first(connector, connector.open_patience(near)).await;
        checked.map_err(|error| match error.is_refusal() {
            true => Cause::Refused(error.to_string()),
            false => Cause::Lost(error.to_string()),
        })?;
        let parking = session.parking.clone();
        let opening = Connection::open(
            connector,
            &session.channel,
            previous,
            parking,
            connector.open_patience(near),
            on_push,
        );
        opening.await.map_err(|error| match Failure::of(&error) {
            Failure::Authentication(_) | Failure::Permission(_) => {
                Cause::Refused(error.to_string())
            }
            _ => Cause::Lost(error.to_string()),
        })
    }

    /// Waits until the connection is broken, or until a Sentinel reports that its server is no longer the primary of
    /// its group.
    async fn until_useless(&self, connection: &Connection) {
        tokio::select! {
            biased;
            () = connection.health.until_broken() => {}
            () = self.connector.moves_from(&connection.address) => {
                connection.health.mark_lost("another server has become the primary");
            }
        }
    }

    /// Keeps the session connected until it has ended. The user's code can panic here: a layer of `tracing`, or the waker of
    /// a caller that waits for a connection. Such a panic costs only the present connection.
    async fn run(mut self) {
        while AssertUnwindSafe(self.supervise())
            .catch_unwind()
            .await
            .is_err()
        {
            let up = |state: &State| matches!(state, State::Up(_));
            isolated(|| {
                let last = self.session.state.replace_if(up, State::Connecting);
                if let Some(State::Up(connection)) = last {
                    connection.health.mark_broken();
                }
            });
            self.connector.context.sleep(BACKOFF.1).await;
        }
    }

    /// Connects, and reconnects, until the session has ended.
    async fn supervise(&mut self) {
        let context = self.connector.context.clone();
        let mut demoted = false;
        let mut backoff = BACKOFF.0;
        let mut near = OPEN_PATIENCE.0;
        loop {
            if self.session.driver.strong_count() == 0 {
                return;
            }
            let (session, driver) = (Arc::downgrade(&self.session), self.session.driver.clone());
            let on_push = move |push| {
                if let (Some(session), Some(driver)) = (session.upgrade(), driver.upgrade()) {
                    driver.pushed(&session, &push);
                }
            };
            let began = context.now();
            match self.open(self.previous.clone(), near, on_push).await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    tracing::debug!(target: TARGET, server = %self.connector.address(), channel = self.session.channel, "connected");
                    (backoff, near) = (BACKOFF.0, OPEN_PATIENCE.0);
                    let before = self.previous.replace(connection.identity.clone());
                    // From now on, replies over the previous connection that callers have not read are ignored.
                    if let Some(health) = self.replaced.replace(connection.health.clone()) {
                        health.mark_replaced();
                    }
                    let connecting = |state: &State| matches!(state, State::Connecting);
                    let up = State::Up(connection.clone());
                    if self.session.state.replace_if(connecting, up).is_none() {
                        return;
                    }
                    let is_new = |before: Identity| !before.is_of_the_run_of(&connection.identity);
                    if before.is_some_and(is_new) {
                        self.connector.server_changed.notify_one();
                    }
                    self.session.requeue(None);
                    self.session.earlier.notify_one(); // the heartbeat probes over the new connection
                    // A replica accepts connections, too. If the server of the previous connection was no longer a
                    // master, the new connection can lead to the same server. The new connection therefore ends the
                    // outage only if it lasts.
                    let trial = if demoted {
                        limits::TRIAL
                    } else {
                        Duration::ZERO
                    };
                    let is_trial_over = self.connector.context.sleep(trial);
                    tokio::select! {
                        biased;
                        () = self.until_useless(&connection) => {}
                        () = is_trial_over => {
                            self.presence.connected();
                            self.until_useless(&connection).await;
                        }
                    }
                    demoted = connection.health.is_demoted();
                    if let Some(error) = connection.health.lost() {
                        self.presence.disconnected(&Cause::Lost(error.to_owned()));
                        self.connector.note_lost();
                    }
                    drop(connection);
                    tracing::debug!(target: TARGET, channel = self.session.channel, "connection lost");
                    let up = |state: &State| matches!(state, State::Up(_));
                    self.session.state.replace_if(up, State::Connecting);
                    if demoted {
                        self.connector.context.sleep(BACKOFF.1).await;
                    }
                }
                Err(cause) => {
                    let error = cause.text();
                    tracing::debug!(target: TARGET, server = %self.connector.address(), %error, "cannot connect to the lock server");
                    self.presence.disconnected(&cause);
                    self.connector.outages.note(error.to_owned());
                    self.connector.note_lost();
                    // The server is possibly so far away that the time limit was too short.
                    if context.now().since(began) >= near {
                        near = (near * 2).min(OPEN_PATIENCE.1);
                    }
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
    }
}
