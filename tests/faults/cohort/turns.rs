//! Cohorts in unusual situations: a member extends the lease or is not polled, a runtime is not driven, or the client
//! finds that the grant is late or lost.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lock_runtime::{Hold, LockClient, LockError, LockGuard, Release, ReleaseOutcome};
use support::{
    proxy::FaultProxy,
    server::{RedisServer, ask},
};
use tokio::{
    runtime,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::fixture::{MS, NAME, SECOND, client, epsilon, left, set_writable, until, until_waiting};

/// The numbers of the callers that entered, in the order of their entries.
type Entered = Arc<Mutex<Vec<usize>>>;

/// Queues callers of one client one after another, while the lock is held. Each caller runs its own `body` under the
/// lock.
async fn queue<F, Fut>(
    client: &LockClient,
    callers: usize,
    lease: Duration,
    body: F,
) -> JoinSet<Result<(), LockError>>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let lock = client.lock("k").wait(30 * SECOND).lease(lease);
        let body = body(caller);
        running.spawn(async move { lock.run(body).await });
        until_waiting(client, caller + 1).await;
    }
    running
}

async fn all_succeed(callers: JoinSet<Result<(), LockError>>) {
    for ended in callers.join_all().await {
        ended.unwrap();
    }
}

async fn left_of(server: &RedisServer) -> Duration {
    let mut connection = server.connection().await;
    let left: i64 = ask(&mut connection, redis::cmd("PTTL").arg(NAME)).await;
    Duration::from_millis(u64::try_from(left).unwrap_or_default())
}

/// Returns two callers of one client that form a cohort with leases of 2 s. The first one holds the lock.
async fn pair(
    ours: &LockClient,
    other: &LockClient,
) -> (LockGuard, JoinHandle<Result<LockGuard, LockError>>) {
    let guard = other.lock("k").acquire().await.unwrap();
    let lock = ours.lock("k").wait(20 * SECOND).lease(2 * SECOND);
    let first = tokio::spawn(lock.clone().acquire());
    until_waiting(other, 1).await;
    let next = tokio::spawn(lock.acquire());
    until_waiting(other, 2).await;
    guard.release().await;
    (first.await.unwrap().unwrap(), next)
}

/// A member of a cohort extends its lease and leaves while the server refuses writes. The engine restarts the lease for
/// the next member. The release continues in the background, and does not send this restart a second time after the next
/// member has extended its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_release_does_not_shorten_the_lease_of_the_next_member() {
    let server = RedisServer::start().await;
    let (ours, other) = (client(&server.url()).await, client(&server.url()).await);
    // The commands of a second release would come at a random time within the pause between two tries.
    for _ in 0..3 {
        let (first, next) = pair(&ours, &other).await;
        first.extend(60 * SECOND).await.unwrap();
        set_writable(&server, false).await;
        assert_eq!(first.release().await, ReleaseOutcome::InBackground);
        set_writable(&server, true).await;
        let next = next.await.unwrap().unwrap();
        next.extend(60 * SECOND).await.unwrap();
        let until = Instant::now() + 100 * MS;
        while Instant::now() < until {
            let left = left_of(&server).await;
            assert!(left > 59 * SECOND, "{left:?}");
        }
        next.release().await;
    }
}

/// A member of a cohort leaves while its extension is under way, because the server refuses writes. The extension is not
/// sent again after the next member has got its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_extension_does_not_reach_the_next_member() {
    let server = RedisServer::start().await;
    let (ours, other) = (client(&server.url()).await, client(&server.url()).await);
    // Half of the time, the release sends its command between two tries of the extension.
    for _ in 0..5 {
        let (first, next) = pair(&ours, &other).await;
        let hold = Hold::clone(&first);
        set_writable(&server, false).await;
        let mut connection = server.connection().await;
        ask::<()>(&mut connection, redis::cmd("CONFIG").arg("RESETSTAT")).await;
        let extending = tokio::spawn(async move { hold.extend(60 * SECOND).await });
        until(async || {
            let mut connection = server.connection().await;
            let errors: String = ask(&mut connection, redis::cmd("INFO").arg("errorstats")).await;
            errors.contains("NOREPLICAS")
        })
        .await;
        sleep(25 * MS).await;
        assert_eq!(first.release().await, ReleaseOutcome::InBackground);
        set_writable(&server, true).await;
        let next = next.await.unwrap().unwrap();
        let until = Instant::now() + 100 * MS;
        while Instant::now() < until {
            let left = left_of(&server).await;
            assert!(left <= 2 * SECOND, "{left:?}");
        }
        next.release().await;
        let _ = extending.await.unwrap();
    }
}

