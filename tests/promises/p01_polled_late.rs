//! Promise 1: two holds of one key never overlap, however late callers are polled.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{join, join_all},
};
use lock_runtime::{Lock, LockClient, LockError, distributed_lock};
use proptest::prelude::*;
use support::{
    assert_busy, epsilon, poll_unread,
    server::{RedisServer, ask},
};

use crate::{
    chance,
    stores::{MS, SECOND, Store, hold, on_stores_with_a_queue, until, until_free, until_waiting},
};

/// The maximum time by which a caller that is not polled delays others: a claim (2 s), plus at most 200 ms until the
/// next heartbeat notices the end of the claim.
const DELAY: Duration = Duration::from_millis(2200);

/// Polls a future once and returns whether it is ready.
pub(crate) async fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// A caller is granted the lock, but does not read its reply yet. Another caller of the same process queues, and the
/// reply to the other caller describes the first caller's grant too. The process has to recognize that this grant
/// belongs to the first caller. The first caller keeps the lock, and the other caller waits.
#[tokio::test]
async fn a_grant_that_its_owner_reads_late_is_its_own() {
    let store = Store::redis().await;
    let (client, observer) = (store.client().await, store.client().await);
    client.lock("warm").acquire().await.unwrap().release().await;

    let lock = client.lock("k").wait(20 * SECOND);
    let acquired = |lock: Lock| async move { lock.acquire().await };
    let mut late = Box::pin(acquired(lock.clone()));
    assert!(!poll_unread(&client, late.as_mut()).await);
    let status = async || observer.lock("k").status().await.unwrap();
    until(async || status().await.holder.is_some()).await;
    let other = tokio::spawn(acquired(lock));
    until(async || status().await.waiters == 1).await;
    // After this pause, the client has also read the server's reply to the call `other`.
    tokio::time::sleep(100 * MS).await;

    let guard = late.await.unwrap();
    // This sleep is longer than an offer lasts.
    tokio::time::sleep(3 * SECOND).await;
    assert!(guard.loss().is_none());
    assert!(!other.is_finished(), "both callers hold the lock");
    let token = guard.token();
    guard.release().await;
    let other = other.await.unwrap().unwrap();
    assert!(other.token() > token);
    other.release().await;
}

/// Polls a future of this client until `waiters` callers wait for the key and the future has read the reply with its
/// place in the queue.
async fn poll_until_waiting<T>(
    future: &mut Pin<Box<impl Future<Output = T>>>,
    client: &LockClient,
    key: &str,
    waiters: usize,
) {
    until(async || {
        assert!(!poll_once(future).await, "the call did not wait");
        // The status uses the same connection as the future's request, so the status arrives after the reply to that
        // request.
        let status = client.lock(key).status().await.unwrap();
        status.waiters == waiters
    })
    .await;
    assert!(!poll_once(future).await, "the call did not wait");
}

#[distributed_lock(client = client, keys = ["<one>", "<other>"], wait = "1s")]
async fn renewed(
    client: &LockClient,
    one: &str,
    other: &str,
    ran: &AtomicBool,
) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

#[distributed_lock(client = client, keys = ["<one>", "<other>"], wait = "1s", lease = "30s")]
async fn fixed(
    client: &LockClient,
    one: &str,
    other: &str,
    ran: &AtomicBool,
) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

