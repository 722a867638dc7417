//! One server: every lock is served by the session of the runtime that calls, or by the engine's own.
//!
//! A caller asks again for the session of its lock when the one that it waits in has ended, and takes its place along.
//! That is how callers learn that locks have moved, too: the sessions that served them end.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use lock_core::{backend::BackendError, key::LockName, lease::Moment};
use once_cell::sync::OnceCell;
use tokio::runtime::{self, Handle};

use crate::{
    backend::redis::{
        session::{Driver, Session},
        transport::connection::{Connection, Connector},
    },
    background::sync::lock,
};

/// The sessions with one server.
pub(crate) struct Sessions {
    connector: Arc<Connector>,
    driver: Weak<dyn Driver>,
    home: OnceCell<Arc<Session>>,
    /// By the runtime they run on; `None` where a session has ended, because the runtime is ending or cannot carry one.
    by_runtime: Mutex<HashMap<runtime::Id, Option<Arc<Session>>>>,
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
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// The session that serves a lock.
    pub(crate) fn session(&self, _: &LockName) -> Arc<Session> {
        self.nearest()
    }

    /// The session of the runtime that calls, for what concerns no lock, or any; the home session outside any, and where the runtime
    /// could not carry one because it has ended, or drives no sockets.
    pub(crate) fn nearest(&self) -> Arc<Session> {
        let engine = self.connector.context.handle();
        let runtime = Handle::try_current().ok().filter(|runtime| {
            // The engine's own runtime is where the home session lives; and none is made after the end.
            runtime.id() != engine.id() && !self.is_closed()
        });
        let session = runtime.and_then(|runtime| {
            let (session, new) = match lock(&self.by_runtime).entry(runtime.id()) {
                Entry::Occupied(entry) => (entry.get().clone()?, false),
                Entry::Vacant(entry) => {
                    let session = Session::new(&self.connector.context);
                    entry.insert(Some(session.clone()));
                    (session, true)
                }
            };
            // Outside the mutex: on a runtime that has ended the session ends here and now, and retires.
            if new {
                session.run(&self.driver, &self.connector, &runtime);
            }
            (!session.has_ended()).then_some(session)
        });
        session.unwrap_or_else(|| self.home().clone())
    }

    /// A connection of the session that serves a lock, as soon as there is one.
    pub(crate) async fn connected(
        &self,
        name: &LockName,
    ) -> Result<(Arc<Session>, Arc<Connection>), BackendError> {
        self.connection_of(self.session(name)).await
    }

    /// A connection of this session, as soon as there is one; of the home session, if this one has ended.
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

    /// The engine's own session.
    pub(crate) fn home(&self) -> &Arc<Session> {
        self.home.get_or_init(|| {
            let home = Session::new(&self.connector.context);
            let engine = self.connector.context.handle();
            home.run(&self.driver, &self.connector, engine);
            home
        })
    }

    /// Removes a session that has ended.
    pub(crate) fn retire(&self, session: &Arc<Session>) {
        for other in lock(&self.by_runtime).values_mut() {
            if other
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, session))
            {
                *other = None;
            }
        }
    }

    /// Whether any session has had a reply since then.
    pub(crate) fn has_heard_since(&self, moment: Moment) -> bool {
        let sessions = lock(&self.by_runtime);
        let mut sessions = sessions.values().flatten().chain(self.home.get());
        sessions.any(|session| {
            let connection = session.connected();
            connection.is_some_and(|connection| connection.health.has_heard_since(moment))
        })
    }

    /// Ends the waiting of all callers.
    pub(crate) fn dismiss_waiters(&self) {
        let sessions = lock(&self.by_runtime);
        for session in sessions.values().flatten().chain(self.home.get()) {
            session.dismiss_waiters();
        }
    }

    /// Whether all connections were given up.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives up all connections.
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
