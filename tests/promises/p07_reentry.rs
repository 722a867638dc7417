//! Re-entry follows the call stack: enclosing calls are entered again, siblings take turns, strangers wait.

use std::{
    cell::Cell,
    future::Future,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use lock_core::advice::advised;
use lock_runtime::{BusyWith, Hold, Holds, InCurrentHold, LockClient, LockError, distributed_lock};
use proptest::prelude::*;
use support::epsilon;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::{LocalSet, block_in_place, spawn_local},
    time::sleep,
};

use crate::{
    chance,
    stores::{MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until, until_free},
};

/// How long a sibling that is not polled may delay the next one: a claim.
const DELAY: Duration = Duration::from_secs(2);

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
                    advised(&refused).contains(".in_current_hold()"),
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

/// The deadline that a nested entry asks for stays when it has left: no lease is shortened.
#[tokio::test]
async fn the_longer_deadline_of_a_nested_entry_outlasts_it() {
    on_every_store(|store| async move {
        let client = store.client().await;
        // By default, 30 s that are renewed.
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

async fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// The turn comes to a sibling that is not polled: the next one enters after a claim, and it enters when it is polled.
#[tokio::test]
async fn a_turn_that_is_not_taken_is_passed_on() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").wait(20 * SECOND);
        let inside = AtomicUsize::new(0);
        let body = || async {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            sleep(10 * MS).await;
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        lock.run(async {
            let first = lock.acquire().await.unwrap();
            let mut forgotten = Box::pin(lock.run(body()));
            assert!(!poll_once(&mut forgotten).await);
            first.release().await;
            let released = Instant::now();
            lock.run(body()).await.unwrap();
            let took = released.elapsed();
            assert!(took < DELAY + epsilon(), "{took:?}");
            let (late, other) = tokio::join!(forgotten, lock.run(body()));
            late.and(other).unwrap();
        })
        .await
        .unwrap();
    })
    .await;
}

#[distributed_lock(client = client, keys = ["k", "x"], wait = "1s")]
async fn k_and_x(client: &LockClient, ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

/// A sibling has its turn, waits for another lock, and is not polled any more.
#[tokio::test]
async fn a_turn_whose_body_has_not_begun_is_passed_on() {
    on_stores_with_a_queue(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let guard = hold(&other, "x").await;
        let lock = client.lock("k").wait(20 * SECOND);
        let ran = AtomicBool::new(false);
        lock.run(async {
            let mut forgotten = Box::pin(k_and_x(&client, &ran));
            until(async || {
                assert!(!poll_once(&mut forgotten).await);
                other.lock("x").status().await.unwrap().waiters == 1
            })
            .await;
            let left = Instant::now();
            lock.run(async {}).await.unwrap();
            // Its wait, and a claim.
            let took = left.elapsed();
            assert!(took < SECOND + DELAY + epsilon(), "{took:?}");
            guard.release().await;
            let late = forgotten.await;
            assert!(matches!(late, Err(LockError::Busy { .. })), "{late:?}");
            // What it had got of the other lock is free, and the turn is.
            until_free(&other, "x").await;
            lock.run(async {}).await.unwrap();
        })
        .await
        .unwrap();
        assert!(!ran.into_inner(), "two siblings were inside");
    })
    .await;
}

/// A call waits for another lock inside the hold of its caller, which returns: it keeps nobody out, and takes both again.
#[tokio::test]
async fn a_hold_is_not_kept_for_a_body_that_has_not_begun() {
    on_stores_with_a_queue(|store| async move {
        let (client, other) = (store.client().await, store.client().await);
        let guard = hold(&other, "x").await;
        let lock = client.lock("k").wait(20 * SECOND);
        let ran = AtomicBool::new(false);
        let mut left_behind = Box::pin(k_and_x(&client, &ran));
        let begin = until(async || {
            assert!(!poll_once(&mut left_behind).await);
            other.lock("x").status().await.unwrap().waiters == 1
        });
        lock.run(begin).await.unwrap();
        hold(&other, "k").await.release().await;
        guard.release().await;
        left_behind.await.unwrap();
        assert!(ran.into_inner());
        until_free(&other, "k").await;
        until_free(&other, "x").await;
    })
    .await;
}

/// A sibling has its turn, and does not come back for the answer that extends the lease.
#[tokio::test]
async fn a_turn_is_passed_on_whose_extension_is_not_read() {
    for store in [Store::redis().await, Store::redlock().await] {
        let client = store.client().await;
        let lock = client.lock("k").wait(20 * SECOND);
        let inside = AtomicUsize::new(0);
        let body = || async {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            sleep(10 * MS).await;
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        let outer = lock.clone().lease(20 * SECOND);
        outer
            .run(async {
                let longer = lock.clone().lease(60 * SECOND);
                let forgotten = loop {
                    let mut call = Box::pin(longer.run(body()));
                    assert!(!poll_once(&mut call).await, "the body takes a while");
                    if inside.load(Ordering::SeqCst) == 0 {
                        break call;
                    }
                    // The answer came during the poll.
                    call.await.unwrap();
                };
                let left = Instant::now();
                lock.run(body()).await.unwrap();
                let took = left.elapsed();
                assert!(took < DELAY + epsilon(), "{took:?}");
                let (late, other) = tokio::join!(forgotten, lock.run(body()));
                late.and(other).unwrap();
            })
            .await
            .unwrap();
    }
}

proptest! {
    /// However late siblings are polled, no two of them are inside, and those that are not polled keep no turn.
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

/// Refused, because another call of this process is inside.
fn is_stranger(entered: Result<(), LockError>) {
    let with = match entered {
        Err(LockError::Busy { with, .. }) => Some(with),
        _ => None,
    };
    assert_eq!(with, Some(BusyWith::ThisProcess), "{entered:?}");
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

/// Counts those that are inside at one time.
#[derive(Default)]
struct Inside {
    now: Cell<usize>,
    most: Cell<usize>,
}

impl Inside {
    async fn stay(&self) {
        self.now.set(self.now.get() + 1);
        self.most.set(self.most.get().max(self.now.get()));
        sleep(10 * MS).await;
        self.now.set(self.now.get() - 1);
    }
}

#[tokio::test]
async fn siblings_below_one_guard_take_turns() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").wait(5 * SECOND);
        let inside = Inside::default();
        let nested = || lock.run(inside.stay());
        let guard = hold(&client, "k").await;
        let (a, b) = tokio::join!(guard.run(nested()), guard.run(nested()));
        a.unwrap().and(b.unwrap()).unwrap();
        // Also below a call that has entered through the guard: a guard's run and a nested call are siblings there.
        let below = lock.run(async {
            let (a, b) = tokio::join!(guard.run(nested()), nested());
            a.unwrap().and(b)
        });
        let other = guard.run(nested());
        let (below, other) = tokio::join!(guard.run(below), other);
        below.unwrap().unwrap().and(other.unwrap()).unwrap();
        guard.release().await;
        // And below a guard that was itself acquired inside the hold.
        let entered_again = lock.run(async {
            let guard = lock.acquire().await?;
            let (a, b) = tokio::join!(guard.run(nested()), guard.run(guard.run(nested())));
            guard.release().await;
            a.unwrap().and(b.unwrap().unwrap())
        });
        entered_again.await.unwrap().unwrap();
        assert_eq!(inside.most.get(), 1, "siblings were inside together");
    })
    .await;
}

/// A guard that was acquired in a turn keeps it, wherever it is moved to.
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
                // What the body itself awaits is inside.
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
                // The body's own call stack goes on in what it blocks on.
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

/// The frame is that of the task that polls, whichever it is.
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

/// A task that takes the next one along costs the same at each step, and so does the end of all of them.
#[tokio::test]
async fn a_chain_of_tasks_that_take_each_other_along_ends() {
    const STEPS: usize = 20_000;
    let client = Store::memory().client().await;
    let started = Instant::now();
    let (done, end) = oneshot::channel();
    tick(client.clone(), STEPS, done).await;
    end.await.unwrap();
    until_free(&client, "k").await;
    assert!(started.elapsed() < 10 * SECOND, "{:?}", started.elapsed());
    assert_eq!(client.stats().acquired, 1);
}
