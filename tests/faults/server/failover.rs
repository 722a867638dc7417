//! Faults of a group of servers that Sentinels watch: the Sentinels promote a replica.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, ReleaseOutcome};
use redis::AsyncCommands;
use support::{
    proxy::FaultProxy,
    sentinels::{self, SentinelGroup},
    server::RedisServer,
};
use tokio::task::JoinHandle;

use super::load::{FAILOVER, Load};
use crate::fixture::{
    NAME, QUEUE, SECOND, client, entering, holding_until_lost, left, row, token, until,
    until_waiting,
};

/// Row 27 of `docs/faults.md`: the primary is killed. At that time, one caller holds the lock, 20 callers of two
/// clients wait for it, and five other callers keep acquiring locks of their own. The replicas have the grant and the
/// queue. The holder keeps its lock, and the waiters enter one at a time, with rising tokens.
#[tokio::test]
async fn row_27_failover_under_load() {
    row(27, async |seen| {
        let mut group = SentinelGroup::start().await;
        let load = Load::start(&group.url(), 30 * SECOND).await;
        // The replicas must have the grant and the queue before the primary is killed.
        group.until_replicated().await;
        group.servers[0].kill();
        let killed = Instant::now();
        group.promoted_instead_of(0).await;
        assert!(killed.elapsed() < FAILOVER);
        load.finish_after_failover(seen, killed, "other").await;
    })
    .await;
}

/// Row 27 of `docs/faults.md`: the promoted replica lacks the grant, because replication had stopped before the grant.
/// The first holder is notified, and another caller enters with a greater token.
#[tokio::test]
async fn row_27_grant_not_replicated() {
    row(27, async |seen| {
        let mut group = SentinelGroup::start().await;
        let (holder, other) = (client(&group.url()).await, client(&group.url()).await);
        for replica in &group.servers[1..] {
            replica.stop_process();
        }
        // The replicas have all writes up to this point, and receive no later ones.
        let mut cut = redis::cmd("CLIENT");
        cut.arg(&["KILL", "TYPE", "replica"]);
        let mut primary = group.servers[0].connection().await;
        cut.exec_async(&mut primary).await.unwrap();
        drop(primary);
        // The lease is much longer than a failover takes.
        let lease = 30 * SECOND;
        let lock = holder.lock("k").lease(lease).renew(true);
        let (token, holding) = holding_until_lost(lock).await;
        group.servers[0].kill();
        for replica in &group.servers[1..] {
            replica.continue_process();
        }
        group.promoted_instead_of(0).await;
        let promoted = Instant::now();
        let told = holding.await.unwrap();
        seen.within(
            "the first holder is notified after the promotion",
            2 * SECOND,
            told.saturating_duration_since(promoted),
        );
        let guard = other.lock("k").wait(20 * SECOND).acquire().await.unwrap();
        assert!(guard.token() > token);
    })
    .await;
}

