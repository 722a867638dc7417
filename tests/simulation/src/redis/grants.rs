//! Reads the stored state of locks without changing it, so that the judge can compare this state with the holds of the
//! callers. `grant_next.lua` and `owner.lua` document the formats.

use std::ops::Range;

use super::{Redis, data::Value};

/// A grant as a server stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGrant {
    /// The tokens of the owners. Empty if the lock is only retained.
    pub tokens: Range<u64>,
    /// The lease that is stored in the grant, in milliseconds.
    pub lease: u64,
    /// The time after which the grant expires, in milliseconds.
    pub left: u64,
}

impl Redis {
    /// Returns the grant of the lock that is stored under this name, or `None` if the lock is free at this millisecond
    /// of the server's clock.
    #[must_use]
    pub fn grant(&self, name: &str, ms: i64) -> Option<StoredGrant> {
        let entry = self.0.data.peek(name.as_bytes(), ms)?;
        let (tokens, lease) = match &entry.value {
            Value::Text(text) => native(text)?,
            Value::Hash(fields) => fields.iter().find_map(redisson)?,
            Value::SortedSet(_) | Value::List(_) => return None,
        };
        // A key exists up to the end of its last millisecond.
        let left = entry.expires.map_or(u64::MAX, |last| {
            u64::try_from(last + 1 - ms).unwrap_or_default()
        });
        Some(StoredGrant {
            tokens,
            lease,
            left,
        })
    }

    /// Returns the number of owners in the queue of the lock that is stored under this name.
    #[must_use]
    pub fn queued(&self, name: &str, ms: i64) -> usize {
        let queue = format!("{name}:queue");
        match self
            .0
            .data
            .peek(queue.as_bytes(), ms)
            .map(|entry| &entry.value)
        {
            Some(Value::SortedSet(queue)) => {
                let owners = queue.range(0..queue.len());
                owners.filter(|(place, _)| place.is_finite()).count()
            }
            _ => 0,
        }
    }
}

/// Parses `token|lease|session_id|owner owner …|…`.
fn native(text: &[u8]) -> Option<(Range<u64>, u64)> {
    let mut fields = std::str::from_utf8(text).ok()?.split('|');
    let first: u64 = fields.next()?.parse().ok()?;
    let lease = fields.next()?.parse().ok()?;
    let owners = match fields.next()? {
        "" => 0, // retained
        _ => fields.next()?.split(' ').count() as u64,
    };
    Some((first..first + owners, lease))
}

/// Parses the field `uuid:token` and its value, the lease.
fn redisson((field, lease): &(Vec<u8>, Vec<u8>)) -> Option<(Range<u64>, u64)> {
    let (_, token) = std::str::from_utf8(field).ok()?.rsplit_once(':')?;
    let lease = std::str::from_utf8(lease).ok()?.parse().ok()?;
    let token: u64 = token.parse().ok()?;
    Some((token..token + token.min(1), lease))
}
