//! The guards of held locks, and the handles to the holds of a body.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use lock_core::{
    backend::BackendError,
    error::{BusyWith, LockError, LossReason},
    fencing::FencingToken,
    key::LockKey,
    lease::{MAX_LEASE, Moment},
    options::{OnLost, OptionsError},
};

use crate::{
    acquire::{
        deadline::bounded,
        entry::Entered,
        reentry::{self, Frame, MultiCall},
    },
    background::Context,
    call::{BodySlot, Inside},
    lease::{hold::HoldState, release::ReleaseOutcome},
    limits,
};

/// A handle to a hold. The handle provides the fencing token, the remaining time of the lease, and a notification when
/// the lease is lost.
///
/// The handle does not keep the lock held, and can outlive the hold. In an annotated function, the option `guard =
/// ident` binds the handle to the variable `ident`.
#[derive(Debug, Clone)]
pub struct Hold {
    state: Arc<HoldState>,
}

impl Hold {
    /// Returns the innermost hold that encloses the current code, or `None` outside any hold.
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

    /// Returns the fencing token. Send the token with every write to the guarded resource.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.state.token
    }

    /// Returns how much time is left until the local deadline of the lease, or zero if the lease is lost or the hold
    /// has ended. With the in-process backend, a lease that is renewed without `max_hold` always has its whole time
    /// left.
    ///
    /// If a release passes the lock to a waiter, the lock is first granted for at most 2 s. About 0.1 s after the body
    /// has begun, the engine extends the lease to its whole time. Until this extension, the method returns at most 2 s.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Returns why the lease was lost, or `None` if the lease is not lost.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.state.loss()
    }

    /// Waits until the lease is lost. The future never completes if the hold is released before a loss.
    ///
    /// # Cancel safety
    /// The future can be dropped, and the method can be called again.
    pub async fn lost(&self) -> LossReason {
        self.state.wait_for_loss().await
    }

    /// Adds `by` to the remaining time of the lease in one round trip, and returns the new remaining time.
    ///
    /// The new end of the lease is determined when this method is called, not when the future is first polled. Two
    /// extensions that are called at the same time do not add up: both count from the end that the lease had before.
    ///
    /// # Errors
    /// - [`LockError::Lost`] if the hold has ended or its lease is lost, even if this call is the first to notice the
    ///   loss.
    /// - [`LockError::Unreachable`] or [`LockError::Refused`] if the server could not extend the lease. The old
    ///   deadline of the lease stays in force.
    /// - [`LockError::InvalidOptions`] if the extended lease would have more than 24 hours left, which is the maximum.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is unknown whether the lease is extended.
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
            if backend.is_cut_off(&state.name) {
                let detail = backend.last_error().unwrap_or_default();
                let error = BackendError::Unreachable(detail);
                return Err(LockError::from_backend(error, &state.key, Duration::ZERO));
            }
            return if state.promise(until) {
                Ok(lease.max(self.remaining()))
            } else {
                Err(lost(state.loss().unwrap_or(LossReason::NotHeld)))
            };
        }
        let mut renewing = pin!(state.clone().renew(lease));
        loop {
            let deadline = state.deadline().unwrap_or(until);
            match bounded(backend, deadline, renewing.as_mut()).await {
                Some(Ok(Ok(_))) => return Ok(self.remaining()),
                Some(Ok(Err(reason))) => return Err(lost(reason)),
                Some(Err(error)) => {
                    let waited = backend.now().since(started);
                    return Err(LockError::from_backend(error, &state.key, waited));
                }
                // A renewal by the scheduler may have moved the deadline in the meantime.
                None => state.not_lost()?,
            }
            if state.has_ended() {
                return Err(lost(LossReason::NotHeld));
            }
        }
    }
}

/// The holds of a body that runs under several locks, in the order of the keys. Each hold has its own fencing token.
///
/// If the keys name a lock twice, both positions contain the same hold. In a function annotated with `keys`,
/// the option `guard = ident` binds the holds to the variable `ident`.
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
    /// Returns the holds of the innermost call that encloses the current code, or `None` outside any hold.
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

    /// Returns the remaining time of the lease that ends first, as [`Hold::remaining`] does for one lease.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let all = self.holds.iter().map(Hold::remaining);
        all.min().unwrap_or_default()
    }

    /// Returns why one of the holds was lost, or `None` if no hold is lost.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.holds.iter().find_map(Hold::loss)
    }

    /// Waits until one of the holds is lost. The future never completes if all holds are released before a loss.
    ///
    /// # Cancel safety
    /// The future can be dropped, and the method can be called again.
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

/// Runs `body` inside the locks that a guard holds.
async fn run_inside<F: Future>(
    entered: &Entered,
    several: Option<&Arc<MultiCall>>,
    body: F,
) -> Result<F::Output, LockError> {
    let mut inside = Inside::new(entered.lend(reentry::enclosing(), several));
    let mut body = pin!(BodySlot::new(body));
    std::future::poll_fn(|cx| {
        let _in_span = entered.enter_span();
        inside.poll(entered, OnLost::Cancel, &mut body.as_mut(), cx)
    })
    .await;
    inside.result(entered).map(|()| body.take_output())
}

