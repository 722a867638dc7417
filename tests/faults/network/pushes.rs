//! Row 19 of `docs/faults.md`: pushes that are lost, and connections that break when a lock is granted.

use std::time::Instant;

use lock_runtime::ReleaseOutcome;
use support::{proxy::FaultProxy, server::RedisServer};

use crate::fixture::{MS, NAME, QUEUE, SECOND, client, entering, left, row, until, until_waiting};

/// Row 19 of `docs/faults.md`: the server grants the lock, and the push that reports the grant is lost although the
/// connection stays up. The next probe finds the grant, and the waiter enters.
#[tokio::test]
async fn row_19_push_lost() {
    row(19, async |seen| {
    const GIVE_WITHOUT_A_WORD: &str = "
        local head = redis.call('ZPOPMIN', KEYS[2])
        local owner, session_id, lease = string.match(head[1], '^(%x+)|([^|]+)|(%d+)')
        local token = string.format('%.0f', redis.call('INCR', KEYS[3]))
        redis.call('SET', KEYS[1], token .. '|' .. lease .. '|' .. session_id .. '|' .. owner, 'PX', 2000)
        return token";
    let server = RedisServer::start().await;
    let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.unwrap();
    let waiting = entering(waiter.lock("k").wait(20 * SECOND));
    until_waiting(&holder, 1).await;
    let mut connection = server.connection().await;
    let given = Instant::now();
    let token: u64 = redis::Script::new(GIVE_WITHOUT_A_WORD)
        .key(NAME)
        .key(QUEUE)
        .key("lock:fence")
        .invoke_async(&mut connection)
        .await
        .unwrap();
    let (entered, entrant) = waiting.await.unwrap();
    let took = entered.duration_since(given);
    assert_eq!(entrant.token().get(), token);
    seen.within("the waiter enters after a lost message", 200 * MS, took);
    until(async || waiter.stats().missed_wakeups == 1).await;
    entrant.release().await;
    guard.release().await;
    }).await;
}

/// Row 19 of `docs/faults.md`: the connection of a waiter is cut when the server grants the lock to the waiter. The
/// waiter keeps its place in the queue, and enters first.
#[tokio::test]
async fn row_19_connection_cut_at_the_grant() {
    row(19, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (holder, behind) = (client(&server.url()).await, client(&proxy.url()).await);
        let guard = holder.lock("k").acquire().await.unwrap();
        let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waiting = tokio::task::JoinSet::new();
        for (place, client) in [behind, holder.clone()].into_iter().enumerate() {
            let order = order.clone();
            waiting.spawn(async move {
                let enter = async { order.lock().unwrap().push((place, Instant::now())) };
                client.lock("k").wait(20 * SECOND).run(enter).await.unwrap();
            });
            until_waiting(&holder, place + 1).await;
        }
        proxy.hold_replies(true);
        let released = Instant::now();
        guard.release().await;
        proxy.cut();
        proxy.hold_replies(false);
        waiting.join_all().await;
        let order = order.lock().unwrap();
        let took = order[0].1.duration_since(released);
        assert_eq!((order[0].0, order[1].0), (0, 1));
        seen.within("the waiter enters after the cut", 200 * MS, took);
    })
    .await;
}

/// Row 19 of `docs/faults.md`: the connection of hundreds of waiters is cut while they are granted their locks and
/// while some of them give up. The lock of a running body is never granted to another caller, and no grant is left for
/// a caller that has given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_hundreds_reconnect_while_they_are_granted_or_give_up() {
    row(19, async |_| {
        const KEYS: u64 = 300;
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (direct, behind) = (client(&server.url()).await, client(&proxy.url()).await);
        let mut guards = Vec::new();
        for i in 0..KEYS {
            let lock = direct.lock(format!("k{i}")).lease(60 * SECOND);
            guards.push(lock.acquire().await.unwrap());
        }
        let mut waiting = tokio::task::JoinSet::new();
        for i in 0..KEYS {
            // The `wait` of every third caller ends at about the time of the reconnect.
            let wait = if i % 3 == 0 {
                500 * MS + MS * u32::try_from(i % 20).unwrap()
            } else {
                20 * SECOND
            };
            let lock = behind.lock(format!("k{i}")).wait(wait).lease(60 * SECOND);
            let other = direct.lock(format!("k{i}"));
            waiting.spawn(async move {
                let Ok(guard) = lock.acquire().await else {
                    return;
                };
                tokio::time::sleep(20 * MS).await;
                let second = other.try_acquire().await;
                assert!(
                    second.is_err() || guard.loss().is_some(),
                    "two holders of {}",
                    guard.key()
                );
                guard.release().await;
            });
        }
        let last = direct.lock(format!("k{}", KEYS - 1));
        until(async || last.status().await.unwrap().waiters == 1).await;
        tokio::time::sleep(480 * MS).await;
        proxy.cut();
        for (i, guard) in (0..).zip(guards) {
            waiting.spawn(async move {
                tokio::time::sleep(MS * (i / 10)).await;
                let released = guard.release().await;
                assert!(matches!(released, ReleaseOutcome::Released), "{released:?}");
            });
        }
        waiting.join_all().await;
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}
