//! Promise 5: the holder is notified of a loss. The body of the holder is dropped, and the call returns the reason for
//! the loss.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use lock_runtime::{Hold, Lock, LockClient, LockError, LossReason, OnLost, ReleaseOutcome};
use support::{
    assert_lost, poll_unread,
    proxy::FaultProxy,
    quorum::Quorum,
    server::{RedisServer, ask, connect},
};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::{
    stores::{MS, SECOND, Store, held, on_every_store, until},
    witness::Seen,
};

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_body_is_dropped_at_the_end_of_a_fixed_lease() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let dropped = Arc::new(AtomicBool::new(false));
        let witness = SetOnDrop(dropped.clone());
        let started = Instant::now();
        let body = async move {
            let _witness = witness;
            std::future::pending::<()>().await;
        };
        let lost = client
            .lock("k")
            .lease(300 * MS)
            .run(body)
            .await
            .unwrap_err();
        let took = started.elapsed();
        assert!(
            matches!(
                lost,
                LockError::Lost {
                    reason: LossReason::Expired,
                    ..
                }
            ),
            "{lost}"
        );
        assert!(
            took >= 250 * MS && took < 300 * MS + support::epsilon(),
            "{took:?}"
        );
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!(client.stats().lost, 1);
        client
            .lock("k")
            .wait(SECOND)
            .acquire()
            .await
            .unwrap()
            .release()
            .await;
    })
    .await;
}

/// The engine checks the deadline before each poll of a body, so a body that blocks beyond its deadline is not polled
/// again.
#[tokio::test]
async fn a_body_is_never_polled_after_its_deadline() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let polls = AtomicUsize::new(0);
        let body = std::future::poll_fn(|cx| {
            if polls.fetch_add(1, Ordering::SeqCst) == 0 {
                // This blocking call outlasts the lease.
                std::thread::sleep(350 * MS);
            }
            cx.waker().wake_by_ref();
            std::task::Poll::<()>::Pending
        });
        let lost = client.lock("k").lease(300 * MS).run(body).await;
        assert_lost(&lost);
        assert_eq!(polls.load(Ordering::SeqCst), 1);
    })
    .await;
}

#[tokio::test]
async fn with_continue_the_body_runs_on_and_the_loss_is_visible() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").lease(300 * MS).on_lost(OnLost::Continue);
        let seen = lock
            .run(async {
                let hold = lock_runtime::Hold::current().unwrap();
                assert_eq!(hold.loss(), None);
                let reason = hold.lost().await;
                sleep(10 * MS).await;
                (reason, hold.remaining())
            })
            .await
            .unwrap();
        assert_eq!(seen, (LossReason::Expired, std::time::Duration::ZERO));
        assert_eq!(client.stats().lost, 1);
    })
    .await;
}

/// Deletes a call's lock on the server while its body runs, and asserts that the call returns the loss within
/// `at_most`.
async fn told_of_a_deletion(options: impl FnOnce(Lock) -> Lock, at_most: Duration) {
    let store = Store::redis().await;
    let client = store.client().await;
    let started = Instant::now();
    let lost = options(client.lock("k")).run(async {
        store.delete("k").await;
        std::future::pending::<()>().await;
    });
    match lost.await {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LossReason::NotHeld),
        other => panic!("{other:?}"),
    }
    let took = started.elapsed();
    assert!(took < at_most + support::epsilon(), "{took:?}");
}

#[tokio::test]
async fn a_deletion_is_seen_at_the_next_renewal() {
    told_of_a_deletion(|lock| lock.lease(1500 * MS).renew(true), 500 * MS).await;
}

#[tokio::test]
async fn a_deletion_under_a_fixed_lease_is_seen_at_the_next_third() {
    told_of_a_deletion(|lock| lock.lease(3 * SECOND), SECOND).await;
}

