//! What is held while a lock is held: the guard, and the hold inside a body.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use lock_core::{
    backend::Renewed,
    error::{LockError, LossReason},
    fencing::FencingToken,
    key::LockKey,
    lease::MAX_LEASE,
    options::{OnLost, OptionsError},
};

use crate::{
    engine,
    entry::Entered,
    hold::HoldState,
    reentry,
    run::{Inside, Slot},
    wait,
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

    /// What is left of the lease by the local deadline, zero once it is lost. A lease that the backend itself keeps
    /// always has its whole time left.
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
    /// # Errors
    /// [`LockError::Lost`] if the lease is lost, also if that is noticed just now, or the hold has ended; [`LockError::Unreachable`] or
    /// [`LockError::Refused`] if the server could not extend it, in which case the old deadline stands;
    /// [`LockError::InvalidOptions`] if the lease would become longer than a lease may be.
    ///
    /// # Cancel safety
    /// Dropped, the server may have extended the lease or not; the local deadline stays the earlier one.
    pub async fn extend(&self, by: Duration) -> Result<Duration, LockError> {
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
        let lease = self.remaining().saturating_add(by);
        if lease > MAX_LEASE {
            return Err(OptionsError::LeaseTooLong.into());
        }
        let Some(deadline) = state.deadline() else {
            // Kept until the release, and so for long enough.
            return Ok(lease);
        };
        let backend = state.backend();
        let started = backend.now();
        let renewed = wait::bounded(
            backend,
            deadline,
            backend.renew(&state.name, state.token, lease),
        );
        match renewed.await {
            Some(Ok(Renewed::Until(until))) => {
                state.extend_deadline(until);
                Ok(self.remaining())
            }
            Some(Ok(Renewed::NotHeld)) => Err(lost(state.lose(LossReason::NotHeld))),
            Some(Err(error)) => Err(LockError::from_backend(
                error,
                &state.key,
                backend.now().since(started),
            )),
            None => Err(lost(state.lose(LossReason::Expired))),
        }
    }
}

/// The holds of a body that runs under several locks: one for each of its `keys`, in their order, each with a fencing
/// token of its own. In a function annotated with `keys`, `guard = ident` binds them.
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
        let frame = reentry::enclosing()?;
        let holds = frame.holds().iter().cloned();
        Some(Self {
            holds: holds.map(|state| Hold { state }).collect(),
        })
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
    /// # Errors
    /// [`LockError::Lost`] if the lease was lost before the body had ended.
    ///
    /// # Cancel safety
    /// Dropping the call drops the body; the guard goes on holding.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        let mut body = pin!(Slot::new(body));
        let mut inside = Inside::default();
        std::future::poll_fn(|cx| {
            inside.poll(&self.entered, OnLost::Cancel, &mut body.as_mut(), cx)
        })
        .await?;
        Ok(body.take_output())
    }

    /// Releases the lock and waits until the server has confirmed that, a second at most; after it, and if the call is
    /// dropped, the release goes on in the background.
    pub async fn release(self) {
        self.entered.leave(true).await;
    }

    /// [`release`](Self::release) for code outside async.
    ///
    /// # Panics
    /// In an async context, where it would block the runtime.
    pub fn blocking_release(self) {
        engine::handle().block_on(self.release());
    }
}

impl std::ops::Deref for LockGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}
