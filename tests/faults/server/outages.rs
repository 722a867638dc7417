//! Rows 14 to 17, 24 to 26 and 32 of `docs/faults.md`: a server that is killed, paused, out of memory or read-only, and
//! a server whose clock jumps.

use std::{
    fs,
    time::{Duration, Instant},
};

use lock_runtime::{ConnectError, LockClient, LockError};
use support::{assert_lost, server::RedisServer};

use crate::fixture::{
    MS, NAME, NAMESPACE, SECOND, client, entering, epsilon, grant, holding_until_lost, left, row,
    until, until_waiting,
};

/// The length of a lease in most tests of this file.
const LEASE: Duration = Duration::from_millis(1500);

/// Waits until the server answers and accepts writes.
async fn until_up(server: &RedisServer) {
    let redis = redis::Client::open(server.url()).unwrap();
    until(async || {
        let connected = redis.get_multiplexed_async_connection().await;
        let Ok(mut redis) = connected else {
            return false;
        };
        let write = redis::cmd("SET").arg("up").arg(1).to_owned();
        write.exec_async(&mut redis).await.is_ok()
    })
    .await;
}

/// Sends the server a command, given as one string.
async fn tell(server: &RedisServer, command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    let mut told = redis::cmd(words[0]);
    told.arg(&words[1..]);
    told.exec_async(&mut server.connection().await)
        .await
        .unwrap_or_else(|error| panic!("{command}: {error}"));
}

/// Row 14 of `docs/faults.md`: the server is killed and restarts without its state. Another caller is granted the lock,
/// and the holder is notified of the loss.
#[tokio::test]
async fn row_14_killed_and_nothing_persisted() {
    row(14, async |seen| {
        let mut server = RedisServer::start().await;
        let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
        let lock = holder.lock("k").lease(LEASE).renew(true);
        let (token, holding) = holding_until_lost(lock).await;
        server.restart().await;
        let start = Instant::now();
        let guard = other.lock("k").wait(10 * SECOND).acquire().await.unwrap();
        seen.within(
            "another caller is granted the lock after the restart",
            SECOND,
            start.elapsed(),
        );
        assert!(guard.token() > token);
        // The holder can be notified before `restart` returns.
        let told = holding.await.unwrap().saturating_duration_since(start);
        seen.within("the holder is notified after the restart", LEASE / 3, told);
    })
    .await;
}

/// Row 15 of `docs/faults.md`: the server is killed after it has persisted everything. The hold and the queue survive.
#[tokio::test]
async fn row_15_killed_with_everything_persisted() {
    row(15, async |seen| {
        let mut server = RedisServer::builder().aof_always().start().await;
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let lock = holder.lock("k").lease(5 * SECOND).renew(true);
        let guard = lock.acquire().await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        for place in 0..3 {
            let lock = waiter.lock("k").wait(30 * SECOND);
            waiting.spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let entered = (guard.token().get(), place, Instant::now());
                guard.release().await;
                entered
            });
            until_waiting(&holder, place + 1).await;
        }
        server.kill();
        // A renewal becomes due while the server is down, and the engine retries the renewal until the server answers.
        tokio::time::sleep(2 * SECOND).await;
        server.restart().await;
        let renewed = holder.stats().renewed;
        until(async || holder.stats().renewed > renewed).await;
        assert_eq!(guard.loss(), None);
        until_waiting(&holder, 3).await;
        let released = Instant::now();
        guard.release().await;
        let mut entered = Vec::new();
        while let Some(ended) = waiting.join_next().await {
            entered.push(ended.unwrap());
        }
        entered.sort_unstable();
        let places: Vec<_> = entered.iter().map(|(_, place, _)| *place).collect();
        assert_eq!(places, [0, 1, 2]);
        let first = entered[0].2.duration_since(released);
        seen.within("the next caller enters after the release", 200 * MS, first);
        assert_eq!(holder.stats().lost, 0);
    })
    .await;
}

