//! Promise 7: re-entry follows the call stack. A call that is nested in the body of another call reenters the lock of
//! the enclosing call. All other calls for that lock wait.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use lock_core::advice::advised;
use lock_runtime::{BusyWith, Hold, InCurrentHold, LockClient, LockError, distributed_lock};
use proptest::prelude::*;
use support::{assert_busy, assert_lost, epsilon};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::{LocalSet, block_in_place, spawn_local},
    time::sleep,
};

use crate::{
    chance,
    p01_polled_late::poll_once,
    stores::{MS, SECOND, Store, hold, on_every_store, until_free},
};

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
                    advised(&refused).contains(".in_current_hold()"),
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
async fn a_hold_lasts_until_the_last_entry_under_it_has_left() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
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
        // The call has returned, but the task that it started is still inside the hold.
        assert_busy(&other.lock("k").try_acquire().await);
        go_on.send(()).unwrap();
        task.unwrap().await.unwrap();
        until_free(&other, "k").await;
    })
    .await;
}

/// A call of an annotated function whose body waits for `step`, and then calls itself, which re-enters the lock.
#[distributed_lock(key = "annotated", wait = "60s")]
async fn annotated(steps: usize, step: oneshot::Receiver<()>) -> Result<usize, LockError> {
    step.await.expect("the test lets the body go on");
    if steps == 0 {
        return Ok(0);
    }
    let (go_on, step) = oneshot::channel();
    go_on.send(()).expect("the nested body waits");
    Ok(1 + Box::pin(annotated(steps - 1, step)).await?)
}

/// While a client shuts down, a body that runs still re-enters the locks that it holds, in each way in which a call can
/// be nested. A call for a lock that no enclosing call holds is refused, also if it is nested.
#[tokio::test]
async fn a_running_body_reenters_its_locks_during_a_shutdown() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let (begin, begun) = oneshot::channel();
        let task = tokio::spawn(client.scope(annotated(2, begun)));
        let guard = client.lock("guarded").acquire().await.unwrap();
        // A call that has not entered yet would be refused.
        support::until(async || client.stats().acquired == 2).await;
        let mut down = tokio::task::JoinSet::new();
        let body = async {
            let key = |key: &str| client.lock(key).wait(20 * SECOND);
            let closing = client.clone();
            down.spawn(async move { closing.shutdown().await });
            while !matches!(
                tokio::spawn(key("refused").run(async {})).await.unwrap(),
                Err(LockError::ShutDown)
            ) {}
            key("a").run(async {}).await.unwrap();
            // An entry that makes the lease longer sends a renewal.
            let hold = Hold::current().unwrap();
            let longer = key("b").lease(90 * SECOND).acquire().await.unwrap();
            assert!(
                hold.remaining() > 60 * SECOND,
                "{store:?}: {:?}",
                hold.remaining()
            );
            longer.release().await;
            client
                .locks(["b", "a"])
                .run(key("b").run(async {}))
                .await
                .unwrap()
                .unwrap();
            let [first, second] = [key("b"), key("b")];
            let siblings =
                futures_util::join!(first.run(sleep(10 * MS)), second.run(sleep(10 * MS)));
            assert_eq!(siblings, (Ok(()), Ok(())), "{store:?}");
            let taken_along = key("a");
            let taken_along = async move { taken_along.run(async {}).await };
            tokio::spawn(taken_along.in_current_hold())
                .await
                .unwrap()
                .unwrap();
            guard
                .run(key("guarded").run(async {}))
                .await
                .unwrap()
                .unwrap();
            begin.send(()).unwrap();
            // The locks below are not held, or not by an enclosing call.
            let refused = [
                key("c").run(async {}).await,
                key("guarded").run(async {}).await,
                client.locks(["a", "c"]).run(async {}).await,
                tokio::spawn(key("a").run(async {})).await.unwrap(),
            ];
            for outcome in refused {
                assert_eq!(outcome, Err(LockError::ShutDown), "{store:?}");
            }
        };
        let outer = client.locks(["a", "b"]).lease(20 * SECOND);
        outer.run(body).await.unwrap();
        assert_eq!(task.await.unwrap(), Ok(2), "{store:?}");
        guard.release().await;
        down.join_all().await;
        // The shutdown has waited for the releases.
        let all = other.locks(["a", "b", "c", "annotated", "guarded"]);
        all.wait(Duration::ZERO).run(async {}).await.unwrap();
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

