//! Makes spawned tasks part of their parent's hold.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::{
    acquire::reentry::{self, Frame, Stay, enclosing},
    client::{LockClient, scoped},
};

/// Adds to every future the method [`in_current_hold`](Self::in_current_hold), which makes the future part of the
/// current hold.
pub trait InCurrentHold: Future + Sized {
    /// Makes the future part of the hold that encloses the call of this method, wherever the future is polled later. A
    /// task spawned with the future re-enters the locks of its parent instead of waiting for them. The hold lasts at
    /// least until the future has completed or is dropped.
    ///
    /// The future also inherits the client that is scoped to the current task.
    ///
    /// Without this method, code is inside a hold only if two conditions are met. First, the code runs on the call
    /// stack of the hold's body, while the body is polled or dropped. Second, tokio reports the same task id in the
    /// code as in the body. The second condition has these consequences:
    ///
    /// - If a body itself drives tokio tasks, on a `LocalSet` or another tokio runtime, the tasks are outside the
    ///   body's hold, like other spawned tasks. Each of these tasks has its own id.
    /// - If a body passes a future to `block_on`, the future is inside the body's hold. Tokio gives such a future no id
    ///   of its own, and reports the id of the body.
    /// - If a waker polls its task at once, in the call of `wake`, the task is inside the hold of the body that runs on
    ///   this thread. Executors do not do this: their wakers only schedule the task.
    /// - If a body itself drives the tasks of an executor other than tokio, the tasks are inside the body's hold. Tokio
    ///   does not know these tasks, and reports the id of the body.
    ///
    /// With this method, the body and the task run at the same time inside one hold, so your code has to coordinate
    /// their access to the guarded resource. If this method is called outside any hold, the future inherits only the
    /// client. The loss of the lease does not stop the future: watch [`Hold::lost`](crate::Hold::lost).
    ///
    /// # Cancel safety
    /// A future that is dropped leaves the hold.
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
        WithinHold {
            inner: Some(self),
            stay: frame.as_ref().map(Stay::of),
            frame,
            client: scoped(),
        }
    }
}

impl<F: Future> InCurrentHold for F {}

pin_project! {
    /// The future that [`InCurrentHold::in_current_hold`] returns.
    #[must_use = "futures do nothing unless they are awaited or spawned"]
    pub struct WithinHold<F> {
        #[pin]
        inner: Option<F>,
        stay: Option<Arc<Stay>>,
        frame: Option<Arc<Frame>>,
        // The client that was scoped to the task that called `in_current_hold`. Tokio does not pass this client on to a
        // spawned task.
        client: Option<LockClient>,
    }

    impl<F> PinnedDrop for WithinHold<F> {
        fn drop(this: Pin<&mut Self>) {
            this.end();
        }
    }
}

impl<F> WithinHold<F> {
    /// Drops the future inside the hold, and only then leaves the hold.
    fn end(self: Pin<&mut Self>) {
        let mut this = self.project();
        if this.inner.is_some() {
            let _scope = reentry::enter(this.frame.clone());
            this.inner.set(None);
        }
        *this.stay = None;
        *this.frame = None;
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

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.as_mut().project();
        let inner = this.inner.as_pin_mut();
        let inner = inner.expect("a finished future is not polled again");
        let poll = || {
            let _scope = reentry::enter(this.frame.clone());
            inner.poll(cx)
        };
        let output = std::task::ready!(match this.client {
            Some(client) => client.around(poll),
            None => poll(),
        });
        self.end();
        Poll::Ready(output)
    }
}
