//! Promise 9: every exit of the body releases the lock, after the values that the body owns are dropped.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use futures_util::FutureExt;
use lock_runtime::{LockClient, LockError, distributed_lock};

use crate::stores::{MS, SECOND, hold, on_every_store, until_free};

/// A value that records when it is dropped, and whether the lock is held at that moment.
struct Witness {
    name: &'static str,
    client: LockClient,
    seen: Arc<Mutex<Vec<(&'static str, bool)>>>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        let held = self.client.lock("k").is_held_here();
        self.seen.lock().unwrap().push((self.name, held));
    }
}

#[distributed_lock(key = "k")]
async fn arguments(
    used: Witness,
    _unused: Witness,
    _: Witness,
    (left, _right): (Witness, Witness),
) -> Result<(), LockError> {
    drop(left);
    let _ = &used;
    tokio::task::yield_now().await;
    Ok(())
}

async fn plain(
    used: Witness,
    _unused: Witness,
    _: Witness,
    (left, _right): (Witness, Witness),
) -> Result<(), LockError> {
    drop(left);
    let _ = &used;
    tokio::task::yield_now().await;
    Ok(())
}

#[tokio::test]
async fn arguments_are_dropped_before_the_release_in_the_plain_order() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let witness = |name| Witness {
            name,
            client: client.clone(),
            seen: seen.clone(),
        };
        let four = || {
            (
                witness("used"),
                witness("unused"),
                witness("_"),
                (witness("left"), witness("right")),
            )
        };
        let (a, b, c, d) = four();
        plain(a, b, c, d).await.unwrap();
        let expected: Vec<_> = std::mem::take(&mut *seen.lock().unwrap())
            .into_iter()
            .map(|(name, _)| (name, true))
            .collect();
        let (a, b, c, d) = four();
        client.scope(arguments(a, b, c, d)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), expected);
        drop(seen);
    })
    .await;
}

#[derive(Clone, Copy)]
enum Exit {
    Return,
    Question,
    Break,
    Panic,
}

#[distributed_lock(key = "k")]
async fn leaves(exit: Exit) -> Result<u8, LockError> {
    let failed: Result<u8, LockError> = Err(LockError::NoClient);
    loop {
        tokio::task::yield_now().await;
        match exit {
            Exit::Return => return Ok(1),
            Exit::Question => {
                failed.clone()?;
            }
            Exit::Break => break,
            Exit::Panic => panic!("a planned panic"),
        }
    }
    Ok(2)
}

#[tokio::test]
async fn every_exit_releases() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        for exit in [Exit::Return, Exit::Question, Exit::Break, Exit::Panic] {
            let scoped = client.clone();
            let ended = tokio::spawn(async move { scoped.scope(leaves(exit)).await }).await;
            match exit {
                Exit::Return => assert_eq!(ended.unwrap(), Ok(1)),
                Exit::Question => assert_eq!(ended.unwrap(), Err(LockError::NoClient)),
                Exit::Break => assert_eq!(ended.unwrap(), Ok(2)),
                Exit::Panic => assert!(ended.unwrap_err().is_panic()),
            }
            until_free(&other, "k").await;
            hold(&other, "k").await.release().await;
        }
    })
    .await;
}

/// A caller catches the panic of a body and keeps the call. The lock is released nevertheless.
#[tokio::test]
async fn a_panic_that_is_caught_around_the_call_releases() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let lock = client.lock("k").lease(SECOND).renew(true);
        let body = async { panic!("the body panics") };
        let call = AssertUnwindSafe(lock.run(body));
        let mut call = Box::pin(call.catch_unwind());
        assert!((&mut call).await.is_err());
        let guard = other.lock("k").wait(500 * MS).acquire().await;
        guard.expect("the lock is free").release().await;
        drop(call);
    })
    .await;
}
