//! The explicit API for several locks at once.

use std::{future::Future, time::Duration};

use lock_core::{
    error::LockError,
    key::{KeyError, LockKey},
    options::{OnLost, Release, Strategy},
};

use crate::{
    acquire::{Locks, multi, one::AcquireSpec},
    background::Context,
    call::Run,
    guard::MultiLockGuard,
    options::{ClientHandle, Settings, option_setters},
};

/// Several locks of a client, with the options of the acquisition to come: what `keys` are to the attribute, for keys
/// that are known only at run time.
///
/// What is not set comes from the client's defaults. The options are those of a [`Lock`](crate::Lock), and apply to all
/// of the locks.
///
/// # Order
/// All locks are taken in one step if all of them are free. Otherwise they are taken one after the other, in the order of
/// their names, within one `wait`. So two calls that name the same keys in opposite orders never wait for each other. A
/// lock that is taken already is kept while the next one is waited for, and a fixed lease begins when the last one is
/// taken. Where calls nest, a lock that comes before one that is held is tried once.
///
/// # Number of keys
/// A key that is named twice is one lock. A list without keys is [`KeyError::NoKeys`]: nothing runs unlocked. One of more
/// than [`MAX_KEYS`](crate::MAX_KEYS) is [`KeyError::TooManyKeys`], because a server serves nobody else while it takes all of
/// them in one step: have one lock for a group, where a call would need thousands.
///
/// # Fairness
/// Waiters of one key enter in the order in which they queued, as those of a [`Lock`](crate::Lock) do. A call queues for
/// one lock at a time, so it has no place in the queue of a lock whose turn has not come yet.
///
/// # Cancel safety
/// Dropping any of the futures, at any await, leaves no key and no place in a queue behind.
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// let cart = [30, 7, 12];
/// let items = client.locks(cart.map(|id| format!("item:{id}"))).wait(Duration::from_secs(5));
///
/// let shipped = items.run(async { cart.len() }).await?;
/// assert_eq!(shipped, 3);
///
/// let guard = items.acquire().await?;
/// assert!(matches!(client.lock("item:7").try_acquire().await, Err(LockError::Busy { .. })));
/// println!("item:30 has the fencing token {}, {:?} left of all", guard[0].token(), guard.remaining());
/// guard.release().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are acquired"]
pub struct MultiLock {
    keys: Vec<Result<LockKey, KeyError>>,
    settings: Settings,
}

impl MultiLock {
    pub(crate) fn new(
        client: ClientHandle,
        keys: impl Iterator<Item = Result<LockKey, KeyError>>,
    ) -> Self {
        Self {
            keys: keys.collect(),
            settings: Settings::new(client),
        }
    }

    option_setters!();

    fn spec(&self) -> Result<Vec<AcquireSpec>, LockError> {
        self.settings.several(self.keys.iter().cloned())
    }

    /// Waits until all of the locks are held, `wait` at most.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`](crate::Lock::acquire). [`LockError::Busy`] names the lock that was not granted, and none
    /// of the others is held then. [`LockError::InvalidKey`] with [`KeyError::NoKeys`] if there are no keys.
    ///
    /// # Cancel safety
    /// Dropping the call gives back the locks that it has, and its place in the queue. It borrows nothing, so it may be a
    /// branch of a `select!`:
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
    ///     guard = client.locks(["stock", "ledger"]).acquire() => { guard?.release().await; }
    ///     () = tokio::time::sleep(Duration::from_secs(1)) => println!("another time"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<MultiLockGuard, LockError>> + Send + use<> {
        let spec = self.spec();
        async move {
            let (entered, frame) = multi::enter(spec?).await?;
            Ok(MultiLockGuard::new(entered, &frame))
        }
    }

    /// Takes all of the locks if each of them is free and nobody waits for it, in one attempt, else none:
    /// [`acquire`](Self::acquire) with a `wait` of zero.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let ledger = client.lock("ledger").acquire().await?;
    /// match client.locks(["stock", "ledger"]).try_acquire().await {
    ///     Err(LockError::Busy { key, .. }) => assert_eq!(key.as_str(), "ledger"),
    ///     other => panic!("{other:?}"),
    /// }
    /// assert!(client.lock("stock").try_acquire().await.is_ok());
    /// # ledger.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<MultiLockGuard, LockError>> + Send + use<> {
        self.clone().wait(Duration::ZERO).acquire()
    }

    /// Runs `body` under all of the locks: acquires, runs, releases. The body is not polled before the last grant. The
    /// value of the body is the value of the call. Inside the body, [`Holds::current`](crate::Holds::current) has a hold
    /// for each key.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] if one of the leases was lost while the body ran.
    ///
    /// ```
    /// use lock_runtime::{Holds, KeyError, LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let tokens = client.locks(["stock", "ledger"]).run(async {
    ///     let holds = Holds::current().expect("a body runs inside its holds");
    ///     holds.iter().map(|hold| hold.token()).collect::<Vec<_>>()
    /// });
    /// assert_eq!(tokens.await?.len(), 2);
    ///
    /// let nothing: Vec<String> = Vec::new();
    /// let refused = client.locks(nothing).run(async { unreachable!("nothing is locked") }).await;
    /// assert!(matches!(refused, Err(LockError::InvalidKey(KeyError::NoKeys))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<F: Future>(&self, body: F) -> Run<F> {
        Run::new(self.spec().map(Locks::Several), body)
    }

    /// [`acquire`](Self::acquire) for code outside async.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_acquire(&self) -> Result<MultiLockGuard, LockError> {
        Context::of_process().handle().block_on(self.acquire())
    }

    /// [`try_acquire`](Self::try_acquire) for code outside async.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_try_acquire(&self) -> Result<MultiLockGuard, LockError> {
        Context::of_process().handle().block_on(self.try_acquire())
    }
}
