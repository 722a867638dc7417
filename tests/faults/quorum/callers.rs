//! Callers of a Redlock that wait, are not polled, are dropped, or whose process is killed.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use lock_runtime::{LockClient, LockError, distributed_lock};
use support::{
    assert_busy,
    quorum::{Quorum, url_through},
    server::ask,
};
use tokio::time::{sleep, timeout};

use super::{BACKOFF, CLAIM, OTHERS_GRANT, is_held_on, until_empty, warm};
use crate::fixture::{MS, NAME, SECOND, epsilon, until, worker_at};

#[distributed_lock(keys = ["k", "j"], wait = "60s", lease = "20s")]
async fn both() -> Result<(), LockError> {
    BOTH_ENTERED.store(true, Ordering::Release);
    Ok(())
}

/// Whether the body of [`both`] has begun.
static BOTH_ENTERED: AtomicBool = AtomicBool::new(false);

/// A call of a lock that the test polls by hand.
struct RareCall {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Whether the body of a call of one lock has begun. For several locks, see [`BOTH_ENTERED`].
    entered: Arc<AtomicBool>,
}

impl RareCall {
    fn new(client: &LockClient, several: bool) -> Self {
        BOTH_ENTERED.store(false, Ordering::Release);
        let entered = Arc::new(AtomicBool::new(false));
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = if several {
            let call = client.scope(both());
            Box::pin(async move { call.await.unwrap() })
        } else {
            let lock = client.lock("k").wait(60 * SECOND);
            let enters = entered.clone();
            let body = async move { enters.store(true, Ordering::Release) };
            Box::pin(async move { lock.run(body).await.unwrap() })
        };
        Self { future, entered }
    }

    /// Polls the call once. Returns whether the call waits. On a busy machine, the nodes can answer before a poll ends,
    /// and the call enters. Then this function waits until the call has ended.
    async fn waits(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        if self.future.as_mut().poll(&mut cx).is_ready() {
            return false;
        }
        let entered = self.entered.load(Ordering::Acquire) || BOTH_ENTERED.load(Ordering::Acquire);
        if entered {
            self.future.as_mut().await;
        }
        !entered
    }
}

/// A majority of the nodes grants the lock to a waiter that is not polled. The engine gives the grants back after at
/// most a claim (2 s), and the waiter requests the lock again when it is polled.
#[tokio::test]
async fn a_waiter_that_is_not_polled_keeps_a_quorum_for_a_claim() {
    let quorum = Quorum::start(3).await;
    let (waiter, other) = (warm(&quorum.url()).await, warm(&quorum.url()).await);
    for several in [false, true] {
        let mut waiting = RareCall::new(&waiter, several);
        while !waiting.waits().await {
            waiting = RareCall::new(&waiter, several);
        }
        // Up to this point, the waiter was polled only once. This poll sends requests only to the nodes to which the
        // session is connected already.
        until(async || {
            let [first, second, third] = &quorum.servers[..] else {
                unreachable!("the quorum has three nodes");
            };
            is_held_on(first).await || is_held_on(second).await || is_held_on(third).await
        })
        .await;
        let asked = Instant::now();
        let guard = other.lock("k").wait(30 * SECOND).acquire().await.unwrap();
        let took = asked.elapsed();
        println!("a caller entered after {took:?}, while a waiter was not polled");
        assert!(took < CLAIM + BACKOFF + epsilon(), "{took:?}");
        assert!(waiting.waits().await, "the guard holds the lock");
        guard.release().await;
        waiting.future.await;
        for server in &quorum.servers {
            until_empty(server).await;
        }
    }
}

