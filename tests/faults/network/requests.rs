//! Rows 9 to 11, 13 and 38 of `docs/faults.md`: requests and replies that are late, lost or duplicated.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use lock_runtime::{LockClient, LockError};
use support::{
    assert_lost,
    proxy::FaultProxy,
    server::{RedisServer, ask},
};
use tokio::{runtime::Builder, time::sleep};

use crate::fixture::{
    MS, QUEUE, SECOND, client, epsilon, grant, left, refuse_client_kill, row, set_writable,
    token_of, until, until_waiting,
};

/// Row 9 of `docs/faults.md`: the reply that carries a grant is lost, because its connection breaks. The retried
/// request gets the same grant.
#[tokio::test]
async fn row_09_reply_of_the_grant_lost() {
    row(9, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        proxy.hold_replies(true);
        let entering = tokio::spawn(behind.lock("k").wait(20 * SECOND).acquire());
        until(async || grant(&server).await.is_some()).await;
        let first = token_of(&grant(&server).await.unwrap());
        proxy.cut();
        proxy.hold_replies(false);
        let guard = entering.await.unwrap().unwrap();
        assert_eq!(guard.token().get(), first);
        guard.release().await;
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 9 of `docs/faults.md`: the replies that tell two callers their places are lost, because their connection breaks.
/// While the callers are disconnected, a release removes their entries from the queue. When they are connected again, the
/// callers return to their places, before a caller that has queued meanwhile. They do so, too, if they were disconnected
/// for longer than a claim (2 s).
#[tokio::test]
async fn row_09_reply_of_the_place_lost() {
    row(9, async |_| {
        for outage in [Duration::ZERO, 2500 * MS] {
            place_lost(outage).await;
        }
    })
    .await;
}

async fn place_lost(outage: Duration) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let behind = client(&proxy.url()).await;
    let (other, last) = (client(&server.url()).await, client(&server.url()).await);
    let entered = Arc::new(Mutex::new(Vec::new()));
    let enter = |client: &LockClient, caller: &'static str| {
        let (lock, entered) = (client.lock("k").wait(20 * SECOND), entered.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            entered.lock().unwrap().push(caller);
            guard.release().await;
        })
    };
    let guard = other.lock("k").acquire().await.unwrap();
    proxy.hold_replies(true);
    let first = enter(&behind, "first");
    until_waiting(&other, 1).await;
    // A repeated request names the time of the first request, which can be wrong by some milliseconds on a busy machine.
    sleep(300 * MS).await;
    let second = enter(&behind, "second");
    until_waiting(&other, 2).await;
    proxy.refuse(true);
    proxy.cut();
    proxy.hold_replies(false);
    let next = tokio::spawn(other.lock("k").wait(20 * SECOND).acquire());
    until_waiting(&other, 3).await;
    guard.release().await;
    let guard = next.await.unwrap().unwrap();
    sleep(300 * MS).await;
    let last = enter(&last, "last");
    until_waiting(&other, 1).await;
    sleep(outage).await;
    proxy.refuse(false);
    until_waiting(&other, 3).await;
    guard.release().await;
    for caller in [first, second, last] {
        caller.await.unwrap();
    }
    assert_eq!(*entered.lock().unwrap(), ["first", "second", "last"]);
}

