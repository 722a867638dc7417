//! One Redis server as a library: its input is bytes and the time, and its output is bytes. The library reads no clock,
//! starts no thread, and draws no random numbers, so the same calls have the same results.
//!
//! `tests/redis.rs` compares the library's replies to commands and script calls with the replies of a real server of
//! version 7.0.

pub mod cluster;
mod commands;
mod data;
mod grants;
mod numbers;
mod replication;
mod resp;
mod script;
mod sorted_set;
mod state;
#[cfg(test)]
mod tests;

pub use data::DataSet;
pub use grants::{StoredGrant, StoredQueue, StoredWaiter};

use commands::millis;
use data::Value;
use state::{Client, State};

/// One simulated Redis server.
#[derive(Debug)]
pub struct Redis(State);

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The name or the IP address of the machine.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A connection, identified by its `CLIENT ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// An action of the server on one of its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The server sends bytes on a connection.
    Bytes(ConnectionId, Vec<u8>),
    /// The server has closed a connection.
    Closed(ConnectionId),
}

/// The data that a server keeps when it restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// The server keeps no keys.
    Nothing,
    /// The server keeps all keys.
    Everything,
}

/// The state of a server, which decides which commands the server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The server accepts all commands.
    #[default]
    Normal,
    /// The memory is full: the server refuses commands that need more memory.
    OutOfMemory,
    /// The server is a replica: it refuses writes.
    ReadOnly,
    /// The server loads its data after a restart: it refuses all commands that Redis does not allow at that time.
    Loading,
}

impl Redis {
    /// Creates a server without keys.
    #[must_use]
    pub fn new(run_id: String) -> Self {
        Self(State {
            run_id,
            ..State::default()
        })
    }

    /// Opens a connection. Connection IDs count from 1, and begin at 1 again after a restart.
    pub fn connect(&mut self) -> ConnectionId {
        self.0.last_id += 1;
        let id = ConnectionId(self.0.last_id);
        self.0.clients.insert(id, Client::default());
        id
    }

    /// Removes a connection that the client has closed or lost.
    pub fn disconnect(&mut self, id: ConnectionId) {
        self.0.forget(id);
    }

    /// Receives bytes on a connection, and carries out each complete command. The bytes can end in the middle of a
    /// command. `now` is the time in µs since the Unix epoch. Returns the output in order. Bytes on a closed connection
    /// have no effect.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], now: u64) -> Vec<Output> {
        self.0.receive(id, bytes, now);
        self.0.outbox.take()
    }

    /// Restarts the server with another run ID. Closes all connections and forgets all scripts.
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
            role: self.0.role.clone(),
            kind: self.0.kind.clone(),
            offset: self.0.offset + 1,
            commands: self.0.commands,
            ..State::default()
        };
        closed
    }

    /// Removes all keys, like `FLUSHALL` from another client.
    pub fn flush(&mut self) {
        self.0.data.clear();
        self.0.offset += 1;
    }

    /// Removes a key, like `DEL` from another client.
    pub fn delete(&mut self, key: &str) {
        self.0.data.remove(key.as_bytes(), i64::MIN);
        self.0.offset += 1;
    }

    /// Sets the state that decides which commands the server accepts.
    pub fn set_mode(&mut self, mode: Mode) {
        self.0.mode = mode;
    }

    /// Forgets all scripts, like `SCRIPT FLUSH` from another client.
    pub fn forget_scripts(&mut self) {
        self.0.scripts.clear();
    }

    /// Returns the keys that exist at `now`, sorted.
    pub fn keys(&mut self, now: u64) -> Vec<String> {
        let keys = self.0.data.living(millis(now));
        keys.map(|(key, _)| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    /// Returns the string at a key, or `None` if the key does not exist or holds another type.
    pub fn get(&mut self, key: &str, now: u64) -> Option<String> {
        match &self.0.data.entry(key.as_bytes(), millis(now))?.value {
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Value::Hash(_) | Value::SortedSet(_) | Value::List(_) => None,
        }
    }

    /// Returns the string at a key, and the last millisecond of the server's clock in which it exists. `None` if the key
    /// does not exist, holds another type, or does not expire.
    pub fn expiring(&mut self, key: &str, now: u64) -> Option<(String, i64)> {
        let expires = self.0.data.entry(key.as_bytes(), millis(now))?.expires?;
        Some((self.get(key, now)?, expires))
    }

    /// Returns a copy of all keys with their values and expiries.
    pub fn snapshot(&mut self) -> DataSet {
        self.0.data.clone()
    }

    /// Replaces all keys of the server by `data`, as if a replica with this data had been promoted.
    pub fn load(&mut self, data: DataSet) {
        self.0.data = data;
        self.0.offset += 1;
    }

    /// Returns the number of commands that connections have sent. Commands inside scripts do not count.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.0.commands
    }
}
