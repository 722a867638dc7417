//! Rows 49 to 51 of `docs/faults.md`: callers that are polled late, only once more, or never again, and answers that
//! arrive late.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{LocalBoxFuture, join_all},
};
use lock_runtime::{Hold, Lock, LockClient, LockError, Strategy, distributed_lock};
use support::{matrix::row, poll_unread, proxy::FaultProxy, server::RedisServer};
use tokio::time::sleep;

use crate::fixture::{MS, SECOND, client, until};

/// The longest time for which a waiter that is not polled can delay others: the length of a claim (2 s), plus 200 ms
/// until the next heartbeat notices the end of the claim.
const DELAY: Duration = Duration::from_millis(2200);

/// The time without an answer of the server after which a body can have lost its lease. A body begins with two thirds of
/// its claim (2 s), and the engine confirms the grant 0.1 s later.
const STALL: Duration = Duration::from_secs(1);

/// Asserts that no body begins while another body runs under the lock, and that tokens rise. On a busy machine, the
/// engine's thread or the server can be stopped for so long that a lease ends. A body that is not polled then runs on.
#[derive(Debug, Default)]
struct Judge {
    inside: AtomicBool,
    entered: Mutex<Vec<(&'static str, u64, Instant)>>,
    /// The moments at which the server has answered the engine's thread; empty if nobody asks.
    answered: Mutex<Vec<Instant>>,
}

/// A body that runs. It has ended when this value is dropped, so also when its lease is lost.
struct Inside(Arc<Judge>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::SeqCst);
    }
}

impl Judge {
    /// Runs as the body of a call, and holds the lock for `time`.
    async fn body(self: Arc<Self>, who: &'static str, time: Duration) {
        let token = Hold::current().expect("a body has a hold").token().get();
        let is_taken = self.inside.swap(true, Ordering::SeqCst);
        {
            let mut entered = self.entered.lock().unwrap();
            assert!(
                !is_taken || self.has_stalled(entered.last().unwrap().2),
                "{who} entered {:?} after another caller that held the lock: {entered:?}",
                entered.last().unwrap().2.elapsed()
            );
            let newest = entered.last().map_or(0, |(_, token, _)| *token);
            assert!(token > newest, "{who} got token {token} after {entered:?}");
            entered.push((who, token, Instant::now()));
        }
        let _inside = Inside(self);
        sleep(time).await;
    }

    /// Lets the engine's thread ask the server again and again, until the judge is dropped.
    fn watch(judge: &Arc<Self>, client: LockClient) {
        let judge = Arc::downgrade(judge);
        tokio::spawn(async move {
            while judge.strong_count() > 0 {
                let answer = client.ping(60 * SECOND).await;
                if let (Ok(()), Some(judge)) = (answer, judge.upgrade()) {
                    judge.answered.lock().unwrap().push(Instant::now());
                }
                sleep(100 * MS).await;
            }
        });
    }

    /// Returns whether the server has not answered the engine's thread for [`STALL`] since `begun`.
    fn has_stalled(&self, begun: Instant) -> bool {
        let mut answered = self.answered.lock().unwrap().clone();
        answered.push(Instant::now());
        let mut gaps = answered.windows(2);
        gaps.any(|gap| gap[1] > begun && gap[1] - gap[0] >= STALL)
    }

    /// Asserts that a call of [`polled_late`] was not lost, unless there was a stall.
    fn ended(&self, who: &str, result: Result<(), LockError>) {
        match result {
            Ok(()) => {}
            Err(LockError::Lost { .. }) => assert!(self.has_stalled(self.when(who)), "{who}"),
            Err(error) => panic!("{who}: {error}"),
        }
    }

    fn when(&self, who: &str) -> Instant {
        let entered = self.entered.lock().unwrap();
        let found = entered.iter().find(|(name, ..)| *name == who);
        found
            .unwrap_or_else(|| panic!("{who} did not enter: {entered:?}"))
            .2
    }
}

async fn until_waiting(lock: &Lock, waiters: usize) {
    until(async || lock.status().await.unwrap().waiters == waiters).await;
}

