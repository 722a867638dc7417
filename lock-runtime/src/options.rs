//! The setters of an acquisition's options, once for [`Lock`](crate::Lock) and [`MultiLock`](crate::MultiLock), and what they
//! set.

use std::sync::Arc;

use lock_core::{
    error::LockError,
    key::{KeyError, LockKey, LockName, MAX_KEYS},
    options::{Defaults, LockOptions},
};

use crate::{
    acquire::one::AcquireSpec,
    lease::{scheduler::Renewals, shared::Shared},
};

/// A client, as its locks know it.
#[derive(Debug, Clone)]
pub(crate) struct ClientHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) defaults: Defaults,
}

/// Whose locks, and on which terms. What is not set comes from the client's defaults.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) client: ClientHandle,
    pub(crate) namespace: Option<String>,
    pub(crate) options: LockOptions,
}

impl Settings {
    pub(crate) fn new(client: ClientHandle) -> Self {
        Self {
            client,
            namespace: None,
            options: LockOptions::default(),
        }
    }

    /// The name under which the backend stores this lock.
    pub(crate) fn name(&self, key: &LockKey) -> Result<LockName, LockError> {
        let namespace = self
            .namespace
            .as_deref()
            .or(self.client.namespace.as_deref());
        Ok(self.client.defaults.layout.name(namespace, key)?)
    }

    pub(crate) fn one(&self, key: Result<LockKey, KeyError>) -> Result<AcquireSpec, LockError> {
        let key = key?;
        let name = self.name(&key)?;
        let terms = self.options.complete(&self.client.defaults)?;
        Ok(AcquireSpec {
            shared: self.client.shared.clone(),
            renewals: self.client.renewals.clone(),
            key,
            name,
            terms,
        })
    }

    /// One lock for each of these keys, in their order: one at least, and [`MAX_KEYS`] at most.
    pub(crate) fn several(
        &self,
        keys: impl IntoIterator<Item = Result<LockKey, KeyError>>,
    ) -> Result<Vec<AcquireSpec>, LockError> {
        let spec = keys.into_iter().map(|key| self.one(key));
        let spec = spec.take(MAX_KEYS + 1).collect::<Result<Vec<_>, _>>()?;
        match spec.len() {
            0 => Err(KeyError::NoKeys.into()),
            1..=MAX_KEYS => Ok(spec),
            _ => Err(KeyError::TooManyKeys.into()),
        }
    }
}

/// The methods that set the options of a type that has `settings`.
macro_rules! option_setters {
    () => {
        /// How long the acquisition may take, end to end; less than a millisecond is one attempt that never queues.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.settings.options.wait = Some(wait);
            self
        }

        /// The lease time. It is fixed, unless [`renew`](Self::renew) is set too; 10 ms to 24 h.
        ///
        /// Nested in a call that holds the lock, the call extends that hold's lease first, if it ends earlier. The later
        /// deadline stays when the nested call has left, because no lease is ever shortened. Its renewal ends with it.
        pub fn lease(mut self, lease: Duration) -> Self {
            self.settings.options.lease = Some(lease);
            self
        }

        /// Whether the lease is renewed every third of its time while it is held.
        pub fn renew(mut self, renew: bool) -> Self {
            self.settings.options.renew = Some(renew);
            self
        }

        /// How long a renewed lease is renewed at most.
        pub fn max_hold(mut self, max_hold: Duration) -> Self {
            self.settings.options.max_hold = Some(max_hold);
            self
        }

        /// How long the lock stays taken at least, even if the body is quicker: the value returns at once, and the lock is
        /// free at the end of that time. It counts from the grant, and is no longer than an explicit lease. A body that
        /// panics or is dropped, and a guard that is dropped, free the lock at once.
        pub fn hold_at_least(mut self, hold_at_least: Duration) -> Self {
            self.settings.options.hold_at_least = hold_at_least;
            self
        }

        /// What becomes of the body of [`run`](Self::run) when the lease is lost.
        pub fn on_lost(mut self, on_lost: OnLost) -> Self {
            self.settings.options.on_lost = on_lost;
            self
        }

        /// How to wait for the lock, if it is not free.
        pub fn strategy(mut self, strategy: Strategy) -> Self {
            self.settings.options.strategy = Some(strategy);
            self
        }

        /// When [`run`](Self::run) returns the body's value: once the release is confirmed, or on its way. A guard's release is
        /// always confirmed.
        pub fn release(mut self, release: Release) -> Self {
            self.settings.options.release = Some(release);
            self
        }

        /// Another namespace than the client's.
        pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
            self.settings.namespace = Some(namespace.into());
            self
        }
    };
}

pub(crate) use option_setters;
