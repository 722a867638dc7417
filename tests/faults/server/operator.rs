//! Rows 12, 22 and 23 of `docs/faults.md`: an operator's commands to the server, and a release that comes too late.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use lock_runtime::{LockError, LossReason};
use support::{
    assert_lost,
    proxy::FaultProxy,
    server::{RedisServer, ask},
};

use crate::fixture::{MS, NAME, SECOND, client, left, row, until};

/// Row 12 of `docs/faults.md`: a caller releases its lock after the lease has ended, while another caller holds the
/// lock. The late release does not affect the other caller.
#[tokio::test]
async fn row_12_release_after_expiry() {
    row(12, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let late = client.lock("k").lease(300 * MS).acquire().await.unwrap();
        late.lost().await;
        let next = client.lock("k").wait(SECOND).acquire().await.unwrap();
        let released = client.stats().released;
        let scripts = server.scripts().await;
        late.release().await;
        until(async || server.scripts().await > scripts).await;
        assert_eq!(client.stats().released, released);
        assert_eq!(next.loss(), None);
        assert!(client.lock("k").try_acquire().await.is_err());
        next.release().await;
        assert_eq!(client.stats().released, released + 1);
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 12 of `docs/faults.md`: the answer to an extension does not arrive, so the holder loses its lease, although the
/// server has extended it. The lock is released when the server can be reached again, even if this takes longer than a
/// claim (2 s).
#[tokio::test]
async fn row_12_release_after_an_extension_without_an_answer() {
    row(12, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        let guard = loop {
            let guard = behind.lock("k").lease(3 * SECOND).acquire();
            let guard = guard.await.unwrap();
            let (lost, scripts) = (behind.stats().lost, server.scripts().await);
            proxy.hold_replies(true);
            let mut extended = Box::pin(guard.extend(600 * SECOND));
            let is_sent = tokio::select! {
                _ = &mut extended => false,
                () = until(async || server.scripts().await > scripts) => true,
            };
            if !is_sent {
                // The connection of this runtime was still being made, so the lease ended before it could be extended.
                proxy.hold_replies(false);
                continue;
            }
            proxy.refuse(true);
            proxy.cut();
            proxy.hold_replies(false);
            assert_lost(&extended.as_mut().await);
            assert_eq!(behind.stats().lost, lost + 1);
            drop(extended);
            let mut left = redis::cmd("PTTL");
            let left: i64 = ask(&mut server.connection().await, left.arg(NAME)).await;
            if left > 60_000 {
                break guard;
            }
            // The request was not yet carried out when the connection broke.
            proxy.refuse(false);
        };
        drop(guard);
        tokio::time::sleep(2500 * MS).await;
        assert_eq!(left(&server).await, [NAME]);
        proxy.refuse(false);
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}

/// Row 22 of `docs/faults.md`: an operator runs `SCRIPT FLUSH` before every operation of a client. No operation fails.
#[tokio::test]
async fn row_22_scripts_flushed() {
    row(22, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let mut admin = server.connection().await;
        let flush = redis::cmd("SCRIPT").arg("FLUSH").to_owned();
        for _ in 0..20 {
            flush.exec_async(&mut admin).await.unwrap();
            let guard = client.lock("k").lease(SECOND).acquire().await.unwrap();
            let waiting = tokio::spawn(client.lock("k").wait(5 * SECOND).acquire());
            crate::fixture::until_waiting(&client, 1).await;
            flush.exec_async(&mut admin).await.unwrap();
            guard.extend(SECOND).await.unwrap();
            flush.exec_async(&mut admin).await.unwrap();
            guard.release().await;
            let next = waiting.await.unwrap().unwrap();
            flush.exec_async(&mut admin).await.unwrap();
            next.release().await;
        }
        assert_eq!(client.stats().release_failed, 0);
    })
    .await;
}

/// Row 23 of `docs/faults.md`: an operator deletes the key of a held lock, or all keys. The holder is notified, and
/// tokens keep rising.
#[tokio::test]
async fn row_23_key_deleted_and_flushall() {
    row(23, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let mut newest = 0;
        for command in [
            redis::cmd("DEL").arg(NAME).to_owned(),
            redis::cmd("FLUSHALL").to_owned(),
        ] {
            let lost = client
                .lock("k")
                .lease(1500 * MS)
                .renew(true)
                .run(async {
                    command
                        .exec_async(&mut server.connection().await)
                        .await
                        .unwrap();
                    std::future::pending::<()>().await;
                })
                .await;
            let Err(LockError::Lost {
                token,
                reason: LossReason::NotHeld,
                ..
            }) = lost
            else {
                panic!("{lost:?}");
            };
            assert!(token.get() > newest);
            newest = token.get();
            let guard = client.lock("k").try_acquire().await.unwrap();
            assert!(guard.token().get() > newest);
            newest = guard.token().get();
            guard.release().await;
        }
    })
    .await;
}

/// Row 23 of `docs/faults.md`: an operator deletes all keys while callers wait. The waiters queue again, and enter in
/// their old order.
#[tokio::test]
async fn row_23_flushall_while_waiting() {
    row(23, async |seen| {
        let server = RedisServer::start().await;
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let guard = holder.lock("k").acquire().await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        for place in 0..3 {
            let (waiter, order) = (waiter.clone(), order.clone());
            waiting.spawn(async move {
                let enter = async { order.lock().unwrap().push((place, Instant::now())) };
                waiter.lock("k").wait(20 * SECOND).run(enter).await.unwrap();
            });
            crate::fixture::until_waiting(&holder, place + 1).await;
        }
        let flushed = Instant::now();
        ask::<()>(&mut server.connection().await, &redis::cmd("FLUSHALL")).await;
        waiting.join_all().await;
        let order = order.lock().unwrap().clone();
        let places: Vec<_> = order.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [0, 1, 2]);
        let took = order[0].1.duration_since(flushed);
        seen.within("a waiter enters after FLUSHALL", 200 * MS, took);
        assert_lost(&guard.extend(SECOND).await);
        guard.release().await;
    })
    .await;
}
