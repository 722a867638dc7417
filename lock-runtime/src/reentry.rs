//! Re-entry along the call stack: which hold encloses the code that runs right now.
//!
//! The engine sets the innermost frame around every poll of a guarded body. So a nested call sees the calls that
//! enclose it, and a sibling polled by the same task does not see its sibling.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use lock_core::key::LockName;
use pin_project_lite::pin_project;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    client::{LockClient, Shared, scoped},
    hold::{EntryDuty, HoldState},
};

tokio::task_local! {
    static ENCLOSING: Option<Arc<Frame>>;
}

/// A call with several locks, which it takes in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct SeveralLocks {
    /// Its holds in the order of its keys, once it has entered all of them.
    holds: OnceLock<Vec<Arc<HoldState>>>,
}

impl SeveralLocks {
    /// Tells the call's own body which holds it has.
    pub(crate) fn show(&self, holds: Vec<Arc<HoldState>>) {
        let shown = self.holds.set(holds);
        debug_assert!(shown.is_ok(), "a call is entered once");
    }
}

/// One entered call, as those nested in it see it.
pub(crate) struct Frame {
    pub(crate) hold: Arc<HoldState>,
    /// What the frames of one call have in common; `None` where it has one lock, wherever its author nests it.
    several: Option<Arc<SeveralLocks>>,
    /// Calls nested in this one that want the same key take turns, first come, first served.
    turn: OnceLock<Arc<Semaphore>>,
    /// This call's own turn among its siblings, which ends with the last call nested in it.
    _own_turn: Option<OwnedSemaphorePermit>,
    outer: Option<Arc<Self>>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

impl Frame {
    pub(crate) fn new(
        hold: Arc<HoldState>,
        outer: Option<Arc<Self>>,
        own_turn: Option<OwnedSemaphorePermit>,
        several: Option<Arc<SeveralLocks>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            hold,
            several,
            turn: OnceLock::new(),
            _own_turn: own_turn,
            outer,
        })
    }

    /// The turn among the calls nested in this one; most calls have none.
    pub(crate) fn turn(&self) -> Arc<Semaphore> {
        self.turn
            .get_or_init(|| Arc::new(Semaphore::new(1)))
            .clone()
    }

    fn chain(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |frame| frame.outer.as_ref())
    }

    /// The innermost frame from here outwards that is inside this lock.
    pub(crate) fn find(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &LockName,
    ) -> Option<&Arc<Self>> {
        self.chain()
            .find(|frame| frame.hold.name == *name && Arc::ptr_eq(frame.hold.shared(), shared))
    }

    fn is_of_the_same_call(&self, other: &Self) -> bool {
        match (&self.several, &other.several) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Whether to wait for this lock, from here, would be out of the order of names: one that comes later is held
    /// already, and it or this one belongs to a call with several. From the call outwards that is inside this very lock,
    /// nothing counts: all who take turns there are inside that too. Two clients may be of one server, so
    /// the order is one for all.
    pub(crate) fn is_out_of_order(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &LockName,
        is_one_of_several: bool,
    ) -> bool {
        let inside = self.find(shared, name);
        self.chain()
            .take_while(|frame| inside.is_none_or(|inside| !frame.is_of_the_same_call(inside)))
            .filter(|frame| is_one_of_several || frame.several.is_some())
            .any(|frame| frame.hold.name > *name)
    }

    /// The holds of the call whose innermost frame this is.
    pub(crate) fn holds(&self) -> &[Arc<HoldState>] {
        let several = self.several.as_ref();
        several
            .and_then(|several| several.holds.get())
            .map_or(std::slice::from_ref(&self.hold), Vec::as_slice)
    }
}

/// The frame around the code that runs right now.
pub(crate) fn enclosing() -> Option<Arc<Frame>> {
    ENCLOSING.try_with(Clone::clone).ok().flatten()
}

/// Runs `poll` with `frame` around it.
pub(crate) fn inside<T>(frame: Option<Arc<Frame>>, poll: impl FnOnce() -> T) -> T {
    ENCLOSING.sync_scope(frame, poll)
}

/// Takes a future into the current hold, see [`in_current_hold`](Self::in_current_hold).
pub trait InCurrentHold: Future + Sized {
    /// Makes the future part of the hold that runs right now, wherever it is polled: a task spawned with it re-enters
    /// the keys of the call that made it instead of waiting for them. The hold lasts until the future has ended too.
    ///
    /// A client that is scoped to the task comes along.
    ///
    /// The author of the spawned task takes over a duty: the body and the task run at the same time inside one hold.
    /// Outside any hold this does nothing. A lease that is lost does not stop the future; look at
    /// [`Hold::lost`](crate::Hold::lost).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the hold.
    ///
    /// ```
    /// use lock_runtime::{InCurrentHold, LockClient, LockError, distributed_lock};
    ///
    /// #[distributed_lock(key = "order:<id>")]
    /// async fn outer(id: u64) -> Result<u64, LockError> {
    ///     // Without `.in_current_hold()` the task would wait for its own parent.
    ///     tokio::spawn(inner(id).in_current_hold()).await.expect("the task does not panic")
    /// }
    ///
    /// #[distributed_lock(key = "order:<id>")]
    /// async fn inner(id: u64) -> Result<u64, LockError> {
    ///     Ok(id)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// assert_eq!(client.scope(outer(7)).await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    fn in_current_hold(self) -> WithinHold<Self> {
        let frame = enclosing();
        let duties = frame
            .iter()
            .flat_map(Frame::chain)
            .filter_map(|frame| frame.hold.enter_again())
            .collect();
        WithinHold {
            inner: Some(self),
            duties,
            frame,
            client: scoped(),
        }
    }
}

impl<F: Future> InCurrentHold for F {}

pin_project! {
    /// The future of [`InCurrentHold::in_current_hold`].
    #[must_use = "futures do nothing unless they are awaited or spawned"]
    pub struct WithinHold<F> {
        // Dropped before the duties: the hold is left only after the future is gone.
        #[pin]
        inner: Option<F>,
        duties: Vec<EntryDuty>,
        frame: Option<Arc<Frame>>,
        // The hold belongs to this client, and a spawned task would not inherit it.
        client: Option<LockClient>,
    }
}

impl<F> fmt::Debug for WithinHold<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithinHold")
            .field("frame", &self.frame)
            .finish_non_exhaustive()
    }
}

impl<F: Future> Future for WithinHold<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let inner = this
            .inner
            .as_mut()
            .as_pin_mut()
            .expect("a finished future is not polled again");
        let poll = || inside(this.frame.clone(), || inner.poll(cx));
        let output = std::task::ready!(match this.client {
            Some(client) => client.around(poll),
            None => poll(),
        });
        this.inner.set(None);
        this.duties.clear();
        *this.frame = None;
        Poll::Ready(output)
    }
}