/// Stops polling a call that has the first of its two locks and waits for the second. If `granted` is set, the call is
/// then granted the second lock too. Asserts that both locks pass to other callers in time.
async fn forgotten_between(
    store: &Store,
    [one, two]: [&str; 2],
    granted: bool,
    call: impl AsyncFn(&LockClient, &str, &str, &AtomicBool) -> Result<(), LockError>,
) {
    let [client, other] = store.clients().await;
    let guard = hold(&other, two).await;
    let ran = AtomicBool::new(false);
    let mut forgotten = Box::pin(call(&client, one, two, &ran));
    poll_until_waiting(&mut forgotten, &client, two, 1).await;
    let started = Instant::now();
    let mut guard = Some(guard);
    if granted {
        guard.take().unwrap().release().await;
        guard = Some(other.lock(two).wait(20 * SECOND).acquire().await.unwrap());
        let took = started.elapsed();
        assert!(took < DELAY + epsilon(), "{two} after {took:?}");
    }
    let taken = other.lock(one).wait(20 * SECOND).acquire().await.unwrap();
    // The lock passes to the next caller at most a claim (2 s) after the end of the call's `wait`.
    let took = started.elapsed();
    assert!(took < SECOND + DELAY + epsilon(), "{one} after {took:?}");
    // The call is polled again after its `wait` is over. The call then returns `Busy`, and holds neither lock.
    guard.unwrap().release().await;
    taken.release().await;
    let late = forgotten.await;
    assert_busy(&late);
    assert!(!ran.into_inner(), "the body ran on an old grant");
    assert_eq!(
        client.stats().lost,
        0,
        "the client counted a loss of a lock that no body used"
    );
    until_free(&other, one).await;
    until_free(&other, two).await;
}

/// A call for two locks is not polled while it waits for the second lock. The locks of the call pass to other callers,
/// whether the lease is renewed or fixed, and even if the second lock is granted to the call in the meantime.
#[tokio::test]
async fn a_lock_whose_body_has_not_begun_is_passed_on() {
    on_stores_with_a_queue(|store| async move {
        join(
            join(
                forgotten_between(&store, ["a", "b"], false, renewed),
                forgotten_between(&store, ["c", "d"], true, renewed),
            ),
            forgotten_between(&store, ["e", "f"], false, fixed),
        )
        .await;
    })
    .await;
}

/// Two neighbours in the queue are no longer polled. Each of the two neighbours delays the callers behind it by at most
/// one claim (2 s). When the two neighbours are polled again, they get their old places back.
#[tokio::test]
async fn callers_that_are_forgotten_one_behind_the_other_are_passed_over() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "k").await;
        let acquired = |client: &LockClient| {
            let lock = client.lock("k").wait(20 * SECOND);
            Box::pin(async move { lock.acquire().await.unwrap() })
        };
        let mut forgotten = [acquired(&client), acquired(&client)];
        for (place, call) in forgotten.iter_mut().enumerate() {
            poll_until_waiting(call, &client, "k", place + 1).await;
        }
        let next = tokio::spawn(acquired(&other));
        until_waiting(&other, "k", 3).await;
        let released = Instant::now();
        guard.release().await;
        let guard = next.await.unwrap();
        let took = released.elapsed();
        assert!(took < 2 * DELAY + epsilon(), "{took:?}");

        let last = tokio::spawn(acquired(&other));
        until_waiting(&other, "k", 1).await;
        for (place, call) in forgotten.iter_mut().enumerate() {
            poll_until_waiting(call, &client, "k", place + 2).await;
        }
        let mut tokens = vec![guard.token()];
        guard.release().await;
        for call in forgotten {
            let guard = call.await;
            tokens.push(guard.token());
            guard.release().await;
        }
        let guard = last.await.unwrap();
        tokens.push(guard.token());
        guard.release().await;
        assert!(tokens.is_sorted(), "{tokens:?}");
    })
    .await;
}

/// A caller that is not polled loses its turn before it has read the reply with its place in the queue. When the caller
/// is polled again, it gets its place back.
#[tokio::test]
async fn a_caller_comes_back_to_a_place_of_which_it_has_not_read() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        client.lock("k").acquire().await.unwrap().release().await;
        let guard = hold(&other, "k").await;
        let acquired = |client: &LockClient| {
            let lock = client.lock("k").wait(20 * SECOND);
            Box::pin(async move { lock.acquire().await.unwrap() })
        };
        let mut late = acquired(&client);
        assert!(!poll_once(&mut late).await);
        until_waiting(&other, "k", 1).await;
        let next = tokio::spawn(acquired(&other));
        until_waiting(&other, "k", 2).await;
        guard.release().await;
        let between = next.await.unwrap();

        let last = tokio::spawn(acquired(&other));
        until_waiting(&other, "k", 1).await;
        poll_until_waiting(&mut late, &client, "k", 2).await;
        between.release().await;
        let guard = late.await;
        assert!(!last.is_finished(), "the last caller entered first");
        guard.release().await;
        last.await.unwrap().release().await;
    })
    .await;
}