/// Row 9 of `docs/faults.md`: the connection falls silent before the reply that tells a caller its place. After 2 s, the
/// engine gives the connection up. Over the next one, the caller returns to its place, before a caller that has queued
/// meanwhile.
#[tokio::test]
async fn row_09_reply_of_the_place_is_never_sent() {
    row(9, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        let other = client(&server.url()).await;
        let mut redis = server.connection().await;
        let mut queue = redis::cmd("ZRANGE");
        queue.arg(QUEUE).arg(0).arg(-1);
        let guard = other.lock("k").acquire().await.unwrap();
        let connections = proxy.connections();
        // The connection that has lost the reply stays silent.
        let replies = proxy.reply_bytes();
        proxy.drop_replies(true);
        let first = tokio::spawn(behind.lock("k").wait(20 * SECOND).acquire());
        until_waiting(&other, 1).await;
        until(async || proxy.reply_bytes() > replies).await;
        proxy.drop_replies(false);
        let old: Vec<String> = ask(&mut redis, &queue).await;
        // The time that the repeated request names can be wrong by some milliseconds.
        sleep(300 * MS).await;
        let last = tokio::spawn(other.lock("k").wait(20 * SECOND).acquire());
        until(async || proxy.connections() > connections).await;
        // The caller has a new name, or it has sent its request again under its old name, before the probes that follow.
        let commands = behind.stats().commands;
        until(async || {
            let waiters: Vec<String> = ask(&mut redis, &queue).await;
            let is_renamed = !waiters.contains(&old[0]);
            waiters.len() == 2 && (is_renamed || behind.stats().commands > commands + 3)
        })
        .await;
        guard.release().await;
        first.await.unwrap().unwrap().release().await;
        last.await.unwrap().unwrap().release().await;
    })
    .await;
}

/// Row 9 of `docs/faults.md`: a caller's first request is lost with its connection, and the repeated request is long
/// under way. The caller gets its old place, before a caller that has queued meanwhile.
#[tokio::test]
async fn row_09_repeated_request_is_slow() {
    row(9, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        let other = client(&server.url()).await;
        let guard = other.lock("k").acquire().await.unwrap();
        proxy.hold_requests(true);
        let before = proxy.request_bytes();
        let first = tokio::spawn(behind.lock("k").wait(20 * SECOND).acquire());
        proxy.until_requested(before).await;
        let asked = Instant::now();
        // The delay gives the test time to hold the request that follows the handshake, and makes the client's estimate of
        // the server's time wrong by as much.
        proxy.delay(50 * MS);
        sleep(500 * MS).await;
        let last = tokio::spawn(other.lock("k").wait(20 * SECOND).acquire());
        until_waiting(&other, 1).await;
        let handshake = proxy.wait_for_request(b"TIME");
        proxy.cut();
        proxy.hold_requests(false);
        handshake.await;
        sleep(75 * MS).await;
        proxy.hold_requests(true);
        sleep(asked.elapsed() + 100 * MS).await;
        proxy.hold_requests(false);
        until_waiting(&other, 2).await;
        guard.release().await;
        first.await.unwrap().unwrap().release().await;
        last.await.unwrap().unwrap().release().await;
    })
    .await;
}

/// Row 9 of `docs/faults.md`: the server refuses a request that queues many callers, and accepts it when it is repeated.
/// The callers keep the order of their calls.
#[tokio::test]
async fn row_09_refused_batch_keeps_its_order() {
    row(9, async |_| {
        let server = RedisServer::start().await;
        let (ours, other) = (client(&server.url()).await, client(&server.url()).await);
        let guard = other.lock("k").acquire().await.unwrap();
        let entered = Arc::new(Mutex::new(Vec::new()));
        // The first caller sends its own request, and the others share requests.
        let first = tokio::spawn(ours.lock("k").wait(20 * SECOND).acquire());
        until_waiting(&other, 1).await;
        set_writable(&server, false).await;
        let mut callers = Vec::new();
        for number in 0..20 {
            let (lock, entered) = (ours.lock("k").wait(20 * SECOND), entered.clone());
            callers.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                entered.lock().unwrap().push(number);
                guard.release().await;
            }));
        }
        sleep(300 * MS).await; // the request is refused several times
        set_writable(&server, true).await;
        until_waiting(&other, 21).await;
        guard.release().await;
        first.await.unwrap().unwrap().release().await;
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!(*entered.lock().unwrap(), (0..20).collect::<Vec<_>>());
    })
    .await;
}

