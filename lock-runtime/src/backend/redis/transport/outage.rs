//! The newest error and the outages of one server. An outage is logged when it begins, again if the server now refuses the
//! client, once a minute while it lasts, and once when it is over. The number of log entries does not depend on how many
//! sessions lose their connections, or how often they try to reconnect.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::lease::Moment;

use crate::background::{Context, lock};
use crate::events::{TARGET, metrics};
use crate::limits;

/// The reason why a session has no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The connection was lost, or no connection could be made.
    Lost(String),
    /// The server refuses this client, for instance because its password is no longer valid. Without a change by an
    /// administrator, the outage does not end.
    Refused(String),
}

impl Cause {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Lost(text) | Self::Refused(text) => text,
        }
    }
}

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
    /// When the outage was last logged, and with which cause.
    told: Option<(Moment, Cause)>,
    /// The value of the gauge `lock_connected`; `None` before the first connection.
    gauge: Option<bool>,
}

impl State {
    /// Records why a session has no connection. Returns the duration of the outage so far if the outage is logged now: at
    /// its beginning, if the server now refuses the client for another reason than before, and once a minute.
    fn tells(&mut self, cause: &Cause, now: Moment) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        if let Some((at, before)) = &self.told {
            let is_new = matches!(cause, Cause::Refused(_)) && cause != before;
            if !is_new && now.since(*at) < limits::TELL_AGAIN {
                return None;
            }
        }
        self.told = Some((now, cause.clone()));
        Some(now.since(since))
    }

    /// Returns the new value of the gauge if it has changed. The gauge keeps its value after the last session has ended.
    fn gauge(&mut self) -> Option<bool> {
        let is_connected = self.disconnected == 0;
        if (is_connected && self.connected == 0) || self.gauge == Some(is_connected) {
            return None;
        }
        self.gauge = Some(is_connected);
        self.gauge
    }

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
        self.told = None;
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

    /// Returns the newest error, unless it is older than [`limits::ERROR_AGE`].
    pub(crate) fn last_error(&self) -> Option<String> {
        let (seen, error) = lock(&self.state).last_error.clone()?;
        (self.context.now().since(seen) < limits::ERROR_AGE).then_some(error)
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
    pub(crate) fn disconnected(&mut self, cause: &Cause) {
        self.change(Presence::Disconnected);
        let now = self.outages.context.now();
        let Some(outage) = lock(&self.outages.state).tells(cause, now) else {
            return;
        };
        let (server, error) = (&self.outages.address, cause.text());
        match cause {
            Cause::Lost(_) => {
                tracing::warn!(target: TARGET, %server, %error, ?outage, "no connection to the lock server, connecting again");
            }
            Cause::Refused(_) => {
                tracing::warn!(target: TARGET, %server, %error, ?outage, "the lock server refuses the connection, connecting again");
            }
        }
    }

    fn change(&mut self, to: Presence) {
        let from = mem::replace(&mut self.presence, to);
        let (ended, gauge) = {
            let mut state = lock(&self.outages.state);
            let ended = state.change(from, to, self.outages.context.now());
            (ended, state.gauge())
        };
        if let Some(is_connected) = gauge {
            metrics::connected(&self.outages.address, is_connected);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    #[test]
    fn an_outage_is_told_at_first_for_each_new_refusal_and_once_a_minute() {
        let mut state = State::default();
        let lost = |text: &str| Cause::Lost(text.into());
        let refused = |text: &str| Cause::Refused(text.into());
        let mut told = |cause, seconds| state.tells(&cause, at(seconds));
        let after = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(told(lost("closed"), 100), after(0));
        assert_eq!(told(lost("no route"), 101), None);
        assert_eq!(told(refused("NOAUTH"), 102), after(2));
        assert_eq!(told(refused("NOAUTH"), 103), None);
        assert_eq!(told(lost("closed"), 104), None);
        assert_eq!(told(refused("WRONGPASS"), 105), after(5));
        assert_eq!(told(refused("WRONGPASS"), 164), None);
        assert_eq!(told(refused("WRONGPASS"), 165), after(65));
        assert_eq!(told(lost("closed"), 225), after(125));
    }

    #[test]
    fn the_next_outage_is_told_again() {
        let mut state = State::default();
        let cause = Cause::Refused("NOAUTH".into());
        for start in [100, 110] {
            state.change(Presence::New, Presence::Disconnected, at(start));
            assert_eq!(state.tells(&cause, at(start)), Some(Duration::ZERO));
            let ended = state.change(Presence::Disconnected, Presence::Connected, at(start + 5));
            assert_eq!(ended, Some(Duration::from_secs(5)));
            state.change(Presence::Connected, Presence::New, at(start + 6));
        }
    }

    #[test]
    fn the_gauge_follows_the_sessions_and_keeps_its_last_value() {
        let mut state = State::default();
        let mut change = |from, to| {
            state.change(from, to, at(1));
            state.gauge()
        };
        use Presence::{Connected, Disconnected, New};
        assert_eq!(change(New, Connected), Some(true));
        assert_eq!(change(New, Connected), None);
        assert_eq!(change(Connected, Disconnected), Some(false));
        assert_eq!(change(Disconnected, Connected), Some(true));
        assert_eq!(change(Connected, New), None);
        assert_eq!(change(Connected, New), None);
    }
}
