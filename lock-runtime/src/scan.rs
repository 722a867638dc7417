//! An iteration over the locks of a client's namespace.

use std::{collections::HashSet, fmt, time::Duration};

use lock_core::{
    backend::{BackendError, Scan},
    error::LockError,
    key::LockKey,
};

use crate::{acquire::deadline::bounded, options::ClientHandle};

/// An iteration, in steps, over the keys of all held locks of a namespace.
/// [`LockClient::scan`](crate::LockClient::scan) begins such an iteration.
#[must_use = "a scan does nothing until its pages are read"]
pub struct LockScan {
    client: ClientHandle,
    prefix: String,
    /// The prefix of the keys, followed by `*`. Errors of the scan show this pattern as their key.
    pattern: LockKey,
    state: State,
    /// Fingerprints of the keys that were returned, because a server can return a key several times. A fingerprint
    /// takes less memory than its key.
    seen: HashSet<[u8; 16]>,
}

enum State {
    Open(Box<dyn Scan>),
    Refused(BackendError),
    Done,
}

impl fmt::Debug for LockScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockScan")
            .field("pattern", &self.pattern)
            .finish_non_exhaustive()
    }
}

impl LockScan {
    pub(crate) fn new(client: ClientHandle, prefix: String) -> Result<Self, LockError> {
        let pattern = LockKey::new(format!("{prefix}*"))?;
        // The stored name of each lock in this scan contains `part`: the namespace and a colon (if there is a
        // namespace), followed by the prefix.
        let namespace = client
            .defaults
            .layout
            .stored_namespace(client.namespace.as_deref());
        let part = match &namespace {
            Some(namespace) => format!("{namespace}:{prefix}"),
            None => prefix.clone(),
        };
        let state = match client.shared.backend.scan(&part) {
            Ok(scan) => State::Open(scan),
            Err(refusal) => State::Refused(refusal),
        };
        Ok(Self {
            client,
            prefix,
            pattern,
            state,
            seen: HashSet::new(),
        })
    }

    /// Returns a page with the keys that the next step has found, or `None` after the last step. A page can be empty.
    /// No key is returned twice.
    ///
    /// The call takes at most the `wait` of the client, or 100 ms if `wait` is shorter.
    ///
    /// # Errors
    /// Returns [`LockError::Unreachable`], [`LockError::Refused`] or [`LockError::ShutDown`]. The key in these errors
    /// is the prefix, followed by `*`. After an error, the next call repeats the step.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next call repeats the step.
    pub async fn next_page(&mut self) -> Result<Option<Vec<LockKey>>, LockError> {
        let shared = &self.client.shared;
        let started = shared.backend.now();
        let failed = |error| {
            let waited = shared.backend.now().since(started);
            LockError::from_backend(error, &self.pattern, waited)
        };
        let scan = match &mut self.state {
            State::Open(scan) => scan,
            State::Refused(refusal) => return Err(failed(refusal.clone())),
            State::Done => return Ok(None),
        };
        let deadline = started + self.client.defaults.wait.max(Duration::from_millis(100));
        let step = bounded(&shared.backend, deadline, scan.next()).await;
        let step = step.unwrap_or_else(|| {
            let detail = shared.backend.last_error();
            Err(BackendError::Unreachable(
                detail.unwrap_or_else(|| "no answer".into()),
            ))
        });
        let Some(names) = step.map_err(failed)? else {
            self.state = State::Done;
            return Ok(None);
        };
        let (layout, namespace) = (
            self.client.defaults.layout,
            self.client.namespace.as_deref(),
        );
        let keys = names
            .iter()
            .filter_map(|name| layout.key_in(namespace, name.as_str()))
            .filter(|key| key.as_str().starts_with(&self.prefix));
        let seen = &mut self.seen;
        Ok(Some(
            keys.filter(|key| seen.insert(fingerprint(key))).collect(),
        ))
    }
}

fn fingerprint(key: &LockKey) -> [u8; 16] {
    let digest = sha1_smol::Sha1::from(key.as_str()).digest().bytes();
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&digest[..16]);
    fingerprint
}
