//! The readers and writers of other Rust crates. A reader or a writer that has to wait tries again as often as the
//! documentation of its crate says.

use std::{future::Future, sync::Arc};

use distkit::{
    DistkitError,
    lock::{LockError as DistkitLockError, RwLock},
};
use distributed_lock_core::{
    error::LockError,
    traits::{DistributedReaderWriterLock, LockHandle, ReaderWriterLockProvider},
};
use distributed_lock_redis::RedisLockProvider;
use redis::aio::ConnectionManager;

use crate::{
    calls::{Mode, Modes, Sit, sit_under},
    candidates::LEASE,
    clock::now,
    peer::{DISTKIT_DOCUMENTED, DOCUMENTED, distkit_options, of_distkit, patience, provider},
};

/// Connects the locks to the server at this URL.
pub(crate) async fn connect(url: &str) -> Vec<(&'static str, Sit)> {
    vec![
        ("distkit", sit_under(Distkit(of_distkit(url).await))),
        (
            "distributed-lock-redis",
            sit_under(DistributedLockRedis(provider(url, LEASE).await)),
        ),
    ]
}

/// distkit's `RwLock`. Each call creates a lock of its own, because a lock has one key and one owner.
#[derive(Clone)]
struct Distkit(ConnectionManager);

/// Returns the guard, or `None` if distkit has given up after its time-out.
fn granted<G>(acquired: Result<G, DistkitError>) -> Option<G> {
    match acquired {
        Ok(guard) => Some(guard),
        Err(DistkitError::LockError(DistkitLockError::Timeout { .. })) => None,
        Err(error) => panic!("distkit: {error}"),
    }
}

impl Modes for Distkit {
    async fn call<F: Future<Output = ()> + Send>(
        &self,
        mode: Mode,
        key: &str,
        until: u64,
        body: F,
    ) -> bool {
        let lock = RwLock::new(distkit_options(&self.0, key, LEASE, DISTKIT_DOCUMENTED));
        let patience = patience(until);
        let released = if mode == Mode::Write {
            let Some(guard) = granted(lock.try_write_with_timeout(patience).await) else {
                return false;
            };
            body.await;
            guard.release().await
        } else {
            let Some(guard) = granted(lock.try_read_with_timeout(patience).await) else {
                return false;
            };
            body.await;
            guard.release().await
        };
        released.expect("distkit releases");
        true
    }
}

/// The readers and writers of distributed-lock-redis. A writer waits in `acquire_write`. `acquire_read` tries only once,
/// so this benchmark repeats the try.
#[derive(Clone)]
struct DistributedLockRedis(Arc<RedisLockProvider>);

impl Modes for DistributedLockRedis {
    async fn call<F: Future<Output = ()> + Send>(
        &self,
        mode: Mode,
        key: &str,
        until: u64,
        body: F,
    ) -> bool {
        let lock = self.0.create_reader_writer_lock(key);
        let released = if mode == Mode::Write {
            let handle = match lock.acquire_write(Some(patience(until))).await {
                Ok(handle) => handle,
                Err(LockError::Timeout(_) | LockError::Cancelled) => return false,
                Err(error) => panic!("distributed-lock-redis: {error}"),
            };
            body.await;
            handle.release().await
        } else {
            let handle = loop {
                let tried = lock.try_acquire_read().await;
                let tried = tried.expect("the server answers distributed-lock-redis");
                if let Some(handle) = tried {
                    break handle;
                }
                if now() >= until {
                    return false;
                }
                tokio::time::sleep(DOCUMENTED).await;
            };
            body.await;
            handle.release().await
        };
        released.expect("distributed-lock-redis releases");
        true
    }
}
