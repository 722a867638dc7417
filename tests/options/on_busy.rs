//! `on_busy`: what a call does instead of failing if its lock is busy.

#![expect(
    clippy::unused_async,
    reason = "a fallback has to be async, even if it awaits nothing"
)]

use std::{rc::Rc, sync::Arc};

use lock_runtime::{BusyWith, LockClient, LockError, distributed_lock};
use support::assert_lost;
use tokio::sync::Notify;

use crate::stores::{Store, hold, on_every_store, on_stores_with_a_queue, until_waiting};

/// A type that can be moved, but neither copied nor cloned.
#[derive(Debug, PartialEq)]
struct Order(u64);

#[distributed_lock(key = "order:<id>", wait = "0s", on_busy = skip)]
async fn report(id: u64) -> Result<Option<u64>, LockError> {
    Ok(Some(id))
}

#[distributed_lock(key = "order:<order.0>", wait = "0s", on_busy = fallback(queue_it))]
async fn pay(order: Order, mut tries: u8) -> Result<String, LockError> {
    tries += 1;
    Ok(format!("paid {order:?} at try {tries}"))
}

async fn queue_it(order: Order, tries: u8, error: LockError) -> Result<String, LockError> {
    assert!(matches!(error, LockError::Busy { .. }), "{error}");
    Ok(format!("queued {order:?} after {tries}"))
}

#[tokio::test]
async fn a_busy_call_is_skipped() {
    on_every_store(|store| async move {
        let client = store.client().await;
        assert_eq!(client.scope(report(1)).await, Ok(Some(1)));
        let guard = hold(&client, "order:1").await;
        assert_eq!(client.scope(report(1)).await, Ok(None));
        assert_eq!(client.scope(report(2)).await, Ok(Some(2)));
        guard.release().await;
        assert_eq!(client.scope(report(1)).await, Ok(Some(1)));
    })
    .await;
}

#[tokio::test]
async fn a_busy_call_falls_back_with_its_arguments() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let paid = client.scope(pay(Order(1), 0)).await.unwrap();
        assert_eq!(paid, "paid Order(1) at try 1");
        let guard = hold(&client, "order:1").await;
        let queued = client.scope(pay(Order(1), 7)).await.unwrap();
        assert_eq!(queued, "queued Order(1) after 7");
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_not_busy_is_an_error() {
    assert_eq!(report(1).await, Err(LockError::NoClient));
    assert_eq!(pay(Order(1), 0).await, Err(LockError::NoClient));
    let client = Store::memory().client().await;
    client.shutdown().await;
    assert_eq!(client.scope(report(1)).await, Err(LockError::ShutDown));
    assert_eq!(
        client.scope(pay(Order(1), 0)).await,
        Err(LockError::ShutDown)
    );
}

#[distributed_lock(key = "k", lease = "20ms", on_busy = fallback(never))]
async fn too_slow() -> Result<(), LockError> {
    std::future::pending().await
}

async fn never(error: LockError) -> Result<(), LockError> {
    panic!("the fallback ran although the lock was not busy: {error}")
}

#[tokio::test(start_paused = true)]
async fn a_loss_does_not_fall_back() {
    let client = Store::memory().client().await;
    let lost = client.scope(too_slow()).await;
    assert_lost(&lost);
}

struct Shop {
    locks: LockClient,
    name: String,
}

impl Shop {
    #[distributed_lock(key = "<self.name>", wait = "0s", client = self.locks, on_busy = fallback(Self::later))]
    async fn sell<'a, T: ToString>(
        &'a self,
        (what, many): (T, u8),
        _: &'a str,
    ) -> Result<String, LockError> {
        Ok(format!("sold {many} {} in {}", what.to_string(), self.name))
    }

    async fn later<'a, T: ToString>(
        &'a self,
        (what, many): (T, u8),
        note: &'a str,
        _: LockError,
    ) -> Result<String, LockError> {
        Ok(format!("{many} {} later: {note}", what.to_string()))
    }

    #[distributed_lock(key = "<self.name>", wait = "0s", client = self.locks.clone(), on_busy = fallback(Shop::closed))]
    async fn close(self: Arc<Self>) -> Result<bool, LockError> {
        Ok(Arc::strong_count(&self) == 1)
    }

    async fn closed(self: Arc<Self>, _: LockError) -> Result<bool, LockError> {
        Ok(Arc::strong_count(&self) == 1)
    }
}

#[tokio::test]
async fn a_method_falls_back_to_a_method() {
    let store = Store::memory();
    let locks = store.client().await;
    let guard = hold(&store.client().await, "a").await;
    let shop = |name: &str| {
        Arc::new(Shop {
            locks: locks.clone(),
            name: name.into(),
        })
    };
    let (a, b) = (shop("a"), shop("b"));
    assert_eq!(
        a.sell(("nuts", 3), "soon").await.unwrap(),
        "3 nuts later: soon"
    );
    assert_eq!(
        b.sell(("nuts", 3), "soon").await.unwrap(),
        "sold 3 nuts in b"
    );
    assert!(a.close().await.unwrap());
    assert!(b.close().await.unwrap());
    guard.release().await;
}

#[distributed_lock(key = "k", wait = "0s", on_busy = fallback(local_later))]
async fn local(value: Rc<u8>) -> Result<Rc<u8>, LockError> {
    Ok(value)
}

async fn local_later(value: Rc<u8>, _: LockError) -> Result<Rc<u8>, LockError> {
    Ok(value)
}

#[tokio::test]
async fn neither_asks_for_send() {
    let client = Store::memory().client().await;
    let value = Rc::new(1);
    client.scope(local(value.clone())).await.unwrap();
    let _guard = hold(&client, "k").await;
    client.scope(local(value)).await.unwrap();
}

#[distributed_lock(key = "k", wait = "5s", on_busy = fallback(give_up))]
async fn waits(_token: Arc<()>) -> Result<&'static str, LockError> {
    Ok("waited")
}

async fn give_up(_token: Arc<()>, _: LockError) -> Result<&'static str, LockError> {
    Ok("gave up")
}

#[tokio::test]
async fn dropped_while_it_waits_a_call_with_a_fallback_leaves_nothing() {
    on_stores_with_a_queue(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        let argument = Arc::new(());
        let mut waiting = Box::pin(client.scope(waits(argument.clone())));
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the lock is held"),
            () = until_waiting(&client, "k", 1) => {}
        }
        drop(waiting);
        assert_eq!(Arc::strong_count(&argument), 1);
        until_waiting(&client, "k", 0).await;
        guard.release().await;
        assert_eq!(client.scope(waits(argument)).await, Ok("waited"));
    })
    .await;
}

#[distributed_lock(key = "k", wait = "0s")]
async fn outer() -> Result<u8, LockError> {
    let told = Notify::new();
    // The second call finds the lock busy, because the first call, its sibling, holds the lock.
    let (first, second) = tokio::join!(nested(&told), nested(&told));
    Ok(first? + second?)
}

#[distributed_lock(key = "k", wait = "0s", on_busy = fallback(no_turn))]
async fn nested(told: &Notify) -> Result<u8, LockError> {
    told.notified().await;
    Ok(1)
}

async fn no_turn(told: &Notify, error: LockError) -> Result<u8, LockError> {
    told.notify_one();
    match error {
        LockError::Busy {
            with: BusyWith::Sibling,
            ..
        } => Ok(10),
        other => Err(other),
    }
}

#[tokio::test]
async fn a_busy_sibling_falls_back_too() {
    let client = Store::memory().client().await;
    assert_eq!(client.scope(outer()).await, Ok(11));
}
