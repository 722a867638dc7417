//! The thread on which everything runs that a blocked or finished user runtime must not stop: renewals, clean-up,
//! timers of deadlines.

use std::{future::Future, thread};

use once_cell::sync::Lazy;
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
};

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