/// Each member of a cohort re-enters the lock with a longer lease. The engine restarts the lease for each member, so
/// the longer lease of one member does not count for the next. No hold has more time left than its lease on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_counts_on_what_the_member_before_had_asked_for() {
    let server = Arc::new(RedisServer::start().await);
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = other.lock("k").acquire().await.unwrap();
    let too_much = Arc::new(Mutex::new(Vec::new()));
    let callers = queue(&client, 20, SECOND, |caller| {
        let (server, too_much) = (server.clone(), too_much.clone());
        let again = client.lock("k").lease(10 * SECOND).renew(false);
        async move {
            let nested = again.run(async {
                tokio::time::sleep(20 * MS).await;
                // The server is asked first, so that a pause between the two cannot look like a fault.
                let left = left_of(&server).await;
                let remaining = Hold::current().unwrap().remaining();
                if remaining > left + 50 * MS {
                    too_much.lock().unwrap().push((caller, remaining, left));
                }
            });
            nested.await.unwrap();
        }
    })
    .await;
    guard.release().await;
    all_succeed(callers).await;
    assert!(too_much.lock().unwrap().is_empty(), "{too_much:?}");
}

/// While the waiters' own process holds the lock, nothing arrives on the waiters' connection for longer than a claim (2
/// s). The members of the cohort nevertheless enter when the holder has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cohort_after_a_long_hold_of_its_own_process_comes_in_its_turn() {
    let server = RedisServer::start().await;
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = client.lock("k").acquire().await.unwrap();
    let entered = Entered::default();
    let mut callers = queue(&client, 6, 30 * SECOND, |caller| {
        let entered = entered.clone();
        async move { entered.lock().unwrap().push(caller) }
    })
    .await;
    let (stranger, last) = (other.lock("k").wait(30 * SECOND), entered.clone());
    callers.spawn(async move { stranger.run(async { last.lock().unwrap().push(6) }).await });
    until_waiting(&other, 7).await;
    // The pause is longer than a claim (2 s).
    tokio::time::sleep(2500 * MS).await;
    guard.release().await;
    all_succeed(callers).await;
    assert_eq!(*entered.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6]);
}

/// A member of a cohort finds at its turn that the grant is gone. The member returns to its old place in the queue,
/// ahead of the callers behind it. If its runtime polls it late, on a busy machine, the callers behind it can have the lock
/// by then, so the test tries again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_grant_is_gone_has_its_place_again() {
    let in_order: Vec<_> = (0..20).collect();
    let mut entered = Vec::new();
    for _ in 0..3 {
        entered = without_its_grant().await;
        if entered == in_order {
            break;
        }
        let behind = entered.windows(2).filter(|pair| pair[0] > pair[1]);
        assert_eq!(behind.count(), 1, "{entered:?}");
    }
    assert_eq!(entered, in_order);
}

/// Returns the callers in the order in which they have entered.
async fn without_its_grant() -> Vec<usize> {
    let server = Arc::new(RedisServer::start().await);
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = other.lock("k").acquire().await.unwrap();
    let entered = Entered::default();
    let (begun, deleted) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
    let callers = queue(&client, 20, 1200 * MS, |caller| {
        let (entered, begun) = (entered.clone(), begun.clone());
        let (server, deleted) = (server.clone(), deleted.clone());
        async move {
            let inside = begun
                .lock()
                .unwrap()
                .get_or_insert_with(Instant::now)
                .elapsed();
            entered.lock().unwrap().push(caller);
            // One body deletes the grant at least 370 ms after the first member has entered, and ends 60 ms later. When
            // this body ends, a third of the lease has passed, so the engine has to confirm the grant with the server
            // before the next body starts.
            if inside > 370 * MS && !deleted.swap(true, Ordering::SeqCst) {
                let mut connection = server.connection().await;
                let _: i64 = ask(&mut connection, redis::cmd("DEL").arg(NAME)).await;
                tokio::time::sleep(60 * MS).await;
            } else {
                tokio::time::sleep(40 * MS).await;
            }
        }
    })
    .await;
    guard.release().await;
    // On a busy machine, a renewal can find out that the grant is gone while the body runs that has deleted it.
    let ended = callers.join_all().await;
    let lost = ended.iter().filter(|ended| ended.is_err()).count();
    assert!(lost <= 1, "{ended:?}");
    assert!(deleted.load(Ordering::SeqCst));
    let entered = entered.lock().unwrap();
    entered.clone()
}