/// Polls a future once, with a waker that does nothing. Returns whether the future is ready.
fn poll(future: Pin<&mut (impl Future + ?Sized)>) -> bool {
    future
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

/// Polls a call until it is in the queue and the queue contains this number of waiters.
async fn queue(mut future: Pin<&mut impl Future>, lock: &Lock, waiters: usize) {
    until(async || {
        assert!(!poll(future.as_mut()), "the call did not wait");
        lock.status().await.unwrap().waiters == waiters
    })
    .await;
    // The reply to the call has arrived before the answer to `status`, so in this poll the call learns that it is
    // queued.
    assert!(!poll(future.as_mut()), "the call did not wait");
}

/// Three clients that use the same lock. Each client stands for a process: the first holder, a process whose callers
/// are polled late, and another process.
struct Three {
    holder: Lock,
    slow: Lock,
    other: Lock,
    judge: Arc<Judge>,
}

impl Three {
    async fn on(server: &RedisServer, key: &str) -> Self {
        let lock = async || client(&server.url()).await.lock(key).wait(60 * SECOND);
        let judge = Arc::default();
        Judge::watch(&judge, client(&server.url()).await);
        Self {
            holder: lock().await,
            slow: lock().await,
            other: lock().await,
            judge,
        }
    }

    fn call(&self, lock: &Lock, who: &'static str, time: Duration) -> tokio::task::JoinHandle<()> {
        let (lock, judge) = (lock.clone(), self.judge.clone());
        tokio::spawn(async move {
            let result = lock.run(judge.clone().body(who, time)).await;
            judge.ended(who, result);
        })
    }
}

/// Queues a late caller, then a caller of the same process if `neighbour` is set, and then a caller of another process.
/// The late caller is polled once after each of the two `gaps`, in ms, and then normally.
async fn polled_late(server: &RedisServer, key: &str, gaps: [u32; 2], neighbour: bool) {
    let three = Three::on(server, key).await;
    let guard = three.holder.acquire().await.unwrap();
    let mut late = Box::pin(three.slow.run(three.judge.clone().body("late", 100 * MS)));
    queue(late.as_mut(), &three.slow, 1).await;
    let mut others = Vec::new();
    if neighbour {
        others.push(three.call(&three.slow, "neighbour", 1000 * MS));
        until_waiting(&three.slow, 2).await;
    }
    others.push(three.call(&three.other, "other", 400 * MS));
    until_waiting(&three.slow, 2 + usize::from(neighbour)).await;
    guard.release().await;
    let mut ended = false;
    for gap in gaps {
        sleep(gap * MS).await;
        ended = ended || poll(late.as_mut());
    }
    if !ended {
        three.judge.ended("late", late.await);
    }
    for other in others {
        other.await.unwrap();
    }
    for who in ["late", "other"] {
        three.judge.when(who);
    }
}

/// Row 49 of `docs/faults.md`: a waiter is polled late at any of its awaits, alone and in a cohort. All callers enter,
/// one at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_49_polled_late() {
    row(49, async |_| {
        let server = RedisServer::start().await;
        let gaps = [0, 300, 700, 1000, 1400, 1900, 2100, 2600, 4200];
        let scenarios = gaps.into_iter().flat_map(|first| {
            let seconds = [(600, false), (800, true), (1600, true), (2300, true)];
            seconds.map(|(second, neighbour)| {
                let (server, key) = (&server, format!("{first} {second}"));
                async move { polled_late(server, &key, [first, second], neighbour).await }
            })
        });
        join_all(scenarios).await;
    })
    .await;
}

/// Row 49 of `docs/faults.md`: a caller is not polled when the answer that grants it the lock arrives. When the caller
/// is polled again, it enters after the callers that have entered in the meantime.
#[tokio::test]
async fn row_49_an_answer_is_read_late() {
    row(49, async |seen| {
        let server = RedisServer::start().await;
        let any = client(&server.url()).await;
        for strategy in [Strategy::Handoff, Strategy::Spin] {
            let three = Three::on(&server, "k").await;
            let lock = three.slow.clone().strategy(strategy);
            let mut late = Box::pin(lock.run(three.judge.clone().body("late", 10 * MS)));
            assert!(!poll_unread(&any, late.as_mut()).await);
            until(async || three.slow.status().await.unwrap().holder.is_some()).await;
            let granted = Instant::now();
            three.call(&three.other, "other", 10 * MS).await.unwrap();
            seen.within(
                "another caller enters",
                DELAY,
                three.judge.when("other") - granted,
            );
            late.await.unwrap();
            assert!(three.judge.when("late") > three.judge.when("other"));
        }
    })
    .await;
}