/// The client deletes the lock's key in the first body, and its second call then gets the lock. The next renewal of the
/// first hold would come only after 20 minutes.
#[tokio::test]
async fn a_holder_whose_client_gets_the_lock_again_is_notified_at_once() {
    for renewed in [true, false] {
        let store = Store::redis().await;
        let client = store.client().await;
        let lease = Duration::from_secs(3600);
        let lock = client
            .lock("k")
            .lease(lease)
            .renew(renewed)
            .wait(10 * SECOND);
        let (deleted, is_deleted) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let first = lock.run(async {
            store.delete("k").await;
            deleted.send(()).expect("the second call waits");
            std::future::pending::<()>().await;
        });
        let first = async {
            let lost = first.await;
            end.send(()).expect("the second body waits");
            lost
        };
        let second = async {
            is_deleted.await.expect("the first body runs");
            lock.run(ended).await
        };
        let both = timeout(20 * SECOND, async { tokio::join!(first, second) });
        let (first, second) = both.await.expect("the first holder is notified");
        let Err(LockError::Lost { reason, .. }) = first else {
            panic!("{first:?}");
        };
        assert_eq!(reason, LossReason::NotHeld);
        second
            .expect("the second holder has the lock")
            .expect("the first body has ended");
    }
}

/// The server restarts and has lost the grants. The next renewals would come only after 20 minutes.
#[tokio::test]
async fn a_holder_is_notified_when_its_server_has_restarted_empty() {
    let mut server = RedisServer::start().await;
    let lazy = LockClient::builder().url(server.url()).connect_lazy();
    let eager = LockClient::connect(&server.url()).await;
    let clients = [lazy.unwrap(), eager.unwrap()];
    let mut guards = Vec::new();
    for client in &clients {
        for (name, renewed) in [("renewed", true), ("fixed", false)] {
            let lock = client.lock(format!("{name} {}", guards.len()));
            let lock = lock.lease(Duration::from_secs(3600)).renew(renewed);
            guards.push(lock.acquire().await.unwrap());
        }
    }
    server.restart().await;
    let losses = guards.iter().map(|guard| guard.lost());
    let losses = timeout(20 * SECOND, join_all(losses)).await;
    let losses = losses.expect("all holders are notified");
    assert_eq!(losses, [LossReason::NotHeld; 4]);
}

/// A call is polled only after the key of its lock was deleted, and after another call of its client has got the lock.
#[tokio::test]
async fn a_call_that_has_not_taken_its_lock_does_not_enter_beside_a_newer_holder() {
    let store = Store::redis().await;
    let [client, viewer] = store.clients().await;
    client.lock("warm").run(async {}).await.unwrap();
    let lock = client.lock("k").lease(Duration::from_secs(3600));
    let patient = lock.clone().wait(20 * SECOND);
    let mut late = Box::pin(patient.acquire());
    assert!(!poll_unread(&viewer, late.as_mut()).await);
    until(async || !held(&viewer, &["k"]).await.is_empty()).await;
    store.delete("k").await;
    let newer = lock.wait(Duration::ZERO).acquire();
    let newer = newer.await.expect("the lock is free");
    assert!(
        late.as_mut().now_or_never().is_none(),
        "two callers hold the lock"
    );
    assert_eq!(newer.loss(), None);
    assert_eq!(newer.release().await, ReleaseOutcome::Released);
    let late = late.await.expect("the call waits for the lock again");
    assert_eq!(late.loss(), None);
}

/// On a Redlock of three nodes, the hold survives if the lock's key is deleted on one node, and is lost if the key is
/// deleted on two nodes.
#[tokio::test]
async fn a_deletion_on_a_majority_is_seen_at_the_next_third() {
    for (lease, renewed) in [(1500 * MS, true), (3 * SECOND, false)] {
        let quorum = Quorum::start(3).await.in_use().await;
        let client = Store::on(&quorum.url()).client().await;
        let lock = client.lock("k").lease(lease).renew(renewed);
        let names = async |server: &RedisServer| -> Vec<String> {
            let mut redis = server.connection().await;
            ask(&mut redis, redis::cmd("KEYS").arg("*:k}")).await
        };
        let delete = async |server: &RedisServer| {
            let names = names(server).await;
            let [name] = &names[..] else {
                panic!("the lock does not have exactly one key: {names:?}");
            };
            let mut redis = server.connection().await;
            let deleted: u8 = ask(&mut redis, redis::cmd("DEL").arg(name)).await;
            assert_eq!(deleted, 1);
        };
        // On a busy machine, a server can answer so late that the grant is not stored on it.
        let guard = loop {
            let guard = lock.acquire().await.unwrap();
            let stored = join_all(quorum.servers.iter().map(&names)).await;
            if stored.iter().all(|names| names.len() == 1) {
                break guard;
            }
            guard.release().await;
        };
        let mut deleted = Instant::now();
        let lost = guard.run(async {
            delete(&quorum.servers[0]).await;
            sleep(lease / 2).await;
            let hold = Hold::current().expect("a body has a hold");
            assert_eq!(hold.loss(), None);
            // A renewal stores the grant on the first node again, so the test can delete the grant there a second time.
            let other = if renewed { 0 } else { 2 };
            delete(&quorum.servers[1]).await;
            delete(&quorum.servers[other]).await;
            deleted = Instant::now();
            std::future::pending::<()>().await;
        });
        match lost.await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LossReason::NotHeld),
            other => panic!("{other:?}"),
        }
        let took = deleted.elapsed();
        assert!(took < lease / 3 + support::epsilon(), "{took:?}");
    }
}