/// A push that reports a grant is lost, and the client finds the grant when the claim (2 s) has almost ended. The
/// client starts no body in the rest of the claim, because the rest is too short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_body_starts_on_the_last_moment_of_a_claim() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let (client, holder) = (client(&proxy.url()).await, client(&server.url()).await);
    for late in [1900 * MS, 1940 * MS] {
        let guard = holder.lock("k").acquire().await.unwrap();
        let lock = client.lock("k").wait(20 * SECOND);
        let waiting = tokio::spawn(async move {
            let body = tokio::time::sleep(300 * MS);
            lock.run(body).await
        });
        until_waiting(&holder, 1).await;
        proxy.drop_replies(true);
        guard.release().await;
        tokio::time::sleep(late).await;
        proxy.drop_replies(false);
        proxy.cut();
        assert_eq!(
            waiting.await.unwrap(),
            Ok(()),
            "the client found the grant after {late:?}"
        );
    }
}

/// If a member of a cohort is not polled when its turn comes, the callers behind it are delayed by 2 s (a claim). The
/// other members of the cohort keep their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_is_not_polled_is_awaited_for_a_claim() {
    let server = RedisServer::start().await;
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = other.lock("k").acquire().await.unwrap();
    let entered = Entered::default();
    let mut callers = JoinSet::new();
    let mut unpolled = None;
    for caller in 0..8 {
        // The last two callers have a different lease, so the server does not grant them the lock together with the
        // others.
        let lease = if caller < 6 { 30 * SECOND } else { 20 * SECOND };
        let lock = client.lock("k").wait(30 * SECOND).lease(lease);
        let entered = entered.clone();
        let call = async move {
            let inside = async { entered.lock().unwrap().push(caller) };
            lock.run(inside).await.unwrap();
        };
        if caller == 1 {
            let mut call: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(call);
            tokio::select! {
                biased;
                () = &mut call => panic!("the call entered, although the lock is held"),
                () = until_waiting(&client, 2) => {}
            }
            unpolled = Some(call);
        } else {
            callers.spawn(call);
            until_waiting(&client, caller + 1).await;
        }
    }
    let released = Instant::now();
    guard.release().await;
    callers.join_all().await;
    let took = released.elapsed();
    assert!(took < 2 * SECOND + 400 * MS + epsilon(), "{took:?}");
    let mut order = entered.lock().unwrap().clone();
    order.retain(|caller| *caller < 6);
    assert_eq!(order, [0, 2, 3, 4, 5]);
    drop(unpolled);
    until(async || left(&server).await.is_empty()).await;
}

fn current_thread() -> runtime::Runtime {
    let mut builder = runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// A program drives its current-thread runtime only during its calls. A release in the background completes even if the
/// program makes no further call.
#[test]
fn a_release_in_the_background_needs_nobody_to_drive_its_runtime() {
    let tests = current_thread();
    let server = tests.block_on(RedisServer::start());
    let locks = tests.block_on(client(&server.url()));
    let program = current_thread();
    let lock = locks
        .lock("k")
        .lease(60 * SECOND)
        .release(Release::Background);
    program.block_on(lock.run(async {})).unwrap();
    let released = Instant::now();
    tests.block_on(until(async || left(&server).await.is_empty()));
    assert!(released.elapsed() < 2 * SECOND + epsilon());
    let closed = tests.block_on(async { tokio::time::timeout(5 * SECOND, locks.shutdown()).await });
    assert!(closed.is_ok(), "the shutdown still waits");
}

/// Several callers share the request that adds them to the queue. They are dropped after a few polls, and after that
/// nothing drives their runtime, which should send the request. The dropped callers leave no entry in the queue, and
/// the client can be shut down.
#[test]
fn callers_dropped_with_nobody_to_drive_their_runtime_leave_nothing() {
    let tests = current_thread();
    let server = tests.block_on(RedisServer::start());
    let holder = tests.block_on(client(&server.url()));
    for turns in [2, 3, 4, 6, 8, 12] {
        let locks = tests.block_on(client(&server.url()));
        let guard = tests.block_on(holder.lock("k").acquire()).unwrap();
        let program = current_thread();
        program.block_on(locks.lock("warm").run(async {})).unwrap();
        program.block_on(async {
            let lock = locks.lock("k").wait(30 * SECOND);
            let mut callers = [0; 3].map(|_| Box::pin(lock.run(async {})));
            for _ in 0..turns {
                std::future::poll_fn(|cx| {
                    for caller in &mut callers {
                        assert!(caller.as_mut().poll(cx).is_pending());
                    }
                    std::task::Poll::Ready(())
                })
                .await;
                tokio::task::yield_now().await;
            }
        });
        tests.block_on(until_waiting(&holder, 0));
        let closing = async { tokio::time::timeout(10 * SECOND, locks.shutdown()).await };
        assert!(
            tests.block_on(closing).is_ok(),
            "the shutdown hangs after {turns} polls"
        );
        tests.block_on(guard.release());
    }
}
