//! A body under its locks: the call enters, runs the body inside, and leaves.
//!
//! Whatever the body is, all but its own polling is compiled once, behind [`Body`]: services have hundreds of bodies.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use lock_core::{
    backend::BoxFuture,
    error::LockError,
    options::{OnLost, Release},
};
use pin_project_lite::pin_project;

use crate::{engine, entry::Entered, locks::Locks, reentry};

/// A body of any type.
pub(crate) trait Body {
    /// Polls it, and keeps what it returns.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Drops it, with all that it owns.
    fn end(&mut self);
}

pin_project! {
    /// A body, and what it has returned.
    pub(crate) struct Slot<F: Future> {
        #[pin]
        body: Option<F>,
        output: Option<F::Output>,
    }
}

impl<F: Future> Slot<F> {
    pub(crate) fn new(body: F) -> Self {
        Self {
            body: Some(body),
            output: None,
        }
    }

    pub(crate) fn take_output(self: Pin<&mut Self>) -> F::Output {
        let output = self.project().output.take();
        output.expect("a finished call is not polled again")
    }
}

impl<F: Future> Body for Pin<&mut Slot<F>> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.as_mut().project();
        let body = this.body.as_pin_mut();
        let body = body.expect("a body is there until it has ended");
        *this.output = Some(ready!(body.poll(cx)));
        Poll::Ready(())
    }

    fn end(&mut self) {
        self.as_mut().project().body.set(None);
    }
}

/// How a body under its locks ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ends {
    /// What becomes of it at a loss.
    pub(crate) on_lost: OnLost,
    /// Whether its value waits for the release.
    pub(crate) release: Release,
}

/// What a body inside its locks needs from poll to poll.
#[derive(Default)]
pub(crate) struct Inside {
    /// Whether the body was polled.
    begun: bool,
    /// Word of a lease's loss, made when the body first has to wait.
    watch: Option<BoxFuture<'static, ()>>,
}

impl Inside {
    /// Polls a body inside its locks, the deadlines checked before.
    pub(crate) fn poll(
        &mut self,
        entered: &Entered,
        on_lost: OnLost,
        body: &mut dyn Body,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), LockError>> {
        // A body may run on without its locks, but none begins without them.
        if (on_lost == OnLost::Cancel || !self.begun)
            && let Some(lost) = entered.loss()
        {
            return Poll::Ready(Err(lost));
        }
        self.begun = true;
        let frame = entered.frame().clone();
        if reentry::inside(Some(frame), || body.poll(cx)).is_ready() {
            // The result is the body's, whatever became of the lease; a loss is logged and counted.
            entered.loss();
            return Poll::Ready(Ok(()));
        }
        loop {
            let watch = self.watch.get_or_insert_with(|| entered.watch());
            ready!(watch.as_mut().poll(cx));
            self.watch = match (on_lost, entered.loss()) {
                (OnLost::Cancel, Some(lost)) => return Poll::Ready(Err(lost)),
                (OnLost::Cancel, None) => None,
                (OnLost::Continue, _) => Some(Box::pin(std::future::pending())),
            };
        }
    }
}

enum Stage {
    Entering(BoxFuture<'static, Result<Entered, LockError>>),
    Inside { entered: Entered, inside: Inside },
    Leaving(BoxFuture<'static, ()>, Result<(), LockError>),
    Ended,
}

/// The way of one call through its locks. Dropped after the body, it gives back whatever it has of them.
pub(crate) struct Passage {
    stage: Stage,
    ends: Ends,
}

impl Passage {
    /// Enters first.
    pub(crate) fn through(locks: Result<Locks, LockError>) -> Self {
        match locks {
            Ok(locks) => Self {
                ends: locks.ends(),
                stage: Stage::Entering(locks.enter()),
            },
            Err(error) => Self {
                ends: Ends::default(),
                stage: Stage::Entering(Box::pin(std::future::ready(Err(error)))),
            },
        }
    }

    /// Is inside already.
    pub(crate) fn from_inside(entered: Entered, ends: Ends) -> Self {
        Self {
            stage: Stage::Inside {
                entered,
                inside: Inside::default(),
            },
            ends,
        }
    }

    /// Ends when the locks are left, or were not entered; without an error the body has returned.
    pub(crate) fn poll(
        &mut self,
        body: &mut dyn Body,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), LockError>> {
        loop {
            match &mut self.stage {
                Stage::Entering(entering) => match ready!(entering.as_mut().poll(cx)) {
                    Ok(entered) => {
                        self.stage = Stage::Inside {
                            entered,
                            inside: Inside::default(),
                        };
                    }
                    Err(error) => {
                        body.end();
                        self.stage = Stage::Ended;
                        return Poll::Ready(Err(error));
                    }
                },
                Stage::Inside { entered, inside } => {
                    let result = ready!(inside.poll(entered, self.ends.on_lost, body, cx));
                    // The key is released only after the body is gone.
                    body.end();
                    if let Stage::Inside { entered, .. } =
                        std::mem::replace(&mut self.stage, Stage::Ended)
                    {
                        let leaving = Box::pin(entered.leave(result.is_ok()));
                        if self.ends.release == Release::Background {
                            leave_behind(leaving);
                            return Poll::Ready(result);
                        }
                        self.stage = Stage::Leaving(leaving, result);
                    }
                }
                Stage::Leaving(leaving, _) => {
                    ready!(leaving.as_mut().poll(cx));
                    if let Stage::Leaving(_, result) =
                        std::mem::replace(&mut self.stage, Stage::Ended)
                    {
                        return Poll::Ready(result);
                    }
                }
                Stage::Ended => panic!("a finished call is not polled again"),
            }
        }
    }
}

/// Goes on leaving by itself. The release is on its way when this returns, where there is a connection: the next
/// acquisition over it comes later.
fn leave_behind(mut leaving: BoxFuture<'static, ()>) {
    let mut cx = Context::from_waker(Waker::noop());
    if leaving.as_mut().poll(&mut cx).is_pending() {
        // On the engine: nobody may drive the caller's runtime once the call has returned.
        engine::finish(leaving);
    }
}

pin_project! {
    /// A body under its lock: acquires, runs, releases.
    ///
    /// # Cancel safety
    /// Dropped at any point it drops the body, then gives back in the background whatever it has of the lock.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Run<F: Future> {
        // Before the passage: what the body owns is dropped while the lock is still held.
        #[pin]
        body: Slot<F>,
        passage: Passage,
    }
}

impl<F: Future> Run<F> {
    pub(crate) fn new(locks: Result<Locks, LockError>, body: F) -> Self {
        Self {
            body: Slot::new(body),
            passage: Passage::through(locks),
        }
    }
}

impl<F: Future> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

impl<F: Future> Future for Run<F> {
    type Output = Result<F::Output, LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut body = this.body;
        ready!(this.passage.poll(&mut body, cx))?;
        Poll::Ready(Ok(body.take_output()))
    }
}