/// Queues four callers of one process, of which the first has a body of `body` ms. The replies to that process stall
/// once, for `time` ms, beginning `begin` ms after the holder's release.
async fn replies_stall(server: &RedisServer, key: &str, begin: u32, time: u32, body: u32) {
    let proxy = FaultProxy::start(server.port()).await;
    let judge = Arc::new(Judge::default());
    let holder = client(&server.url()).await.lock(key).wait(60 * SECOND);
    let lock = client(&proxy.url()).await.lock(key).wait(60 * SECOND);
    let guard = holder.acquire().await.unwrap();
    let mut calls = Vec::new();
    for (number, who) in ["first", "second", "third", "fourth"]
        .into_iter()
        .enumerate()
    {
        let (lock, judge) = (lock.clone(), judge.clone());
        let time = if number == 0 { body } else { 300 };
        calls.push(tokio::spawn(async move {
            lock.run(judge.body(who, time * MS)).await
        }));
        until_waiting(&holder, number + 1).await;
    }
    guard.release().await;
    sleep(begin * MS).await;
    proxy.hold_replies(true);
    sleep(time * MS).await;
    proxy.hold_replies(false);
    for call in calls {
        match call.await.unwrap() {
            // If the stall lasts until the client's own deadline for the lease, the lease is lost at that deadline.
            Ok(()) | Err(LockError::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Row 50 of `docs/faults.md`: replies stall once, around a grant, a confirmation, a renewal or a release. If the lease
/// of a running body ends during the stall, that body ends before the next caller enters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_50_replies_stall() {
    row(50, async |_| {
        let server = RedisServer::start().await;
        let scenarios = [0, 40, 95].into_iter().flat_map(|begin| {
            [1500, 1990, 2080, 2120, 2600, 3000].map(|time| {
                let (server, key) = (&server, format!("{begin} {time}"));
                async move { replies_stall(server, &key, begin, time, 1900).await }
            })
        });
        join_all(scenarios).await;
    })
    .await;
}

/// Row 51 of `docs/faults.md`: a waiter is never polled again, alone and in a cohort. The other callers enter after a
/// claim (2 s), however long the lease is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_forgotten() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        for neighbours in [false, true] {
            let three = Three::on(&server, if neighbours { "many" } else { "one" }).await;
            let guard = three.holder.acquire().await.unwrap();
            let mut calls = Vec::new();
            if neighbours {
                calls.push(three.call(&three.slow, "before", 300 * MS));
                until_waiting(&three.slow, 1).await;
            }
            let mut forgotten = Box::pin(three.slow.run(async { unreachable!("not polled") }));
            queue(forgotten.as_mut(), &three.slow, calls.len() + 1).await;
            if neighbours {
                calls.push(three.call(&three.slow, "behind", 10 * MS));
                until_waiting(&three.slow, 3).await;
            }
            calls.push(three.call(&three.other, "other", 10 * MS));
            until_waiting(&three.slow, calls.len() + 1).await;
            let released = Instant::now();
            guard.release().await;
            for call in calls {
                call.await.unwrap();
            }
            let bodies = if neighbours { 310 * MS } else { Duration::ZERO };
            let took = three.judge.when("other") - released;
            seen.within("the other process enters", DELAY + bodies, took);
            if neighbours {
                let took = three.judge.when("behind") - released;
                seen.within("its neighbour enters", DELAY + bodies, took);
            }
        }
    })
    .await;
}