/// Row 16 of `docs/faults.md`: the server is paused for half the length of a lease. The hold survives.
#[tokio::test]
async fn row_16_paused_for_half_a_lease() {
    row(16, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let lock = client.lock("k").lease(3 * SECOND).renew(true);
        lock.run(async {
            // Waits for the first renewal, so that the next one becomes due during the pause.
            until(async || client.stats().renewed > 0).await;
            server.stop_process();
            tokio::time::sleep(1500 * MS).await;
            server.continue_process();
            let renewed = client.stats().renewed;
            until(async || client.stats().renewed > renewed).await;
        })
        .await
        .unwrap();
        assert_eq!((client.stats().lost, client.stats().release_failed), (0, 0));
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}

/// Row 17 of `docs/faults.md`: the server is paused for twice the length of a lease. The holder loses the lease, and
/// the next caller enters after the pause.
#[tokio::test]
async fn row_17_paused_for_two_leases() {
    row(17, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let lock = client.lock("k").lease(LEASE).renew(true);
        let start = Instant::now();
        let lost = lock
            .run(async {
                server.stop_process();
                std::future::pending::<()>().await;
            })
            .await;
        assert_lost(&lost);
        seen.within("the lease is lost after the grant", LEASE, start.elapsed());
        let next = tokio::spawn({
            let lock = client.lock("k").wait(20 * SECOND);
            async move {
                let guard = lock.acquire().await.unwrap();
                let entered = Instant::now();
                guard.release().await;
                entered
            }
        });
        tokio::time::sleep((2 * LEASE).saturating_sub(start.elapsed())).await;
        server.continue_process();
        let continued = Instant::now();
        let entered = next.await.unwrap().duration_since(continued);
        seen.within("the next caller enters after the pause", SECOND, entered);
    })
    .await;
}

/// Row 24 of `docs/faults.md`: the server is out of memory. Nobody can acquire a free lock, but holders can release
/// their locks, which then pass to waiters.
#[tokio::test]
async fn row_24_out_of_memory() {
    row(24, async |seen| {
        let server = RedisServer::start().await;
        let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
        let lock = holder.lock("k").lease(LEASE).renew(true);
        let guard = lock.acquire().await.unwrap();
        let waiting = entering(other.lock("k").wait(20 * SECOND));
        until_waiting(&holder, 1).await;
        tell(&server, "CONFIG SET maxmemory 1").await;
        let asked = Instant::now();
        let refused = other.lock("other").wait(SECOND).acquire().await;
        let Err(LockError::Refused { detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("OOM"), "{detail}");
        seen.within("an acquisition is refused", Duration::ZERO, asked.elapsed());
        let renewed = holder.stats().renewed;
        until(async || holder.stats().renewed > renewed).await;
        guard.extend(SECOND).await.unwrap();
        let released = Instant::now();
        guard.release().await;
        let (entered, guard) = waiting.await.unwrap();
        let took = entered.duration_since(released);
        seen.within(
            "the next caller enters after the release",
            Duration::ZERO,
            took,
        );
        guard.release().await;
        assert_eq!(left(&server).await, Vec::<String>::new());
        tell(&server, "CONFIG SET maxmemory 0").await;
        other.lock("other").run(async {}).await.unwrap();
    })
    .await;
}

/// Row 25 of `docs/faults.md`: a client refuses a server that can evict held locks, unless the client is configured to
/// allow eviction.
#[tokio::test]
async fn row_25_evicting() {
    row(25, async |_| {
        for policy in ["allkeys-lru", "volatile-ttl"] {
            let server = RedisServer::builder()
                .arg("--maxmemory-policy", policy)
                .start()
                .await;
            let builder = || LockClient::builder().url(server.url());
            match builder().connect().await {
                Err(ConnectError::Eviction { policy: named, .. }) => assert_eq!(named, policy),
                refused => panic!("{refused:?}"),
            }
            let allowed = builder()
                .allow_eviction(true)
                .connect_within(support::PATIENCE)
                .await
                .unwrap();
            allowed.lock("k").run(async {}).await.unwrap();
        }
    })
    .await;
}

/// Asserts that the server grants nothing in its present state: a call returns an error at most 200 ms after the end of
/// its `wait`. Then ends this state with `over`, and asserts that a call that has waited meanwhile is granted the lock.
async fn nobody_enters(
    client: &LockClient,
    server: &RedisServer,
    seen: &mut support::matrix::Seen,
    over: impl AsyncFnOnce(),
) {
    const WAIT: Duration = Duration::from_millis(500);
    let asked = Instant::now();
    let refused = client.lock("k").wait(WAIT).acquire().await;
    match refused {
        Err(LockError::Unreachable { .. } | LockError::Refused { .. }) => {}
        other => panic!("{other:?}"),
    }
    // The bound is `wait`, plus 200 ms in which the caller leaves the queue.
    seen.within(
        "the call returns an error",
        WAIT + 200 * MS,
        asked.elapsed(),
    );
    let waiting = entering(client.lock("k").wait(20 * SECOND));
    tokio::time::sleep(500 * MS).await;
    over().await;
    until_up(server).await;
    let up = Instant::now();
    let (entered, guard) = waiting.await.unwrap();
    let took = entered.saturating_duration_since(up);
    seen.within(
        "a waiting call is granted the lock once the server can grant it",
        SECOND,
        took,
    );
    assert!(grant(server).await.is_some());
    guard.release().await;
    let ours = |key: &String| key.contains(NAMESPACE);
    until(async || !left(server).await.iter().any(ours)).await;
}

/// Row 26 of `docs/faults.md`: the server refuses writes, because it has too few replicas.
#[tokio::test]
async fn row_26_noreplicas() {
    row(26, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        tell(&server, "CONFIG SET min-replicas-to-write 1").await;
        let over = async || tell(&server, "CONFIG SET min-replicas-to-write 0").await;
        nobody_enters(&client, &server, seen, over).await;
    })
    .await;
}

