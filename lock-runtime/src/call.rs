//! Runs a body (the code that the locks guard): acquires the locks, polls the body, drops it if a lease is lost, and
//! releases the locks.
//!
//! Only the code that polls or drops a body is generic over the body's type. The other code works on `dyn` [`Body`], so
//! it is compiled once instead of once for each of the hundreds of body types that a service may have.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use futures_util::FutureExt;
use lock_core::{
    backend::BoxFuture,
    error::LockError,
    options::{OnLost, Release},
};
use pin_project_lite::pin_project;

use crate::{
    acquire::{
        ExitPolicy, Locks,
        entry::Entered,
        reentry::{self, Frame},
    },
    background,
    lease::polling,
};

/// A body whose type is erased.
pub(crate) trait Body {
    /// Polls the body. During the poll, `frame` is the innermost enclosing frame, in which nested calls find the locks.
    /// When the body completes, this method stores the body's output.
    fn poll(&mut self, frame: &Arc<Frame>, cx: &mut Context<'_>) -> Poll<()>;

    /// Drops the body and everything it owns, with the body's frame as the innermost enclosing frame.
    fn end(&mut self);
}

pin_project! {
    /// A body, and the body's output once the body has completed.
    pub(crate) struct BodySlot<F: Future> {
        #[pin]
        body: Option<F>,
        output: Option<F::Output>,
        // The frame in which nested calls find the locks while the body is polled or dropped. The field is set from the
        // body's first poll until the body is dropped.
        frame: Option<Arc<Frame>>,
    }

    impl<F: Future> PinnedDrop for BodySlot<F> {
        fn drop(this: Pin<&mut Self>) {
            this.end();
        }
    }
}

impl<F: Future> BodySlot<F> {
    pub(crate) fn new(body: F) -> Self {
        Self {
            body: Some(body),
            output: None,
            frame: None,
        }
    }

    fn end(self: Pin<&mut Self>) {
        let mut this = self.project();
        let _scope = this.frame.take().map(|frame| reentry::enter(Some(frame)));
        this.body.set(None);
    }

    pub(crate) fn take_output(self: Pin<&mut Self>) -> F::Output {
        let output = self.project().output.take();
        output.expect("a finished call is not polled again")
    }
}

impl<F: Future> Body for Pin<&mut BodySlot<F>> {
    fn poll(&mut self, frame: &Arc<Frame>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.as_mut().project();
        let body = this.body.as_pin_mut();
        let body = body.expect("a body exists until it has ended");
        let frame = this.frame.get_or_insert_with(|| frame.clone());
        let _scope = reentry::enter(Some(frame.clone()));
        *this.output = Some(ready!(body.poll(cx)));
        Poll::Ready(())
    }

    fn end(&mut self) {
        self.as_mut().end();
    }
}

/// The state of a body while its call holds the locks.
///
/// Guarded calls can be nested, and each nested call adds the stack frames of its `poll`. To keep these stack frames
/// small, most code around the poll of the body is in functions that are not inlined.
pub(crate) struct Inside {
    frame: Arc<Frame>,
    /// Whether the body has been polled.
    begun: bool,
    /// Whether the loss of a lease ended the body.
    lost: bool,
    /// A future that completes when a lease is lost. `None` until the body first returns `Poll::Pending`.
    watch: Option<BoxFuture<'static, ()>>,
}

impl Inside {
    /// Creates the state of a body that has not begun and will run in `frame`.
    pub(crate) fn new(frame: Arc<Frame>) -> Self {
        Self {
            frame,
            begun: false,
            lost: false,
            watch: None,
        }
    }

