//! Re-entry follows the call stack: enclosing calls are entered again, siblings take turns, strangers wait.

use std::{
    cell::Cell,
    future::Future,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Instant,
};

use lock_runtime::{BusyWith, InCurrentHold, LockClient, LockError};
use tokio::time::sleep;

use crate::stores::{MS, SECOND, hold, on_every_store, until_free};

#[tokio::test]
async fn a_nested_call_enters_again_and_the_last_one_out_releases() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let outer = client.lock("k");
        assert!(!outer.is_held_here());
        outer
            .run(async {
                assert!(client.lock("k").is_held_here());
                let token = lock_runtime::Hold::current().unwrap().token();
                let inner = client.lock("k").run(async {
                    client
                        .lock("other")
                        .run(async {
                            client
                                .lock("k")
                                .run(async { lock_runtime::Hold::current().unwrap().token() })
                                .await
                        })
                        .await
                });
                assert_eq!(inner.await.unwrap().unwrap().unwrap(), token);
                assert!(client.lock("k").status().await.unwrap().holder.is_some());
            })
            .await
            .unwrap();
        assert!(!client.lock("k").is_held_here());
        assert!(client.lock("k").status().await.unwrap().holder.is_none());
    })
    .await;
}

/// Three siblings in one task, each inside for a while.
async fn siblings(client: &LockClient) {
    let inside = Cell::new(0);
    let most = Cell::new(0);
    let sibling = || {
        client.lock("k").wait(5 * SECOND).run(async {
            inside.set(inside.get() + 1);
            most.set(most.get().max(inside.get()));
            sleep(10 * MS).await;
            inside.set(inside.get() - 1);
        })
    };
    let (a, b, c) = tokio::join!(sibling(), sibling(), sibling());
    a.and(b).and(c).unwrap();
    assert_eq!(most.get(), 1, "siblings were inside together");
}

#[tokio::test]
async fn siblings_in_one_task_take_turns() {
    on_every_store(|store| async move { siblings(&store.client().await).await }).await;
}

#[tokio::test]
async fn siblings_under_an_ancestor_that_holds_the_key_take_turns() {
    on_every_store(|store| async move {
        let client = store.client().await;
        client.lock("k").run(siblings(&client)).await.unwrap();
        client
            .lock("k")
            .run(client.lock("x").run(siblings(&client)))
            .await
            .unwrap()
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_spawned_task_is_a_stranger_unless_it_is_taken_along() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let nested = |wait| {
            let client = client.clone();
            async move { client.lock("k").wait(wait).run(async {}).await }
        };
        client
            .lock("k")
            .run(async {
                let refused = tokio::spawn(nested(50 * MS)).await.unwrap().unwrap_err();
                assert!(matches!(
                    refused,
                    LockError::Busy {
                        with: BusyWith::ThisProcess,
                        ..
                    }
                ));
                assert!(
                    refused.to_string().contains(".in_current_hold()"),
                    "{refused}"
                );
                tokio::spawn(nested(50 * MS).in_current_hold())
                    .await
                    .unwrap()
                    .unwrap();
            })
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_sibling_in_the_way_is_named() {
    on_every_store(|store| async move {
        let client = store.client().await;
        client
            .lock("k")
            .run(async {
                let long = client.lock("k").run(sleep(100 * MS));
                let short = client.lock("k").wait(10 * MS).run(async {});
                let (long, short) = tokio::join!(long, short);
                long.unwrap();
                let refused = short.unwrap_err();
                assert!(matches!(
                    refused,
                    LockError::Busy {
                        with: BusyWith::Sibling,
                        ..
                    }
                ));
                assert!(
                    refused.to_string().contains(".in_current_hold()"),
                    "{refused}"
                );
            })
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_hold_lasts_until_the_last_entry_under_it_has_left() {
    on_every_store(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let (go_on, held) = tokio::sync::oneshot::channel::<()>();
        let mut task = None;
        client
            .lock("k")
            .run(async {
                let inside = async move { held.await.unwrap() };
                task = Some(tokio::spawn(inside.in_current_hold()));
            })
            .await
            .unwrap();
        // The call has returned, its task is still inside.
        assert!(matches!(
            other.lock("k").try_acquire().await,
            Err(LockError::Busy { .. })
        ));
        go_on.send(()).unwrap();
        task.unwrap().await.unwrap();
        until_free(&other, "k").await;
    })
    .await;
}

#[tokio::test]
async fn a_nested_entry_extends_a_shorter_lease_and_shortens_none() {
    on_every_store(|store| async move {
        let client = store.client().await;
        client
            .lock("k")
            .lease(500 * MS)
            .run(async {
                let hold = lock_runtime::Hold::current().unwrap();
                client
                    .lock("k")
                    .lease(100 * MS)
                    .run(async {})
                    .await
                    .unwrap();
                assert!(hold.remaining() > 300 * MS, "{:?}", hold.remaining());
                client
                    .lock("k")
                    .lease(5 * SECOND)
                    .run(async {})
                    .await
                    .unwrap();
                assert!(hold.remaining() > 4 * SECOND, "{:?}", hold.remaining());
                sleep(600 * MS).await;
            })
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn inside_a_lost_hold_an_entry_is_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client
            .lock("k")
            .lease(50 * MS)
            .on_lost(lock_runtime::OnLost::Continue);
        let nested = lock
            .run(async {
                lock_runtime::Hold::current().unwrap().lost().await;
                client.lock("k").wait(SECOND).run(async {}).await
            })
            .await
            .unwrap();
        assert!(matches!(nested, Err(LockError::Lost { .. })), "{nested:?}");
    })
    .await;
}

#[tokio::test]
async fn a_guard_encloses_only_what_runs_in_it() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        assert!(matches!(
            client.lock("k").try_acquire().await,
            Err(LockError::Busy { .. })
        ));
        guard
            .run(client.lock("k").run(async {}))
            .await
            .unwrap()
            .unwrap();
        guard.release().await;
    })
    .await;
}

/// A turn lasts as long as anything nested in it: also a call that was begun there and is polled on elsewhere, and a
/// task that was taken along.
#[tokio::test]
async fn whatever_was_begun_in_a_turn_keeps_the_next_sibling_waiting() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").wait(5 * SECOND);
        let inside = AtomicUsize::new(0);
        let body = || async {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            sleep(30 * MS).await;
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        lock.run(async {
            let mut begun = Box::pin(lock.run(body()));
            let poll_once = std::future::poll_fn(|cx| {
                assert!(begun.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            });
            lock.run(poll_once).await.unwrap();
            let (begun, sibling) = tokio::join!(begun, lock.run(body()));
            begun.and(sibling).unwrap();
        })
        .await
        .unwrap();
        lock.run(async {
            let mut task = None;
            lock.run(async {
                let lock = lock.clone();
                let nested = async move { lock.run(sleep(30 * MS)).await };
                task = Some(tokio::spawn(nested.in_current_hold()));
            })
            .await
            .unwrap();
            let started = Instant::now();
            lock.run(async {}).await.unwrap();
            assert!(started.elapsed() >= 20 * MS, "{:?}", started.elapsed());
            task.unwrap().await.unwrap().unwrap();
        })
        .await
        .unwrap();
    })
    .await;
}