#[tokio::test]
async fn row_26_readonly() {
    row(26, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let nobody = support::server::free_port();
        tell(&server, &format!("REPLICAOF 127.0.0.1 {nobody}")).await;
        let over = async || tell(&server, "REPLICAOF NO ONE").await;
        nobody_enters(&client, &server, seen, over).await;
    })
    .await;
}

/// Row 26 of `docs/faults.md`: for a while, the address of the server leads to a replica that lacks the grant. The hold
/// is not lost, because only a primary decides whether a grant exists.
#[tokio::test]
async fn row_26_a_replica_lacks_the_grant() {
    row(26, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let lock = client.lock("k").lease(6 * SECOND).renew(true);
        let guard = lock.acquire().await.unwrap();
        let stored = grant(&server).await.unwrap();
        let nobody = support::server::free_port();
        let mut swapped = redis::pipe();
        swapped.atomic().del(NAME);
        swapped.cmd("REPLICAOF").arg("127.0.0.1").arg(nobody);
        let mut redis = server.connection().await;
        swapped.exec_async(&mut redis).await.unwrap();
        let failed = client.stats().renewal_failed;
        until(async || client.stats().renewal_failed > failed || guard.loss().is_some()).await;
        assert_eq!(guard.loss(), None);
        // The server carries out both commands before it reads from another connection.
        let mut swapped = redis::pipe();
        swapped.cmd("REPLICAOF").arg("NO").arg("ONE");
        swapped.pset_ex(NAME, stored, 6_000);
        let mut redis = server.connection().await;
        swapped.exec_async(&mut redis).await.unwrap();
        let renewals = client.stats().renewed;
        until(async || client.stats().renewed > renewals).await;
        assert_eq!(guard.loss(), None);
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn row_26_misconf() {
    row(26, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let in_the_way = server.folder().join("dump.rdb");
        let saved = async |how: &str| {
            tell(&server, "BGSAVE").await;
            let status = format!("rdb_last_bgsave_status:{how}");
            until(async || {
                let info = redis::cmd("INFO").arg("persistence").to_owned();
                let info: String = info
                    .query_async(&mut server.connection().await)
                    .await
                    .unwrap();
                info.contains(&status) && info.contains("rdb_bgsave_in_progress:0")
            })
            .await;
        };
        // The server cannot write its dump to `dump.rdb` while a directory has that name.
        fs::create_dir(&in_the_way).unwrap();
        let mut points = redis::cmd("CONFIG");
        points.arg(&["SET", "save", "3600 1000000"]);
        let mut redis = server.connection().await;
        points.exec_async(&mut redis).await.unwrap();
        saved("err").await;
        let over = async || {
            fs::remove_dir(&in_the_way).unwrap();
            saved("ok").await;
        };
        nobody_enters(&client, &server, seen, over).await;
    })
    .await;
}

#[tokio::test]
async fn row_26_loading() {
    row(26, async |seen| {
        let mut server = RedisServer::builder()
            .arg("--key-load-delay", "200")
            .arg("--loading-process-events-interval-bytes", "1024")
            .debug_commands()
            .start()
            .await;
        let client = client(&server.url()).await;
        tell(&server, "DEBUG POPULATE 10000").await;
        tell(&server, "SAVE").await;
        server.begin_restart();
        // The server takes two seconds to load its keys.
        nobody_enters(&client, &server, seen, async || {}).await;
    })
    .await;
}

/// Row 32 of `docs/faults.md`: the server's clock jumps forward by twice the length of a lease. Another caller enters,
/// and the holder is notified of the loss.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_32_clock_forward() {
    row(32, async |seen| {
        let server = RedisServer::builder().clock_ahead(0).start().await;
        let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
        let lock = holder.lock("k").lease(LEASE).renew(true);
        let mut jumped = None;
        let lost = lock.run(async {
            let token = lock_runtime::Hold::current().unwrap().token();
            server.set_clock(3);
            let start = Instant::now();
            jumped = Some(start);
            let guard = other.lock("k").wait(10 * SECOND).acquire().await.unwrap();
            assert!(guard.token() > token);
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        let lost = lost.await;
        assert_lost(&lost);
        let told = jumped.unwrap().elapsed();
        seen.within("the holder is notified after the jump", LEASE / 3, told);
    })
    .await;
}

/// Row 32 of `docs/faults.md`: the server's clock jumps back by an hour. After the jump, no grant lasts longer than one
/// lease, and tokens keep rising.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_32_clock_back() {
    row(32, async |seen| {
        let server = RedisServer::builder().clock_ahead(0).start().await;
        let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
        let gone = holder.lock("k").lease(LEASE).acquire().await.unwrap();
        let token = gone.token();
        std::mem::forget(gone);
        server.set_clock(-3600);
        let jumped = Instant::now();
        let lock = other.lock("k").wait(20 * SECOND);
        let guard = lock.acquire().await.unwrap();
        // The grant of the first holder lasts for one lease from the probe that notices the jump.
        seen.within(
            "the next caller enters after the jump",
            LEASE + 400 * MS,
            jumped.elapsed(),
        );
        assert!(guard.token() > token);
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap().token() });
        until_waiting(&holder, 1).await;
        let token = guard.token();
        let released = Instant::now();
        guard.release().await;
        assert!(waiting.await.unwrap() > token);
        assert!(released.elapsed() < 200 * MS + epsilon());
        // A caller with `spin` also enters about one lease after the jump.
        let gone = holder.lock("tried").lease(LEASE).acquire().await.unwrap();
        std::mem::forget(gone);
        server.set_clock(-7200);
        let jumped = Instant::now();
        let lock = other.lock("tried").wait(20 * SECOND);
        let spinning = lock.strategy(lock_runtime::Strategy::Spin);
        let guard = spinning.acquire().await.unwrap();
        seen.within(
            "a caller that spins enters after the jump",
            LEASE + 400 * MS,
            jumped.elapsed(),
        );
        guard.release().await;
        assert!(client_is_fine(&server).await);
    })
    .await;
}

