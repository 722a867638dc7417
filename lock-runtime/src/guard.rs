//! Held locks: the guards, and the holds inside a body.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use lock_core::{
    error::{LockError, LossReason},
    fencing::FencingToken,
    key::LockKey,
    lease::{MAX_LEASE, Moment},
    options::{OnLost, OptionsError},
};

use crate::{
    acquire::{
        entry::Entered,
        one,
        reentry::{self, Frame, MultiCall},
    },
    background::Context,
    call::{BodySlot, Inside},
    lease::{hold::HoldState, release::ReleaseOutcome},
};

/// The hold of the current body: its fencing token, the rest of its lease, and a notification of its loss.
///
/// A hold is only a handle: it does not keep the lock, and may outlive it. In an annotated function `guard = ident`
/// binds it.
#[derive(Debug, Clone)]
pub struct Hold {
    state: Arc<HoldState>,
}

impl Hold {
    /// Returns the innermost hold that encloses the current code.
    #[must_use]
    pub fn current() -> Option<Self> {
        reentry::enclosing().map(|frame| Self {
            state: frame.hold.clone(),
        })
    }

    /// Returns the key, without its namespace.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.state.key
    }

    /// Returns the fencing token. Send it with every write to the guarded resource.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.state.token
    }

    /// Returns the rest of the lease by the local deadline, or zero if the lease is lost or the hold has ended. A lease
    /// that the backend itself keeps always has its whole time left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Returns how the lease was lost, or `None` if it is not lost.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.state.loss()
    }

    /// Waits until the lease is lost. Never completes if the hold is released first.
    ///
    /// # Cancel safety
    /// The future may be dropped, and the method called again.
    pub async fn lost(&self) -> LossReason {
        self.state.wait_for_loss().await
    }

    /// Adds `by` to the rest of the lease in one round trip, and returns the new rest.
    ///
    /// The new end is fixed when the method is called, not when its future is first polled. Two extensions that are
    /// called at the same time do not add up: each counts from the end that it found.
    ///
    /// # Errors
    /// - [`LockError::Lost`] if the hold has ended or its lease is lost, even if the loss is noticed only now.
    /// - [`LockError::Unreachable`] or [`LockError::Refused`] if the server could not extend the lease. The old
    ///   deadline stands.
    /// - [`LockError::InvalidOptions`] if the rest of the lease would exceed 24 hours, the longest lease.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lease may or may not be extended.
    pub fn extend(
        &self,
        by: Duration,
    ) -> impl Future<Output = Result<Duration, LockError>> + Send + use<'_> {
        let until = self.state.lease_ends() + by;
        self.extend_until(until)
    }

    async fn extend_until(&self, until: Moment) -> Result<Duration, LockError> {
        let state = &self.state;
        let lost = |reason| LockError::Lost {
            key: state.key.clone(),
            token: state.token,
            reason,
        };
        state.not_lost()?;
        if state.has_ended() {
            return Err(lost(LossReason::NotHeld));
        }
        let backend = state.backend();
        let started = backend.now();
        let lease = until.since(started);
        if lease > MAX_LEASE {
            return Err(OptionsError::LeaseTooLong.into());
        }
        if backend.maintains_leases() {
            state.promise(until);
            return Ok(lease);
        }
        let mut renewing = pin!(state.clone().renew(lease));
        loop {
            let deadline = state.deadline().unwrap_or(until);
            match one::bounded(backend, deadline, renewing.as_mut()).await {
                Some(Ok(Ok(_))) => return Ok(self.remaining()),
                Some(Ok(Err(reason))) => return Err(lost(reason)),
                Some(Err(error)) => {
                    let waited = backend.now().since(started);
                    return Err(LockError::from_backend(error, &state.key, waited));
                }
                // The scheduler may have moved the deadline on meanwhile.
                None => state.not_lost()?,
            }
            if state.has_ended() {
                return Err(lost(LossReason::NotHeld));
            }
        }
    }
}

/// The holds of a body that runs under several locks: one for each of its `keys`, in their order, each with its own
/// fencing token.
///
/// A key that is named twice is one lock with one hold, which appears at both positions. In a function annotated with
/// `keys`, `guard = ident` binds them.
///
/// ```
/// use lock_runtime::{LockClient, LockError, distributed_lock};
///
/// #[distributed_lock(keys = ["account:<from>", "account:<to>"], guard = holds)]
/// async fn transfer(from: u64, to: u64) -> Result<bool, LockError> {
///     assert_eq!(holds[1].key().as_str(), format!("account:{to}"));
///     Ok(holds[0].token() != holds[1].token())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// assert!(client.scope(transfer(2, 1)).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Holds {
    holds: Vec<Hold>,
}

impl Holds {
    /// Returns the holds of the innermost call that encloses the current code.
    #[must_use]
    pub fn current() -> Option<Self> {
        Some(Self::of(&*reentry::enclosing()?))
    }

    fn of(frame: &Frame) -> Self {
        let holds = frame.holds().iter().cloned();
        Self {
            holds: holds.map(|state| Hold { state }).collect(),
        }
    }

    /// Returns the rest of the lease that ends first, see [`Hold::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let all = self.holds.iter().map(Hold::remaining);
        all.min().unwrap_or_default()
    }

    /// Returns the loss of one of the holds, or `None` if none is lost.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.holds.iter().find_map(Hold::loss)
    }

    /// Waits until one of the holds is lost. Never completes if they are released first.
    ///
    /// # Cancel safety
    /// The future may be dropped, and the method called again.
    pub async fn lost(&self) -> LossReason {
        let each = self.holds.iter().map(|hold| Box::pin(hold.lost()));
        futures_util::future::select_all(each).await.0
    }
}

