//! The sessions with one server. A call uses the session of the calling runtime, or the engine's home session if the
//! calling runtime has no session.

use std::{
    collections::hash_map::Entry,
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use lock_core::{backend::BackendError, key::LockName, lease::Moment};
use once_cell::sync::OnceCell;

use crate::{
    backend::redis::{
        session::{Driver, Session},
        transport::{connection::Connection, connector::Connector, liveness::Liveness},
    },
    background::{CallerRuntime, lock},
};

/// If a client knows more runtimes than this number, it forgets those whose sessions have ended.
const RUNTIMES_REMEMBERED: usize = 64;

/// The sessions with one server.
pub(crate) struct Sessions {
    connector: Arc<Connector>,
    driver: Weak<dyn Driver>,
    home: OnceCell<Arc<Session>>,
    /// The session of each runtime. `None` if that session has ended, because the runtime is ending or cannot run a
    /// session.
    by_runtime: Mutex<HashMap<CallerRuntime, Option<Arc<Session>>>>,
    liveness: Liveness,
    closed: AtomicBool,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("address", &self.connector.address())
            .finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) fn new(connector: Connector, driver: Weak<dyn Driver>) -> Self {
        Self {
            connector: Arc::new(connector),
            driver,
            home: OnceCell::new(),
            by_runtime: Mutex::default(),
            liveness: Liveness::default(),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the session of the calling runtime. Returns the engine's home session if the caller runs outside of a
    /// tokio runtime, or on a runtime that cannot run a session. A runtime cannot run a session if it is shut down, or
    /// if it was built without I/O.
    pub(crate) fn nearest(&self) -> Arc<Session> {
        let context = &self.connector.context;
        // The engine's own runtime uses the home session.
        let runtime = context
            .calling_runtime()
            .filter(|runtime| !context.is_own(*runtime));
        let session = runtime.and_then(|runtime| {
            let (session, new) = {
                let mut sessions = lock(&self.by_runtime);
                // After `close` has given up the connections, no session is created.
                if self.is_closed() {
                    return None;
                }
                match sessions.entry(runtime) {
                    Entry::Occupied(entry) => (entry.get().clone()?, false),
                    Entry::Vacant(entry) => {
                        let session = Session::new(context);
                        entry.insert(Some(session.clone()));
                        (session, true)
                    }
                }
            };
            // The mutex must be unlocked before the session starts, because the session ends at once if the runtime has
            // ended, and `retire` then locks the mutex.
            if new {
                session.run(&self.driver, &self.connector, &context.present_runtime());
            }
            (!session.has_ended()).then_some(session)
        });
        session.unwrap_or_else(|| self.home().clone())
    }

    /// Waits for a connection of `session`, or of the engine's home session if `session` has ended.
    pub(crate) async fn connection_of(
        &self,
        session: Arc<Session>,
    ) -> Result<(Arc<Session>, Arc<Connection>), BackendError> {
        if let Ok(connection) = session.connection().await {
            return Ok((session, connection));
        }
        let home = self.home().clone();
        let connection = home.connection().await?;
        Ok((home, connection))
    }

    /// Returns the engine's home session, which runs on the engine's own runtime.
    pub(crate) fn home(&self) -> &Arc<Session> {
        let home = self.home.get_or_init(|| {
            let home = Session::new(&self.connector.context);
            if !self.is_closed() {
                let engine = self.connector.context.own_runtime();
                home.run(&self.driver, &self.connector, &engine);
            }
            home
        });
        // After `close` has given up the connections, no session connects.
        if self.is_closed() {
            home.end();
        }
        home
    }

    /// Returns whether `session` connects to this server.
    pub(crate) fn has(&self, session: &Arc<Session>) -> bool {
        let is_it = |other: &Arc<Session>| Arc::ptr_eq(other, session);
        self.home.get().is_some_and(is_it) || lock(&self.by_runtime).values().flatten().any(is_it)
    }

    /// Gives a new session to the callers that wait for locks that this server no longer stores. `has_moved` returns
    /// whether a lock is one of these locks.
    pub(crate) fn dismiss(&self, has_moved: impl Fn(&LockName) -> bool) {
        for session in self.all() {
            session.dismiss(&has_moved);
        }
    }

    /// Returns all sessions. The callers of a session are woken only after the mutex of the sessions is unlocked, because
    /// a waker can poll its caller at once, and the caller then looks for its session.
    fn all(&self) -> Vec<Arc<Session>> {
        let sessions = lock(&self.by_runtime);
        let sessions = sessions.values().flatten().chain(self.home.get());
        sessions.cloned().collect()
    }

    /// Removes a session that has ended from the list of sessions.
    pub(crate) fn retire(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.by_runtime);
        for other in sessions.values_mut() {
            if other
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, session))
            {
                *other = None;
            }
        }
        // If a caller still runs on one of the forgotten runtimes, its next session ends at once, too.
        if sessions.len() > RUNTIMES_REMEMBERED {
            sessions.retain(|_, session| session.is_some());
        }
    }

    /// Returns whether the server answers within this time, and can carry out requests.
    pub(crate) async fn is_answering(self: &Arc<Self>, within: Duration) -> bool {
        let (asked, answered) = (self.clone(), self.clone());
        let asking = async move {
            let Ok(connection) = asked.home().connection().await else {
                return false;
            };
            connection.ask_time().await.is_ok()
        };
        let has_answered_since = move |moment| answered.has_answered_since(moment);
        let context = &self.connector.context;
        let liveness = self
            .liveness
            .ask(context, within, asking, has_answered_since);
        liveness.await && self.connector.readiness.is_ready(context.now())
    }

    /// Returns whether the session of the calling runtime has lost its connection, or could not make one.
    pub(crate) fn is_cut_off(&self) -> bool {
        let connector = &self.connector;
        let session = connector.context.calling_runtime().and_then(|runtime| {
            let sessions = lock(&self.by_runtime);
            sessions.get(&runtime).cloned().flatten()
        });
        let is_down = |session: Arc<Session>| !session.has_ended() && session.connected().is_none();
        session.is_some_and(is_down) && connector.outages.is_lasting()
    }

    /// Returns whether a session knows of a reply that this server has sent since `moment`.
    fn has_answered_since(&self, moment: Moment) -> bool {
        // Only the engine's own runtime certainly reads a reply soon after it came.
        let home = self.home.get().and_then(|home| home.connected());
        if home.is_some_and(|connection| connection.has_replied_since(moment)) {
            return true;
        }
        let sessions = lock(&self.by_runtime);
        sessions.values().flatten().any(|session| {
            let connection = session.connected();
            connection.is_some_and(|connection| connection.health.has_answered_since(moment))
        })
    }

    /// Ends the wait of all callers in all sessions.
    pub(crate) fn dismiss_waiters(&self) {
        for session in self.all() {
            session.dismiss_waiters();
        }
    }

    /// Returns whether all connections to this server were given up.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives up all connections to this server.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let sessions: Vec<_> = lock(&self.by_runtime)
            .drain()
            .filter_map(|(_, session)| session)
            .collect();
        for session in sessions.iter().chain(self.home.get()) {
            session.end();
        }
    }
}