    /// Polls the body, unless a lease is lost and the body must not run without that lease. This method completes when
    /// the body has completed, or when the caller has to drop the body because of a loss.
    pub(crate) fn poll(
        &mut self,
        entered: &Entered,
        on_lost: OnLost,
        body: &mut dyn Body,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // With `OnLost::Continue`, a body that has begun continues after a loss, but no body begins after a loss.
        if !self.begun {
            entered.begin_body();
        }
        if (on_lost != OnLost::Continue || !self.begun) && self.is_lost(entered) {
            return Poll::Ready(());
        }
        self.begun = true;
        let polling = polling::begin(&self.frame.hold);
        let polled = body.poll(&self.frame, cx);
        drop(polling);
        match polled {
            Poll::Ready(()) => {
                entered.is_lost();
                Poll::Ready(())
            }
            Poll::Pending => self.poll_watch(entered, on_lost, cx),
        }
    }

    /// Returns [`LockError::Lost`] if a loss ended the body. Returns `Ok` if the body completed, even if a lease is
    /// lost by now.
    #[inline(never)]
    pub(crate) fn result(&self, entered: &Entered) -> Result<(), LockError> {
        entered.report_late_end();
        let lost = self.lost.then(|| entered.loss());
        lost.flatten().map_or(Ok(()), Err)
    }

    fn is_lost(&mut self, entered: &Entered) -> bool {
        self.lost = entered.is_lost();
        self.lost
    }

    #[inline(never)]
    fn poll_watch(&mut self, entered: &Entered, on_lost: OnLost, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let watch = self.watch.get_or_insert_with(|| entered.watch());
            ready!(watch.as_mut().poll(cx));
            self.watch = if on_lost == OnLost::Continue {
                // The body continues, and each later loss of another lock is also logged when it happens.
                Some(entered.watch_rest())
            } else if self.is_lost(entered) {
                return Poll::Ready(());
            } else {
                None
            };
        }
    }
}