/// Row 10 of `docs/faults.md`: a request reaches the server only after its caller has given up, and grants nothing.
/// `kill` says whether the server permits the client to close its old connections. Without this permission, each
/// request carries a time limit, after which the request's script does nothing.
async fn late_request(kill: bool) {
    let server = RedisServer::start().await;
    if !kill {
        refuse_client_kill(&server).await;
    }
    let proxy = FaultProxy::start(server.port()).await;
    let behind = client(&proxy.url()).await;
    proxy.deliver_after_cut(true);
    proxy.hold_requests(true);
    proxy.hold_old_requests(true);
    let before = proxy.request_bytes();
    let lock = behind.lock("k").wait(200 * MS).lease(30 * SECOND);
    let (refused, ()) = tokio::join!(lock.acquire(), proxy.until_requested(before));
    assert!(
        matches!(refused, Err(LockError::Unreachable { .. })),
        "{refused:?}"
    );
    proxy.cut();
    if !kill {
        // After this pause, the time limit of the request has passed, so the server must not carry out the request.
        tokio::time::sleep(1500 * MS).await;
    }
    // Lets the requests of the new connection reach the server before the delayed request of the old connection.
    proxy.hold_requests(false);
    client(&proxy.url()).await;
    until(async || behind.lock("other").try_acquire().await.is_ok()).await;
    proxy.hold_old_requests(false);
    let observer = client(&server.url()).await;
    for _ in 0..50 {
        assert_eq!(
            grant(&server).await,
            None,
            "a caller that had given up was granted the lock"
        );
        tokio::time::sleep(5 * MS).await;
    }
    observer
        .lock("k")
        .try_acquire()
        .await
        .unwrap()
        .release()
        .await;
}

#[tokio::test]
async fn row_10_late_request_of_a_killed_connection() {
    row(10, async |_| {
        late_request(true).await;
    })
    .await;
}

#[tokio::test]
async fn row_10_late_request_where_connections_cannot_be_killed() {
    row(10, async |_| {
        late_request(false).await;
    })
    .await;
}

/// Row 11 of `docs/faults.md`: the reply of a release is lost, and the client sends the release again. The next holder
/// keeps its grant.
#[tokio::test]
async fn row_11_release_sent_twice() {
    row(11, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (behind, direct) = (client(&proxy.url()).await, client(&server.url()).await);
        let guard = behind.lock("k").acquire().await.unwrap();
        let next = tokio::spawn({
            let direct = direct.clone();
            async move { direct.lock("k").wait(20 * SECOND).acquire().await.unwrap() }
        });
        until_waiting(&direct, 1).await;
        proxy.hold_replies(true);
        let before = server.scripts().await;
        let releasing = tokio::spawn(guard.release());
        let next = next.await.unwrap();
        proxy.cut();
        proxy.hold_replies(false);
        releasing.await.unwrap();
        // Waits until the server has run the release at least twice.
        until(async || server.scripts().await >= before + 2).await;
        behind.lock("after").run(async {}).await.unwrap();
        assert!(direct.lock("k").try_acquire().await.is_err());
        assert_eq!(token_of(&grant(&server).await.unwrap()), next.token().get());
        assert_eq!(next.loss(), None);
        // The client that sent the release twice counts no lost lease.
        assert_eq!(behind.stats().lost, 0);
        next.release().await;
    })
    .await;
}

