//! Futures that end at a deadline, or when the client is shut down.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Backend, BackendError, BoxFuture},
    error::LockError,
    lease::Moment,
};
use pin_project_lite::pin_project;

use crate::{
    acquire::spec::{AcquireSpec, Budget, failed, unreachable},
    lease::shared::Shared,
};

/// Waits for the answer to a renewal. Fails if no answer has arrived by `until`.
pub(crate) fn answered<'a, T>(
    spec: &'a AcquireSpec,
    budget: Budget,
    until: Moment,
    renewal: impl Future<Output = Result<T, BackendError>> + 'a,
) -> impl Future<Output = Result<T, LockError>> + 'a {
    bounded(&spec.shared.backend, until, renewal).map(move |answer| match answer {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(error)) => Err(failed(spec, budget, error)),
        None => Err(unreachable(spec, budget)),
    })
}

/// Waits for `future` until `deadline` by the backend's clock. The output is `None` if `deadline` comes first. A timer
/// is created only if `future` is not ready at its first poll.
pub(crate) fn bounded<F: Future>(
    backend: &Arc<dyn Backend>,
    deadline: Moment,
    future: F,
) -> Bounded<'_, F> {
    Bounded {
        backend,
        until_shutdown: None,
        deadline,
        future,
        timer: None,
    }
}

/// Waits for `future` until `deadline`, as [`bounded`] does. Once the client is shut down, the output is an error, even
/// if `future` is ready.
pub(crate) fn unless_shut_down<F: Future>(
    shared: &Arc<Shared>,
    deadline: Moment,
    future: F,
) -> impl Future<Output = Result<Option<F::Output>, LockError>> {
    let bounded = Bounded {
        until_shutdown: Some(shared),
        ..bounded(&shared.backend, deadline, future)
    };
    bounded.map(|output| match output {
        None if shared.shutdown.has_begun() => Err(LockError::ShutDown),
        output => Ok(output),
    })
}

pin_project! {
    /// The future of [`bounded`].
    pub(crate) struct Bounded<'a, F> {
        backend: &'a Arc<dyn Backend>,
        // The client whose shutdown ends the wait; `None` if a shutdown does not end the wait.
        until_shutdown: Option<&'a Arc<Shared>>,
        deadline: Moment,
        #[pin]
        future: F,
        timer: Option<BoxFuture<'static, ()>>,
    }
}

impl<F: Future> Future for Bounded<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this
            .until_shutdown
            .is_some_and(|shared| shared.shutdown.has_begun())
        {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let timer = this.timer.get_or_insert_with(|| {
            let deadline = this.backend.sleep_until(*this.deadline);
            let Some(shared) = this.until_shutdown.cloned() else {
                return deadline;
            };
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = deadline => {}
                    () = shared.shutdown.begun() => {}
                }
            })
        });
        timer.as_mut().poll(cx).map(|()| None)
    }
}
