//! Rows 4 to 8 and 34 of `docs/faults.md`: bodies that block, hang or panic, calls that are dropped, and concurrent
//! calls of one task.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use lock_runtime::{Hold, LockClient, LockError, distributed_lock};
use support::{assert_lost, server::RedisServer};

use crate::fixture::{MS, NAME, SECOND, client, grant, left, row, until};

/// Returns how much of the lease of `k` is left. This function blocks, so tests call it on a separate thread.
fn time_to_live(redis: &mut redis::Connection) -> Duration {
    let left: i64 = redis::cmd("PTTL").arg(NAME).query(redis).unwrap();
    Duration::from_millis(left.try_into().unwrap_or(0))
}

/// Row 4 of `docs/faults.md`: every thread of the holder's runtime is blocked for ten times the length of a lease. The
/// engine renews the lease nevertheless.
#[tokio::test]
async fn row_04_runtime_blocked() {
    const LEASE: Duration = SECOND;
    row(4, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let mut redis = redis::Client::open(server.url())
            .unwrap()
            .get_connection()
            .unwrap();
        let lock = client.lock("k").lease(LEASE).renew(true);
        let longest_gap = lock.run(async {
            let watching = thread::spawn(move || {
                let end = Instant::now() + 10 * LEASE;
                let (mut renewed, mut longest) = (Instant::now(), Duration::ZERO);
                let mut newest = time_to_live(&mut redis);
                while Instant::now() < end {
                    let left = time_to_live(&mut redis);
                    assert!(!left.is_zero(), "the lock was lost");
                    if left > newest {
                        longest = longest.max(renewed.elapsed());
                        renewed = Instant::now();
                    }
                    newest = left;
                    thread::sleep(MS);
                }
                longest
            });
            // Blocks the only thread of this runtime.
            watching.join().unwrap()
        });
        let longest_gap = longest_gap.await.unwrap();
        seen.within(
            "the time between two renewals",
            LEASE / 3 + 50 * MS,
            longest_gap,
        );
    })
    .await;
}

/// Row 5 of `docs/faults.md`: a body hangs, and `max_hold` ends the renewal of its lease. The next caller enters at
/// most one lease after `max_hold`.
#[tokio::test]
async fn row_05_body_hangs() {
    row(5, async |seen| {
        let server = RedisServer::start().await;
        let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
        let lock = holder.lock("k").lease(SECOND).renew(true).max_hold(SECOND);
        let start = Instant::now();
        let hanging = lock.run(std::future::pending::<()>());
        let next = async {
            until(async || grant(&server).await.is_some()).await;
            let lock = other.lock("k").wait(20 * SECOND);
            lock.run(async { start.elapsed() }).await.unwrap()
        };
        let (lost, entered) = tokio::join!(hanging, next);
        assert_lost(&lost);
        seen.within(
            "the next caller enters after the grant",
            2 * SECOND,
            entered,
        );
    })
    .await;
}

#[distributed_lock(key = "k")]
async fn panics() -> Result<(), LockError> {
    tokio::task::yield_now().await;
    panic!("the panic of this test");
}

/// Row 6 of `docs/faults.md`: a body panics, and the engine releases its lock at once, with exactly one script.
#[tokio::test]
async fn row_06_body_panics() {
    row(6, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let before = server.scripts().await;
        let panicked = tokio::spawn(client.scope(panics()));
        assert!(panicked.await.unwrap_err().is_panic());
        let start = Instant::now();
        until(async || left(&server).await.is_empty()).await;
        seen.within(
            "the lock is free after the panic",
            Duration::ZERO,
            start.elapsed(),
        );
        assert_eq!(server.scripts().await, before + 2);
    })
    .await;
}

/// Awaits five times while it holds the lock, and counts the awaits that have completed.
#[distributed_lock(key = "k")]
async fn five_awaits(passed: &std::cell::Cell<usize>) -> Result<(), LockError> {
    for _ in 0..5 {
        tokio::task::yield_now().await;
        passed.set(passed.get() + 1);
    }
    Ok(())
}

#[tokio::test]
async fn row_07_body_dropped_at_each_await() {
    row(7, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        for at in 0..5 {
            let passed = std::cell::Cell::new(0);
            {
                let mut call = pin!(client.scope(five_awaits(&passed)));
                let mut inside = false;
                // Polls the call by hand until its body has reached the await with the number `at`.
                while !inside || passed.get() < at {
                    let poll = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    assert_eq!(poll, Poll::Pending);
                    inside = grant(&server).await.is_some();
                }
            }
            let dropped = Instant::now();
            assert!(Hold::current().is_none());
            until(async || left(&server).await.is_empty()).await;
            seen.within(
                "the lock is free after the drop",
                Duration::ZERO,
                dropped.elapsed(),
            );
        }
    })
    .await;
}

static INSIDE: AtomicUsize = AtomicUsize::new(0);

#[distributed_lock(key = "sibling", wait = "20s")]
async fn sibling() -> Result<(), LockError> {
    assert_eq!(
        INSIDE.fetch_add(1, Ordering::SeqCst),
        0,
        "two siblings are inside"
    );
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}

#[distributed_lock(key = "sibling")]
async fn ancestor() -> Result<(), LockError> {
    siblings().await
}

async fn siblings() -> Result<(), LockError> {
    let (a, b, c) = tokio::join!(sibling(), sibling(), sibling());
    a.and(b).and(c)
}

/// Row 34 of `docs/faults.md`: one task runs several calls for the same key concurrently. The calls take turns, with
/// and without an enclosing call that holds the key.
#[tokio::test]
async fn row_34_siblings() {
    row(34, async |_| {
        let server = RedisServer::start().await;
        let client: LockClient = client(&server.url()).await;
        for _ in 0..10 {
            client.scope(siblings()).await.unwrap();
            client.scope(ancestor()).await.unwrap();
        }
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}
