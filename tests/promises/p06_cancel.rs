//! Nothing leaks when a call is dropped. `tests/drops.rs` counts hundreds of drops in each state.

use std::time::Duration;

use lock_runtime::LockError;

use crate::stores::{
    MS, SECOND, hold, on_every_store, on_stores_with_a_queue, until_free, until_waiting,
};

#[tokio::test]
async fn a_waiter_dropped_in_the_queue_leaves_it() {
    on_stores_with_a_queue(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.lock("k").wait(60 * SECOND).acquire().await.map(drop) }
        });
        until_waiting(&client, "k", 1).await;
        waiting.abort();
        let _ = waiting.await;
        until_waiting(&client, "k", 0).await;
        guard.release().await;
        hold(&client, "k").await.release().await;
        assert_eq!(store.keys().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn a_dropped_guard_and_a_dropped_call_release() {
    on_every_store(|store| async move {
        let client = store.client().await;
        drop(hold(&client, "k").await);
        until_free(&client, "k").await;
        let call = client.lock("k").run(std::future::pending::<()>());
        assert!(tokio::time::timeout(50 * MS, call).await.is_err());
        until_free(&client, "k").await;
        assert_eq!(store.keys().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn calls_dropped_at_any_moment_leave_nothing() {
    on_every_store(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        for micros in (0..2_000).step_by(20) {
            let guard = (micros % 40 == 0).then_some(());
            let guard = match guard {
                Some(()) => Some(other.lock("k").wait(5 * SECOND).acquire().await.unwrap()),
                None => None,
            };
            let call = client.lock("k").wait(5 * SECOND).run(async {});
            let _ = tokio::time::timeout(Duration::from_micros(micros), call).await;
            drop(guard);
        }
        until_free(&client, "k").await;
        assert_eq!(store.keys().await, Vec::<String>::new());
    })
    .await;
}

/// Neighbours of one process are given the lock together: some of them are dropped, and the others have their turns.
#[tokio::test]
async fn waiters_dropped_while_their_neighbours_are_inside() {
    const CALLERS: usize = 7;
    for dropped in [&[1, 3, 6][..], &[6], &[1, 2, 3, 4, 5, 6], &[0, 1, 2]] {
        on_stores_with_a_queue(|store| async move {
            let (client, other) = (store.client().await, store.client().await);
            let guard = hold(&other, "k").await;
            let (entering, mut entered) = tokio::sync::mpsc::unbounded_channel();
            let mut callers = Vec::new();
            for caller in 0..CALLERS {
                let (client, entering) = (client.clone(), entering.clone());
                callers.push(tokio::spawn(async move {
                    let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
                    entering.send((caller, guard)).unwrap();
                }));
                until_waiting(&other, "k", caller + 1).await;
            }
            guard.release().await;
            let (first, guard) = entered.recv().await.unwrap();
            assert_eq!(first, 0);
            for caller in dropped {
                callers[*caller].abort();
            }
            until_waiting(
                &client,
                "k",
                CALLERS - 1 - dropped.iter().filter(|one| **one > 0).count(),
            )
            .await;
            if dropped.contains(&0) {
                drop(guard);
            } else {
                guard.release().await;
            }
            for caller in (1..CALLERS).filter(|caller| !dropped.contains(caller)) {
                let (entered, guard) = entered.recv().await.unwrap();
                assert_eq!(entered, caller);
                guard.release().await;
            }
            until_free(&other, "k").await;
            assert_eq!(store.keys().await, Vec::<String>::new());
        })
        .await;
    }
}

#[tokio::test]
async fn shutting_down_drains() {
    on_stores_with_a_queue(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let guard = hold(&client, "k").await;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.lock("k").wait(60 * SECOND).acquire().await.map(drop) }
        });
        until_waiting(&other, "k", 1).await;
        let down = tokio::spawn({
            let client = client.clone();
            async move { client.shutdown().await }
        });
        assert_eq!(waiting.await.unwrap(), Err(LockError::ShutDown));
        assert!(matches!(
            client.lock("k").acquire().await,
            Err(LockError::ShutDown)
        ));
        drop(guard);
        down.await.unwrap();
        hold(&other, "k").await.release().await;
    })
    .await;
}