/// Row 51 of `docs/faults.md`: a waiter is not polled while its own task waits for the same lock in another call, as
/// can happen with `select!`. The other call enters after a claim (2 s).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_the_other_branch_wants_the_same_lock() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        let three = Three::on(&server, "k").await;
        let guard = three.holder.acquire().await.unwrap();
        let before = three.call(&three.slow, "before", 300 * MS);
        until_waiting(&three.slow, 1).await;
        let mut first = Box::pin(three.slow.run(three.judge.clone().body("first", 10 * MS)));
        queue(first.as_mut(), &three.slow, 2).await;
        let released = Instant::now();
        guard.release().await;
        before.await.unwrap();
        three
            .slow
            .run(three.judge.clone().body("branch", 10 * MS))
            .await
            .unwrap();
        let took = three.judge.when("branch") - released;
        seen.within("the other branch enters", DELAY + 300 * MS, took);
        first.await.unwrap();
    })
    .await;
}

/// Row 51 of `docs/faults.md`: the `wait` of a call is over, and the call is not polled. The release of the holder removes
/// the call from the queue, and the engine does not queue the call again.
#[tokio::test]
async fn row_51_the_wait_of_a_forgotten_call_is_over() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        let three = Three::on(&server, "k").await;
        let guard = three.holder.acquire().await.unwrap();
        let lock = three.slow.clone().wait(300 * MS);
        let mut forgotten = Box::pin(lock.run(async { unreachable!("not polled") }));
        queue(forgotten.as_mut(), &three.slow, 1).await;
        // The engine counts the call as over one second after its `wait`.
        sleep(1300 * MS + SECOND / 2).await;
        guard.release().await;
        // Meanwhile, the session of the call would probe the lock several times.
        sleep(SECOND / 2).await;
        let asked = Instant::now();
        let enters = three.call(&three.other, "other", 10 * MS);
        enters.await.unwrap();
        let took = three.judge.when("other") - asked;
        let what = "another caller enters after the `wait` of a forgotten call";
        seen.within(what, SECOND / 2, took);
    })
    .await;
}

#[distributed_lock(client = client, keys = ["a", "b"])]
async fn both(client: &LockClient) -> Result<(), LockError> {
    Ok(())
}

/// Row 51 of `docs/faults.md`: a caller never reads the reply that grants it the lock. The tested calls are a waiting
/// call, a call with a `wait` of zero, and a call with several keys.
// The runtime has a single thread, so no answer arrives during a poll.
#[tokio::test]
async fn row_51_an_answer_is_never_read() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        let (slow, other) = (client(&server.url()).await, client(&server.url()).await);
        let (a, b) = (slow.lock("a"), slow.lock("b").wait(Duration::ZERO));
        let calls: [(LocalBoxFuture<'_, ()>, &[&str]); 3] = [
            (a.acquire().map(drop).boxed_local(), &["a"]),
            (b.acquire().map(drop).boxed_local(), &["b"]),
            (both(&slow).map(drop).boxed_local(), &["a", "b"]),
        ];
        for (mut forgotten, keys) in calls {
            assert!(!poll_unread(&other, forgotten.as_mut()).await);
            let sent = Instant::now();
            for key in keys {
                let lock = other.lock(*key).wait(60 * SECOND);
                until(async || lock.status().await.unwrap().holder.is_some()).await;
            }
            for key in keys {
                let lock = other.lock(*key).wait(60 * SECOND);
                lock.acquire().await.unwrap().release().await;
            }
            seen.within("another caller enters", DELAY, sent.elapsed());
        }
    })
    .await;
}

