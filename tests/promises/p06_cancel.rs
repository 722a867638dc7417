//! Promise 6: nothing leaks when a call is dropped. `p06_drops.rs` drops hundreds of calls in each state.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, Hold, InCurrentHold, Lock, LockClient, LockError, LossReason};
use support::{assert_busy, epsilon, proxy::FaultProxy, server::shared_server};
use tokio::time::timeout;

use crate::{
    stores::{
        MS, SECOND, Store, hold, on_every_store, on_stores_with_a_queue, until, until_free,
        until_waiting,
    },
    witness::Seen,
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
        let seen = Seen::default();
        let call = client.lock("k").run(seen.witness().forever());
        seen.drop_once_begun(call).await;
        until_free(&client, "k").await;
        assert_eq!(store.keys().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn calls_dropped_at_any_moment_leave_nothing() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
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
        // A lock that a call has left behind would stay for its lease of 30 s.
        let nothing = until(async || store.keys().await.is_empty());
        timeout(20 * SECOND, nothing)
            .await
            .expect("nothing is left");
    })
    .await;
}

/// Calls that get no answer return an error. The unanswered requests reach the server later, and the engine removes
/// what these requests leave on the server.
#[tokio::test]
async fn calls_that_get_no_answer_leave_nothing() {
    for store in [Store::redis().await, Store::redisson().await] {
        let proxy = FaultProxy::start(shared_server().await.port()).await;
        let client = store.through(&proxy.url()).client().await;
        hold(&client, "before").await.release().await;
        proxy.blackhole(true);
        let (waited, tried) = (client.lock("k").wait(300 * MS), client.lock("j"));
        let (waited, tried) = tokio::join!(waited.acquire(), tried.try_acquire());
        for refused in [waited, tried] {
            let unreachable = matches!(refused, Err(LockError::Unreachable { .. }));
            assert!(unreachable, "{refused:?}");
        }
        proxy.blackhole(false);
        client
            .lock("after")
            .wait(5 * SECOND)
            .run(async {})
            .await
            .unwrap();
        until(async || store.keys().await.is_empty()).await;
    }
}

/// Some members of a cohort are dropped while another member holds the lock. Each remaining member of the cohort gets
/// its turn.
#[tokio::test]
async fn waiters_dropped_while_their_neighbours_are_inside() {
    const CALLERS: usize = 7;
    for dropped in [&[1, 3, 6][..], &[6], &[1, 2, 3, 4, 5, 6], &[0, 1, 2]] {
        on_stores_with_a_queue(|store| async move {
            let [client, other] = store.clients().await;
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
        let [client, other] = store.clients().await;
        let guard = hold(&client, "k").await;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.lock("k").wait(60 * SECOND).acquire().await.map(drop) }
        });
        until_waiting(&other, "k", 1).await;
        let mut down = tokio::spawn({
            let client = client.clone();
            async move { client.shutdown().await }
        });
        assert_eq!(waiting.await.unwrap(), Err(LockError::ShutDown));
        assert!(matches!(
            client.lock("k").acquire().await,
            Err(LockError::ShutDown)
        ));
        let early = timeout(300 * MS, &mut down).await;
        assert!(early.is_err(), "the shutdown ended while a lock was held");
        drop(guard);
        down.await.unwrap();
        // `shutdown` has waited for the release to be confirmed, so the lock is free at once.
        let next = other.lock("k").wait(Duration::ZERO).acquire().await;
        next.unwrap().release().await;
    })
    .await;
}

/// A call that waits for the second of two locks is never polled again. The engine gives the first lock back, and a
/// shutdown does not wait for the call. If the call is polled after the shutdown, it returns an error.
#[tokio::test]
async fn a_call_that_is_not_polled_does_not_keep_a_shutdown_waiting() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "b").await;
        let locks = client.locks(["a", "b"]).wait(60 * SECOND);
        let mut waiting = Box::pin(locks.run(async { panic!("the body runs without its locks") }));
        let polled = timeout(300 * MS, &mut waiting).await;
        assert!(polled.is_err(), "{polled:?}");
        assert_busy(&other.lock("a").try_acquire().await);
        let down = timeout(2 * SECOND + epsilon(), client.shutdown()).await;
        assert!(down.is_ok(), "{store:?}: the shutdown waits for the call");
        let next = other.lock("a").wait(SECOND).acquire().await;
        next.unwrap().release().await;
        guard.release().await;
        assert_eq!(waiting.await, Err(LockError::ShutDown));
    })
    .await;
}

/// Runs a test on backends that renew leases: a single server, a Redlock, and Redisson's layout.
async fn on_stores_that_renew<Fut: Future<Output = ()>>(test: impl Fn(Store) -> Fut) {
    for store in [
        Store::redis().await,
        Store::redlock().await,
        Store::redisson().await,
    ] {
        eprintln!("on {store:?}");
        test(store).await;
    }
}

