//! The thread on which everything runs that a blocked or finished user runtime must not stop: renewals, clean-up,
//! timers of deadlines.

pub(crate) mod clock;
pub(crate) mod latch;
pub(crate) mod shutdown;
pub(crate) mod sync;

use std::{future::Future, sync::Mutex, thread, time::Duration};

use lock_core::backend::BoxFuture;
use once_cell::sync::Lazy;
use tokio::{
    runtime::{Builder, Handle},
    task::{AbortHandle, JoinError, JoinHandle},
    time,
};

use crate::background::sync::lock;

/// What nobody waits for is looked at this often.
const HANDOFF_DELAY: Duration = Duration::from_millis(5);

/// What a caller has begun and left to the engine may take so much longer.
const PATIENCE: Duration = Duration::from_millis(20);

/// What nobody waits for, and is still to be finished.
static UNFINISHED: Mutex<Vec<BoxFuture<'static, ()>>> = Mutex::new(Vec::new());

static ENGINE: Lazy<Handle> = Lazy::new(|| {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the operating system gives the lock engine an event loop");
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("lock-runtime".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the operating system gives the lock engine a thread");
    handle
});

/// The engine's own runtime; one a process, started at first use.
pub(crate) fn handle() -> &'static Handle {
    &ENGINE
}

/// Runs a future on the engine's thread, whatever becomes of the caller.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    ENGINE.spawn(future)
}

/// Runs a future on the engine's thread, however its caller is polled, until the caller drops this one.
pub(crate) async fn run<F>(future: F) -> Result<F::Output, JoinError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    struct AbortOnDrop(AbortHandle);
    impl Drop for AbortOnDrop {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let task = spawn(future);
    let _abort = AbortOnDrop(task.abort_handle());
    task.await
}

/// Finishes on the engine's thread what nobody waits for. Most of it is done when it is looked at, a moment later: to wake the
/// thread for each would cost more than all the rest.
pub(crate) fn finish(future: BoxFuture<'static, ()>) {
    let mut unfinished = lock(&UNFINISHED);
    unfinished.push(future);
    if unfinished.len() == 1 {
        spawn(async {
            time::sleep(HANDOFF_DELAY).await;
            for future in std::mem::take(&mut *lock(&UNFINISHED)) {
                // Dropped, it goes on by the engine's own connections: nobody may drive the caller's.
                spawn(time::timeout(PATIENCE, future));
            }
        });
    }
}
