//! Tests of thousands of callers or of queues with thousands of entries. All clients of a process share the engine's
//! thread, so such a test delays every other test of its process. These tests are therefore a separate test target, and
//! run one at a time.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, future::join_all};
use lock_runtime::{LockClient, LockError};
use support::{
    matrix::row,
    proxy::FaultProxy,
    server::{RedisServer, ask},
    silent::delayed_by_silent,
    stores::{MS, SECOND, Store, hold, until, until_waiting},
};
use tokio::{
    sync::{Mutex, MutexGuard},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Waits until no other test of this target runs.
async fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// Connects a client, and opens the connection of this runtime.
async fn client(url: &str) -> LockClient {
    let builder = Store::on(url).builder().namespace("crowds");
    let client = builder.connect_within(60 * SECOND).await;
    let client = client.expect("the test server can be reached");
    hold(&client, "warm").await.release().await;
    client
}

const QUEUE: &str = "{crowds:k}:queue";

/// Returns the keys on the test's own server, except the counters of fencing tokens.
async fn left(server: &RedisServer) -> Vec<String> {
    let keys = server.keys().await.into_iter();
    keys.filter(|key| !key.contains("fence")).collect()
}

/// A process has so many callers that it cannot send the requests of all callers within their `wait`. Some calls time
/// out. A call returns `Busy` if the server has answered it, and otherwise `Unreachable`, because nothing is known about
/// its lock.
#[tokio::test]
async fn many_waiters_are_late_and_say_busy_only_after_an_answer() {
    let _alone = alone().await;
    const CALLERS: usize = 10_000;
    const KEYS: usize = 50;
    let store = Store::redis().await;
    let (holder, client) = (store.client().await, store.client().await);
    hold(&client, "before").await.release().await;
    let mut guards = Vec::new();
    for key in 0..KEYS {
        guards.push(hold(&holder, &key.to_string()).await);
    }
    for wait in [Duration::ZERO, 100 * MS] {
        let calls = (0..CALLERS).map(|caller| {
            let lock = client.lock((caller % KEYS).to_string()).wait(wait);
            async move { lock.acquire().await.map(drop) }
        });
        let mut answered = 0;
        for refused in join_all(calls).await {
            match refused {
                Err(LockError::Busy { .. }) => answered += 1,
                Err(LockError::Unreachable { .. }) => {}
                refused => panic!("{refused:?}"),
            }
        }
        assert!(answered > 0, "the server has answered nobody");
    }
}

/// A script examines at most 2,000 entries of a queue, and stores which process is silent. The scripts that run next
/// skip the remaining entries of the silent process.
#[tokio::test]
async fn thousands_of_waiters_that_only_look_alive_delay_by_two_seconds_at_most() {
    let _alone = alone().await;
    delayed_by_silent(5000).await;
}

/// A session waits for 2,000 locks. Each of its probes covers at most 100 locks. A probe names four keys of each lock,
/// and the key of the token counter.
#[tokio::test]
async fn a_probe_covers_at_most_100_locks() {
    let _alone = alone().await;
    const LOCKS: usize = 2000;
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [client, other] = store.clients().await;
    let keys = || (0..LOCKS).map(|key| format!("k{key}"));
    let held = keys().map(|key| other.lock(key).acquire());
    let held = join_all(held).await;
    let mut waiting = tokio::task::JoinSet::new();
    for key in keys() {
        let lock = client.lock(key).wait(60 * SECOND);
        waiting.spawn(async move { lock.run(async {}).await });
    }
    for key in [0, LOCKS - 1] {
        until_waiting(&other, &format!("k{key}"), 1).await;
    }
    let monitor = redis::Client::open(server.url()).unwrap();
    let mut commands = monitor.get_async_monitor().await.unwrap();
    let mut commands = commands.on_message::<String>();
    let mut most = 0;
    for _ in 0..100 {
        let command = loop {
            let command = commands.next().await.expect("the session probes");
            // The monitor also shows the commands that scripts run, which the loop skips.
            if command.contains("\"EVALSHA\"") {
                break command;
            }
        };
        let keys = command
            .split('"')
            .nth(5)
            .expect("a script's keys are counted");
        most = most.max(keys.parse::<usize>().unwrap());
    }
    // How many locks are due together depends on when their callers were queued.
    assert!((1 + 4 * 20..=1 + 4 * 100).contains(&most), "{most} keys");
    drop(held);
    for entered in waiting.join_all().await {
        entered.unwrap();
    }
}

/// Row 54 of `docs/faults.md`: a process waits for thousands of keys over a slow connection. The connection stays up,
/// and the process probes at most one key every 150 µs on average.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_54_thousands_of_waited_keys() {
    let _alone = alone().await;
    const KEYS: usize = 6000;
    row(54, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (holder, waiter) = (client(&server.url()).await, client(&proxy.url()).await);
        let lock = |number| format!("k{number}");
        let held = (0..KEYS).map(async |number| {
            let lock = holder.lock(lock(number)).lease(600 * SECOND);
            lock.acquire().await
        });
        let held = futures_util::future::join_all(held).await;
        proxy.delay(50 * MS);
        let connections = proxy.connections();
        let mut waiting = JoinSet::new();
        for number in 0..KEYS {
            let lock = waiter.lock(lock(number)).wait(120 * SECOND);
            waiting.spawn(async move { lock.run(async {}).await.unwrap() });
        }
        until(async || {
            let keys = server.keys().await;
            keys.iter().filter(|key| key.ends_with(":queue")).count() == KEYS
        })
        .await;
        sleep(SECOND).await;
        // A probe reads the place of one waiter of each lock that it covers.
        let probed = async || server.calls().await.get("zscore").copied().unwrap_or(0);
        let (began, before) = (Instant::now(), probed().await);
        // Callers wait for all keys, so each key is probed.
        until(async || probed().await - before >= KEYS as u64).await;
        let (keys, watched) = (probed().await - before, began.elapsed());
        let most = watched.as_micros() as u64 / 150;
        assert!(
            keys <= most + most / 10,
            "{keys} keys were probed, at most {most} are allowed"
        );
        assert_eq!(
            proxy.connections(),
            connections,
            "the client connected again"
        );
        proxy.delay(Duration::ZERO);
        for guard in held {
            guard.unwrap().release().await;
        }
        waiting.join_all().await;
    })
    .await;
}

