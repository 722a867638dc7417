//! Row 52 of `docs/faults.md`: clients shut down while the server is killed or stopped.

use std::{
    future::Future,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use lock_runtime::{LockClient, LockError, ReleaseOutcome, Strategy};
use support::{
    assert_lost,
    cluster::ClusterServers,
    poll_unread,
    proxy::FaultProxy,
    server::{RedisServer, ask},
};
use tokio::{sync::oneshot, task::JoinSet, time::timeout};

use crate::fixture::{MS, NAMESPACE, SECOND, client, epsilon, row, until, until_waiting};

/// The ways in which a server goes away: its process is killed or stopped.
const GONE: [fn(&mut RedisServer); 2] = [|server| server.kill(), |server| server.stop_process()];

/// The longest time that a shutdown is allowed to take, regardless of the leases.
const AT_MOST: Duration = Duration::from_secs(10);

/// Shuts the client down, and returns how long the shutdown took.
async fn shut_down(client: &LockClient) -> Duration {
    let start = Instant::now();
    let down = timeout(4 * AT_MOST, client.shutdown()).await;
    assert!(down.is_ok(), "the shutdown hangs");
    start.elapsed()
}

/// Row 52 of `docs/faults.md`: a shutdown ends every waiting call, whether the call is queued or spins.
#[tokio::test]
async fn row_52_waiting_when_the_server_is_gone() {
    for gone in GONE {
        row(52, async |seen| {
            let mut server = RedisServer::start().await;
            let holder = client(&server.url()).await;
            let waiter = client(&server.url()).await;
            let _guard = holder.lock("k").acquire().await.unwrap();
            let mut waiting = JoinSet::new();
            for strategy in [Strategy::Handoff, Strategy::Spin] {
                let lock = waiter.lock("k").wait(3600 * SECOND).strategy(strategy);
                waiting.spawn(async move { lock.acquire().await.map(drop) });
            }
            // The call `parked` is polled once, and again only after the shutdown.
            let lock = waiter.lock("other").wait(3600 * SECOND);
            let mut parked = Box::pin(lock.acquire());
            assert!(!poll_unread(&holder, parked.as_mut()).await);
            until_waiting(&holder, 1).await;
            gone(&mut server);
            let lock = waiter.lock("late").wait(3600 * SECOND);
            waiting.spawn(async move { lock.acquire().await.map(drop) });
            let start = Instant::now();
            seen.within(
                "the shutdown ends while calls wait",
                2 * SECOND,
                shut_down(&waiter).await,
            );
            while let Some(ended) = waiting.join_next().await {
                let ended = ended.unwrap();
                assert!(
                    matches!(
                        ended,
                        Err(LockError::ShutDown | LockError::Unreachable { .. })
                    ),
                    "{ended:?}"
                );
            }
            seen.within("the waiting calls end", 2 * SECOND, start.elapsed());
            let late = parked.await.map(drop);
            assert_eq!(late, Err(LockError::ShutDown));
        })
        .await;
    }
}

/// Row 52 of `docs/faults.md`: while the server does not answer, a shutdown waits for a hold until the lease of the
/// hold has ended, but for at most ten seconds.
#[tokio::test]
async fn row_52_holding_when_the_server_is_gone() {
    const SHORT: Duration = Duration::from_secs(3);
    for gone in GONE {
        row(52, async |seen| {
            let mut server = RedisServer::start().await;
            let (short, long) = (client(&server.url()).await, client(&server.url()).await);
            let released = client(&server.url()).await;
            let guards = [
                short.lock("short").lease(SHORT).acquire().await.unwrap(),
                long.lock("long").acquire().await.unwrap(),
            ];
            let guard = released.lock("released").acquire().await.unwrap();
            gone(&mut server);
            drop(guard);
            let (short, long, released) =
                tokio::join!(shut_down(&short), shut_down(&long), shut_down(&released));
            seen.within(
                "the shutdown ends while a lease of 3 s is held",
                SHORT,
                short,
            );
            seen.within(
                "the shutdown ends while a lease of 30 s is held",
                AT_MOST,
                long,
            );
            seen.within(
                "the shutdown ends while a lease of 30 s is released",
                AT_MOST,
                released,
            );
            drop(guards);
        })
        .await;
    }
}

/// Row 52 of `docs/faults.md`: the server does not answer for longer than the silence limit of a connection, and
/// answers again before the shutdown ends. The shutdown waits until the body of the hold has ended.
#[tokio::test]
async fn row_52_the_server_comes_back() {
    row(52, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let lock = client.lock("k");
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let body = tokio::spawn(async move { lock.run(async { ended.await.unwrap() }).await });
        until(async || client.stats().acquired > 1).await;
        server.stop_process();
        let mut down = Box::pin(client.shutdown());
        assert!(timeout(3 * SECOND, &mut down).await.is_err());
        server.continue_process();
        assert!(timeout(9 * SECOND, &mut down).await.is_err());
        end.send(()).unwrap();
        down.await;
        body.await.unwrap().unwrap();
        assert_eq!((client.stats().lost, client.stats().release_failed), (0, 0));
    })
    .await;
}

