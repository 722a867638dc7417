//! The client and the options of a lock, and the setters of [`Lock`](crate::Lock) and [`MultiLock`](crate::MultiLock)
//! for these options.

use std::sync::Arc;

use lock_core::{
    error::LockError,
    key::{KeyError, LockKey, LockName, MAX_KEYS},
    options::{AccessMode, Defaults, LockOptions, Mode},
};

use crate::{
    acquire::spec::{AcquireSpec, CallSite},
    lease::{scheduler::Renewals, shared::Shared},
};

/// The parts of a client that the client's locks need.
#[derive(Debug, Clone)]
pub(crate) struct ClientHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) namespace: Option<Arc<str>>,
    /// The addresses of the lock servers.
    pub(crate) server: Arc<str>,
    pub(crate) defaults: Defaults,
    pub(crate) access: AccessMode,
}

impl ClientHandle {
    /// Returns an error if the client is not allowed to change the lock of this key.
    pub(crate) fn may_change(&self, key: &LockKey) -> Result<(), LockError> {
        if self.access == AccessMode::Full {
            return Ok(());
        }
        Err(LockError::Refused {
            key: key.clone(),
            detail: format!("the client was built with `AccessMode::{:?}`", self.access).into(),
        })
    }
}

/// A key of a call with several keys, and the mode of its lock, if this is not the mode of the call.
pub(crate) type ListedKey = (Result<LockKey, KeyError>, Option<Mode>);

/// The client and options of a lock. For options that are not set, the client's defaults apply.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) client: ClientHandle,
    pub(crate) namespace: Option<String>,
    pub(crate) site: CallSite,
    pub(crate) options: LockOptions,
}

impl Settings {
    pub(crate) fn new(client: ClientHandle) -> Self {
        Self {
            client,
            namespace: None,
            site: CallSite::Unlabelled,
            options: LockOptions::default(),
        }
    }

    /// Returns the name under which the backend stores the lock of a key.
    pub(crate) fn name(&self, key: &LockKey) -> Result<LockName, LockError> {
        let namespace = self
            .namespace
            .as_deref()
            .or(self.client.namespace.as_deref());
        Ok(self.client.defaults.layout.name(namespace, key)?)
    }

    pub(crate) fn one(&self, key: Result<LockKey, KeyError>) -> Result<AcquireSpec, LockError> {
        self.one_in(self.options.mode, key)
    }

    fn one_in(&self, mode: Mode, key: Result<LockKey, KeyError>) -> Result<AcquireSpec, LockError> {
        let key = key?;
        self.client.may_change(&key)?;
        let name = self.name(&key)?;
        let options = LockOptions {
            mode,
            ..self.options
        };
        let terms = options.complete(&self.client.defaults)?;
        Ok(AcquireSpec {
            shared: self.client.shared.clone(),
            renewals: self.client.renewals.clone(),
            key,
            name,
            site: self.site,
            terms,
        })
    }

    /// Returns one acquisition spec for each key, in the same order. Returns an error for an empty list, and for more
    /// than [`MAX_KEYS`] keys.
    pub(crate) fn several(
        &self,
        keys: impl IntoIterator<Item = ListedKey>,
    ) -> Result<Vec<AcquireSpec>, LockError> {
        let mode = self.options.mode;
        let spec = keys.into_iter();
        let spec = spec.map(|(key, its_own)| self.one_in(its_own.unwrap_or(mode), key));
        let spec = spec.take(MAX_KEYS + 1).collect::<Result<Vec<_>, _>>()?;
        match spec.len() {
            0 => Err(KeyError::NoKeys.into()),
            1..=MAX_KEYS => Ok(spec),
            _ => Err(KeyError::TooManyKeys.into()),
        }
    }
}