/// Row 57 of `docs/faults.md`: up to half a million entries in a queue are dead, because the `wait` of their callers is
/// over or their process has ended. No script blocks the server for long, and a live waiter enters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_57_dead_entries() {
    let _alone = alone().await;
    row(57, async |seen| {
        // There are three cases: many waiters of one dead session, many waiters whose `wait` is over, and the waiters
        // of many dead sessions.
        for (entries, outdated, sessions) in [
            (500_000, false, 1),
            (500_000, true, 1),
            (50_000, false, 5000),
        ] {
            let server = RedisServer::start().await;
            let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
            let guard = holder.lock("k").acquire().await.unwrap();
            let mut connection = server.connection().await;
            let micros: (u64, u64) = ask(&mut connection, &redis::cmd("TIME")).await;
            let now = micros.0 * 1_000_000 + micros.1;
            for chunk in 0..entries / 5000 {
                let mut add = redis::cmd("ZADD");
                add.arg(QUEUE);
                for number in chunk * 5000..(chunk + 1) * 5000 {
                    let wait = if outdated { 1 } else { 600_000 };
                    let score = now - 100_000_000 + number;
                    add.arg(score).arg(format!(
                        "{number:032x}|lock:session:{:032x}|30000|{wait}|shop/web/1/pay",
                        7 + number % sessions
                    ));
                }
                add.exec_async(&mut connection).await.unwrap();
            }
            let mut alive =
                tokio::spawn(
                    async move { waiter.lock("k").wait(60 * SECOND).acquire().await.unwrap() },
                );
            until(async || holder.lock("k").status().await.unwrap().waiters as u64 == entries + 1)
                .await;
            let mut slow = redis::cmd("CONFIG");
            // Removing all entries in one script would take seconds. A script that removes a bounded number of entries
            // takes less than half a second, even on a busy machine.
            slow.arg("SET").arg("slowlog-log-slower-than").arg(500_000);
            slow.exec_async(&mut connection).await.unwrap();
            ask::<()>(&mut connection, redis::cmd("SLOWLOG").arg("RESET")).await;
            let released = Instant::now();
            guard.release().await;
            let entered = timeout(30 * SECOND, &mut alive)
                .await
                .expect("the live waiter enters")
                .unwrap();
            seen.within("the live waiter enters", 8 * SECOND, released.elapsed());
            let slow: u64 = ask(&mut connection, redis::cmd("SLOWLOG").arg("LEN")).await;
            assert_eq!(slow, 0, "some commands took half a second or longer");
            entered.release().await;
        }
    })
    .await;
}

/// Row 8 of `docs/faults.md`: calls are dropped at random instants and leave nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_08_dropped_at_random_instants() {
    let _alone = alone().await;
    const CALLERS: u64 = 10;
    const CALLS: u64 = 500;
    row(8, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let mut calls = JoinSet::new();
        for caller in 0..CALLERS {
            let client = client.clone();
            calls.spawn(async move {
                let mut dropped = 0;
                for drop in 0..CALLS {
                    let micros = (drop * 7919 + caller * 104_729) % 1_500;
                    let lock = client.lock(format!("k{}", drop % 3)).wait(10 * SECOND);
                    let call = lock.run(tokio::task::yield_now());
                    let call = tokio::time::timeout(Duration::from_micros(micros), call);
                    dropped += u64::from(call.await.is_err());
                }
                dropped
            });
        }
        let mut dropped = 0;
        while let Some(ended) = calls.join_next().await {
            dropped += ended.unwrap();
        }
        let start = Instant::now();
        assert!(
            dropped > CALLERS * CALLS / 50,
            "only {dropped} were dropped"
        );
        until(async || left(&server).await.is_empty()).await;
        // The client cleans up after each dropped call: it removes from the server what the call has left there. The
        // bound of 500 ms leaves a busy machine time for hundreds of such clean-ups. Without clean-ups, some keys would
        // stay on the server for 2 s, the time limit within which a client has to confirm a grant.
        seen.within("nothing is left on the server", 500 * MS, start.elapsed());
    })
    .await;
}