proptest! {
    /// However late callers are polled, no two of them hold the lock at once, and callers that are not polled do not
    /// keep others out.
    #[test]
    fn callers_that_are_polled_by_chance_exclude_each_other((steps, long) in chance::steps()) {
        chance::runtime().block_on(async {
            let client = Store::memory().client().await;
            chance::poll(&client, steps, long, &["a", "b"]).await;
            assert_eq!(client.stats().lost, 0);
        });
    }
}

/// A call is polled so rarely that too little of its lease is left for the body whenever it reads an answer. If the
/// call is polled every 450 ms, it enters nevertheless, because the engine renews its lease until the body begins. If
/// the call is polled every 1.9 s, which is almost a claim (2 s), it is allowed to end without entering. In both cases,
/// the call delays another caller by at most a claim (2 s).
#[tokio::test]
async fn a_call_that_is_polled_rarely_enters_or_gives_way() {
    for (lease, pause, enters) in [(SECOND, 450 * MS, true), (3 * SECOND, 1900 * MS, false)] {
        let store = Store::redis().await;
        let [client, other] = store.clients().await;
        hold(&client, "before").await.release().await;
        let started = Instant::now();
        let rare = client.lock("k").wait(5 * SECOND).lease(lease);
        let mut rare = Box::pin(rare.run(async { started.elapsed() }).boxed());
        assert!(!poll_unread(&client, rare.as_mut()).await);
        let next = tokio::spawn(async move {
            tokio::time::sleep(100 * MS).await;
            let guard = other.lock("k").wait(20 * SECOND).acquire().await.unwrap();
            let entered = started.elapsed();
            guard.release().await;
            entered
        });
        let entered = loop {
            tokio::time::sleep(pause).await;
            if let Some(entered) = (&mut rare).now_or_never() {
                break entered;
            }
            let took = started.elapsed();
            assert!(
                took < 5 * SECOND + 3 * pause,
                "the call still waits after {took:?}"
            );
        };
        let delay = next.await.unwrap();
        assert!(delay < DELAY + epsilon(), "lease {lease:?}: {delay:?}");
        if enters {
            let entered = entered.unwrap();
            assert!(entered < DELAY, "{entered:?}");
        }
    }
}

/// With the in-process backend, a caller that is polled every 2.5 s delays the other callers by only one claim (2 s) in
/// total, because the other waiters skip its later turns.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_polled_rarely_delays_others_once() {
    const CALLERS: u32 = 5;
    let client = LockClient::connect("memory:").await.unwrap();
    let lock = client.lock("k").wait(60 * SECOND);
    let mut rare = Box::pin(lock.acquire());
    let rarely = async {
        while !poll_once(&mut rare).await {
            tokio::time::sleep(2500 * MS).await;
        }
        std::future::pending::<Duration>().await
    };
    let prompt = (0..CALLERS).map(async |_| {
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let asked = tokio::time::Instant::now();
            let guard = lock.acquire().await.unwrap();
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(100 * MS).await;
            guard.release().await;
        }
        longest
    });
    let longest = async { join_all(prompt).await.into_iter().max().unwrap() };
    let longest = tokio::select! {
        biased;
        longest = longest => longest,
        longest = rarely => longest,
    };
    assert!(
        longest <= CALLERS * 100 * MS + DELAY + 100 * MS,
        "{longest:?}"
    );
}

