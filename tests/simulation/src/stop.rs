//! A signal that stops a process, or one of its runtimes: none of its tasks is polled until it continues. The signal can
//! also end a runtime: all of its tasks are dropped.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    /// The runtime that is blocked.
    blocked: Option<u32>,
    /// The wakers of the tasks that the process has tried to poll since it, or their runtime, was stopped.
    woken: Vec<Waker>,
    /// The signals that end runtimes.
    ends: BTreeMap<u32, CancellationToken>,
    /// The tasks of the engine that end with their runtimes.
    tasks: BTreeMap<u32, Vec<AbortHandle>>,
}

/// Stops and continues a process. All clones of a signal act on the same process.
#[derive(Debug, Clone, Default)]
pub struct StopSignal(Arc<Mutex<State>>);

impl StopSignal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the process, so that none of its tasks is polled.
    pub fn stop(&self) {
        self.state().is_stopped = true;
    }

    /// Blocks a runtime of the process, so that none of this runtime's tasks is polled.
    pub fn block(&self, runtime: u32) {
        self.state().blocked = Some(runtime);
    }

    /// Lets the process and all of its runtimes continue.
    pub fn go_on(&self) {
        let woken = {
            let mut state = self.state();
            (state.is_stopped, state.blocked) = (false, None);
            std::mem::take(&mut state.woken)
        };
        for waker in woken {
            waker.wake();
        }
    }

    /// Ends a runtime of the process: all of its tasks are dropped.
    pub fn end(&self, runtime: u32) {
        self.end_signal(runtime).cancel();
        let tasks = self.state().tasks.remove(&runtime).unwrap_or_default();
        for task in tasks {
            task.abort();
        }
    }

    /// Returns whether this runtime of the process has ended.
    #[must_use]
    pub fn has_ended(&self, runtime: u32) -> bool {
        self.end_signal(runtime).is_cancelled()
    }

    /// Aborts this task when the runtime ends. Aborts the task at once if the runtime has ended.
    pub fn abort_with(&self, runtime: u32, task: AbortHandle) {
        if self.end_signal(runtime).is_cancelled() {
            return task.abort();
        }
        let mut state = self.state();
        let tasks = state.tasks.entry(runtime).or_default();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    fn end_signal(&self, runtime: u32) -> CancellationToken {
        self.state().ends.entry(runtime).or_default().clone()
    }

    /// Returns `Ready` if the process and this runtime run. If one of them is stopped, returns `Pending`, and wakes the
    /// task when both run again.
    pub fn poll_running(&self, runtime: u32, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if !state.is_stopped && state.blocked != Some(runtime) {
            return Poll::Ready(());
        }
        state.woken.push(cx.waker().clone());
        Poll::Pending
    }

    /// Polls `future` only while the process and this runtime run. Drops `future`, and returns `None`, if the runtime
    /// ends.
    pub async fn while_running<F: Future>(self, runtime: u32, future: F) -> Option<F::Output> {
        let running = async {
            let mut future = pin!(future);
            poll_fn(|cx| {
                ready!(self.poll_running(runtime, cx));
                future.as_mut().poll(cx)
            })
            .await
        };
        if runtime == 0 {
            return Some(running.await); // the engine's runtime never ends
        }
        tokio::select! {
            biased;
            () = self.end_signal(runtime).cancelled_owned() => None,
            output = running => Some(output),
        }
    }
}