/// A waiter is polled so rarely that it misses each grant. Only the first missed grant delays other callers by 2 s (a
/// claim). The engine gives back each later grant after a shorter time.
#[tokio::test]
async fn a_waiter_that_misses_its_grants_keeps_a_quorum_for_less_time() {
    let quorum = Quorum::start(3).await;
    let (waiter, other) = (warm(&quorum.url()).await, warm(&quorum.url()).await);
    for several in [false, true] {
        let mut waiting = RareCall::new(&waiter, several);
        let mut missed = 0;
        while missed < 2 {
            // After a missed grant, the first poll of the waiter finds that the engine has given the grant back, and
            // requests the lock again. If a node has not answered the release of that grant yet, the waiter needs a
            // further poll.
            if !waiting.waits().await {
                (waiting, missed) = (RareCall::new(&waiter, several), 0);
                continue;
            }
            let held = until(async || is_held_on(&quorum.servers[0]).await);
            if timeout(500 * MS, held).await.is_err() {
                continue;
            }
            let asked = Instant::now();
            let guard = other.lock("k").wait(30 * SECOND).acquire().await.unwrap();
            let took = asked.elapsed();
            println!(
                "a caller entered after {took:?}, while a waiter that had missed {missed} grants was not polled"
            );
            let claim = CLAIM / 10_u32.pow(missed);
            assert!(took < claim + BACKOFF + epsilon(), "{missed}: {took:?}");
            guard.release().await;
            missed += 1;
        }
        waiting.future.await;
        for server in &quorum.servers {
            until_empty(server).await;
        }
    }
}

/// Calls that are dropped at any instant leave nothing on any node, whether the lock is free or held by another client.
#[tokio::test]
async fn calls_dropped_at_any_instant_leave_nothing_on_any_node() {
    let quorum = Quorum::start(3).await;
    let proxies = quorum.proxies().await;
    let (client, other) = (
        warm(&url_through(&proxies)).await,
        warm(&quorum.url()).await,
    );
    for (proxy, delay) in proxies.iter().zip([200, 500, 900]) {
        proxy.delay(Duration::from_micros(delay));
    }
    let mut dropped = 0;
    for round in 0..300 {
        let guard = match round % 3 {
            0 => Some(other.lock("k").wait(5 * SECOND).acquire().await.unwrap()),
            _ => None,
        };
        let call = client.lock("k").wait(5 * SECOND).run(sleep(MS));
        let after = Duration::from_micros(round * 30);
        dropped += usize::from(timeout(after, call).await.is_err());
        if round % 50 == 49 {
            proxies[0].cut();
        }
        drop(guard);
    }
    println!("{dropped} of 300 calls were dropped");
    assert!(dropped > 100);
    let ended = Instant::now();
    for server in &quorum.servers {
        until_empty(server).await;
    }
    println!("nothing is left after {:?}", ended.elapsed());
    assert!(
        ended.elapsed() < SECOND + epsilon(),
        "{:?}",
        ended.elapsed()
    );
    client.lock("k").wait(SECOND).run(async {}).await.unwrap();
}

/// A process is killed while it holds the lock. The other callers enter when the lease of the killed process has ended.
#[tokio::test]
async fn a_killed_holder_blocks_for_the_rest_of_its_lease() {
    let quorum = Quorum::start(3).await;
    let lease = 1500;
    let mut holder = worker_at(&quorum.url(), "hold", lease);
    let inside = holder.until("inside").await;
    let client = warm(&quorum.url()).await;
    let refused = client.lock("k").try_acquire().await;
    assert_busy(&refused);
    holder.kill();
    let killed = Instant::now();
    let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
    let took = killed.elapsed();
    println!("a caller entered {took:?} after the death of a holder with a lease of {lease} ms");
    assert!(
        took < Duration::from_millis(lease) + BACKOFF + epsilon(),
        "{took:?}"
    );
    let stale: u64 = inside.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(guard.token().get() > stale);
    guard.release().await;
}

/// A waiter enters soon after the holder's release. A waiter that is dropped leaves nothing on the nodes. When a client
/// is shut down, the calls of its waiters return an error.
#[tokio::test]
async fn whoever_waits_tries_again_until_it_enters_or_leaves() {
    let quorum = Quorum::start(3).await;
    let (holder, waiter) = (warm(&quorum.url()).await, warm(&quorum.url()).await);
    let waiting = || {
        let waiter = waiter.clone();
        tokio::spawn(async move { waiter.lock("k").wait(60 * SECOND).acquire().await })
    };
    let until_refused = async || {
        let before = waiter.stats().commands;
        // Waits until the caller has made two rounds of three requests each.
        until(async || waiter.stats().commands >= before + 6).await;
    };
    let guard = holder.lock("k").acquire().await.unwrap();
    let entering = waiting();
    until_refused().await;
    let released = Instant::now();
    guard.release().await;
    let guard = entering.await.unwrap().unwrap();
    let took = released.elapsed();
    println!("a waiter entered {took:?} after the release");
    assert!(took < BACKOFF + epsilon(), "{took:?}");
    assert_eq!(waiter.stats().waited, 1);

    let leaving = waiting();
    until_refused().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    guard.release().await;
    for server in &quorum.servers {
        until_empty(server).await;
    }

    let guard = holder.lock("k").acquire().await.unwrap();
    let refused = waiting();
    until_refused().await;
    waiter.shutdown().await;
    assert!(matches!(refused.await.unwrap(), Err(LockError::ShutDown)));
    guard.release().await;
    for server in &quorum.servers {
        until_empty(server).await;
    }
}

