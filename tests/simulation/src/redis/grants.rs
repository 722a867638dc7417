//! Reads the stored state of locks without changing it, so that the judge can compare this state with the holds of the
//! callers. `grant_next.lua` and `owner.lua` document the formats.

use std::ops::Range;

use super::{ConnectionId, Redis, data::Value};

/// A grant as a server stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGrant {
    /// The tokens of the owners. Empty if the lock is only retained.
    pub tokens: Range<u64>,
    /// The lease that is stored in the grant, in milliseconds.
    pub lease: u64,
    /// The time after which the grant expires, in milliseconds.
    pub left: u64,
    /// The owners. Empty in Redisson's layout.
    pub owners: Vec<String>,
    /// The session of the owners. Empty in Redisson's layout, and for a lock that is only retained.
    pub session: String,
    /// The time of the grant, in µs of the server's clock. `None` in Redisson's layout, and for a lock that is only
    /// retained.
    pub since: Option<u64>,
    /// The number of the command that stored the grant.
    pub command: u64,
    /// The time, in milliseconds, for which the grant was last extended. `None` if it has not been extended since it was
    /// stored.
    pub extended: Option<u64>,
}

/// A waiter in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWaiter {
    /// The owner.
    pub owner: String,
    /// The session of the owner.
    pub session: String,
    /// The place in the queue: a time in µs of the server's clock.
    pub place: u64,
    /// The time at which the `wait` of the owner ends, in µs of the server's clock.
    pub ends: u64,
}

impl StoredWaiter {
    /// Parses `owner|session_id|lease|wait|words`, the entry of a queue at this place.
    fn parse(place: f64, member: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(member).ok()?.split('|');
        let (owner, session) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let wait: u64 = fields.nth(1)?.parse().ok()?;
        Some(Self {
            owner,
            session,
            place: place as u64,
            ends: place as u64 + 1_000 * wait,
        })
    }
}

/// The queue of a lock as a server stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredQueue {
    /// The owners that wait, in order.
    pub waiters: Vec<StoredWaiter>,
}

impl Redis {
    /// Returns the grant of the lock that is stored under this name, or `None` if the lock is free at this millisecond
    /// of the server's clock.
    #[must_use]
    pub fn grant(&self, name: &str, ms: i64) -> Option<StoredGrant> {
        let entry = self.0.data.peek(name.as_bytes(), ms)?;
        let grant = match &entry.value {
            Value::Text(text) => native(text)?,
            Value::Hash(fields) => fields.iter().find_map(redisson)?,
            Value::SortedSet(_) | Value::List(_) => return None,
        };
        let left = left(entry.expires, ms);
        let extended = entry.extended.map(i64::unsigned_abs);
        Some(StoredGrant {
            left,
            command: entry.command,
            extended,
            ..grant
        })
    }

    /// Returns the text that is stored under this key.
    #[must_use]
    pub fn text(&self, key: &str, ms: i64) -> Option<String> {
        match &self.0.data.peek(key.as_bytes(), ms)?.value {
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Value::Hash(_) | Value::SortedSet(_) | Value::List(_) => None,
        }
    }

    /// Returns the members of the sorted set that is stored under this key.
    #[must_use]
    pub fn members(&self, key: &str, ms: i64) -> Vec<String> {
        match self
            .0
            .data
            .peek(key.as_bytes(), ms)
            .map(|entry| &entry.value)
        {
            Some(Value::SortedSet(set)) => {
                let members = set.range(0..set.len());
                members
                    .map(|entry| String::from_utf8_lossy(&entry.1).into_owned())
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the queue of the lock that is stored under this name.
    #[must_use]
    pub fn queue(&self, name: &str, ms: i64) -> StoredQueue {
        let entry = self.0.data.peek(format!("{name}:queue").as_bytes(), ms);
        let Some(Value::SortedSet(queue)) = entry.map(|entry| &entry.value) else {
            return StoredQueue::default();
        };
        let entries = queue.range(0..queue.len());
        StoredQueue {
            waiters: entries
                .filter_map(|entry| StoredWaiter::parse(entry.0, &entry.1))
                .collect(),
        }
    }
}

impl Redis {
    /// Returns the entry that this owner had in a queue when a script last removed it from the front of the queue, and
    /// the number of the command that ran the script.
    #[must_use]
    pub fn taken(&self, owner: &str) -> Option<(StoredWaiter, u64)> {
        let taken = self.0.data.taken.iter().rev();
        let mut taken = taken.filter_map(|taken| {
            let waiter = StoredWaiter::parse(taken.score, &taken.member)?;
            Some((waiter, taken.command))
        });
        taken.find(|(waiter, _)| waiter.owner == owner)
    }

    /// Returns whether a session listens at this server.
    #[must_use]
    pub fn hears(&self, session: &str) -> bool {
        self.listener(session).is_some()
    }

    /// Returns a connection over which a session listens at this server.
    #[must_use]
    pub fn listener(&self, session: &str) -> Option<ConnectionId> {
        let digest = sha1_smol::Sha1::from(session).digest();
        let channel = format!("lock:session:{digest}").into_bytes();
        self.0.channels.get(&channel)?.first().copied()
    }
}

/// Returns the time until a key expires. A key exists up to the end of its last millisecond.
fn left(expires: Option<i64>, ms: i64) -> u64 {
    expires.map_or(u64::MAX, |last| {
        u64::try_from(last + 1 - ms).unwrap_or_default()
    })
}

/// Parses `token|lease|session_id|owner owner …|words|since`.
fn native(text: &[u8]) -> Option<StoredGrant> {
    let mut fields = std::str::from_utf8(text).ok()?.split('|');
    let first: u64 = fields.next()?.parse().ok()?;
    let lease = fields.next()?.parse().ok()?;
    let session = fields.next()?.to_owned();
    let owners: Vec<String> = match &*session {
        "" => Vec::new(), // retained
        _ => fields.next()?.split(' ').map(str::to_owned).collect(),
    };
    let since = fields.nth(1).and_then(|since| {
        let (seconds, micros) = since.split_once('.')?;
        let seconds: u64 = seconds.parse().ok()?;
        Some(seconds * 1_000_000 + micros.parse::<u64>().ok()?)
    });
    Some(StoredGrant {
        tokens: first..first + owners.len() as u64,
        lease,
        left: 0,
        owners,
        session,
        since,
        command: 0,
        extended: None,
    })
}

/// Parses the field `uuid:token` and its value, the lease.
fn redisson((field, lease): &(Vec<u8>, Vec<u8>)) -> Option<StoredGrant> {
    let (_, token) = std::str::from_utf8(field).ok()?.rsplit_once(':')?;
    let lease = std::str::from_utf8(lease).ok()?.parse().ok()?;
    let token: u64 = token.parse().ok()?;
    Some(StoredGrant {
        tokens: token..token + token.min(1),
        lease,
        left: 0,
        owners: Vec::new(),
        session: String::new(),
        since: None,
        command: 0,
        extended: None,
    })
}