/// The longer deadline that a nested entry has set remains after the entry has left, because no lease is ever
/// shortened.
#[tokio::test]
async fn the_longer_deadline_of_a_nested_entry_outlasts_it() {
    on_every_store(|store| async move {
        let client = store.client().await;
        // The first nested call has the default lease of 30 s, which is renewed.
        for nested in [client.lock("k"), client.lock("k").lease(30 * SECOND)] {
            let guard = client.lock("k").lease(SECOND).acquire().await.unwrap();
            guard.run(nested.run(async {})).await.unwrap().unwrap();
            let left = guard.remaining();
            assert!((29 * SECOND..=30 * SECOND).contains(&left), "{left:?}");
            guard.release().await;
        }
    })
    .await;
}

#[tokio::test]
async fn inside_a_lost_hold_an_entry_is_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client
            .lock("k")
            .lease(300 * MS)
            .on_lost(lock_runtime::OnLost::Continue);
        let nested = lock
            .run(async {
                lock_runtime::Hold::current().unwrap().lost().await;
                client.lock("k").wait(SECOND).run(async {}).await
            })
            .await
            .unwrap();
        assert_lost(&nested);
    })
    .await;
}

proptest! {
    /// However late siblings are polled, no two of their bodies run at once, and siblings that are not polled lose
    /// their turns.
    #[test]
    fn siblings_that_are_polled_by_chance_take_turns((steps, long) in chance::steps()) {
        chance::runtime().block_on(async {
            let client = Store::memory().client().await;
            let siblings = chance::poll(&client, steps, long, &["a"]);
            client.lock("a").run(siblings).await.unwrap();
            assert_eq!(client.stats().lost, 0);
        });
    }
}

/// Asserts that the call was refused because another call of this process holds the lock.
pub(crate) fn is_stranger(entered: Result<(), LockError>) {
    let with = match entered {
        Err(LockError::Busy { with, .. }) => Some(with),
        _ => None,
    };
    assert_eq!(with, Some(BusyWith::ThisProcess), "{entered:?}");
}

#[tokio::test]
async fn local_tasks_that_a_body_drives_are_strangers() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let nested = |wait| {
            let client = client.clone();
            async move { client.lock("k").wait(wait).run(async {}).await }
        };
        let local = LocalSet::new();
        let from_outside = local.spawn_local(nested(50 * MS));
        client
            .lock("k")
            .run(local.run_until(async {
                // The body itself awaits this nested call, so the nested call is inside the hold.
                nested(SECOND).await.unwrap();
                is_stranger(from_outside.await.unwrap());
                is_stranger(spawn_local(nested(50 * MS)).await.unwrap());
                let taken_along = spawn_local(nested(SECOND).in_current_hold());
                taken_along.await.unwrap().unwrap();
            }))
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_runtime_that_a_body_drives_are_strangers() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let nested = |wait| {
            let client = client.clone();
            async move { client.lock("k").wait(wait).run(async {}).await }
        };
        let inner = Builder::new_current_thread().enable_all().build().unwrap();
        let drive = async {
            block_in_place(|| {
                is_stranger(inner.block_on(inner.spawn(nested(50 * MS))).unwrap());
                let taken_along = inner.spawn(nested(SECOND).in_current_hold());
                inner.block_on(taken_along).unwrap().unwrap();
                // A future that the body passes to `block_on` is on the body's call stack, so its calls are nested.
                inner.block_on(nested(SECOND)).unwrap();
                Handle::current().block_on(nested(SECOND)).unwrap();
            });
        };
        let (in_a_task, by_block_on) = (client.lock("k"), client.lock("k"));
        by_block_on.run(drive).await.unwrap();
        let task = async {
            block_in_place(|| inner.block_on(nested(SECOND))).unwrap();
            Hold::current().unwrap().token()
        };
        in_a_task.run(task).await.unwrap();
        block_in_place(|| drop(inner));
    })
    .await;
}

/// A call moves to another task while its body runs. A nested call in this body still reenters the lock.
#[tokio::test]
async fn a_body_that_moves_to_another_task_stays_inside_its_hold() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let (go_on, told) = tokio::sync::oneshot::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
        let lock = client.lock("k");
        let mut call = Box::pin(async move {
            let outer = lock.clone();
            let body = async move {
                begun.send(()).unwrap();
                told.await.unwrap();
                lock.wait(SECOND).run(async {}).await
            };
            outer.run(body).await
        });
        tokio::select! {
            biased;
            _ = call.as_mut() => panic!("the body waits"),
            begun = has_begun => begun.unwrap(),
        }
        let moved = tokio::spawn(call);
        go_on.send(()).unwrap();
        moved.await.unwrap().unwrap().unwrap();
    })
    .await;
}

