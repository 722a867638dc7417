//! Row 18 of `docs/faults.md`: connections with a long round trip, with jitter, and with bytes that arrive one by one.

use std::time::Instant;

use support::{history::History, proxy::FaultProxy, server::RedisServer};

use crate::fixture::{MS, SECOND, client, left, row, until_waiting};

/// Row 18 of `docs/faults.md`: a connection with a round trip of 200 ms. Connecting takes a few round trips, and an
/// acquisition takes one.
#[tokio::test]
async fn row_18_slow_line() {
    row(18, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        proxy.delay(100 * MS);
        let behind = client(&proxy.url()).await;
        let start = Instant::now();
        let guard = behind.lock("k").acquire().await.unwrap();
        seen.within("the first acquisition takes", 400 * MS, start.elapsed());
        assert!(guard.remaining() > 29 * SECOND);
        guard.release().await;
        // The client also reconnects over the slow connection.
        proxy.cut();
        behind
            .lock("k")
            .wait(5 * SECOND)
            .run(async {})
            .await
            .unwrap();
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 18 of `docs/faults.md`: a connection with a round trip of 200 ms, with jitter, and with bytes that arrive one by
/// one. The holder counts its lease as shorter by one round trip, and every caller enters.
#[tokio::test]
async fn row_18_jitter_and_split_bytes() {
    const CALLERS: u32 = 8;
    row(18, async |seen| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let behind = client(&proxy.url()).await;
        proxy.delay(80 * MS);
        proxy.jitter(40 * MS);
        proxy.split_bytes(true);
        let lease = 10 * SECOND;
        let guard = behind.lock("k").lease(lease).acquire().await.unwrap();
        let left = guard.remaining();
        assert!(left <= lease - 160 * MS, "{left:?}");
        let mut waiting = tokio::task::JoinSet::new();
        let history = History::new();
        for _ in 0..CALLERS {
            let (behind, history) = (behind.clone(), history.clone());
            waiting.spawn(async move {
                let lock = behind.lock("k").wait(30 * SECOND);
                let guard = lock.acquire().await.unwrap();
                drop(history.enter("k", guard.token().get()));
                guard.release().await;
            });
        }
        until_waiting(&behind, CALLERS as usize).await;
        let start = Instant::now();
        guard.release().await;
        waiting.join_all().await;
        // The bound allows each caller three round trips of up to 240 ms: one for the push of its grant, one for its
        // release, and one for a heartbeat. The heartbeat is needed if the push arrives near the end of the claim (2
        // s).
        let most = CALLERS * 3 * 240 * MS;
        seen.within("all callers enter after the release", most, start.elapsed());
        history.check().assert_clean(CALLERS as usize);
    })
    .await;
}
