//! The newest error and the outages of one server. An outage is logged once when it begins, and once when it is over.
//! The number of log entries does not depend on how many sessions lose their connections, or how often they try to
//! reconnect.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::lease::Moment;

use crate::background::{Context, lock};
use crate::events::TARGET;

/// The maximum age of an error that is reported as the reason for an unanswered command.
const ERROR_AGE: Duration = Duration::from_secs(5);

/// The outages of one server.
#[derive(Debug)]
pub(crate) struct Outages {
    context: Arc<Context>,
    address: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest error, and the moment at which it was seen.
    last_error: Option<(Moment, String)>,
    /// The number of sessions that have a connection.
    connected: usize,
    /// The number of sessions that have lost their connection, or could not make one.
    disconnected: usize,
    /// The moment at which the outage began, or `None` if there is no outage.
    since: Option<Moment>,
}

impl State {
    fn count(&mut self, presence: Presence) -> Option<&mut usize> {
        match presence {
            Presence::New => None,
            Presence::Connected => Some(&mut self.connected),
            Presence::Disconnected => Some(&mut self.disconnected),
        }
    }

    /// Counts a session under a new connection state instead of its old one. Returns the duration of the outage if the
    /// change ends an outage.
    fn change(&mut self, from: Presence, to: Presence, now: Moment) -> Option<Duration> {
        if let Some(count) = self.count(from) {
            *count -= 1;
        }
        if let Some(count) = self.count(to) {
            *count += 1;
        }
        if self.disconnected > 0 {
            return None;
        }
        let since = self.since.take()?;
        (self.connected > 0).then(|| now.since(since))
    }
}

/// The connection state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    New,
    Connected,
    Disconnected,
}

impl Outages {
    pub(crate) fn new(context: Arc<Context>, address: String) -> Arc<Self> {
        Arc::new(Self {
            context,
            address,
            state: Mutex::default(),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Records an error. A later failure reports this error as its reason.
    pub(crate) fn note(&self, error: String) {
        lock(&self.state).last_error = Some((self.context.now(), error));
    }

    /// Returns the newest error, unless it is older than [`ERROR_AGE`].
    pub(crate) fn last_error(&self) -> Option<String> {
        let (seen, error) = lock(&self.state).last_error.clone()?;
        (self.context.now().since(seen) < ERROR_AGE).then_some(error)
    }

    /// Returns whether a session has lost its connection or could not make one, and has not connected since then.
    pub(crate) fn is_lasting(&self) -> bool {
        lock(&self.state).disconnected > 0
    }

    /// Creates the [`SessionPresence`] of a session that has not connected yet.
    pub(crate) fn session(self: &Arc<Self>) -> SessionPresence {
        SessionPresence {
            outages: self.clone(),
            presence: Presence::New,
        }
    }
}

/// The connection state of one session. The [`Outages`] of its server count the session until this value is dropped.
#[derive(Debug)]
pub(crate) struct SessionPresence {
    outages: Arc<Outages>,
    presence: Presence,
}

impl SessionPresence {
    /// Records that the session has a connection.
    pub(crate) fn connected(&mut self) {
        lock(&self.outages.state).last_error = None;
        self.change(Presence::Connected);
    }

    /// Records that the session has lost its connection, or could not make one.
    pub(crate) fn disconnected(&mut self, error: &str) {
        self.change(Presence::Disconnected);
        let begins = {
            let mut state = lock(&self.outages.state);
            let begins = state.since.is_none();
            state
                .since
                .get_or_insert_with(|| self.outages.context.now());
            begins
        };
        if begins {
            let server = &self.outages.address;
            tracing::warn!(target: TARGET, %server, %error, "no connection to the lock server, connecting again");
        }
    }

    fn change(&mut self, to: Presence) {
        let from = mem::replace(&mut self.presence, to);
        let ended = lock(&self.outages.state).change(from, to, self.outages.context.now());
        if let Some(outage) = ended {
            let server = &self.outages.address;
            tracing::info!(target: TARGET, %server, ?outage, "the lock server is connected again");
        }
    }
}

impl Drop for SessionPresence {
    fn drop(&mut self) {
        self.change(Presence::New);
    }
}