/// Row 52 of `docs/faults.md`: a member of a cohort has left, and the turn is offered to a call that is not polled. The
/// shutdown gives the turn back, although most of the lease is left.
#[tokio::test]
async fn row_52_a_turn_is_offered_to_a_call_that_is_not_polled() {
    row(52, async |seen| {
        let server = RedisServer::start().await;
        let (other, closing) = (client(&server.url()).await, client(&server.url()).await);
        let guard = other.lock("k").acquire().await.unwrap();
        let lock = closing.lock("k").wait(60 * SECOND).lease(60 * SECOND);
        let (first, mut parked) = (lock.clone(), Box::pin(lock.acquire()));
        // The body lasts until the lease is confirmed.
        let first = tokio::spawn(async move { first.run(tokio::time::sleep(SECOND)).await });
        until_waiting(&other, 1).await;
        let mut cx = Context::from_waker(Waker::noop());
        assert!(parked.as_mut().poll(&mut cx).is_pending());
        until_waiting(&other, 2).await;
        guard.release().await;
        first.await.unwrap().unwrap();
        let asked = Instant::now();
        let entering = async {
            let lock = other.lock("k").wait(90 * SECOND);
            lock.acquire().await.unwrap().release().await;
            asked.elapsed()
        };
        let (_, took) = tokio::join!(shut_down(&closing), entering);
        let what = "another caller enters after the shutdown has begun";
        seen.within(what, SECOND, took);
        assert!(matches!(parked.await, Err(LockError::ShutDown)));
    })
    .await;
}

/// Row 52 of `docs/faults.md`: a call releases its lock while the client shuts down, and the network fails. The shutdown
/// waits until the network is back and the lock is released, although the release was not confirmed in its first second.
#[tokio::test]
async fn row_52_a_release_is_in_progress() {
    row(52, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let client = client(&proxy.url()).await;
        let guard = client.lock("k").lease(60 * SECOND).acquire().await.unwrap();
        // From now on, the proxy holds all requests, and drops them with their connection.
        proxy.hold_requests(true);
        let fails = async {
            tokio::time::sleep(2 * SECOND).await;
            proxy.cut();
            proxy.hold_requests(false);
            Instant::now()
        };
        let shut_down = async {
            let took = shut_down(&client).await;
            (took, Instant::now())
        };
        let (_, back, (took, ended)) = tokio::join!(guard.release(), fails, shut_down);
        assert!(took < AT_MOST, "{took:?}");
        let late = ended.saturating_duration_since(back);
        seen.within("the shutdown ends after the network is back", SECOND, late);
        let other = crate::fixture::client(&server.url()).await;
        let next = other.lock("k").wait(Duration::ZERO).acquire().await;
        next.expect("the lock is released").release().await;
    })
    .await;
}