/// Row 11 of `docs/faults.md`: a client sends the same release twice, and the lock has a minimum hold. The lock stays
/// taken until the minimum hold is over.
#[tokio::test]
async fn row_11_lock_kept_twice() {
    row(11, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (behind, direct) = (client(&proxy.url()).await, client(&server.url()).await);
        let lock = behind.lock("k").lease(20 * SECOND).hold_at_least(SECOND);
        let start = Instant::now();
        let guard = lock.acquire().await.unwrap();
        proxy.hold_replies(true);
        let before = server.scripts().await;
        let releasing = tokio::spawn(guard.release());
        until(async || server.scripts().await > before).await;
        proxy.cut();
        proxy.hold_replies(false);
        releasing.await.unwrap();
        until(async || server.scripts().await >= before + 2).await;
        let lock = direct.lock("k").wait(20 * SECOND);
        lock.run(async {}).await.unwrap();
        let entered = start.elapsed();
        assert!(
            (SECOND - 20 * MS..SECOND + 200 * MS + epsilon()).contains(&entered),
            "{entered:?}"
        );
        assert_eq!(behind.stats().lost, 0);
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 13 of `docs/faults.md`: a socket is half open. The hold ends at the client's local deadline at the latest, and
/// the client connects again.
#[tokio::test]
async fn row_13_half_open_socket() {
    row(13, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        let started = Instant::now();
        let lock = behind.lock("k").lease(1500 * MS).renew(true);
        let lost = lock
            .run(async {
                // If the proxy did not refuse connections, the client would reconnect at once and renew the lease.
                proxy.refuse(true);
                proxy.half_open();
                std::future::pending::<()>().await;
            })
            .await;
        let took = started.elapsed();
        proxy.refuse(false);
        assert_lost(&lost);
        seen.within("the lease is lost after the grant", 1500 * MS, took);
        let started = Instant::now();
        behind
            .lock("k")
            .wait(10 * SECOND)
            .acquire()
            .await
            .unwrap()
            .release()
            .await;
        seen.within(
            "a call is granted the lock afterwards, over a new connection",
            4 * SECOND,
            started.elapsed(),
        );
    })
    .await;
}

/// Row 13 of `docs/faults.md`: a socket is half open. Callers repeat their unanswered requests over a new connection.
/// The engine cannot close the old connection on the server, because the engine's own connection is half open too.
#[tokio::test]
async fn row_13_callers_ask_again() {
    row(13, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (holder, behind) = (client(&server.url()).await, client(&proxy.url()).await);
        let guard = holder.lock("k").acquire().await.unwrap();
        let wait = || {
            let lock = behind.lock("k").wait(30 * SECOND);
            tokio::spawn(async move { lock.run(async {}).await })
        };
        let mut waiting = vec![wait()];
        until_waiting(&holder, 1).await;
        let connections = proxy.connections();
        proxy.half_open();
        waiting.extend([wait(), wait()]);
        until(async || proxy.connections() > connections).await;
        guard.release().await;
        let released = Instant::now();
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
        seen.within(
            "all callers enter after the release",
            4 * SECOND,
            released.elapsed(),
        );
    })
    .await;
}

/// Row 38 of `docs/faults.md`: a request stalls on its way to the server. The client reconnects, acquires the lock and
/// releases it. When the server then reads the stalled request, the server grants nothing.
#[tokio::test]
async fn row_38_old_socket_is_read_late() {
    row(38, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        proxy.deliver_after_cut(true);
        proxy.hold_old_requests(true);
        proxy.hold_requests(true);
        let before = proxy.request_bytes();
        let entering = tokio::spawn(
            behind
                .lock("k")
                .wait(20 * SECOND)
                .lease(30 * SECOND)
                .acquire(),
        );
        proxy.until_requested(before).await;
        proxy.cut();
        proxy.hold_requests(false);
        entering.await.unwrap().unwrap().release().await;
        assert_eq!(grant(&server).await, None);
        proxy.hold_old_requests(false);
        for _ in 0..50 {
            assert_eq!(
                grant(&server).await,
                None,
                "the stalled request was granted the lock"
            );
            tokio::time::sleep(5 * MS).await;
        }
    })
    .await;
}

