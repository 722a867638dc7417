//! The semaphore: a limited number of permits in a whole fleet.

use std::{future::Future, time::Duration};

use lock_core::{
    backend::{LimitStep, Status},
    error::LockError,
    key::{KeyError, LockKey, PERMITS},
    options::{MAX_PERMITS, Mode, OnLost, OptionsError, Release, Strategy, is_one_attempt},
};

use crate::{
    call::Run,
    guard::LockGuard,
    limits,
    lock::Lock,
    options::{ClientHandle, Settings, option_setters},
};

/// Returns the key under which the semaphore with this name is stored.
pub(crate) fn key_of(name: &str) -> Result<LockKey, KeyError> {
    LockKey::behind(PERMITS, name)
}

/// A limited number of permits, of which all processes of a fleet together take at most that many at a time.
///
/// A permit is leased: a crashed process gives its permits back with the end of its lease. A permit is given back by its
/// token, so that a late release gives nothing back twice.
///
/// Each caller says how many permits there are, and enters if the permits that are taken then, and its own, are at most as
/// many. If two versions of a service name different numbers, the callers of each version keep to their own number, and
/// never more than the larger number of permits is taken.
///
/// The permits of the semaphore `NAME` are stored under the key `permits:NAME`, so a lock with the key `NAME` is something
/// else. A semaphore has at most 1,000 permits ([`MAX_PERMITS`](crate::MAX_PERMITS)). A Redlock and
/// [Redisson's layout](crate::Layout::Redisson) refuse it, with [`NoReaders`](crate::OptionsError::NoReaders).
///
/// A nested call that takes permits of the same semaphore shares those of the enclosing call, and sends no request. If it
/// takes more, it fails with [`MorePermitsThanHeld`](crate::OptionsError::MorePermitsThanHeld).
///
/// # Fairness
/// Callers enter in the order in which they queued, across all processes: a caller that needs five permits keeps back a
/// caller behind it that needs one.
///
/// # Cancel safety
/// Every future of a semaphore can be dropped at any `.await`, as that of a [`Lock`](crate::Lock#cancel-safety).
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// let smtp = client.semaphore("smtp", 3).wait(Duration::from_secs(2));
///
/// let two = smtp.acquire_many(2).await?;
/// let one = smtp.acquire().await?;
/// assert!(matches!(smtp.try_acquire().await, Err(LockError::Busy { .. })));
/// two.release().await;
///
/// let sent = smtp.run(async { 1 }).await?;
/// assert_eq!(sent, 1);
/// one.release().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    key: Result<LockKey, KeyError>,
    permits: u32,
    settings: Settings,
}

impl Semaphore {
    pub(crate) fn new(client: ClientHandle, name: &str, permits: u32) -> Self {
        Self {
            key: key_of(name),
            permits,
            settings: Settings::new(client),
        }
    }

    option_setters!();

    /// Returns the lock whose holders are those that have permits.
    fn taking(&self, take: u32) -> Lock {
        let mut settings = self.settings.clone();
        settings.options.mode = Mode::Permits {
            take,
            of: self.permits,
        };
        Lock::with(settings, self.key.clone())
    }

    /// Acquires one permit, and waits for it for at most `wait`. The guard gives the permit back.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.acquire_many(1)
    }

    /// Acquires this number of permits together, and waits for them for at most `wait`.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`](crate::Lock::acquire), and [`LockError::InvalidOptions`] if the number
    /// is zero, or larger than that of all permits.
    pub fn acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.taking(permits).acquire()
    }

    /// Takes one permit in one attempt if one is left and nobody waits.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        self.taking(1).try_acquire()
    }

    /// Acquires one permit, runs `body`, and gives the permit back, as [`Lock::run`](crate::Lock::run) does.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire), and [`LockError::Lost`] if the lease was lost while the body
    /// ran.
    pub fn run<F: Future>(&self, body: F) -> Run<F> {
        self.taking(1).run(body)
    }

    /// Sets the number of permits for all callers in the fleet, instead of the numbers that they name: at most 1,000, and 0 lets
    /// nobody enter. Callers that wait and that fit now enter at once. Callers that have permits keep them, so more than this
    /// number can be taken until they leave. The number stays until the next call of this method or of
    /// [`clear_limit`](Self::clear_limit).
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status), and [`LockError::InvalidOptions`] for more than 1,000
    /// permits.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is unknown whether the number is set.
    pub async fn set_limit(&self, permits: u32) -> Result<(), LockError> {
        if permits > MAX_PERMITS {
            let (take, of) = (1, permits);
            return Err(OptionsError::PermitsOutOfRange { take, of }.into());
        }
        self.change_limit(Some(permits)).await
    }

    /// Removes the number that was [set](Self::set_limit), so that each caller's own number counts again.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    ///
    /// # Cancel safety
    /// If the future is dropped, it is unknown whether the number is removed.
    pub async fn clear_limit(&self) -> Result<(), LockError> {
        self.change_limit(None).await
    }

    async fn change_limit(&self, permits: Option<u32>) -> Result<(), LockError> {
        let lock = self.taking(1);
        lock.spec()?; // the client may change locks, and has semaphores
        let client = &self.settings.client;
        let wait = match self.settings.options.wait.unwrap_or(client.defaults.wait) {
            wait if is_one_attempt(wait) => limits::TRY_PATIENCE,
            wait => wait,
        };
        // A request that comes later than its call has ended must not undo a newer one.
        let until = client.shared.backend.now() + wait;
        let step = LimitStep::Set(permits, until);
        lock.ask(|backend, name| backend.limit(name, step)).await?;
        Ok(())
    }

    /// Reads the number of permits that was [set](Self::set_limit) for all callers; `None` if each caller's own number counts.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    pub async fn limit(&self) -> Result<Option<u32>, LockError> {
        let lock = self.taking(1);
        lock.ask(|backend, name| backend.limit(name, LimitStep::Read))
            .await
    }

    /// Reads who has permits, and how many callers wait. [`Holder::mode`](crate::Holder::mode) tells how many permits a
    /// holder has.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    pub async fn status(&self) -> Result<Status, LockError> {
        self.taking(1).status().await
    }
}
