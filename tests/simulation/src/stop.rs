//! A signal that stops a process: none of its tasks is polled until the process continues.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker, ready},
};

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    /// The wakers of the tasks that the runtime has tried to poll since the process was stopped.
    woken: Vec<Waker>,
}

/// Stops and continues a process. All clones of a signal act on the same process.
#[derive(Debug, Clone, Default)]
pub struct StopSignal(Arc<Mutex<State>>);

impl StopSignal {
    /// Stops the process, so that none of its tasks is polled.
    pub fn stop(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_stopped = true;
    }

    /// Lets the process continue.
    pub fn go_on(&self) {
        let state = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in state.woken {
            waker.wake();
        }
    }

    /// Returns `Ready` if the process runs. If the process is stopped, returns `Pending`, and wakes the task when the
    /// process continues.
    pub fn poll_running(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_stopped {
            return Poll::Ready(());
        }
        state.woken.push(cx.waker().clone());
        Poll::Pending
    }

    /// Polls `future` only while the process runs.
    pub async fn while_running<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            ready!(self.poll_running(cx));
            future.as_mut().poll(cx)
        })
        .await
    }
}
