//! What is held while a lock is held: the guard, and the hold inside a body.

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

/// The hold that a body runs in: its fencing token, what is left of its lease, and word of its loss.
///
/// A handle: it keeps nothing locked, and may outlive the hold. In an annotated function `guard = ident` binds it.
#[derive(Debug, Clone)]
pub struct Hold {
    state: Arc<HoldState>,
}

impl Hold {
    /// The hold that encloses the code which runs right now, the innermost if there are several.
    #[must_use]
    pub fn current() -> Option<Self> {
        reentry::enclosing().map(|frame| Self {
            state: frame.hold.clone(),
        })
    }

    /// The key, without its namespace.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.state.key
    }

    /// The fencing token: send it with every write to the guarded resource.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.state.token
    }

    /// What is left of the lease by the local deadline, zero once it is lost or the hold has ended. A lease that the
    /// backend itself keeps always has its whole time left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Whether the lease is lost by now, and how.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.state.loss()
    }

    /// Ends when the lease is lost; never, if the hold is released before.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) -> LossReason {
        self.state.wait_for_loss().await
    }

    /// Adds `by` to what is left of the lease, in one round trip, and returns what is left then.
    ///
    /// The new end is fixed by the call, not by its first poll. So two extensions that are called at the same time do not
    /// add up: each of them counts from the end that it found.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lease is lost, also if that is noticed just now, or the hold has ended; [`LockError::Unreachable`] or
    /// [`LockError::Refused`] if the server could not extend it, in which case the old deadline stands;
    /// [`LockError::InvalidOptions`] if the lease would become longer than a lease may be.
    ///
    /// # Cancel safety
    /// Dropped, the lease may be extended or not.
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

/// The holds of a body that runs under several locks: one for each of its `keys`, in their order, each with a fencing
/// token of its own. A key that is named twice is one lock, and has one hold, which stands at both places. In a
/// function annotated with `keys`, `guard = ident` binds them.
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
    /// The holds of the innermost call that encloses the code which runs right now.
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

    /// What is left of the lease that ends first, see [`Hold::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let all = self.holds.iter().map(Hold::remaining);
        all.min().unwrap_or_default()
    }

    /// The loss of one of them, if there is one by now.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.holds.iter().find_map(Hold::loss)
    }

    /// Ends when one of them is lost; never, if they are released before.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
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

/// Runs `body` inside what a guard has entered.
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
/// All that a [`Hold`] tells is on the guard too. A guard does not stop anybody at a loss: watch
/// [`lost`](Hold::lost), or run the work in [`run`](Self::run). Nor does it enclose the code after it: only what runs
/// in `run` re-enters the key.
///
/// # Drop
/// Dropping the guard releases the lock in the background. Prefer [`release`](Self::release), which waits until the
/// server has said that the lock is free.
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

    /// Runs `body` inside the hold: calls nested in it re-enter the key, and at a loss it is dropped at its next
    /// `.await`.
    ///
    /// The body is inside the calls that enclose the first poll of `run` too. It is not inside those that enclosed the
    /// acquisition, so a guard that is moved to another task lends its own lock alone. Two runs of one guard may be
    /// polled at the same time; the calls of its key that are nested in them take turns.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lease was lost before the body had ended.
    ///
    /// # Cancel safety
    /// Dropping the call drops the body; the guard goes on holding.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        run_inside(&self.entered, None, body).await
    }

    /// Releases the lock, waits until the server has confirmed that, a second at most, and says what became of the lock:
    /// above all, whether the lease had been lost before.
    ///
    /// # Cancel safety
    /// If the call is dropped, and after that second, the release goes on in the background.
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
/// All that [`Holds`] tell is on the guard too: `guard[0].token()` is the token of the key that was named first. Like a
/// [`LockGuard`] it does not stop anybody at a loss, nor does it enclose the code after it: watch [`lost`](Holds::lost),
/// or run the work in [`run`](Self::run).
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
    /// Of a call that has entered, and its innermost frame.
    pub(crate) fn new(entered: Entered, frame: &Frame) -> Self {
        entered.begin_body();
        Self {
            holds: Holds::of(frame),
            several: frame.several().cloned(),
            entered,
        }
    }

    /// Runs `body` inside the holds, as [`LockGuard::run`] does: [`Holds::current`] are those of the guard there.
    ///
    /// # Errors
    /// [`LockError::Lost`] if one of the leases was lost before the body had ended.
    ///
    /// # Cancel safety
    /// Dropping the call drops the body; the guard goes on holding.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        run_inside(&self.entered, self.several.as_ref(), body).await
    }

    /// Releases all locks at once, waits until the server has confirmed that, a second at most, and says what became of
    /// each, in the order of the keys.
    ///
    /// # Cancel safety
    /// If the call is dropped, and after that second, the releases go on in the background.
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