/// In the in-process backend, the first waiter is no longer polled, and the holder's guard is never dropped. The second
/// waiter enters at most a claim (2 s) after the end of the holder's lease.
#[tokio::test(start_paused = true)]
async fn a_head_that_is_not_polled_delays_others_by_a_claim_after_the_lease() {
    const LEASE: Duration = Duration::from_millis(2500);
    // The test lets the second waiter queue at several moments, because the moment determines when this waiter checks
    // the lock.
    for pause in [Duration::ZERO, 400 * MS, SECOND] {
        let client = LockClient::connect("memory:").await.unwrap();
        let guard = client.lock("k").lease(LEASE).acquire().await.unwrap();
        let granted = tokio::time::Instant::now();
        std::mem::forget(guard);
        let lock = client.lock("k").wait(60 * SECOND);
        let mut head = Box::pin(lock.acquire());
        assert!(!poll_once(&mut head).await);
        tokio::time::sleep(pause).await;
        let next = lock.acquire().await.unwrap();
        let took = granted.elapsed();
        assert!(took >= LEASE, "{pause:?}: {took:?}");
        assert!(took < LEASE + DELAY, "{pause:?}: {took:?}");
        next.release().await;
        head.await.unwrap().release().await;
    }
}

/// On a server, a caller that is polled rarely returns to its place at the head of the queue each time that it misses
/// its turn. Only the first offer to this caller lasts a whole claim (2 s). Later offers to the same caller are
/// shorter.
#[tokio::test]
async fn a_caller_that_comes_back_to_its_place_delays_others_once() {
    const OTHERS: usize = 4;
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let guard = hold(&other, "k").await;
    let rare = client.lock("k").wait(60 * SECOND);
    let mut rare = Box::pin(rare.acquire());
    poll_until_waiting(&mut rare, &client, "k", 1).await;
    let mut others = Vec::new();
    for place in 0..OTHERS {
        // Each caller has a client of its own, as if in another process, so no two callers share a grant.
        let lock = store.client().await.lock("k").wait(30 * SECOND);
        others.push(tokio::spawn(async move {
            let body = async { tokio::time::sleep(500 * MS).await };
            lock.run(body).await.unwrap();
        }));
        until_waiting(&other, "k", 2 + place).await;
    }
    let released = Instant::now();
    guard.release().await;
    let rarely = async {
        for _ in 0..20 {
            tokio::time::sleep(2600 * MS).await;
            assert!(
                !poll_once(&mut rare).await,
                "a caller entered although it is polled too rarely"
            );
        }
        unreachable!("the other callers never entered");
    };
    tokio::select! {
        entered = join_all(others) => entered.into_iter().for_each(Result::unwrap),
        () = rarely => {}
    }
    let took = released.elapsed();
    // The bound is the sum of the first missed offer (`DELAY`), the four bodies, and one second. The additional second
    // covers a later offer, which lasts a tenth of a claim (2 s), and the heartbeat that ends the offer.
    assert!(
        took < DELAY + OTHERS as u32 * 500 * MS + SECOND + epsilon(),
        "{took:?}"
    );
}

/// The server has forgotten its scripts. A caller reads this so late that the engine has given its request up, and does
/// not send the script for this request any more: the lock would stay taken for a whole lease.
#[tokio::test]
async fn a_request_that_was_given_up_does_not_send_its_script() {
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [client, other] = store.clients().await;
    client.lock("k").acquire().await.unwrap().release().await;
    let mut redis = server.connection().await;
    for is_dropped in [false, true] {
        ask::<()>(&mut redis, redis::cmd("SCRIPT").arg("FLUSH")).await;
        let mut late = Box::pin(
            client
                .lock("k")
                .lease(30 * SECOND)
                .wait(5 * SECOND)
                .acquire(),
        );
        assert!(!poll_unread(&client, late.as_mut()).await);
        tokio::time::sleep(DELAY + 500 * MS).await;
        if is_dropped {
            let _ = poll_once(&mut late).await;
            drop(late);
        } else {
            late.await.unwrap().release().await;
        }
        let entered = other.lock("k").wait(SECOND).acquire().await;
        entered.expect("the lock is free").release().await;
    }
}