/// Row 51 of `docs/faults.md`: after the body of a call has ended, the call is polled only once more, although its
/// release takes several steps. The next member of the cohort enters nevertheless. If the call has a minimum hold, the
/// next member of the cohort enters when the minimum hold is over. If the call has extended its lease, the next member
/// of the cohort enters with a lease of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_a_release_is_never_polled() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        for stretched in [false, true] {
            let three = Three::on(&server, if stretched { "stretched" } else { "kept" }).await;
            let guard = three.holder.acquire().await.unwrap();
            let mut lock = three.slow.clone().lease(15 * SECOND);
            if !stretched {
                lock = lock.hold_at_least(SECOND);
            }
            let (ends, ended) = (AtomicBool::new(false), AtomicBool::new(false));
            let mut call = Box::pin(lock.run(async {
                if stretched {
                    let hold = Hold::current().unwrap();
                    hold.extend(30 * SECOND).await.unwrap();
                }
                while !ends.load(Ordering::SeqCst) {
                    sleep(MS).await;
                }
                ended.store(true, Ordering::SeqCst);
            }));
            queue(call.as_mut(), &three.slow, 1).await;
            let slow = three.slow.clone().lease(15 * SECOND);
            let neighbour = three.call(&slow, "neighbour", 10 * MS);
            until_waiting(&three.slow, 2).await;
            let other = three.call(&three.other, "other", 10 * MS);
            until_waiting(&three.slow, 3).await;
            guard.release().await;
            let begun = Instant::now();
            while begun.elapsed() < 300 * MS {
                assert!(!poll(call.as_mut()), "the call ended before its body");
                sleep(5 * MS).await;
            }
            ends.store(true, Ordering::SeqCst);
            while !ended.load(Ordering::SeqCst) {
                sleep(MS).await;
                poll(call.as_mut());
            }
            let ended = Instant::now();
            neighbour.await.unwrap();
            other.await.unwrap();
            let took = three.judge.when("other") - ended;
            seen.within("all other callers enter", SECOND, took);
        }
    })
    .await;
}

/// Row 51 of `docs/faults.md`: a call has been granted a lock, and is never polled again. The body of the call has not
/// begun yet, because the call waits for another lock. Another caller enters.
#[tokio::test]
async fn row_51_no_body_begins() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        let (slow, other) = (client(&server.url()).await, client(&server.url()).await);
        let guard = other.lock("b").acquire().await.unwrap();
        let mut waiting = Box::pin(both_soon(&slow));
        until(async || {
            assert!(!poll(waiting.as_mut()));
            let status = async |key: &str| other.lock(key).status().await.unwrap();
            status("a").await.holder.is_some() && status("b").await.waiters == 1
        })
        .await;
        let forgotten = Instant::now();
        let lock = other.lock("a").wait(60 * SECOND);
        lock.acquire().await.unwrap().release().await;
        let took = forgotten.elapsed();
        seen.within(
            "another caller enters after a call that waited for a second lock",
            SECOND + DELAY,
            took,
        );
        guard.release().await;
    })
    .await;
}

#[distributed_lock(client = client, keys = ["a", "b"], wait = "1s")]
async fn both_soon(client: &LockClient) -> Result<(), LockError> {
    Ok(())
}

/// Row 51 of `docs/faults.md`: the `wait` of a caller ends while the request that queues the caller is unanswered. The
/// caller is polled twice more, and then never again. The other callers of its process are not delayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_forgotten_while_it_leaves() {
    row(51, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (holder, process) = (client(&server.url()).await, client(&proxy.url()).await);
        let guard = holder.lock("k").acquire().await.unwrap();
        let lock = process.lock("k").wait(60 * SECOND);
        let enter = |lock: Lock| async move { lock.run(async {}).await.unwrap() };
        let first = tokio::spawn(enter(lock.clone()));
        until_waiting(&holder.lock("k"), 1).await;
        let leaves = lock.clone().wait(700 * MS);
        let mut leaving = Box::pin(leaves.run(async {}));
        // The stall exceeds the silence limit of a connection (2 s), so the client closes the connection and resends
        // the requests over a new one.
        proxy.hold_replies(true);
        assert!(!poll(leaving.as_mut()));
        let second = tokio::spawn(enter(lock.clone()));
        // The session queues the second caller either in the same request as the caller that leaves, or in the next
        // request.
        until(async || holder.lock("k").status().await.unwrap().waiters >= 2).await;
        sleep(2600 * MS).await;
        proxy.hold_replies(false);
        let third = tokio::spawn(enter(lock));
        // The engine has removed the caller that is no longer polled, because its `wait` is over.
        until_waiting(&holder.lock("k"), 3).await;
        let released = Instant::now();
        guard.release().await;
        for call in [first, second, third] {
            call.await.unwrap();
        }
        seen.within(
            "the other callers of its process enter",
            Duration::ZERO,
            released.elapsed(),
        );
    })
    .await;
}
