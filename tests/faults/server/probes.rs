//! Rows 54 to 57 of `docs/faults.md`: what probes detect, how soon they detect it, and how much they cost the server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lock_runtime::Strategy;
use support::{
    assert_lost, matrix::row, process::Worker, proxy::FaultProxy, server::RedisServer, slowness,
};
use tokio::{runtime::Builder, sync::Mutex, task::JoinSet, time::sleep};

use crate::{
    fixture::{MS, QUEUE, SECOND, client, entering, epsilon, until, until_waiting, worker_command},
    waiters::{Waiters, holder},
};

/// Row 55 of `docs/faults.md`: leases end without a release, at different moments between two probes. A waiter enters
/// within 50 ms of the end of a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_55_a_lease_ends() {
    row(55, async |seen| {
        let server = RedisServer::start().await;
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let mut delays = Vec::new();
        for number in 0..15u32 {
            let lease = 300 * MS + number * 23 * MS;
            let lock = holder.lock("k").lease(lease).renew(false);
            let granted = Instant::now();
            std::mem::forget(lock.acquire().await.unwrap());
            sleep(number * 13 * MS).await;
            let lock = waiter.lock("k").wait(10 * SECOND);
            let guard = lock.acquire().await.unwrap();
            let took = granted.elapsed().saturating_sub(lease);
            seen.within("the next caller enters", 50 * MS, took);
            delays.push(took);
            guard.release().await;
        }
        delays.sort_unstable();
        // The test bounds the median delay, because a busy machine delays single callers.
        let limit = (50 * MS).mul_f64(slowness());
        assert!(delays[7] <= limit, "{delays:?}");
    })
    .await;
}

/// Row 55 of `docs/faults.md`: bodies outlast their fixed leases, and a caller of the same client waits. The caller
/// enters within 50 ms of the end of a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_55_a_lease_of_the_same_client_ends() {
    row(55, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let mut delays = Vec::new();
        for number in 0..15 {
            let lock = client.lock("k").lease(300 * MS).renew(false);
            let guard = lock.acquire().await.unwrap();
            let granted = Instant::now();
            let body = tokio::spawn(async move { guard.run(std::future::pending::<()>()).await });
            sleep(number * 10 * MS).await;
            let lock = client.lock("k").wait(10 * SECOND);
            let guard = lock.acquire().await.unwrap();
            let took = granted.elapsed().saturating_sub(300 * MS);
            seen.within("the next caller enters", 50 * MS, took);
            delays.push(took);
            assert_lost(&body.await.unwrap());
            guard.release().await;
        }
        delays.sort_unstable();
        // The test bounds the third-longest delay, because a busy machine delays single callers.
        let limit = (50 * MS).mul_f64(slowness());
        assert!(delays[12] <= limit, "{delays:?}");
    })
    .await;
}

/// Row 56 of `docs/faults.md`: in the queue, the waiters of a stopped process alternate with waiters of another
/// process. All waiters of the stopped process together delay the others by at most one claim (2 s). When the process
/// continues, its waiters return to their old places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_56_a_stopped_process_with_many_waiters() {
    row(56, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let guard = client.lock("k").acquire().await.unwrap();
        let mut stopped = Worker::obeying(worker_command(&server.url(), "queue", 30_000));
        let entered = Arc::new(Mutex::new(Vec::new()));
        let mut others = JoinSet::new();
        for number in 0..5 {
            stopped.tell("queue");
            until_waiting(&client, 2 * number + 1).await;
            let (lock, entered) = (client.lock("k").wait(60 * SECOND), entered.clone());
            others.spawn(async move {
                let guard = lock.acquire().await.unwrap();
                entered.lock().await.push(number);
                guard.release().await;
            });
            until_waiting(&client, 2 * number + 2).await;
        }
        stopped.signal("STOP");
        let released = Instant::now();
        guard.release().await;
        others.join_all().await;
        seen.within(
            "all other callers have held the lock",
            2 * SECOND,
            released.elapsed(),
        );
        assert_eq!(*entered.lock().await, [0, 1, 2, 3, 4]);
        let last = client.lock("k").acquire().await.unwrap();
        stopped.signal("CONT");
        until_waiting(&client, 5).await;
        last.release().await;
        for number in 0..5 {
            stopped.until(&format!("entered {number}")).await;
        }
    })
    .await;
}

/// Row 56 of `docs/faults.md`: the stopped process has more waiters than a cohort takes, and the only other caller spins.
/// The caller's tries skip the waiters of the process that did not confirm its grant, as probes do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_56_a_stopped_process_and_a_caller_that_spins() {
    row(56, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let guard = client.lock("k").acquire().await.unwrap();
        let mut stopped = Worker::obeying(worker_command(&server.url(), "queue", 30_000));
        for number in 1..=70 {
            stopped.tell("queue");
            until_waiting(&client, number).await;
        }
        stopped.signal("STOP");
        let released = Instant::now();
        guard.release().await;
        let lock = client.lock("k").wait(60 * SECOND);
        let guard = lock.strategy(Strategy::Spin).acquire().await.unwrap();
        seen.within(
            "a caller that spins has entered",
            2 * SECOND + 2 * 128 * MS,
            released.elapsed(),
        );
        guard.release().await;
        stopped.signal("CONT");
    })
    .await;
}