/// Row 38 of `docs/faults.md`: a resent request stalls on its way to the server. A push grants the lock to the owner of
/// the request. The owner releases the lock over another connection before the server reads the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_38_request_that_was_sent_again_is_read_late() {
    row(38, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let holder = client(&server.url()).await;
        let guard = holder.lock("k").acquire().await.unwrap();
        let url = proxy.url();
        let (is_inside, inside) = tokio::sync::oneshot::channel();
        let (done, is_done) = mpsc::channel::<()>();
        // The waiter's runtime has one thread, so the waiter can block its session just before the session connects
        // again.
        let waiter = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let behind = client(&url).await;
                let lock = behind.lock("k").wait(20 * SECOND).lease(30 * SECOND);
                drop(lock.acquire().await.unwrap());
                is_inside.send(()).unwrap();
                is_done.recv().unwrap();
            });
        });
        until_waiting(&holder, 1).await;
        // The session connects again and resends the request of its waiter. The resent request stalls.
        proxy.delay(100 * MS);
        let handshake = proxy.wait_for_request(b"TIME");
        proxy.cut();
        handshake.await;
        tokio::time::sleep(150 * MS).await;
        proxy.hold_requests(true);
        proxy.until_requested(proxy.request_bytes()).await;
        proxy.delay(Duration::ZERO);
        tokio::time::sleep(200 * MS).await;
        // The push of the grant reaches the waiter's session, and then the second connection breaks as well.
        guard.release().await;
        tokio::time::sleep(50 * MS).await;
        proxy.deliver_after_cut(true);
        proxy.hold_old_requests(true);
        proxy.refuse(true);
        proxy.cut();
        proxy.hold_requests(false);
        tokio::time::sleep(300 * MS).await;
        proxy.refuse(false);
        inside.await.unwrap();
        until(async || grant(&server).await.is_none()).await;
        proxy.hold_old_requests(false);
        for _ in 0..50 {
            assert_eq!(
                grant(&server).await,
                None,
                "the stalled request was granted the lock"
            );
            tokio::time::sleep(5 * MS).await;
        }
        done.send(()).unwrap();
        waiter.join().unwrap();
    })
    .await;
}

/// Row 38 of `docs/faults.md`: a caller resends its request, is offered its turn by a push, and is cancelled before the
/// server reads the resent request. Neither a grant nor a place in the queue is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_38_caller_leaves_with_its_offer() {
    row(38, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (holder, behind) = (client(&server.url()).await, client(&proxy.url()).await);
        // The test repeats the case, because either the holder's release or the resent request can reach the server
        // first.
        for _ in 0..8 {
            let guard = holder.lock("k").acquire().await.unwrap();
            let lock = behind.lock("k").wait(20 * SECOND).lease(30 * SECOND);
            // The server queues the caller, but the proxy holds the reply back.
            proxy.hold_replies(true);
            let waiting = tokio::spawn(lock.acquire());
            until_waiting(&holder, 1).await;
            // The caller sends its request again over a new connection, where the request stalls.
            proxy.delay(50 * MS);
            let handshake = proxy.wait_for_request(b"TIME");
            proxy.cut();
            proxy.hold_replies(false);
            handshake.await;
            tokio::time::sleep(75 * MS).await;
            proxy.hold_requests(true);
            proxy.until_requested(proxy.request_bytes()).await;
            proxy.delay(Duration::ZERO);
            guard.release().await;
            tokio::time::sleep(50 * MS).await;
            let before = proxy.request_bytes();
            waiting.abort();
            proxy.until_requested(before).await;
            proxy.hold_requests(false);
            until(async || grant(&server).await.is_none()).await;
            for _ in 0..40 {
                // The engine removes the cancelled caller from the server once before the resent request is answered,
                // and once after that. Between the two removals, the server can grant the lock to the resent request,
                // but only for about a round trip.
                let asked = Instant::now();
                until(async || grant(&server).await.is_none()).await;
                let lasted = asked.elapsed();
                assert!(
                    lasted < 50 * MS + epsilon(),
                    "a cancelled caller was granted the lock for {lasted:?}"
                );
                tokio::time::sleep(5 * MS).await;
            }
            assert_eq!(holder.lock("k").status().await.unwrap().waiters, 0);
        }
    })
    .await;
}