/// Row 27 of `docs/faults.md`: the promoted replica still has the queue entries of calls that have ended. The test adds
/// such entries to a server. Each of them gets a grant of its own, because the calls have different leases. The client
/// gives each grant back at once, so these entries do not delay the next caller by a claim (2 s).
#[tokio::test]
async fn row_27_outdated_queue_entries() {
    row(27, async |seen| {
        let server = RedisServer::start().await;
        let (ended, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let guard = waiter.lock("k").lease(60 * SECOND).acquire().await.unwrap();
        let calls: Vec<_> = [10, 11, 12]
            .map(|lease| entering(ended.lock("k").lease(lease * SECOND).wait(60 * SECOND)))
            .into();
        until_waiting(&ended, calls.len()).await;
        let mut redis = server.connection().await;
        let entries: Vec<(String, f64)> = redis.zrange_withscores(QUEUE, 0, -1).await.unwrap();
        assert_eq!(entries.len(), calls.len());
        calls.iter().for_each(JoinHandle::abort);
        until(async || left(&server).await == [NAME]).await;
        for (entry, place) in &entries {
            redis
                .zadd::<_, _, _, ()>(QUEUE, entry, place)
                .await
                .unwrap();
        }
        let next = entering(waiter.lock("k").wait(60 * SECOND));
        until_waiting(&waiter, entries.len() + 1).await;
        let released = Instant::now();
        guard.release().await;
        let (entered, guard) = next.await.unwrap();
        seen.within("the next caller enters", SECOND, entered - released);
        guard.release().await;
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}

/// Row 27 of `docs/faults.md`: an operator orders a failover although the primary is up. The old primary becomes a
/// replica, and the client connects to the new primary as soon as a Sentinel announces it.
#[tokio::test]
async fn row_27_ordered_failover() {
    row(27, async |seen| {
        let group = SentinelGroup::start().await;
        let client = client(&group.url()).await;
        let guard = client.lock("k").lease(30 * SECOND).acquire().await.unwrap();
        let mut order = redis::cmd("SENTINEL");
        order.arg("FAILOVER").arg(support::sentinels::GROUP);
        order
            .exec_async(&mut group.sentinels[0].connection().await)
            .await
            .unwrap();
        group.promoted_instead_of(0).await;
        let promoted = Instant::now();
        client
            .lock("other")
            .wait(20 * SECOND)
            .run(async {})
            .await
            .unwrap();
        seen.within(
            "the next call ends after the promotion",
            3 * SECOND,
            promoted.elapsed(),
        );
        assert_eq!(guard.release().await, ReleaseOutcome::Released);
    })
    .await;
}

/// Row 27 of `docs/faults.md`: the Sentinels lose the primary, but a client still reaches it. The old primary does not
/// learn that a replica has replaced it. The client leaves the old primary when the Sentinels name the new primary.
/// Therefore, none of its callers enters while a caller of the new primary holds the lock.
#[tokio::test]
async fn row_27_the_announced_primary_counts() {
    row(27, async |seen| {
        let group = SentinelGroup::start().await;
        let url = group.url_of_user().await;
        let early = client(&url).await;
        let connections = early.stats().connections;
        group.hide_from_sentinels(0).await;
        group.promoted_instead_of(0).await;
        let promoted = Instant::now();
        until(async || early.stats().connections > connections).await;
        seen.within(
            "the client leaves the old primary",
            SECOND,
            promoted.elapsed(),
        );
        let guard = client(&url).await.lock("k").acquire().await.unwrap();
        // The client's sessions leave the old primary one after the other.
        let lock = early.lock("k").wait(std::time::Duration::ZERO);
        until(async || matches!(lock.acquire().await, Err(LockError::Busy { .. }))).await;
        seen.within(
            "every session leaves the old primary",
            2 * SECOND,
            promoted.elapsed(),
        );
        guard.release().await;
    })
    .await;
}

/// Row 27 of `docs/faults.md`: no Sentinel reaches a client while a new primary is promoted, so the client misses the
/// Sentinels' announcement. The old primary still answers this client. The client leaves the old primary after the
/// Sentinels can be reached again.
#[tokio::test]
async fn row_27_a_missed_message() {
    row(27, async |seen| {
        let group = SentinelGroup::start().await;
        let url = group.url_of_user().await;
        let mut proxies = Vec::new();
        for sentinel in &group.sentinels {
            proxies.push(FaultProxy::start(sentinel.port()).await);
        }
        let hosts: Vec<_> = proxies
            .iter()
            .map(|proxy| format!("127.0.0.1:{}", proxy.port()))
            .collect();
        let cut_off = format!(
            "redis+sentinel://locks:secret@{}/{}",
            hosts.join(","),
            sentinels::GROUP
        );
        let cut_off = client(&cut_off).await;
        token(&cut_off).await;
        for proxy in &proxies {
            proxy.refuse(true);
            proxy.cut();
        }
        group.hide_from_sentinels(0).await;
        group.all_have_left(0).await;
        let other = client(&url).await;
        let held = other.lock("k").lease(60 * SECOND).acquire().await.unwrap();
        for proxy in &proxies {
            proxy.refuse(false);
        }
        let back = Instant::now();
        until(
            async || match cut_off.lock("k").wait(Duration::ZERO).acquire().await {
                Ok(guard) => {
                    guard.release().await;
                    false
                }
                Err(error) => matches!(error, LockError::Busy { .. }),
            },
        )
        .await;
        // The bound allows for a reconnection within a second, a pause of 3 s between two questions to the Sentinels,
        // and their answers.
        seen.within(
            "a client that missed a promotion leaves the old primary",
            5 * SECOND,
            back.elapsed(),
        );
        held.release().await;
    })
    .await;
}

/// Row 27 of `docs/faults.md`: one of three Sentinels names another primary than the other two. A Sentinel does so if
/// it is cut off together with an old primary. A client that connects goes to the server that the other two Sentinels
/// name.
#[tokio::test]
async fn row_27_one_sentinel_does_not_decide() {
    row(27, async |_| {
        let group = SentinelGroup::start().await;
        let old = RedisServer::start().await;
        let cut_off = sentinels::sentinel_of(&old).await;
        let others = &group.sentinels[..2];
        let ports = [&cut_off, &others[0], &others[1]].map(RedisServer::port);
        let hosts = ports.map(|port| format!("127.0.0.1:{port}"));
        let url = format!("redis+sentinel://{}/{}", hosts.join(","), sentinels::GROUP);
        let other = client(&group.url()).await;
        let held = other.lock("k").lease(60 * SECOND).acquire().await.unwrap();
        for _ in 0..20 {
            let joining = client(&url).await;
            let entered = joining.lock("k").wait(Duration::ZERO).acquire().await;
            assert!(
                matches!(entered, Err(LockError::Busy { .. })),
                "{entered:?}"
            );
            joining.shutdown().await;
        }
        held.release().await;
    })
    .await;
}

/// Row 27 of `docs/faults.md`: the Sentinels lose the primary, and a client that still reaches the primary loses its
/// Sentinel. The old primary therefore still grants locks to the client. The tokens of both primaries rise in the order
/// of their grants.
#[tokio::test]
async fn row_27_both_primaries_grant() {
    row(27, async |_| {
        let mut group = SentinelGroup::start().await;
        let url = group.url_of_user().await;
        let last = format!("127.0.0.1:{}", group.sentinels[2].port());
        let cut_off = format!(
            "redis+sentinel://locks:secret@{last}/{}",
            support::sentinels::GROUP
        );
        let cut_off = client(&cut_off).await;
        let mut tokens = vec![token(&cut_off).await];
        group.sentinels[2].kill();
        group.hide_from_sentinels(0).await;
        group.promoted_instead_of(0).await;
        let connections = cut_off.stats().connections;
        let other = client(&url).await;
        for _ in 0..5 {
            tokens.push(token(&other).await);
            tokens.push(token(&cut_off).await);
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert_eq!(
            cut_off.stats().connections,
            connections,
            "both primaries grant"
        );
    })
    .await;
}
