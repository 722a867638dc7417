//! One server, and the client's session with it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{backend::BackendError, key::LockName};
use once_cell::sync::OnceCell;

use crate::backend::redis::{
    core::Link,
    session::{Host, Session},
    transport::{connection::Connection, connector::Connector, liveness::Liveness},
};

/// One server, and the client's session with it. The session starts with its first use.
pub(crate) struct Node {
    connector: Arc<Connector>,
    host: Host,
    session: OnceCell<Arc<Session>>,
    liveness: Liveness,
    closed: AtomicBool,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.connector.address())
            .finish_non_exhaustive()
    }
}

impl Node {
    pub(crate) fn new(connector: Connector, host: Host) -> Self {
        Self {
            connector: Arc::new(connector),
            host,
            session: OnceCell::new(),
            liveness: Liveness::default(),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        let session = self.session.get_or_init(|| {
            let session = Session::new(&self.connector.context, &self.host);
            if !self.is_closed() {
                session.run(&self.connector);
            }
            session
        });
        // After `close` has given up the connection, the session does not connect.
        if self.is_closed() {
            session.end();
        }
        session
    }

    /// Waits for a connection of the session.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        self.session().connection().await
    }

    /// Returns whether `session` connects to this server.
    pub(crate) fn has(&self, session: &Arc<Session>) -> bool {
        let own = self.session.get();
        own.is_some_and(|own| Arc::ptr_eq(own, session))
    }

    /// Returns the session with this number, if it is a session of this server.
    pub(crate) fn linked(&self, link: Link) -> Option<Arc<Session>> {
        let own = self.session.get().filter(|own| own.link == link);
        own.cloned()
    }

    /// Makes the callers start over that wait for locks that this server no longer stores. `has_moved` returns whether a
    /// lock is one of these locks.
    pub(crate) fn dismiss(&self, has_moved: impl Fn(&LockName) -> bool) {
        if let Some(session) = self.session.get() {
            session.dismiss(has_moved);
        }
    }

    /// Returns whether the server answers within this time, and can carry out requests.
    pub(crate) async fn is_answering(self: &Arc<Self>, within: Duration) -> bool {
        let (asked, answered) = (self.clone(), self.clone());
        let asking = async move {
            let Ok(connection) = asked.connection().await else {
                return false;
            };
            connection.ask_time().await.is_ok()
        };
        let has_answered_since = move |moment| {
            let connection = answered.session().connected();
            connection.is_some_and(|connection| connection.has_replied_since(moment))
        };
        let context = &self.connector.context;
        let liveness = self
            .liveness
            .ask(context, within, asking, has_answered_since);
        liveness.await && self.connector.readiness.is_ready(context.now())
    }

    /// Returns whether the session has lost its connection, or could not make one.
    pub(crate) fn is_cut_off(&self) -> bool {
        let is_down =
            |session: &Arc<Session>| !session.has_ended() && session.connected().is_none();
        self.session.get().is_some_and(is_down) && self.connector.outages.is_lasting()
    }

    /// Ends the wait of all callers.
    pub(crate) fn dismiss_waiters(&self) {
        if let Some(session) = self.session.get() {
            session.dismiss_waiters();
        }
    }

    /// Returns whether the connection to this server was given up.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives up the connection to this server.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(session) = self.session.get() {
            session.end();
        }
    }
}