#[test]
fn polled_by_hand_outside_any_runtime_a_nested_call_enters_again() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { Store::memory().client().await });
    let lock = client.lock("k").wait(Duration::ZERO);
    let mut call = pin!(lock.run(async {
        tokio::task::yield_now().await;
        lock.run(async {}).await
    }));
    let mut cx = Context::from_waker(Waker::noop());
    let output = loop {
        if let Poll::Ready(output) = call.as_mut().poll(&mut cx) {
            break output;
        }
    };
    output.unwrap().unwrap();
}

/// A body drives a task of an executor other than tokio, here `FuturesUnordered`, whose tasks have no tokio task ID. A
/// task of such an executor is part of the body.
#[tokio::test]
async fn a_task_of_another_executor_that_a_body_drives_is_part_of_the_body() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let nested = client.lock("k").wait(SECOND);
        // The nested call sends no command, so its task never has to wait for the tokio runtime.
        let drive = move || {
            let mut tasks = FuturesUnordered::new();
            tasks.push(
                nested
                    .run(async { Hold::current().unwrap().token() })
                    .boxed_local(),
            );
            tasks.next().now_or_never().flatten()
        };
        let lock = client.lock("k");
        let body = async move { (Hold::current().unwrap().token(), drive()) };
        let call = async move { lock.run(body).await };
        let (token, entered) = tokio::spawn(call).await.unwrap().unwrap();
        assert_eq!(entered, Some(Ok(token)));
    })
    .await;
}

#[tokio::test]
async fn a_spawned_task_inherits_a_scoped_client_only_if_it_is_taken_along() {
    let client = Store::memory().client().await;
    client.lock("k").run(async {}).await.unwrap();
    let current = || async { LockClient::current().map(|client| client.stats().acquired) };
    let scoped = async {
        assert_eq!(current().await, Ok(1));
        let spawned = tokio::spawn(current()).await.unwrap();
        assert_eq!(spawned, Err(LockError::NoClient));
        let taken_along = tokio::spawn(current().in_current_hold()).await.unwrap();
        assert_eq!(taken_along, Ok(1));
    };
    client.scope(scoped).await;
}

fn tick(client: LockClient, left: usize, done: oneshot::Sender<()>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let next = client.clone();
        let body = async move {
            match left.checked_sub(1) {
                Some(left) => drop(tokio::spawn(tick(next, left, done).in_current_hold())),
                None => done.send(()).unwrap(),
            }
        };
        client.lock("k").run(body).await.unwrap();
    })
}

/// Each task of a chain starts the next one with `in_current_hold`. The cost of starting and ending a task does not
/// depend on the length of the chain.
#[tokio::test]
async fn a_chain_of_tasks_that_take_each_other_along_ends() {
    const STEPS: usize = 20_000;
    let client = Store::memory().client().await;
    let started = Instant::now();
    let (done, end) = oneshot::channel();
    tick(client.clone(), STEPS, done).await;
    end.await.unwrap();
    until_free(&client, "k").await;
    assert!(
        started.elapsed() < 10 * SECOND + epsilon(),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(client.stats().acquired, 1);
}

/// A nested call leaves the body that made it, and begins its own body only after the lock of that body was released.
/// The lock no longer counts as held there.
#[tokio::test]
async fn a_lock_that_was_released_is_not_held_in_a_call_that_was_nested() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let inner = hold(&other, "inner").await;
        let (outer, nested) = (client.lock("k"), client.lock("inner").wait(20 * SECOND));
        let is_held = {
            let outer = outer.clone();
            move || outer.is_held_here()
        };
        let escaped = outer.run(async move {
            let mut escaping = Box::pin(nested.run(async move { is_held() }));
            assert!(!poll_once(&mut escaping).await);
            Some(escaping)
        });
        let escaped = escaped.await.unwrap().expect("the nested call");
        let newer = hold(&other, "k").await;
        inner.release().await;
        assert!(!escaped.await.unwrap());
        newer.release().await;
    })
    .await;
}
