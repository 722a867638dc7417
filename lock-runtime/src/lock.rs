//! The explicit API for one lock.

use std::{
    future::{Future, ready},
    time::Duration,
};

use lock_core::{
    backend::{Backend, BackendError, BoxFuture, Released, Status, Waiter},
    error::LockError,
    fencing::FencingToken,
    key::{KeyError, LockKey, LockName},
    options::{OnLost, Release, Strategy, is_one_attempt},
};

use crate::{
    acquire::{Locks, deadline::bounded, one, reentry, spec::AcquireSpec},
    background::Context,
    call::Run,
    events::TARGET,
    guard::LockGuard,
    limits,
    options::{ClientHandle, Settings, mode_setters, option_setters},
    patience,
};

/// The result of a [forced release](Lock::force_release).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForcedRelease {
    /// The hold with the given token was ended.
    Released,
    /// The lock is not held with the given token. Nothing was changed, unless the connection broke during the call: then
    /// an earlier copy of the request may have ended the hold.
    NotHeld,
}

/// One lock of a client, and the options for acquiring it.
///
/// For options that are not set, the client's defaults apply.
///
/// # Fairness
/// Waiters of one key enter in the order in which they queued, across all processes. Callers with a
/// [`strategy`](Self::strategy) other than handoff enter in no particular order, and only when the queue is empty. A
/// Redlock and Redisson's layout have no queue.
///
/// # Cancel safety
/// Every future that a method of `Lock` returns can be dropped at any `.await`. The engine then removes the future's
/// grant and its place in the queue within one round trip. While the server cannot be reached, the grant of a dropped
/// future stays until its lease ends (at most 2 s if the grant was not confirmed yet). The future's place in the queue
/// stays until `wait` ends.
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
    pub(crate) settings: Settings,
}

impl Lock {
    pub(crate) fn new(client: ClientHandle, key: Result<LockKey, KeyError>) -> Self {
        Self::with(Settings::new(client), key)
    }

    pub(crate) fn with(settings: Settings, key: Result<LockKey, KeyError>) -> Self {
        Self { key, settings }
    }

    option_setters!();
    mode_setters!();

    fn name(&self) -> Result<(LockKey, LockName), LockError> {
        let key = self.key.clone()?;
        let name = self.settings.name(&key)?;
        Ok((key, name))
    }

    pub(crate) fn spec_name(&self) -> Result<LockName, LockError> {
        self.name().map(|(_, name)| name)
    }

    pub(crate) fn spec(&self) -> Result<AcquireSpec, LockError> {
        self.settings.one(self.key.clone())
    }

    /// Acquires the lock, and waits for it for at most `wait`.
    ///
    /// # Errors
    /// - [`LockError::Busy`] if the lock was not granted within `wait`.
    /// - [`LockError::Unreachable`] if the server did not answer, and [`LockError::Refused`] if the server answered
    ///   with a refusal.
    /// - [`LockError::WrongLayout`] if the server stores other data under the lock's name.
    /// - [`LockError::InvalidKey`] or [`LockError::InvalidOptions`] if the key or the options are not valid, or if a
    ///   nested call asks for more `replicas` than the call that acquired the lock. In these cases, the client sends
    ///   nothing to the server.
    /// - [`LockError::Lost`] if an enclosing call acquired this lock, and has lost its lease since.
    /// - [`LockError::NotReplicated`] if too few replicas acknowledged the grant in time.
    /// - [`LockError::ShutDown`] if the client was shut down.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. The future borrows nothing, so it can be a branch of a
    /// `select!`:
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