/// The length of the leases. After the last renewal, a lock stays taken for at most this time.
const LEASE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_shutdown_that_is_dropped_ends_all_renewals() {
    on_stores_that_renew(|store| async move {
        let [client, other] = store.clients().await;
        let lock = client.lock("k").lease(LEASE).renew(true);
        let guard = lock.acquire().await.unwrap();
        let down = tokio::time::timeout(2 * LEASE, client.shutdown()).await;
        assert!(down.is_err(), "the shutdown did not wait for the held lock");
        assert_eq!(
            guard.loss(),
            None,
            "the held lock was not renewed during the shutdown"
        );
        let dropped = Instant::now();
        // The client stays closed, but `shutdown` can be called again.
        let refused = client.lock("j").acquire().await;
        assert!(matches!(refused, Err(LockError::ShutDown)), "{refused:?}");
        let again = timeout(100 * MS, client.shutdown()).await;
        assert!(
            again.is_err(),
            "the second shutdown did not wait for the held lock"
        );
        let next = other.lock("k").wait(20 * SECOND).acquire().await.unwrap();
        let took = dropped.elapsed();
        assert!(took < LEASE + 200 * MS + support::epsilon(), "{took:?}");
        assert!(guard.loss().is_some());
        next.release().await;
        drop(guard);
        client.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_is_forgotten_is_renewed_no_longer_than_its_client_lives() {
    on_stores_that_renew(|store| async move {
        let [client, other] = store.clients().await;
        let lock = client.lock("k").lease(LEASE).renew(true);
        std::mem::forget(lock.acquire().await.unwrap());
        tokio::time::sleep(2 * LEASE).await;
        assert!(other.lock("k").try_acquire().await.is_err());
        drop((client, lock));
        let dropped = Instant::now();
        let next = other.lock("k").wait(20 * SECOND).acquire().await.unwrap();
        let took = dropped.elapsed();
        assert!(took < LEASE + 200 * MS + support::epsilon(), "{took:?}");
        next.release().await;
    })
    .await;
}

/// The in-process backend sends no renewals. If a guard with a renewed lease is forgotten (`std::mem::forget`), its
/// lock stays taken even after its client is dropped. Only `max_hold` ends such a hold.
#[tokio::test]
async fn in_process_a_forgotten_guard_keeps_its_lock_as_long_as_its_options_say() {
    let store = Store::memory();
    let [client, other] = store.clients().await;
    let forget = async |lock: Lock| std::mem::forget(lock.acquire().await.unwrap());
    forget(client.lock("renewed").lease(LEASE).renew(true)).await;
    forget(client.lock("fixed").lease(300 * MS)).await;
    let max_hold = client.lock("max_hold").lease(LEASE).renew(true);
    forget(max_hold.max_hold(LEASE)).await;
    drop(client);
    for (key, is_kept) in [("fixed", false), ("max_hold", false), ("renewed", true)] {
        let next = other.lock(key).wait(3 * LEASE).acquire().await;
        assert_eq!(next.is_err(), is_kept, "{key}");
    }
}

/// A shutdown waits for a holder that has lost its lease and has not left yet.
#[tokio::test]
async fn a_shutdown_waits_for_the_body_of_a_lost_hold() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.lock("k").lease(200 * MS).acquire().await.unwrap();
        let lost = guard.lost().await;
        assert_eq!(lost, LossReason::Expired);
        let mut shutdown = Box::pin(client.shutdown());
        assert!(timeout(500 * MS, &mut shutdown).await.is_err());
        drop(guard);
        timeout(5 * SECOND, shutdown)
            .await
            .expect("the shutdown ends");
    })
    .await;
}

#[tokio::test]
async fn a_call_keeps_its_client() {
    on_stores_that_renew(|store| async move {
        let client = store.client().await;
        let call = client.lock("k").lease(LEASE).renew(true);
        let call = call.run(tokio::time::sleep(2 * LEASE));
        drop(client);
        call.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_a_dropped_body_owned_is_dropped_inside_its_hold() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let (call, in_guard, taken_along) = (Seen::default(), Seen::default(), Seen::default());
        let run = client.lock("k").run(call.witness().forever());
        call.drop_once_begun(run).await;
        assert_eq!(call.hold().key().as_str(), "k");
        until_free(&client, "k").await;
        let guard = hold(&client, "k").await;
        let run = guard.run(in_guard.witness().forever());
        in_guard.drop_once_begun(run).await;
        assert_eq!(in_guard.hold().token(), guard.token());
        let (token, task) = guard
            .run(async {
                let body = taken_along.witness().forever();
                let task = tokio::spawn(body.in_current_hold());
                tokio::task::yield_now().await;
                (Hold::current().unwrap().token(), task)
            })
            .await
            .unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(taken_along.hold().token(), token);
        guard.release().await;
        until_free(&client, "k").await;
    })
    .await;
}

/// The hold lasts until all values that the body owned have been dropped, so a destructor can reenter the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destructor_enters_the_lock_of_its_dropped_body_again() {
    struct Entering(LockClient, Arc<OnceLock<Result<FencingToken, LockError>>>);
    impl Drop for Entering {
        fn drop(&mut self) {
            let lock = self.0.lock("k").wait(20 * SECOND);
            let entered = tokio::task::block_in_place(|| lock.blocking_acquire());
            self.1.set(entered.map(|guard| guard.token())).unwrap();
        }
    }
    on_every_store(|store| async move {
        let client = store.client().await;
        let entered = Arc::new(OnceLock::new());
        let token = Arc::new(OnceLock::new());
        let (entering, outer) = (Entering(client.clone(), entered.clone()), token.clone());
        let seen = Seen::default();
        let witness = seen.witness();
        let call = client.lock("k").run(async move {
            let _entering = entering;
            outer.set(Hold::current().unwrap().token()).unwrap();
            witness.forever().await;
        });
        seen.drop_once_begun(call).await;
        assert_eq!(entered.get().unwrap().as_ref(), Ok(token.get().unwrap()));
        until_free(&client, "k").await;
    })
    .await;
}
