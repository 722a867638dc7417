//! The explicit API: one lock, asked for step by step.

use std::{future::Future, time::Duration};

use lock_core::{
    backend::Status,
    error::LockError,
    key::{KeyError, LockKey, LockName},
    options::{OnLost, Release, Strategy},
};

use crate::{
    acquire::{
        Locks,
        one::{self, AcquireSpec},
        reentry,
    },
    background::Context,
    call::Run,
    guard::LockGuard,
    options::{ClientHandle, Settings, option_setters},
};

/// One lock of a client, with the options of the acquisition to come.
///
/// What is not set comes from the client's defaults.
///
/// # Fairness
/// Waiters of one key enter in the order in which they queued, over all processes; those that wait by another
/// [`strategy`](Self::strategy) have no order, and enter when nobody queues. On a Redlock and in Redisson's layout nobody
/// queues.
///
/// # Cancel safety
/// Dropping any of the futures, at any await, leaves no key and no place in the queue behind.
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// let lock = client.lock("order:42").wait(Duration::from_secs(5)).lease(Duration::from_secs(30));
///
/// let guard = lock.acquire().await?;
/// assert!(matches!(client.lock("order:42").try_acquire().await, Err(LockError::Busy { .. })));
/// println!("inside with fencing token {}, {:?} left", guard.token(), guard.remaining());
/// guard.release().await;
///
/// let seven = lock.run(async { 3 + 4 }).await?;
/// assert_eq!(seven, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    key: Result<LockKey, KeyError>,
    settings: Settings,
}

impl Lock {
    pub(crate) fn new(client: ClientHandle, key: Result<LockKey, KeyError>) -> Self {
        Self {
            key,
            settings: Settings::new(client),
        }
    }

    option_setters!();

    fn name(&self) -> Result<(LockKey, LockName), LockError> {
        let key = self.key.clone()?;
        let name = self.settings.name(&key)?;
        Ok((key, name))
    }

    fn spec(&self) -> Result<AcquireSpec, LockError> {
        self.settings.one(self.key.clone())
    }

    /// Waits for the lock, `wait` at most.
    ///
    /// # Errors
    /// [`LockError::Busy`] if others were inside all that time, [`LockError::Unreachable`] or [`LockError::Refused`] if
    /// the server did not grant, [`LockError::WrongLayout`] if it has something else under that name,
    /// [`LockError::InvalidKey`] and [`LockError::InvalidOptions`] before anything is sent, [`LockError::Lost`] inside a
    /// hold of this key that was lost.
    ///
    /// # Cancel safety
    /// Dropping the call gives up the place in the queue. It borrows nothing, so it may be a branch of a `select!`:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_runtime::LockClient;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// tokio::select! {
    ///     guard = client.lock("report").acquire() => { guard?.release().await; }
    ///     () = tokio::time::sleep(Duration::from_secs(1)) => println!("another time"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        let spec = self.spec();
        async move {
            let spec = spec?;
            let enclosing = reentry::enclosing();
            let entered = one::enter(&spec, enclosing.as_ref()).await?;
            Ok(LockGuard::new(entered))
        }
    }

    /// Takes the lock if it is free and nobody waits for it, in one attempt: [`acquire`](Self::acquire) with a `wait`
    /// of zero.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.clone().wait(Duration::ZERO).acquire()
    }

    /// Runs `body` under the lock: acquires, runs, releases. The body is not polled before the grant. Its value is the value of
    /// the call, whatever becomes of the release: one that fails is logged and counted.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] if the lease was lost while the body ran.
    pub fn run<F: Future>(&self, body: F) -> Run<F> {
        Run::new(self.spec().map(Locks::One), body)
    }

    /// Reads who holds the lock, for how long, and how many wait. The answer may be stale when it arrives.
    ///
    /// # Errors
    /// [`LockError::Unreachable`], [`LockError::Refused`], [`LockError::WrongLayout`], [`LockError::InvalidKey`].
    pub async fn status(&self) -> Result<Status, LockError> {
        let (key, name) = self.name()?;
        let Settings {
            client, options, ..
        } = &self.settings;
        let backend = &client.shared.backend;
        let started = backend.now();
        let deadline = started + options.wait.unwrap_or(client.defaults.wait);
        match one::bounded(backend, deadline, backend.status(&name)).await {
            Some(status) => status.map_err(|error| {
                LockError::from_backend(error, &key, backend.now().since(started))
            }),
            None => Err(LockError::Unreachable {
                key,
                waited: backend.now().since(started),
                detail: backend
                    .last_error()
                    .map_or_else(|| "no answer".into(), Into::into),
            }),
        }
    }

    /// Whether a call that encloses this one holds the lock, and its lease stands: another call of the process does
    /// not count.
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        let Ok((_, name)) = self.name() else {
            return false;
        };
        reentry::enclosing().is_some_and(|frame| {
            frame
                .find(&self.settings.client.shared, &name)
                .is_some_and(|frame| frame.hold.loss().is_none())
        })
    }

    /// [`acquire`](Self::acquire) for code outside async.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_acquire(&self) -> Result<LockGuard, LockError> {
        Context::of_process().handle().block_on(self.acquire())
    }

    /// [`try_acquire`](Self::try_acquire) for code outside async.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_try_acquire(&self) -> Result<LockGuard, LockError> {
        Context::of_process().handle().block_on(self.try_acquire())
    }
}
