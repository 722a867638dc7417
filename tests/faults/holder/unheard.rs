//! Row 37 of `docs/faults.md`: the process of the first waiter in the queue is stopped or killed.

use std::time::Instant;

use support::server::RedisServer;

use crate::fixture::{SECOND, client, entering, row, until_waiting, worker};

/// Row 37 of `docs/faults.md`: the process of the first waiter is stopped or killed. A stopped process keeps its socket
/// open, and an unrelated subscriber receives every push, so the server cannot detect that the waiter's process is not
/// listening. The next waiter enters after a claim (2 s).
#[tokio::test]
async fn row_37_stopped_waiter_and_stray_subscriber() {
    row(37, async |seen| {
        let server = RedisServer::start().await;
        let mut stray = redis::Client::open(server.url())
            .unwrap()
            .get_async_pubsub()
            .await
            .unwrap();
        stray.psubscribe("*").await.unwrap();
        let client = client(&server.url()).await;
        for kill in [false, true] {
            let guard = client.lock("k").acquire().await.unwrap();
            let mut head = worker(&server, "pass", 30_000);
            head.until("ready").await;
            until_waiting(&client, 1).await;
            if kill {
                head.kill();
            } else {
                head.signal("STOP");
            }
            let next = entering(client.lock("k").wait(30 * SECOND));
            until_waiting(&client, 2).await;
            let released = Instant::now();
            guard.release().await;
            let (entered, guard) = next.await.unwrap();
            let took = entered.duration_since(released);
            seen.within("the next caller enters after the release", 2 * SECOND, took);
            guard.release().await;
        }
    })
    .await;
}
