//! A cache entry that is rebuilt once, although many callers miss it at the same time.
//!
//! A caller reads the cache without the lock. If the entry is missing, the caller takes the lock, and reads the cache
//! again. Its first read is old by then, because the holder before it may have rebuilt the entry. The token keeps a holder
//! that has lost its lock from replacing a newer entry.

use std::{collections::HashMap, sync::Mutex};

use lock_runtime::{FencingToken, LockClient, LockError, distributed_lock};

/// A stand-in for a cache that all processes share. A script in Redis compares tokens in the same way.
#[derive(Debug, Default)]
pub struct Cache(Mutex<HashMap<u64, (FencingToken, String)>>);

impl Cache {
    /// Reads an entry.
    pub fn get(&self, id: u64) -> Option<String> {
        let entries = self.0.lock().expect("no panic");
        entries.get(&id).map(|(_, value)| value.clone())
    }

    /// Stores an entry, unless an entry with a higher token exists.
    pub fn put(&self, id: u64, token: FencingToken, value: &str) {
        let mut entries = self.0.lock().expect("no panic");
        if entries.get(&id).is_none_or(|(newest, _)| *newest <= token) {
            entries.insert(id, (token, value.to_owned()));
        }
    }
}

/// Returns the value from the cache, or loads it. Of all callers that miss the entry, one loads it.
///
/// # Errors
/// Returns `Lost` if the lock was lost during the load.
pub async fn product<F: Future<Output = String> + Send>(
    locks: &LockClient,
    cache: &Cache,
    id: u64,
    load: impl Fn() -> F + Sync,
) -> Result<String, LockError> {
    if let Some(value) = cache.get(id) {
        return Ok(value);
    }
    match rebuild(locks, cache, id, &load).await {
        // The lock only saves work here, so a caller that does not get it in time loads the value for itself. It has no
        // token, so it does not store the value.
        Err(error) if error.is_retryable() => Ok(load().await),
        value => value,
    }
}

#[distributed_lock(key = "cache:product:<id>", wait = "2s", client = locks, guard = hold)]
async fn rebuild<F: Future<Output = String> + Send>(
    locks: &LockClient,
    cache: &Cache,
    id: u64,
    load: &(impl Fn() -> F + Sync),
) -> Result<String, LockError> {
    if let Some(value) = cache.get(id) {
        return Ok(value);
    }
    let value = load().await;
    cache.put(id, hold.token(), &value);
    Ok(value)
}
