//! One Redis server as a library: bytes and the time go in, bytes come out. It reads no clock, starts no thread, and draws
//! no random numbers, so that the same calls have the same results.
//!
//! What it answers and how it runs scripts is compared with a real server of version 7.0 by `tests/redis.rs`.

mod commands;
mod data;
mod numbers;
mod resp;
mod script;
mod sorted_set;
mod state;
#[cfg(test)]
mod tests;

pub use data::DataSet;

use commands::millis;
use data::Value;
use state::{Client, State};

/// One server.
#[derive(Debug)]
pub struct Redis(State);

/// A connection, by the number that `CLIENT ID` answers there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What the server causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Bytes to deliver to a connection.
    Bytes(ConnectionId, Vec<u8>),
    /// The server has closed a connection.
    Closed(ConnectionId),
}

/// What a server keeps when it restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// No key.
    Nothing,
    /// All keys.
    Everything,
}

/// What a server is able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Everything.
    #[default]
    Normal,
    /// Its memory is full: what needs more is refused.
    OutOfMemory,
    /// It is a replica: what writes is refused.
    ReadOnly,
    /// It reads its data after a restart: what needs data is refused.
    Loading,
}

impl Redis {
    /// A server without keys.
    #[must_use]
    pub fn new(run_id: String) -> Self {
        Self(State {
            run_id,
            ..State::default()
        })
    }

    /// Opens a connection. Numbers rise from 1, and do so again after a restart.
    pub fn connect(&mut self) -> ConnectionId {
        self.0.last_id += 1;
        let id = ConnectionId(self.0.last_id);
        self.0.clients.insert(id, Client::default());
        id
    }

    /// Notes that the peer of a connection has gone.
    pub fn disconnect(&mut self, id: ConnectionId) {
        self.0.forget(id);
    }

    /// Takes in bytes of a connection, cut anywhere, and carries out each whole command at `now`, in µs since the epoch.
    /// Returns what to deliver, in this order. Bytes of a connection that is closed have no effect.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], now: u64) -> Vec<Output> {
        self.0.receive(id, bytes, now);
        self.0.outbox.take()
    }

    /// Starts the server again as another run. Closes all connections, and forgets all scripts.
    pub fn restart(&mut self, run_id: String, persistence: Persistence, now: u64) -> Vec<Output> {
        let ids: Vec<_> = self.0.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.0.close(id));
        let closed = self.0.outbox.take();
        let mut data = std::mem::take(&mut self.0.data);
        match persistence {
            Persistence::Nothing => data.clear(),
            Persistence::Everything => data.remove_expired(millis(now)),
        }
        self.0 = State {
            run_id,
            data,
            mode: self.0.mode,
            commands: self.0.commands,
            ..State::default()
        };
        closed
    }

    /// Removes all keys, as `FLUSHALL` by somebody else does.
    pub fn flush(&mut self) {
        self.0.data.clear();
    }

    /// Removes a key, as `DEL` by somebody else does.
    pub fn delete(&mut self, key: &str) {
        self.0.data.remove(key.as_bytes(), i64::MIN);
    }

    /// Changes what the server is able to do.
    pub fn set_mode(&mut self, mode: Mode) {
        self.0.mode = mode;
    }

    /// Forgets all scripts, as `SCRIPT FLUSH` by somebody else does.
    pub fn forget_scripts(&mut self) {
        self.0.scripts.clear();
    }

    /// The keys that live at `now`, sorted.
    pub fn keys(&mut self, now: u64) -> Vec<String> {
        let keys = self.0.data.living(millis(now));
        keys.map(|(key, _)| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    /// The string at a key; `None` if there is none, or it holds something else.
    pub fn get(&mut self, key: &str, now: u64) -> Option<String> {
        match &self.0.data.entry(key.as_bytes(), millis(now))?.value {
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Value::Hash(_) | Value::SortedSet(_) | Value::List(_) => None,
        }
    }

    /// All keys as they are now.
    pub fn snapshot(&mut self) -> DataSet {
        self.0.data.clone()
    }

    /// Replaces all keys, as a replica has them that is promoted.
    pub fn load(&mut self, data: DataSet) {
        self.0.data = data;
    }

    /// How many commands of connections were carried out; those inside scripts are not counted.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.0.commands
    }
}
