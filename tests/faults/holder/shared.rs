//! Rows 59 to 61 of `docs/faults.md`: readers and permits, whose processes or connections fail.

use std::time::{Duration, Instant};

use lock_runtime::Mode;
use support::{proxy::FaultProxy, server::RedisServer, slowness};

use crate::fixture::{SECOND, client, entering, left, row, until, until_waiting, worker_at};

/// Row 59 of `docs/faults.md`: a process is killed while readers of it are inside, beside a reader of another process. The
/// next writer enters when the lease of the killed readers has ended and the other reader has left, whichever is later.
#[tokio::test]
async fn row_59_readers_killed() {
    row(59, async |seen| {
        let server = RedisServer::start().await;
        let lease = (1500.0 * slowness()) as u64;
        let client = client(&server.url()).await;
        let lock = || client.lock("k").wait(60 * SECOND).lease(60 * SECOND);
        let stays = lock().read().acquire().await.unwrap();
        let mut readers = worker_at(&server.url(), "readers", lease);
        readers.until("inside").await;
        let inside_since = Instant::now();
        let writing = entering(lock());
        until_waiting(&client, 1).await;
        readers.kill();
        // The renewals of the reader that stays do not prolong the leases of the killed readers.
        until(async || lock().status().await.unwrap().others.is_empty()).await;
        assert!(!writing.is_finished(), "a reader is inside");
        stays.release().await;
        let (entered, writer) = writing.await.unwrap();
        seen.within(
            "the writer enters after the readers",
            Duration::from_millis(lease),
            entered.duration_since(inside_since),
        );
        writer.release().await;
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 60 of `docs/faults.md`: a process is killed that has two of three permits. A caller that needs three enters when the
/// lease of these permits has ended, and no permit is lost.
#[tokio::test]
async fn row_60_permits_killed() {
    row(60, async |seen| {
        let server = RedisServer::start().await;
        let lease = (1500.0 * slowness()) as u64;
        let client = client(&server.url()).await;
        let permits = || {
            client
                .semaphore("k", 3)
                .wait(60 * SECOND)
                .lease(60 * SECOND)
        };
        let mut worker = worker_at(&server.url(), "permits", lease);
        worker.until("inside").await;
        let inside_since = Instant::now();
        let one = permits().acquire().await.unwrap();
        let waiting = tokio::spawn(permits().acquire_many(3));
        until(async || permits().status().await.unwrap().waiters == 1).await;
        worker.kill();
        one.release().await;
        let all = waiting.await.unwrap().unwrap();
        seen.within(
            "the next caller enters after the permits",
            Duration::from_millis(lease),
            inside_since.elapsed(),
        );
        all.release().await;
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 61 of `docs/faults.md`: the connection of a writer that becomes a reader is cut before the answer, and that of readers
/// while they are inside. Nobody is lost, readers enter beside the former writer, and the writer that waits enters after all
/// of them.
#[tokio::test]
async fn row_61_readers_cut_off() {
    row(61, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (behind, other) = (client(&proxy.url()).await, client(&server.url()).await);
        // From here on, the server knows the script.
        let guard = other.lock("k").acquire().await.unwrap();
        guard.downgrade().await.unwrap();
        guard.release().await;
        let lock = |client: &lock_runtime::LockClient| {
            client.lock("k").wait(60 * SECOND).lease(60 * SECOND)
        };
        let former = lock(&behind).acquire().await.unwrap();
        let reading = entering(lock(&other).read());
        until_waiting(&other, 1).await;
        let more = entering(lock(&behind).read());
        until_waiting(&other, 2).await;
        let writing = entering(lock(&other));
        until_waiting(&other, 3).await;
        proxy.hold_replies(true);
        let downgrading = tokio::spawn(async move {
            former.downgrade().await.unwrap();
            former
        });
        let (_, reader) = reading.await.unwrap();
        let holder = lock(&other).status().await.unwrap().holder;
        assert_eq!(holder.unwrap().mode, Mode::Read);
        proxy.cut();
        proxy.hold_replies(false);
        let former = downgrading.await.unwrap();
        let (_, more) = more.await.unwrap();
        proxy.cut();
        reader.release().await;
        for guard in [former, more] {
            assert_eq!(guard.loss(), None);
            assert!(!writing.is_finished());
            guard.release().await;
        }
        writing.await.unwrap().1.release().await;
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}
