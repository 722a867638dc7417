//! The baselines, which are minimal hand-written locks. The benchmark compares this project's locks with them. Each
//! baseline uses one multiplexed connection.
//!
//! The connections of the baselines have the same settings as this project's connections: `TCP_NODELAY` is set, and the
//! client library has no time-outs. The baseline `baseline-sha` is measured a second time with the library's default
//! settings, to show how much the settings matter.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, aio::MultiplexedConnection};

use crate::{
    candidates::{LEASE, Seat},
    clock::now,
};

/// How long a baseline sleeps between two tries to acquire a lock.
const POLL: Duration = Duration::from_millis(5);

/// A script like the one with which Redisson acquires a lock.
pub(crate) const SHA_ACQUIRE: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])";

/// A script like the one with which Redisson releases a lock, and wakes its waiters.
pub(crate) const SHA_RELEASE: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
  return nil
end
if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '0')
return 1";

/// The script that deletes a lock if the caller owns it.
pub(crate) const SET_RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0";

/// The settings of a baseline's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tuning {
    /// The connection settings of this project's client.
    Ours,
    /// The default connection settings of the client library.
    Defaults,
}

/// Opens a connection with these settings.
pub(crate) async fn connect(url: &str, tuning: Tuning) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("the server's URL");
    let connecting = match tuning {
        Tuning::Ours => {
            let tcp = info.tcp_settings().clone().set_nodelay(true);
            let client = Client::open(info.set_tcp_settings(tcp)).expect("the server's URL");
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None);
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        }
        Tuning::Defaults => {
            let client = Client::open(info).expect("the server's URL");
            client.get_multiplexed_async_connection().await
        }
    };
    connecting.expect("the server of the benchmark can be reached")
}

pub(crate) async fn load(connection: &mut MultiplexedConnection, script: &str) -> Arc<str> {
    let hash: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query_async(connection)
        .await
        .expect("the script is loaded");
    hash.into()
}

/// The baseline `baseline-sha`, which uses a pair of scripts like Redisson's, and tries every 5 ms until it gets the
/// lock.
#[derive(Debug, Clone)]
pub(crate) struct ShaBaseline {
    connection: MultiplexedConnection,
    acquire: Arc<str>,
    release: Arc<str>,
}

impl ShaBaseline {
    pub(crate) async fn new(url: &str, tuning: Tuning) -> Self {
        let mut connection = connect(url, tuning).await;
        Self {
            acquire: load(&mut connection, SHA_ACQUIRE).await,
            release: load(&mut connection, SHA_RELEASE).await,
            connection,
        }
    }

    /// Tries to acquire the lock until it succeeds or the time `until` has passed. Tries at least once. Returns whether
    /// the lock was acquired.
    pub(crate) async fn enter(&mut self, seat: &Seat, until: u64) -> bool {
        loop {
            let others: Option<i64> = redis::cmd("EVALSHA")
                .arg(&*self.acquire)
                .arg(1)
                .arg(&seat.key)
                .arg(LEASE.as_millis() as u64)
                .arg(&seat.owner)
                .query_async(&mut self.connection)
                .await
                .expect("the baseline's script runs");
            if others.is_none() {
                return true;
            }
            if now() >= until {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(crate) async fn leave(&mut self, seat: &Seat) {
        let left: Option<i64> = redis::cmd("EVALSHA")
            .arg(&*self.release)
            .arg(2)
            .arg(&seat.key)
            .arg(&seat.channel)
            .arg(LEASE.as_millis() as u64)
            .arg(&seat.owner)
            .query_async(&mut self.connection)
            .await
            .expect("the baseline's script runs");
        assert_eq!(left, Some(1), "the baseline has lost its lock");
    }
}

/// The baseline `baseline-set`, which acquires with `SET NX PX`, and tries every 5 ms until it gets the lock. This
/// baseline releases with a script that compares the owner and deletes the key.
#[derive(Debug, Clone)]
pub(crate) struct SetBaseline {
    connection: MultiplexedConnection,
    release: Arc<str>,
}

impl SetBaseline {
    pub(crate) async fn new(url: &str) -> Self {
        let mut connection = connect(url, Tuning::Ours).await;
        Self {
            release: load(&mut connection, SET_RELEASE).await,
            connection,
        }
    }

    /// Tries to acquire the lock until it succeeds or the time `until` has passed. Tries at least once. Returns whether
    /// the lock was acquired.
    pub(crate) async fn enter(&mut self, seat: &Seat, until: u64) -> bool {
        loop {
            let done: Option<String> = redis::cmd("SET")
                .arg(&seat.key)
                .arg(&seat.owner)
                .arg("NX")
                .arg("PX")
                .arg(LEASE.as_millis() as u64)
                .query_async(&mut self.connection)
                .await
                .expect("the baseline's command runs");
            if done.is_some() {
                return true;
            }
            if now() >= until {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(crate) async fn leave(&mut self, seat: &Seat) {
        let deleted: i64 = redis::cmd("EVALSHA")
            .arg(&*self.release)
            .arg(1)
            .arg(&seat.key)
            .arg(&seat.owner)
            .query_async(&mut self.connection)
            .await
            .expect("the baseline's script runs");
        assert_eq!(deleted, 1, "the baseline has lost its lock");
    }
}

type Gate = Arc<tokio::sync::Mutex<()>>;

/// The baseline `baseline-gate`: `baseline-sha` behind a local first-in-first-out mutex for each key. In each process,
/// only the task that holds the mutex tries to acquire the lock.
#[derive(Debug, Clone)]
pub(crate) struct GateBaseline {
    pub(crate) inner: ShaBaseline,
    gates: Arc<Mutex<HashMap<String, Gate>>>,
}

impl GateBaseline {
    pub(crate) fn new(inner: ShaBaseline) -> Self {
        Self {
            inner,
            gates: Arc::default(),
        }
    }

    /// Returns the local mutex of a key.
    pub(crate) fn gate(&self, key: &str) -> Gate {
        let mut gates = self
            .gates
            .lock()
            .expect("no thread panics while it holds this mutex");
        if let Some(gate) = gates.get(key) {
            return gate.clone();
        }
        gates.entry(key.to_owned()).or_default().clone()
    }
}