    /// Takes the lock in one attempt if it is free and has no waiters, like [`acquire`](Self::acquire) with a `wait` of
    /// zero.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.clone().wait(Duration::ZERO).acquire()
    }

    /// Acquires the lock, runs `body` under it, and releases it.
    ///
    /// The body is not polled before the grant. The call returns the value of the body even if the release fails. A
    /// failed release is only logged and counted.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire), and [`LockError::Lost`] if the lease was lost while the
    /// body ran.
    pub fn run<F: Future>(&self, body: F) -> Run<F> {
        Run::new(self.spec().map(Locks::One), body)
    }

    /// Reads who holds the lock, how much of the lease is left, and how many callers wait. The method takes at most
    /// `wait`, or 0.9 s if `wait` is zero. The state of the lock can change before the answer arrives.
    ///
    /// # Errors
    /// Returns [`LockError::Unreachable`], [`LockError::Refused`], [`LockError::WrongLayout`],
    /// [`LockError::InvalidKey`] or [`LockError::ShutDown`].
    pub async fn status(&self) -> Result<Status, LockError> {
        self.ask(|backend, name| backend.status(name)).await
    }

    /// Reads the first waiters in the queue of the lock, at most `limit` and at most 1,000, in the order of the queue.
    /// The method takes at most `wait`, or 0.9 s if `wait` is zero. The queue can change before the answer arrives.
    ///
    /// Callers that wait with [`Strategy::Spin`] have no place in the queue, and are not returned. A Redlock and Redisson's
    /// layout have no queue.
    ///
    /// # Errors
    /// Returns the same errors as [`status`](Self::status), and [`LockError::Refused`] for in-process locks.
    ///
    /// ```no_run
    /// # async fn example(client: lock_runtime::LockClient) -> Result<(), lock_runtime::LockError> {
    /// for waiter in client.lock("order:42").waiters(10).await? {
    ///     println!("{} waits for {:?}, at most {:?} longer", waiter.owner, waiter.queued_for, waiter.remaining);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn waiters(&self, limit: usize) -> Result<Vec<Waiter>, LockError> {
        self.ask(|backend, name| backend.waiters(name, limit)).await
    }

    /// Ends the hold with this token, even if the hold belongs to another client. The lock passes to the next waiter,
    /// who gets a higher fencing token. If nobody waits, the lock becomes free. [`status`](Self::status) returns the
    /// token of the present hold. If the hold with this token has already ended, the method changes nothing.
    ///
    /// The former holder notices the forced release at its next renewal or check, at most a third of its lease later.
    /// Its body is then dropped, and its call returns [`LockError::Lost`]. **Before that moment, the bodies of the
    /// former and the next holder can run at the same time.** Release a lock by force only if its holder is known to be
    /// stuck, or if the guarded resource refuses lower [tokens](crate::Hold::token). If several callers of one session
    /// share the grant, the callers that still wait for their turn have to queue again.
    ///
    /// The former holder does not learn who has released its lock: its loss has the reason
    /// [`NotHeld`](crate::LossReason::NotHeld), as after a deletion. Look for the event below in the log of the program that
    /// has released the lock, or in the history of the page.
    ///
    /// `by` names the person or the program that releases the lock. This name appears in the event of level `WARN` that
    /// reports the release. The method takes at most `wait`, or 0.9 s if `wait` is zero.
    ///
    /// # Errors
    /// Returns the same errors as [`status`](Self::status). After [`LockError::Unreachable`], it is unknown whether the
    /// hold has ended. For an in-process lock, the method returns [`LockError::Refused`], because the holder of an
    /// in-process lock does not check its lease.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is unknown whether the hold ends.
    ///
    /// ```no_run
    /// # async fn example(client: lock_runtime::LockClient) -> Result<(), lock_runtime::LockError> {
    /// let lock = client.lock("order:42");
    /// if let Some(token) = lock.status().await?.holder.and_then(|holder| holder.token) {
    ///     let outcome = lock.force_release(token, "alice, incident 7").await?;
    ///     println!("token {token}: {outcome:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release(
        &self,
        token: FencingToken,
        by: &str,
    ) -> Result<ForcedRelease, LockError> {
        let (key, _) = self.name()?;
        self.settings.client.may_change(&key)?;
        let released = self.ask(|backend, name| {
            if backend.maintains_leases() {
                let refusal = "in-process locks cannot be released by force";
                return Box::pin(ready(Err(BackendError::Refused(refusal.into()))));
            }
            backend.release(name, token, None)
        });
        Ok(match released.await? {
            Released::Released => {
                tracing::warn!(target: TARGET, key = %key, token = %token, by, "lock released by force");
                ForcedRelease::Released
            }
            Released::NotHeld | Released::Unknown => ForcedRelease::NotHeld,
        })
    }

    /// Sends a request about the lock to the backend. Waits at most `wait` for the answer, or [`limits::TRY_PATIENCE`] if `wait`
    /// is zero.
    pub(crate) async fn ask<T>(
        &self,
        question: impl for<'a> FnOnce(
            &'a dyn Backend,
            &'a LockName,
        ) -> BoxFuture<'a, Result<T, BackendError>>,
    ) -> Result<T, LockError> {
        let (key, name) = self.name()?;
        let Settings {
            client, options, ..
        } = &self.settings;
        let backend = &client.shared.backend;
        let started = backend.now();
        // With a `wait` of zero, a call makes one attempt. The answer to this attempt takes time, too.
        let wait = options.wait.unwrap_or(client.defaults.wait);
        let patience = if is_one_attempt(wait) {
            patience::for_answer(limits::TRY_PATIENCE, backend.round_trip(&name))
        } else {
            wait
        };
        let deadline = started + patience;
        match bounded(backend, deadline, question(&**backend, &name)).await {
            Some(answer) => answer.map_err(|error| {
                LockError::from_backend(error, &key, backend.now().since(started))
            }),
            None => Err(LockError::Unreachable {
                key,
                waited: backend.now().since(started),
                detail: backend.no_answer().into(),
            }),
        }
    }

    /// Returns whether a call that encloses the current code holds the lock with a valid lease. A hold of another call
    /// in this process does not count.
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        let Ok((_, name)) = self.name() else {
            return false;
        };
        reentry::enclosing().is_some_and(|frame| {
            frame
                .find(&self.settings.client.shared, &name)
                .is_some_and(|frame| !frame.hold.has_ended() && frame.hold.loss().is_none())
        })
    }

    /// Blocking version of [`acquire`](Self::acquire), for code outside async.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
    pub fn blocking_acquire(&self) -> Result<LockGuard, LockError> {
        Context::of_process().handle().block_on(self.acquire())
    }

    /// Blocking version of [`try_acquire`](Self::try_acquire), for code outside async.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
    pub fn blocking_try_acquire(&self) -> Result<LockGuard, LockError> {
        Context::of_process().handle().block_on(self.try_acquire())
    }
}