#[tokio::test]
async fn a_renewed_lease_outlives_its_time_and_max_hold_ends_it() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").lease(1500 * MS).renew(true);
        lock.run(sleep(3 * SECOND)).await.unwrap();
        assert_eq!(client.stats().lost, 0);
        let started = Instant::now();
        let lost = lock
            .max_hold(500 * MS)
            .run(std::future::pending::<()>())
            .await;
        assert!(matches!(
            lost,
            Err(LockError::Lost {
                reason: LossReason::Expired,
                ..
            })
        ));
        let ended = started.elapsed();
        assert!(
            (1480 * MS..2000 * MS + support::epsilon()).contains(&ended),
            "{ended:?}"
        );
    })
    .await;
}

/// When the `max_hold` of an enclosing call has passed, the renewals for this call end, and the renewals for its nested
/// calls end too. The test covers calls that are nested twice, many short nested calls, and calls with several locks.
#[tokio::test]
async fn max_hold_ends_the_renewals_of_nested_calls() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let renewed = |key: &str, lease| client.lock(key).lease(lease).renew(true);
        let nested = |key: &str| renewed(key, 2 * SECOND);
        let hang = std::future::pending::<()>;
        let is_lost = async |body: BoxFuture<'_, Result<(), LockError>>| {
            let started = Instant::now();
            let lost = timeout(10 * SECOND, body)
                .await
                .expect("the body is dropped");
            assert!(
                matches!(
                    lost,
                    Err(LockError::Lost {
                        reason: LossReason::Expired,
                        ..
                    })
                ),
                "{lost:?}"
            );
            // The lease of the nested call, 2 s, counts from an entry or a renewal in the first 500 ms.
            let ended = started.elapsed();
            assert!(
                (1980 * MS..2500 * MS + support::epsilon()).contains(&ended),
                "{ended:?}"
            );
        };
        let outer = |key: &str| renewed(key, SECOND).max_hold(500 * MS);
        let hanging = outer("a").run(async { nested("a").run(hang()).await });
        let longer = nested("b").max_hold(10 * SECOND);
        let deeper = outer("b").run(async { longer.run(nested("b").run(hang())).await });
        let fixed = client.lock("c").lease(200 * MS);
        let in_fixed = outer("c").run(async { fixed.run(nested("c").run(hang())).await });
        // The last nested call can fail just before the body is dropped. The body must not return then.
        let short = outer("d").run(async {
            while nested("d").run(sleep(50 * MS)).await.is_ok() {}
            hang().await;
        });
        let both = |lease| client.locks(["e", "f"]).lease(lease).renew(true);
        let several = both(SECOND).max_hold(500 * MS);
        let several = several.run(async { both(2 * SECOND).run(hang()).await });
        tokio::join!(
            is_lost(Box::pin(async { hanging.await? })),
            is_lost(Box::pin(async { deeper.await?? })),
            is_lost(Box::pin(async { in_fixed.await?? })),
            is_lost(Box::pin(short)),
            is_lost(Box::pin(async { several.await? })),
        );
    })
    .await;
}