/// Row 52 of `docs/faults.md`: the future of a shutdown is dropped before it completes. All renewals of the client end
/// nevertheless, and a second shutdown ends at once.
#[tokio::test]
async fn row_52_a_shutdown_that_is_given_up() {
    const LEASE: Duration = Duration::from_secs(2);
    row(52, async |seen| {
        let server = RedisServer::start().await;
        let builder = LockClient::builder().url(server.url()).namespace(NAMESPACE);
        let client = builder.connect_within(support::PATIENCE).await.unwrap();
        let guard = client
            .lock("k")
            .lease(LEASE)
            .renew(true)
            .acquire()
            .await
            .unwrap();
        let renewed = client.stats().renewed;
        until(async || client.stats().renewed > renewed).await;
        server.stop_process();
        assert!(timeout(50 * MS, client.shutdown()).await.is_err());
        let given_up = Instant::now();
        server.continue_process();
        let lost = timeout(4 * LEASE, guard.lost()).await;
        assert!(lost.is_ok(), "the client still renews the lease");
        seen.within(
            "the lease is lost after the first shutdown was dropped",
            LEASE,
            given_up.elapsed(),
        );
        guard.release().await;
        let again = shut_down(&client).await;
        seen.within("a second shutdown ends", Duration::ZERO, again);
    })
    .await;
}

/// Row 52 of `docs/faults.md`: one primary of a Redis Cluster does not answer. A shutdown waits for the hold whose
/// primary answers, however long its body takes, and keeps renewing its lease. The shutdown limits only the time for
/// which it waits for the hold of the silent primary.
#[tokio::test]
async fn row_52_one_primary_of_a_cluster_is_gone() {
    const LEASE: Duration = Duration::from_secs(3);
    row(52, async |seen| {
        let cluster = ClusterServers::start(3).await;
        for server in &cluster.servers {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", "cluster-require-full-coverage", "no"]);
            ask::<()>(&mut server.connection().await, &set).await;
        }
        let client = client(&cluster.url()).await;
        let primary_of = async |key: &str| {
            let slot = cluster.slot_of(&format!("{{faults:{key}}}")).await;
            cluster.primary_of(slot).await
        };
        let silent = primary_of("k").await;
        let mut other = 0;
        while primary_of(&other.to_string()).await == silent {
            other += 1;
        }
        let bounded = client.lock("k").acquire().await.unwrap();
        let other = client.lock(other.to_string()).lease(LEASE).renew(true);
        let guard = other.acquire().await.unwrap();
        cluster.servers[silent].stop_process();
        let mut down = Box::pin(client.shutdown());
        let early = timeout(AT_MOST + 2 * SECOND, &mut down).await;
        assert!(
            early.is_err(),
            "the shutdown does not wait for the hold whose primary answers"
        );
        assert_eq!(guard.loss(), None);
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
        let released = Instant::now();
        down.await;
        seen.within(
            "the shutdown ends after the release of the other hold",
            SECOND,
            released.elapsed(),
        );
        drop(bounded);
        cluster.servers[silent].continue_process();
    })
    .await;
}

/// The server does not answer, so a shutdown ends at its bound while two bodies still run. Both bodies continue: one
/// returns its value, and the other loses its lock at the end of the lease. After the shutdown no lease is renewed,
/// although the server answers again.
#[tokio::test]
async fn a_body_that_outlives_a_shutdown_continues_and_is_not_renewed() {
    const LEASE: Duration = Duration::from_secs(15);
    let server = RedisServer::start().await;
    let client = client(&server.url()).await;
    let begun = Instant::now();
    let run = |key: &str, ended: oneshot::Receiver<u8>| {
        let lock = client.lock(key).lease(LEASE).renew(true);
        tokio::spawn(async move { lock.run(async { ended.await.unwrap() }).await })
    };
    let ((end, ended), (_hangs, never)) = (oneshot::channel(), oneshot::channel());
    let (ends, hangs) = (run("ends", ended), run("hangs", never));
    let acquired = client.stats().acquired;
    until(async || client.stats().acquired >= acquired + 2).await;
    server.stop_process();
    let took = shut_down(&client).await;
    assert!(took < AT_MOST + SECOND + epsilon(), "{took:?}");
    server.continue_process();
    let renewed = client.stats().renewed;
    assert!(!ends.is_finished() && !hangs.is_finished());
    end.send(7).unwrap();
    assert_eq!(ends.await.unwrap(), Ok(7));
    assert_lost(&hangs.await.unwrap());
    let lasted = begun.elapsed();
    assert!(lasted < LEASE + epsilon(), "{lasted:?}");
    assert_eq!(client.stats().renewed, renewed);
}
