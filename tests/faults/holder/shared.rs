//! Rows 59 to 64 of `docs/faults.md`: readers, permits, leaders and latches, whose processes or connections fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lock_runtime::{Latched, LockClient, Mode, Term};
use support::{proxy::FaultProxy, server::RedisServer, slowness};
use tokio::sync::mpsc;

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

/// Row 62 of `docs/faults.md`: the number of permits changes while many callers take permits. Once no more than the new number
/// are taken, no caller enters beside as many; the number inside is counted by the bodies themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_62_limit_changes() {
    row(62, async |_| {
        let server = RedisServer::start().await;
        let clients = [client(&server.url()).await, client(&server.url()).await];
        let permits = |client: &LockClient| {
            client
                .semaphore("k", 5)
                .wait(60 * SECOND)
                .lease(60 * SECOND)
        };
        let (inside, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let callers: Vec<_> = (0..24)
            .map(|number: usize| {
                let permits = permits(&clients[number % 2]);
                let (inside, most) = (inside.clone(), most.clone());
                tokio::spawn(async move {
                    loop {
                        let guard = permits.acquire().await.unwrap();
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.release().await;
                    }
                })
            })
            .collect();
        let operator = permits(&clients[0]);
        for limit in [2, 7, 1, 0, 5, 3, 9, 2] {
            operator.set_limit(limit).await.unwrap();
            // The server knows callers that are granted a permit, and have not begun yet.
            until(async || {
                let status = operator.status().await.unwrap();
                status.holder.iter().chain(&status.others).count() <= limit as usize
            })
            .await;
            let limit = i64::from(limit);
            most.store(0, Ordering::SeqCst);
            if limit > 0 {
                // As many as fit enter, and no more of them.
                until(async || most.load(Ordering::SeqCst) >= limit).await;
            }
            let before = clients[1].stats().acquired;
            until(async || limit == 0 || clients[1].stats().acquired > before + 200).await;
            assert!(most.load(Ordering::SeqCst) <= limit, "{limit} permits");
        }
        callers.iter().for_each(tokio::task::JoinHandle::abort);
        join_all(callers).await;
        operator.clear_limit().await.unwrap();
        until(async || operator.status().await.unwrap().holder.is_none()).await;
        assert_eq!(left(&server).await, Vec::<String>::new());
    })
    .await;
}

/// Row 63 of `docs/faults.md`: the leader is cut off. Its body ends with its lease, before the next candidate leads.
#[tokio::test]
async fn row_63_leader_cut_off() {
    row(63, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (began, mut terms) = mpsc::unbounded_channel();
        let lead = |client: LockClient| {
            let leader = client.leader("jobs").lease(SECOND.mul_f64(slowness()));
            let began = began.clone();
            let running = tokio::spawn({
                let leader = leader.clone();
                async move {
                    leader
                        .run(async |term: Term| {
                            let _ = began.send(term.clone());
                            std::future::pending::<()>().await;
                        })
                        .await
                }
            });
            (leader, running)
        };
        let (first, running) = lead(client(&proxy.url()).await);
        let term = terms.recv().await.unwrap();
        let (second, other) = lead(client(&server.url()).await);
        until(async || second.holder().await.unwrap().is_some()).await;
        assert!(first.is_leader() && !second.is_leader());
        proxy.refuse(true);
        proxy.cut();
        let next = terms.recv().await.unwrap();
        assert!(
            term.loss().is_some(),
            "the next term begins after the end of this one"
        );
        assert!(!first.is_leader() && second.is_leader());
        assert!(next.token() > term.token() && next.vacant_for().is_some());
        running.abort();
        other.abort();
    })
    .await;
}

/// Row 64 of `docs/faults.md`: the connections of those who wait for a latch are cut while its last part is counted.
#[tokio::test]
async fn row_64_latch_cut_off() {
    row(64, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (behind, other) = (client(&proxy.url()).await, client(&server.url()).await);
        let latch = |client: &LockClient| client.latch("k", 2, 60 * SECOND);
        let first = latch(&other).count_down("a").await.unwrap();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let latch = latch(&behind);
                tokio::spawn(async move { latch.wait(60 * SECOND).await })
            })
            .collect();
        until(async || latch(&other).waiting().await == Ok(3)).await;
        proxy.hold_replies(true);
        let last = latch(&other).count_down("b").await.unwrap();
        assert!(last.is_reached() && last.round == first.round);
        proxy.cut();
        proxy.hold_replies(false);
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), Ok(Latched::Reached));
        }
    })
    .await;
}