/// Defines the option setters of a type that has `settings`.
macro_rules! option_setters {
    () => {
        /// Sets the longest time that the whole acquisition can take. With a wait of less than a millisecond, the call
        /// makes one attempt and never queues. The longest wait is 24 hours.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.settings.options.wait = Some(wait);
            self
        }

        /// Sets the lease time, from 10 ms to 24 hours. The lease is not renewed, unless [`renew`](Self::renew) is set
        /// too. A renewed lease must be at least one second long.
        ///
        /// If an enclosing call holds the lock, and the enclosing call's lease would end before the lease of this call,
        /// this call first extends the enclosing call's lease. The lease keeps this later deadline after this call has
        /// ended. If only this call asks for renewal, the renewal ends with this call.
        pub fn lease(mut self, lease: Duration) -> Self {
            self.settings.options.lease = Some(lease);
            self
        }

        /// Sets whether the lease is renewed after each third of its time while the lock is held.
        pub fn renew(mut self, renew: bool) -> Self {
            self.settings.options.renew = Some(renew);
            self
        }

        /// Sets how long after the grant the engine renews the lease. After this time, the engine stops the renewals,
        /// and the lease runs out.
        pub fn max_hold(mut self, max_hold: Duration) -> Self {
            self.settings.options.max_hold = Some(max_hold);
            self
        }

        /// Sets the minimum time for which the lock stays taken. If the body ends before this minimum time, the call
        /// returns at once, and the lock becomes free at the end of the minimum time.
        ///
        /// The minimum time counts from the grant, and must not exceed an explicit lease. The lock is free at once if
        /// the body panics or is dropped, or if a guard is dropped.
        pub fn hold_at_least(mut self, hold_at_least: Duration) -> Self {
            self.settings.options.hold_at_least = hold_at_least;
            self
        }

        /// Sets what happens to the body of [`run`](Self::run) when the lease is lost.
        pub fn on_lost(mut self, on_lost: OnLost) -> Self {
            self.settings.options.on_lost = on_lost;
            self
        }

        /// Sets how to wait for a lock that is not free.
        pub fn strategy(mut self, strategy: Strategy) -> Self {
            self.settings.options.strategy = Some(strategy);
            self
        }

        /// Sets when [`run`](Self::run) returns: after the server has confirmed the release, or without waiting for the
        /// confirmation. A guard's release always waits for the confirmation.
        pub fn release(mut self, release: Release) -> Self {
            self.settings.options.release = Some(release);
            self
        }

        /// Sets how many replicas of the lock's server must have acknowledged the grant before the body starts. The
        /// default is zero. The client's option [`replicas`](crate::LockClientBuilder::replicas) sets how long a call
        /// waits for the replicas.
        ///
        /// If too few replicas acknowledge the grant in time, the call gives the lock back and returns
        /// [`LockError::NotReplicated`](crate::LockError::NotReplicated). With the in-process backend, the option has
        /// no effect. On a Redlock, the call returns [`LockError::Refused`](crate::LockError::Refused).
        ///
        /// A nested call enters what the outermost call holds, and does not wait for replicas. If a nested call asks for
        /// more replicas than the call that acquired the lock, it returns
        /// [`LockError::InvalidOptions`](crate::LockError::InvalidOptions) at once, with every backend.
        ///
        /// If a replica that has acknowledged the grant is promoted, it admits no second holder until the lease that it
        /// stores has ended. If a replica that has not acknowledged the grant is promoted instead, it can admit a
        /// second holder.
        pub fn replicas(mut self, count: usize) -> Self {
            self.settings.options.replicas = Some(count);
            self
        }

        /// Sets the name under which spans and metrics group the calls for this lock, for example the template of the
        /// lock's key. The default is `"unlabelled"`. All calls of one annotated function have the template of its key
        /// as their label.
        pub fn label(mut self, label: &'static str) -> Self {
            self.settings.site = $crate::acquire::spec::CallSite::Label(label);
            self
        }

        /// Sets the namespace of the key, instead of the client's namespace.
        pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
            self.settings.namespace = Some(namespace.into());
            self
        }
    };
}

/// Defines the setters of the mode of a type that has `settings`.
macro_rules! mode_setters {
    () => {
        /// Lets other readers be inside the lock at the same time, but no writer. A caller that does not read writes.
        ///
        /// Readers and writers of one lock wait in one queue, first come, first served. Readers that are neighbours in
        /// the queue enter together. A reader that comes after a waiting writer enters after this writer, so neither of
        /// them starves. Each reader has its own lease, and its own fencing token. A writer's token is higher than the
        /// tokens of all readers before it.
        ///
        /// A call nested in a reader or in a writer reads without a request to the server. A writer nested in a reader
        /// would wait for itself, and gets the error [`Upgrade`](lock_core::options::OptionsError::Upgrade). A Redlock and
        /// Redisson's layout have no readers.
        pub fn read(mut self) -> Self {
            self.settings.options.mode = lock_core::options::Mode::Read;
            self
        }

        /// Lets nobody else be inside the lock, as by default.
        pub fn write(mut self) -> Self {
            self.settings.options.mode = lock_core::options::Mode::Write;
            self
        }
    };
}

pub(crate) use {mode_setters, option_setters};
