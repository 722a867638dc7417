//! The thread of the engine.

use std::thread;

use once_cell::sync::Lazy;
use tokio::runtime::{Builder, Handle};

/// Returns the runtime on the engine's thread. Each process has one such thread, which starts at first use.
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