/// A guard that holds a lock until the guard is released or dropped.
///
/// The guard dereferences to its [`Hold`]. A guard does not stop your code when the lease is lost: watch
/// [`lost`](Hold::lost), or run the work in [`run`](Self::run). Code that merely runs while the guard exists is not
/// inside the hold. A call for the same key re-enters the lock only if the call is made inside `run`.
///
/// # Drop
/// Dropping the guard releases the lock in the background. Prefer [`release`](Self::release), which waits up to one
/// second for the server to confirm the release.
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

    pub(crate) fn state(&self) -> &Arc<HoldState> {
        self.entered.hold()
    }

    /// Runs `body` inside the hold. Calls for the same key that are nested in the body re-enter the lock. If the lease
    /// is lost, the body is dropped at its next `.await`.
    ///
    /// Calls in the body can also re-enter the locks of the calls in which `run` is first polled. The calls in which
    /// the guard was acquired do not matter. For example, a guard can be moved to a spawned task and run a body there.
    /// Calls in this body can re-enter the guard's lock, but no lock that the original task holds.
    ///
    /// Two `run` futures of one guard can be polled concurrently. If nested calls in both bodies re-enter the guard's
    /// lock, these calls take turns.
    ///
    /// # Errors
    /// Returns [`LockError::Lost`] if the lease was lost before the body ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body. The guard keeps its lock.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        run_inside(&self.entered, None, body).await
    }

    /// Makes the writer a reader: readers can then be inside beside it, and the readers that are next enter. No writer gets in
    /// between. The token and the lease stay. Does nothing if the guard already reads.
    ///
    /// From the call on, a nested call that writes fails with [`Upgrade`](lock_core::options::OptionsError::Upgrade).
    ///
    /// # Errors
    /// - [`LockError::Lost`] if the lease is lost.
    /// - [`LockError::Busy`] with [`BusyWith::Sibling`] while a nested call is inside the hold, which possibly writes.
    /// - [`LockError::Unreachable`] if the server did not answer within the rest of the lease. It is then unknown whether readers
    ///   can be inside.
    /// - [`LockError::Refused`] on a Redlock and in Redisson's layout, which have no readers.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is unknown whether readers can be inside.
    ///
    /// ```
    /// use lock_runtime::LockClient;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let report = client.lock("report").acquire().await?;
    /// // The report is rebuilt. From here on, others can read it, too.
    /// report.downgrade().await?;
    /// client.lock("report").read().try_acquire().await?.release().await;
    /// report.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(&self) -> Result<(), LockError> {
        let state = self.state();
        state.not_lost()?;
        let backend = state.backend();
        let started = backend.now();
        let patience = started + state.lease_left().max(limits::COMMAND_PATIENCE);
        match bounded(backend, patience, state.downgrade()).await {
            Some(Some(Ok(true))) => Ok(()),
            Some(Some(Ok(false))) => Err(state.not_held()),
            Some(Some(Err(error))) => {
                let waited = backend.now().since(started);
                Err(LockError::from_backend(error, &state.key, waited))
            }
            Some(None) => Err(LockError::Busy {
                key: state.key.clone(),
                waited: Duration::ZERO,
                with: BusyWith::Sibling,
                held_by: None,
            }),
            None => Err(LockError::Unreachable {
                key: state.key.clone(),
                waited: backend.now().since(started),
                detail: backend.no_answer().into(),
            }),
        }
    }

    /// Releases the lock, and waits up to one second for the server to confirm the release.
    ///
    /// The returned outcome says whether the lease had been lost before the release.
    ///
    /// # Cancel safety
    /// If the future is dropped, or the release is not confirmed within one second, the release continues in the
    /// background.
    ///
    /// ```
    /// use lock_runtime::{LockClient, ReleaseOutcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let guard = client.lock("report").acquire().await?;
    /// if let ReleaseOutcome::Lost(reason) = guard.release().await {
    ///     println!("another caller may have held the lock meanwhile: {reason:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(self) -> ReleaseOutcome {
        self.entered.leave(true).await
    }

    /// Blocking version of [`release`](Self::release), for code outside async.
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
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

/// A guard that holds several locks until the guard is released or dropped.
///
/// The guard dereferences to its [`Holds`]: `guard[0].token()` is the token of the first key. Like a [`LockGuard`], the
/// guard does not stop your code when a lease is lost: watch [`lost`](Holds::lost), or run the work in
/// [`run`](Self::run). Only code inside `run` is inside the guard's holds.
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
    /// Creates the guard of a call that has acquired its locks. `frame` is the innermost frame of the call.
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
    /// Returns [`LockError::Lost`] if one of the leases was lost before the body ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body. The guard keeps its locks.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        run_inside(&self.entered, self.several.as_ref(), body).await
    }

    /// Releases all locks together, and waits up to one second for the server to confirm the releases. Returns the
    /// outcome for each key, in the order of the keys.
    ///
    /// # Cancel safety
    /// If the future is dropped, or the releases are not confirmed within one second, the releases continue in the
    /// background.
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

    /// Blocking version of [`release`](Self::release), for code outside async.
    ///
    /// # Panics
    /// Panics in an async context, where the method would block the runtime.
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