/// While a nested call with `renew` runs, the engine renews the fixed lease of the enclosing call. After the nested
/// call has left, the lease ends at the deadline that the last renewal has set.
#[tokio::test]
async fn a_fixed_lease_is_fixed_again_when_a_renewed_call_in_it_has_left() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let nested = client.lock("k").lease(2 * SECOND).renew(true);
        let body = async {
            nested.run(sleep(SECOND)).await.unwrap();
            let left = Instant::now();
            let hold = lock_runtime::Hold::current().unwrap();
            let lost = tokio::time::timeout(20 * SECOND, hold.lost()).await;
            (lost, left.elapsed())
        };
        let lock = client.lock("k").lease(900 * MS).on_lost(OnLost::Continue);
        let (lost, lasted) = lock.run(body).await.unwrap();
        assert!(lost.is_ok(), "the lease has ended");
        assert!(
            lasted > 1200 * MS && lasted < 2 * SECOND + support::epsilon(),
            "{lasted:?}"
        );
        // If a nested call with `renew` runs in a guard, its renewals also end when the nested call leaves, although
        // nothing polls the guard.
        let guard = loop {
            let guard = client.lock("k").lease(300 * MS).acquire().await.unwrap();
            // On a busy machine, the lease can end before the nested call enters.
            if let Ok(Ok(())) = guard.run(nested.run(async {})).await {
                break guard;
            }
        };
        let next = client.lock("k").wait(20 * SECOND).acquire().await;
        next.unwrap().release().await;
        // On a busy machine, the engine can hear from the server that the grant is gone before it sees the deadline.
        assert!(guard.loss().is_some());
    })
    .await;
}

/// A released hold is never reported as lost, however long ago its lease would have ended.
#[tokio::test]
async fn a_hold_that_was_released_is_never_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = client.lock("k").lease(500 * MS);
        let mut lost = None;
        let body = async {
            let hold = Hold::current().unwrap();
            let own = hold.clone();
            let mut watch: BoxFuture<'static, LossReason> =
                Box::pin(async move { own.lost().await });
            assert!(watch.as_mut().now_or_never().is_none());
            lost = Some(watch);
            hold
        };
        let hold = lock.run(body).await.unwrap();
        assert_eq!(hold.remaining(), Duration::ZERO);
        let begun_inside = lost.unwrap();
        let either = futures_util::future::select(begun_inside, Box::pin(hold.lost()));
        assert!(timeout(700 * MS, either).await.is_err());
        assert_eq!((hold.loss(), hold.remaining()), (None, Duration::ZERO));
        assert_eq!((client.stats().lost, client.stats().released), (0, 1));
    })
    .await;
}

/// A guard that is released after its deadline reports a loss, even if nobody noticed the loss before the release.
#[tokio::test]
async fn a_hold_that_is_released_after_its_lease_was_lost() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let guard = client.lock("k").lease(300 * MS).acquire().await.unwrap();
        let hold = (*guard).clone();
        sleep(310 * MS).await;
        guard.release().await;
        // On a busy machine, the engine can hear from the server that the grant is gone before it sees the deadline.
        let loss = hold.loss().expect("the lease has ended");
        assert_eq!(hold.lost().await, loss);
        assert_eq!(client.stats().lost, 1);
    })
    .await;
}

#[tokio::test]
async fn what_a_lost_body_owned_is_dropped_inside_its_hold() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let seen = Seen::default();
        let body = async {
            let _witness = seen.witness();
            std::future::pending::<()>().await;
        };
        let lost = client.lock("k").lease(300 * MS).run(body).await;
        assert_lost(&lost);
        // On a busy machine, the engine can hear from the server that the grant is gone before it sees the deadline.
        assert!(seen.hold().loss().is_some());
    })
    .await;
}

/// A loss ends only the body. Everything that the body has started elsewhere completes: a spawned task, a blocking
/// call, and a query that was sent.
#[tokio::test]
async fn what_a_lost_body_has_started_elsewhere_goes_on() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = Store::on(&server.url()).client().await;
    let database = redis::Client::open(proxy.url()).unwrap();
    let mut database = connect(&database).await.unwrap();
    let (end_task, task_ends) = oneshot::channel();
    let (end_call, call_ends) = mpsc::channel();
    let (mut task, mut call) = (None, None);
    proxy.hold_requests(true);
    let sent = proxy.wait_for_request(b"written");
    let body = async {
        task = Some(tokio::spawn(async { task_ends.await.unwrap() }));
        call = Some(tokio::task::spawn_blocking(move || {
            call_ends.recv().unwrap()
        }));
        ask::<()>(&mut database, redis::cmd("SET").arg("written").arg(1)).await;
    };
    let lost = client.lock("k").lease(300 * MS).run(body).await;
    assert_lost(&lost);
    sent.await;
    assert!(!server.keys().await.contains(&"written".into()));
    proxy.hold_requests(false);
    until(async || server.keys().await.contains(&"written".into())).await;
    end_task.send(1).unwrap();
    assert_eq!(task.unwrap().await.unwrap(), 1);
    end_call.send(2).unwrap();
    assert_eq!(call.unwrap().await.unwrap(), 2);
}