/// Row 32 of `docs/faults.md`: the server's clock jumps back while a caller waits. A caller that queues after the jump does
/// not enter before this caller.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_32_clock_back_and_waiters_keep_their_order() {
    row(32, async |_| {
        let server = RedisServer::builder().clock_ahead(0).start().await;
        let [holder, first, second] = [
            client(&server.url()).await,
            client(&server.url()).await,
            client(&server.url()).await,
        ];
        let guard = holder.lock("k").acquire().await.unwrap();
        let enter = |client: &LockClient| {
            let lock = client.lock("k").wait(20 * SECOND);
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let token = guard.token();
                guard.release().await;
                token
            })
        };
        let first = enter(&first);
        until_waiting(&holder, 1).await;
        server.set_clock(-3600);
        let second = enter(&second);
        until_waiting(&holder, 2).await;
        guard.release().await;
        assert!(first.await.unwrap() < second.await.unwrap());
    })
    .await;
}

/// Row 32 of `docs/faults.md`: the server's clock jumps ahead while a caller waits. By the new time, the lease of the
/// holder and the `wait` of the caller are over. The caller enters, because its own clock says that its `wait` lasts.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_32_clock_forward_while_a_caller_waits() {
    row(32, async |seen| {
        let server = RedisServer::builder().clock_ahead(0).start().await;
        let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
        let gone = holder.lock("k").lease(LEASE).acquire().await.unwrap();
        std::mem::forget(gone);
        let lock = other.lock("k").wait(20 * SECOND);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until_waiting(&holder, 1).await;
        server.set_clock(3600);
        let jumped = Instant::now();
        let guard = waiting.await.unwrap().unwrap();
        seen.within(
            "a caller that waits enters after the jump",
            LEASE + 400 * MS,
            jumped.elapsed(),
        );
        guard.release().await;
    })
    .await;
}

/// Returns whether a client that connects now can acquire a lock.
async fn client_is_fine(server: &RedisServer) -> bool {
    let builder = LockClient::builder().url(server.url()).namespace(NAMESPACE);
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    client.lock("k").run(async {}).await.is_ok()
}
