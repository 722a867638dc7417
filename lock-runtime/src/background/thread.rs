//! The engine's thread.

use std::thread;

use once_cell::sync::Lazy;
use tokio::runtime::{Builder, Handle};

/// Returns a handle to the runtime that runs on the engine's thread. A process has one engine thread, which starts when
/// this function is first called.
pub(crate) fn handle() -> &'static Handle {
    static ENGINE: Lazy<Handle> = Lazy::new(start);
    &ENGINE
}

fn start() -> Handle {
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
}