impl std::ops::Deref for Holds {
    type Target = [Hold];

    fn deref(&self) -> &[Hold] {
        &self.holds
    }
}

/// Runs `body` inside the entry of a guard.
async fn run_inside<F: Future>(
    entered: &Entered,
    several: Option<&Arc<MultiCall>>,
    body: F,
) -> Result<F::Output, LockError> {
    let mut inside = Inside::new(entered.lend(reentry::enclosing(), several));
    let mut body = pin!(BodySlot::new(body));
    std::future::poll_fn(|cx| inside.poll(entered, OnLost::Cancel, &mut body.as_mut(), cx)).await;
    inside.result(entered).map(|()| body.take_output())
}

/// Holds a lock until it is released or dropped.
///
/// The guard dereferences to its [`Hold`]. It does not stop your code when the lease is lost: watch
/// [`lost`](Hold::lost), or run the work in [`run`](Self::run). The code after the acquisition is not inside the hold
/// either: only what runs in `run` re-enters the key.
///
/// # Drop
/// Dropping the guard releases the lock in the background. Prefer [`release`](Self::release), which waits until the
/// server has confirmed the release.
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock"]
pub struct LockGuard {
    hold: Hold,
    entered: Entered,
}

impl LockGuard {
    pub(crate) fn new(entered: Entered) -> Self {
        entered.begin_body();
        Self {
            hold: Hold {
                state: entered.hold().clone(),
            },
            entered,
        }
    }

    /// Runs `body` inside the hold. Calls nested in the body re-enter the key. If the lease is lost, the body is
    /// dropped at its next `.await`.
    ///
    /// The body is also inside the calls that enclose the first poll of `run`. The calls that enclosed the acquisition
    /// do not count: a guard that is moved to another task lends only its own lock. Two runs of one guard may be polled
    /// concurrently. Their nested calls of its key take turns.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lease was lost before the body ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body. The guard keeps its lock.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        run_inside(&self.entered, None, body).await
    }

    /// Releases the lock, and waits for at most one second until the server has confirmed the release.
    ///
    /// The returned outcome says above all whether the lease had been lost before.
    ///
    /// # Cancel safety
    /// If the future is dropped, or the second is over, the release goes on in the background.
    ///
    /// ```
    /// use lock_runtime::{LockClient, ReleaseOutcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let guard = client.lock("report").acquire().await?;
    /// if let ReleaseOutcome::Lost(reason) = guard.release().await {
    ///     println!("others may have been inside meanwhile: {reason:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(self) -> ReleaseOutcome {
        self.entered.leave(true).await
    }

    /// [`release`](Self::release) for code outside async.
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_release(self) -> ReleaseOutcome {
        Context::of_process().handle().block_on(self.release())
    }
}

impl std::ops::Deref for LockGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

/// Holds several locks until they are released or dropped.
///
/// The guard dereferences to its [`Holds`]: `guard[0].token()` is the token of the first key. Like a [`LockGuard`], it
/// does not stop your code at a loss, and the code after the acquisition is not inside its holds. Watch
/// [`lost`](Holds::lost), or run the work in [`run`](Self::run).
///
/// # Drop
/// Dropping the guard releases its locks in the background. Prefer [`release`](Self::release).
#[derive(Debug)]
#[must_use = "a dropped guard releases its locks"]
pub struct MultiLockGuard {
    holds: Holds,
    several: Option<Arc<MultiCall>>,
    entered: Entered,
}

impl MultiLockGuard {
    /// Creates the guard of a call that has entered with `frame` as its innermost frame.
    pub(crate) fn new(entered: Entered, frame: &Frame) -> Self {
        entered.begin_body();
        Self {
            holds: Holds::of(frame),
            several: frame.several().cloned(),
            entered,
        }
    }

    /// Runs `body` inside the holds, as [`LockGuard::run`] does. Inside the body, [`Holds::current`] returns the
    /// guard's holds.
    ///
    /// # Errors
    /// [`LockError::Lost`] if one of the leases was lost before the body ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body. The guard keeps its locks.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        run_inside(&self.entered, self.several.as_ref(), body).await
    }

    /// Releases all locks at once, and waits for at most one second until the server has confirmed the releases.
    /// Returns the outcome for each key, in the order of the keys.
    ///
    /// # Cancel safety
    /// If the future is dropped, or the second is over, the releases go on in the background.
    ///
    /// ```
    /// use lock_runtime::{LockClient, ReleaseOutcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let guard = client.locks(["stock", "ledger"]).acquire().await?;
    /// for (key, outcome) in ["stock", "ledger"].iter().zip(guard.release().await) {
    ///     if let ReleaseOutcome::Lost(reason) = outcome {
    ///         println!("others may have been inside of {key} meanwhile: {reason:?}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(self) -> Vec<ReleaseOutcome> {
        let holds: Vec<_> = self.holds.iter().map(|hold| hold.state.clone()).collect();
        self.entered.leave_each(&holds).await
    }

    /// [`release`](Self::release) for code outside async.
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_release(self) -> Vec<ReleaseOutcome> {
        Context::of_process().handle().block_on(self.release())
    }
}

impl std::ops::Deref for MultiLockGuard {
    type Target = Holds;

    fn deref(&self) -> &Holds {
        &self.holds
    }
}