enum Stage {
    Entering(BoxFuture<'static, Result<(Entered, Arc<Frame>), LockError>>),
    Inside { entered: Entered, inside: Inside },
    Leaving(BoxFuture<'static, ()>, Result<(), LockError>),
    Left(Result<(), LockError>),
    Ended,
}

/// The state of a call that acquires its locks, runs its body and releases the locks. A future that contains a
/// `GuardedCall` must drop the body first, because dropping the `GuardedCall` releases the locks that are still held.
pub(crate) struct GuardedCall {
    stage: Stage,
    exit: ExitPolicy,
}

impl GuardedCall {
    /// Creates a call that has not acquired its locks yet. If `locks` is an error, the call ends with that error.
    pub(crate) fn through(locks: Result<Locks, LockError>) -> Self {
        match locks {
            Ok(locks) => Self {
                exit: locks.exit_policy(),
                stage: Stage::Entering(locks.enter()),
            },
            Err(error) => Self {
                exit: ExitPolicy::default(),
                stage: Stage::Entering(Box::pin(std::future::ready(Err(error)))),
            },
        }
    }

    /// Creates a call whose locks are already held.
    pub(crate) fn from_inside(entered: Entered, frame: Arc<Frame>, exit: ExitPolicy) -> Self {
        Self {
            stage: Stage::Inside {
                entered,
                inside: Inside::new(frame),
            },
            exit,
        }
    }

    /// Advances the call. The call completes when the acquisition has failed, when the locks are released, or when
    /// their release continues in the background. As in [`Inside`], most code around the poll of the body is in
    /// functions that are not inlined.
    pub(crate) fn poll(&mut self, body: &mut dyn Body, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.stage {
                Stage::Entering(_) => ready!(self.poll_entering(body, cx)),
                Stage::Inside { .. } => {
                    ready!(self.poll_inside(body, cx));
                    self.leave();
                }
                Stage::Leaving(leaving, _) => {
                    ready!(leaving.as_mut().poll(cx));
                    self.end_leaving();
                }
                Stage::Left(_) => return Poll::Ready(()),
                Stage::Ended => panic!("a finished call is not polled again"),
            }
        }
    }

    /// Polls the body. When the body completes or panics, drops it before the locks are released.
    fn poll_inside(&mut self, body: &mut dyn Body, cx: &mut Context<'_>) -> Poll<()> {
        let on_panic = OnPanic {
            stage: &mut self.stage,
            body,
        };
        let mut polled = Poll::Pending;
        if let Stage::Inside { entered, inside } = &mut *on_panic.stage {
            let in_span = entered.enter_span();
            polled = inside.poll(entered, self.exit.on_lost, on_panic.body, cx);
            if polled.is_ready() {
                on_panic.body.end();
            }
            drop(in_span);
        }
        std::mem::forget(on_panic);
        polled
    }

    /// Returns the outcome of a call that has ended: `Ok` if the body has completed, otherwise the error of the call.
    #[inline(never)]
    pub(crate) fn result(&mut self) -> Result<(), LockError> {
        match self.take_stage() {
            Stage::Left(result) => result,
            _ => panic!("a call has a result only after it has left its locks"),
        }
    }

    fn take_stage(&mut self) -> Stage {
        std::mem::replace(&mut self.stage, Stage::Ended)
    }

    #[inline(never)]
    fn poll_entering(&mut self, body: &mut dyn Body, cx: &mut Context<'_>) -> Poll<()> {
        if let Stage::Entering(entering) = &mut self.stage {
            self.stage = match ready!(entering.as_mut().poll(cx)) {
                Ok((entered, frame)) => Stage::Inside {
                    entered,
                    inside: Inside::new(frame),
                },
                Err(error) => {
                    body.end();
                    Stage::Left(Err(error))
                }
            };
        }
        Poll::Ready(())
    }

    #[inline(never)]
    fn leave(&mut self) {
        if let Stage::Inside { entered, inside } = self.take_stage() {
            let result = inside.result(&entered);
            drop(inside);
            let leaving = Box::pin(entered.leave(result.is_ok()).map(drop));
            self.stage = if self.exit.release == Release::Background {
                leave_behind(leaving, self.exit.context());
                Stage::Left(result)
            } else {
                Stage::Leaving(leaving, result)
            };
        }
    }

    #[inline(never)]
    fn end_leaving(&mut self) {
        if let Stage::Leaving(_, result) = self.take_stage() {
            self.stage = Stage::Left(result);
        }
    }
}

/// Ends a call whose body panics: drops the body, and then releases the locks in the background. The caller can catch
/// the panic and keep the call, so the locks are not released only when the call is dropped.
struct OnPanic<'a> {
    stage: &'a mut Stage,
    body: &'a mut dyn Body,
}

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.body.end();
        *self.stage = Stage::Ended;
    }
}

/// Lets the release finish in the background. If there is a connection, this function passes the release to the
/// connection before it returns. A later acquisition on the same connection therefore reaches the server after the
/// release.
fn leave_behind(mut leaving: BoxFuture<'static, ()>, context: &Arc<background::Context>) {
    let mut cx = Context::from_waker(Waker::noop());
    // The body may have used up the budget that tokio gives to each poll of a task.
    let first = pin!(tokio::task::unconstrained(leaving.as_mut()));
    if first.poll(&mut cx).is_pending() {
        // The engine finishes the release, because the caller's runtime might stop once the call has returned.
        context.finish(leaving);
    }
}

pin_project! {
    /// A future that acquires its locks, runs a body under them, and releases them.
    ///
    /// # Cancel safety
    /// The future can be dropped at any point. Dropping the future drops the body first. The engine then releases the
    /// future's locks and removes the future's place in the queue, both in the background.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Run<F: Future> {
        // The field is declared before `guarded`, so that everything the body owns is dropped while the locks are still
        // held.
        #[pin]
        body: BodySlot<F>,
        guarded: GuardedCall,
    }
}

impl<F: Future> Run<F> {
    pub(crate) fn new(locks: Result<Locks, LockError>, body: F) -> Self {
        Self {
            body: BodySlot::new(body),
            guarded: GuardedCall::through(locks),
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
        ready!(this.guarded.poll(&mut body, cx));
        Poll::Ready(this.guarded.result().map(|()| body.take_output()))
    }
}
