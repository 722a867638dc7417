//! Promise 7: code that runs in a guard, with `guard.run`, can reenter the guard's locks.

use lock_runtime::{BusyWith, Hold, Holds, LockError};
use support::{Room, assert_busy};

use crate::{
    p07_reentry::is_stranger,
    stores::{MS, SECOND, hold, on_every_store},
};

#[tokio::test]
async fn a_guard_encloses_only_what_runs_in_it() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        assert_busy(&client.lock("k").try_acquire().await);
        guard
            .run(client.lock("k").run(async {}))
            .await
            .unwrap()
            .unwrap();
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_is_moved_to_another_task_lends_its_own_lock_alone() {
    on_every_store(|store| async move {
        let client = store.client().await;
        client
            .lock("x")
            .run(async {
                let guard = hold(&client, "k").await;
                let client = client.clone();
                let task = tokio::spawn(async move {
                    let own = client.lock("k").wait(SECOND).run(async {});
                    guard.run(own).await.unwrap().unwrap();
                    let others = client.lock("x").wait(50 * MS).run(async {});
                    let entered = guard.run(others).await.unwrap();
                    guard.release().await;
                    entered
                });
                is_stranger(task.await.unwrap());
            })
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_runs_in_a_guard_is_inside_the_calls_around_it_too() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = hold(&client, "k").await;
        let outer = client.lock("j");
        let seen = outer.run(guard.run(async {
            assert!(client.lock("j").is_held_here() && client.lock("k").is_held_here());
            let current = Hold::current().unwrap();
            let all = Holds::current().unwrap();
            assert_eq!(
                (current.token(), all[0].token(), all.len()),
                (guard.token(), guard.token(), 1)
            );
            let nested = client.lock("j").wait(SECOND).run(async {});
            nested.await
        }));
        seen.await.unwrap().unwrap().unwrap();
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn siblings_below_one_guard_take_turns() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").wait(5 * SECOND);
        let inside = Room::default();
        let nested = || lock.run(inside.stay(10 * MS));
        let guard = hold(&client, "k").await;
        let (a, b) = tokio::join!(guard.run(nested()), guard.run(nested()));
        a.unwrap().and(b.unwrap()).unwrap();
        // `below` is a call that reenters the lock through the guard. In its body, `guard.run(nested())` and `nested()`
        // are siblings, that is, calls that one task runs concurrently, so they take turns.
        let below = lock.run(async {
            let (a, b) = tokio::join!(guard.run(nested()), nested());
            a.unwrap().and(b)
        });
        let other = guard.run(nested());
        let (below, other) = tokio::join!(guard.run(below), other);
        below.unwrap().unwrap().and(other.unwrap()).unwrap();
        guard.release().await;
        // Two calls in `guard.run` also take turns if the guard was acquired inside another call for the same key.
        let entered_again = lock.run(async {
            let guard = lock.acquire().await?;
            let (a, b) = tokio::join!(guard.run(nested()), guard.run(guard.run(nested())));
            guard.release().await;
            a.unwrap().and(b.unwrap().unwrap())
        });
        entered_again.await.unwrap().unwrap();
    })
    .await;
}

/// A sibling acquires a guard in its turn, and returns the guard from its body. No other sibling gets a turn before the
/// guard is released.
#[tokio::test]
async fn a_guard_keeps_the_turn_that_it_was_acquired_in() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k");
        lock.run(async {
            let guard = lock.run(lock.acquire()).await.unwrap().unwrap();
            let refused = lock.clone().wait(20 * MS).run(async {}).await;
            assert!(
                matches!(
                    refused,
                    Err(LockError::Busy {
                        with: BusyWith::Sibling,
                        ..
                    })
                ),
                "{refused:?}"
            );
            guard.release().await;
            lock.run(async {}).await.unwrap();
        })
        .await
        .unwrap();
    })
    .await;
}
