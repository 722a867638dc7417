//! The explicit API for several locks at once.

use std::{future::Future, time::Duration};

use lock_core::{
    error::LockError,
    key::{KeyError, LockKey},
    options::{Mode, OnLost, Release, Strategy},
};

use crate::{
    acquire::{Locks, multi, spec::AcquireSpec},
    background::Context,
    call::Run,
    guard::MultiLockGuard,
    options::{ClientHandle, ListedKey, Settings, mode_setters, option_setters},
};

/// Several locks of a client, and the options for acquiring them. A `MultiLock` is the equivalent of the attribute's
/// option `keys` for keys that are known only at run time.
///
/// The options are the same as for a [`Lock`](crate::Lock), and apply to all of the locks. For options that are not
/// set, the client's defaults apply.
///
/// # Order
/// If all locks are free, they are taken in one step. If one of the locks is not free, the call takes the locks one
/// after another, in the order of their names. Two calls that name the same keys in opposite orders therefore never
/// deadlock. `wait` bounds the total time for all of the locks. A lock that has been taken stays held while the call
/// waits for the next lock. Fixed leases begin when the last lock is taken. If an enclosing call holds a lock, this
/// call tries only once to take a lock whose name sorts before the name of the held lock. If that lock is not free,
/// this call fails with `Busy`.
///
/// # Number of keys
/// Two equal keys stand for one lock. An empty list is refused with [`KeyError::NoKeys`], so that no body runs without
/// a lock. A list of more than [`MAX_KEYS`](crate::MAX_KEYS) keys is refused with [`KeyError::TooManyKeys`], because a
/// server serves no other client while it takes all of the locks in one step. If a call needs thousands of keys, let
/// one lock stand for a group of keys.
///
/// # Fairness
/// Waiters of one key enter in the order in which they queued, as with a [`Lock`](crate::Lock). A call queues for one
/// lock at a time, so it has no place in the queues of the locks that it takes later.
///
/// # Cancel safety
/// Every future that a method of `MultiLock` returns can be dropped at any `.await`. The engine then removes the
/// future's grants and its place in a queue within one round trip. While the server cannot be reached, each grant of a
/// dropped future stays until its lease ends (at most 2 s if the grant was not confirmed yet). The future's place in a
/// queue stays until `wait` ends.
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
    keys: Vec<ListedKey>,
    settings: Settings,
}

impl MultiLock {
    pub(crate) fn new(
        client: ClientHandle,
        keys: impl Iterator<Item = Result<LockKey, KeyError>>,
    ) -> Self {
        Self {
            keys: keys.map(|key| (key, None)).collect(),
            settings: Settings::new(client),
        }
    }

    option_setters!();
    mode_setters!();

    /// Adds locks that the call only reads, whatever the mode of the other locks is. Each key is used as is, like the key of
    /// [`LockClient::lock`](crate::LockClient::lock). If a key is in both lists, the call writes its lock.
    ///
    /// ```
    /// use lock_runtime::LockClient;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let rates = client.lock("rates").read().acquire().await?;
    /// let transfer = client.locks(["account:7", "account:12"]).and_read(["rates"]);
    /// transfer.run(async { /* alone in both accounts, and nobody changes the rates */ }).await?;
    /// # rates.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn and_read(mut self, keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let keys = keys.into_iter().map(LockKey::new);
        self.keys.extend(keys.map(|key| (key, Some(Mode::Read))));
        self
    }

    fn spec(&self) -> Result<Vec<AcquireSpec>, LockError> {
        self.settings.several(self.keys.iter().cloned())
    }

    /// Acquires all of the locks, and waits for them for at most `wait` in total.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`](crate::Lock::acquire). [`LockError::Busy`] names the lock that was
    /// not granted. After an error, the call holds none of the locks. [`LockError::InvalidKey`] contains
    /// [`KeyError::NoKeys`] if there are no keys.
    ///
    /// # Cancel safety
    /// Dropping the future gives back the locks that the future has taken, and gives up its place in the queue. The
    /// future borrows nothing, so it can be a branch of a `select!`:
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

    /// Takes all of the locks in one attempt if each lock is free and has no waiters, and otherwise takes no lock.
    /// `try_acquire` is the same as [`acquire`](Self::acquire) with a `wait` of zero.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
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

    /// Acquires all of the locks, runs `body` under them, and releases them.
    ///
    /// The body is not polled before the last grant. The call returns the value of the body. Inside the body,
    /// [`Holds::current`](crate::Holds::current) returns one hold for each key.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire), and [`LockError::Lost`] if one of the leases was lost
    /// while the body ran.
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

    /// Blocking version of [`acquire`](Self::acquire), for code outside async.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
    pub fn blocking_acquire(&self) -> Result<MultiLockGuard, LockError> {
        Context::of_process().handle().block_on(self.acquire())
    }

    /// Blocking version of [`try_acquire`](Self::try_acquire), for code outside async.
    ///
    /// # Errors
    /// Returns the same errors as [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
    pub fn blocking_try_acquire(&self) -> Result<MultiLockGuard, LockError> {
        Context::of_process().handle().block_on(self.try_acquire())
    }
}