/// A call for two keys reads its grants when most of their lease is over, so the call gives the grants back and
/// requests the locks again. The servers have forgotten the script that gives back grants, so the client has to send
/// this script again. The script therefore runs after the second request, but does not end the grants of the second
/// request.
#[tokio::test]
async fn grants_that_are_given_back_do_not_end_the_next_ones() {
    let quorum = Quorum::start(3).await;
    let url = quorum.url();
    let (client, other) = (warm(&url).await, warm(&url).await);
    let mut read_late = 0;
    for round in 0.. {
        if read_late == 4 {
            break;
        }
        let keys = [format!("a{round}"), format!("b{round}")];
        let locks = client
            .locks(keys.clone())
            .lease(2 * SECOND)
            .wait(20 * SECOND);
        let mut call = Box::pin(locks.acquire());
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(guard) = call.as_mut().poll(&mut cx) {
            // On a busy machine, the engine can acquire the locks before this first poll returns.
            guard.unwrap().release().await;
            continue;
        }
        read_late += 1;
        let asked = Instant::now();
        for server in &quorum.servers {
            let stored = async || server.keys().await.iter().any(|key| key.contains(&keys[1]));
            until(stored).await;
            ask::<()>(
                &mut server.connection().await,
                redis::cmd("SCRIPT").arg("FLUSH"),
            )
            .await;
        }
        // The call for `other` makes the servers load the script that takes a lock, but not the script that gives back
        // a grant.
        other.lock("other").run(async {}).await.unwrap();
        sleep((1600 * MS).saturating_sub(asked.elapsed())).await;
        let guard = call.await.unwrap();
        for key in &keys {
            // On a busy machine, the servers can answer this call too late.
            let refused = other.lock(key.as_str()).wait(100 * MS).acquire().await;
            assert!(refused.is_err(), "{refused:?}");
        }
        guard.release().await;
    }
    assert_eq!(client.stats().lost, 0);
}

/// Two of three nodes do not answer for a while. A call for two keys waits for these nodes, as a call for one key does.
#[tokio::test]
async fn several_keys_wait_for_a_majority_that_does_not_answer() {
    let quorum = Quorum::start(3).await;
    let client = warm(&quorum.url()).await;
    for server in &quorum.servers[1..] {
        server.stop_process();
    }
    let call = client
        .locks(["a", "b"])
        .lease(SECOND)
        .wait(20 * SECOND)
        .acquire();
    let (guard, ()) = tokio::join!(call, async {
        sleep(700 * MS).await;
        for server in &quorum.servers[1..] {
            server.continue_process();
        }
    });
    guard.unwrap().release().await;
}

/// Another caller has the lock on half of the nodes, so neither caller can get a majority. The call under test returns
/// `Busy`, and gives back its grants on the other half of the nodes.
#[tokio::test]
async fn callers_that_share_the_nodes_are_busy() {
    let quorum = Quorum::start(4).await;
    let client = warm(&quorum.url()).await;
    for others in [0..2, 2..4] {
        for server in &quorum.servers[others.clone()] {
            let mut node = server.connection().await;
            ask::<()>(&mut node, redis::cmd("SET").arg(NAME).arg(OTHERS_GRANT)).await;
        }
        let busy = client.lock("k").try_acquire().await;
        assert_busy(&busy);
        for (number, server) in quorum.servers.iter().enumerate() {
            if others.contains(&number) {
                let mut node = server.connection().await;
                ask::<()>(&mut node, redis::cmd("DEL").arg(NAME)).await;
            }
            until_empty(server).await;
        }
    }
}
