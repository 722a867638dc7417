//! What is wrong with one server: its newest error, and its outages. An outage is logged once when it begins and once when it
//! is over, however many sessions lose their connections and however often they try.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::lease::Moment;

use crate::{clock::boot as clock, sync::lock};

/// The age up to which an error explains why a command is not answered.
const ERROR_AGE: Duration = Duration::from_secs(5);

/// The outages of one server.
#[derive(Debug)]
pub(super) struct Outages {
    address: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest error, and when it was seen.
    last_error: Option<(Moment, String)>,
    /// The sessions that have no connection.
    disconnected: usize,
    /// When the first of them lost its connection.
    since: Option<Moment>,
    /// Whether one of them has connected again.
    reconnected: bool,
}

impl Outages {
    pub(super) fn new(address: String) -> Arc<Self> {
        Arc::new(Self {
            address,
            state: Mutex::default(),
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Notes an error, which explains what fails soon after.
    pub(super) fn note(&self, error: String) {
        lock(&self.state).last_error = Some((clock::now(), error));
    }

    /// Forgets the newest error: a session has connected.
    pub(super) fn clear(&self) {
        lock(&self.state).last_error = None;
    }

    /// The newest error, unless it is old.
    pub(super) fn last_error(&self) -> Option<String> {
        let (seen, error) = lock(&self.state).last_error.clone()?;
        (clock::now().since(seen) < ERROR_AGE).then_some(error)
    }

    /// A session has no connection any more, or none yet.
    pub(super) fn begin(self: &Arc<Self>, error: &str) -> Disconnected {
        let mut state = lock(&self.state);
        state.disconnected += 1;
        if state.since.is_none() {
            state.since = Some(clock::now());
            drop(state);
            tracing::warn!(server = %self.address, %error, "no connection to the lock server, connecting again");
        }
        Disconnected(self.clone())
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        state.disconnected -= 1;
        if state.disconnected > 0 {
            return;
        }
        let since = state.since.take();
        let reconnected = std::mem::take(&mut state.reconnected);
        drop(state);
        if let (Some(since), true) = (since, reconnected) {
            let outage = clock::now().since(since);
            tracing::info!(server = %self.address, ?outage, "the lock server is connected again");
        }
    }
}

/// A session without a connection. Dropped without a new connection, the session has ended.
#[derive(Debug)]
pub(super) struct Disconnected(Arc<Outages>);

impl Disconnected {
    /// The session has a connection again.
    pub(super) fn reconnected(self) {
        lock(&self.0.state).reconnected = true;
    }
}

impl Drop for Disconnected {
    fn drop(&mut self) {
        self.0.end();
    }
}