/// A caller on a runtime that nobody drives does not take its turn. The next caller of its process enters after a claim,
/// before a caller of another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_beside_a_blocked_runtime_keep_their_places() {
    let server = RedisServer::start().await;
    let client = client(&server.url()).await;
    let guard = client.lock("k").acquire().await.unwrap();
    let lock = client.lock("k").wait(60 * SECOND);
    let blocked = {
        let (lock, client) = (lock.clone(), client.clone());
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let mut call = Box::pin(async move { lock.acquire().await });
            runtime.block_on(async {
                tokio::select! {
                    _ = &mut call => unreachable!("the lock is held"),
                    () = until_waiting(&client, 1) => {}
                }
            });
            (call, runtime)
        })
    };
    let undriven = blocked.join().unwrap();
    let entered = entering(lock);
    until_waiting(&client, 2).await;
    let mut other = Worker::obeying(worker_command(&server.url(), "queue", 30_000));
    other.tell("queue");
    until_waiting(&client, 3).await;
    let released = Instant::now();
    guard.release().await;
    let (at, guard) = entered.await.unwrap();
    let took = at - released;
    assert!(took < 2 * SECOND + 200 * MS + epsilon(), "{took:?}");
    guard.release().await;
    other.until("entered 0").await;
    drop(undriven.0);
    std::thread::spawn(|| drop(undriven.1)).join().unwrap();
}

/// A script that frees a lock examines only some of the dead entries in the lock's queue, so the script does not always
/// reach a live waiter behind dead entries. A call for several keys nevertheless does not take the lock before this
/// waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_do_not_overtake_a_waiter_behind_many_dead_entries() {
    let server = RedisServer::start().await;
    let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.unwrap();
    let mut connection = server.connection().await;
    let mut add = redis::cmd("ZADD");
    add.arg(QUEUE);
    for number in 0..5000 {
        let session = 7 + number % 1000;
        add.arg(number + 1).arg(format!(
            "{number:032x}|lock:session:{session:032x}|30000|4000000000000|shop/web/1/pay"
        ));
    }
    add.exec_async(&mut connection).await.unwrap();
    let mut alive =
        tokio::spawn(async move { waiter.lock("k").wait(60 * SECOND).acquire().await.unwrap() });
    until(async || holder.lock("k").status().await.unwrap().waiters == 5001).await;
    guard.release().await;
    let several = holder.locks(["k", "other"]);
    // Until the probes have removed all dead entries, the lock is free although the live waiter is still in the queue.
    while !alive.is_finished() {
        let taken = several.try_acquire().await;
        assert!(
            taken.is_err(),
            "the call for several keys overtook the live waiter"
        );
    }
    (&mut alive).await.unwrap().release().await;
}

/// Queues two waiters of a live process, each of them behind a waiter of a silent process. Returns the time from the
/// release of the lock until the two waiters of the live process have entered. Asserts that the waiters of the live
/// process enter in order.
async fn delayed_by_silent_waiters(lease: Duration) -> Duration {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let (direct, silent) = (client(&server.url()).await, client(&proxy.url()).await);
    let mut waiters = Waiters::at(&server).await;
    let guard = holder(&direct).await;
    for _ in 0..2 {
        let lock = silent.lock("k").lease(lease).renew(false);
        waiters.queue(lock.wait(60 * SECOND)).await;
        waiters.queue(direct.lock("k").wait(60 * SECOND)).await;
    }
    proxy.blackhole(true);
    let released = Instant::now();
    guard.release().await;
    waiters.pass([1, 3]).await;
    released.elapsed()
}

/// If a grant is not used, the server regards the waiter's process as silent only if the lease is at least 500 ms long.
/// With a shorter lease, the server grants the lock to each waiter of the silent process in turn.
#[tokio::test]
async fn each_silent_waiter_with_a_short_lease_delays_the_others() {
    for (lease, delays) in [(400 * MS, 2), (500 * MS, 1)] {
        let took = delayed_by_silent_waiters(lease).await;
        let least = delays * lease - 20 * MS;
        let most = delays * (lease + 50 * MS) + epsilon();
        assert!((least..most).contains(&took), "{lease:?}: {took:?}");
    }
}

/// A holder overruns its fixed lease while another caller of its process is in the queue. If the lease is between 0.5 s
/// and 2.5 s long, the server removes the other caller from the queue. The removed caller returns to its place at the
/// next probe of its process.
#[tokio::test]
async fn a_place_of_a_process_whose_holder_overruns_its_lease_returns_at_its_next_probe() {
    for (lease, is_set_aside) in [(600, true), (2400, true), (2800, false)] {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (direct, slow) = (client(&server.url()).await, client(&proxy.url()).await);
        let mut waiters = Waiters::at(&server).await;
        let guard = holder(&direct).await;
        let overrun = slow.lock("k").lease(lease * MS).wait(60 * SECOND);
        waiters.queue(overrun.clone()).await;
        waiters.queue(direct.lock("k").wait(60 * SECOND)).await;
        waiters.queue(overrun).await;
        guard.release().await;
        let mut first = waiters.next().await;
        assert_eq!(first.caller, 0);
        first.loses();
        // The proxy holds back the requests of the holder's process, so that none of its probes arrives while the lease
        // ends.
        sleep((lease - 400) * MS).await;
        proxy.hold_requests(true);
        let next = waiters.next().await;
        assert_eq!(next.caller, 1);
        let places = usize::from(!is_set_aside);
        assert_eq!(waiters.queued().await, places, "a lease of {lease} ms");
        proxy.hold_requests(false);
        let probes = Instant::now();
        waiters.until_queued(1).await;
        let took = probes.elapsed();
        assert!(took < 200 * MS + epsilon(), "{took:?}");
        next.leave().await;
        waiters.pass([2]).await;
        first.leave().await;
        waiters.assert_exclusive();
    }
}
