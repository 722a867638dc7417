//! Failures of other libraries with readers and permits. Each test names where it was seen. `readers.rs`, `semaphore.rs`,
//! `leader.rs` and the rows 59 to 64 of the fault matrix test the others.

use std::time::Duration;

use futures_util::future::join_all;
use lock_runtime::{Lock, LockClient, LockGuard, ReleaseOutcome};
use support::stores::{
    SECOND, on_every_topology_with_a_queue, on_stores_with_a_queue, until, until_free,
    until_waiting,
};

const MS: Duration = Duration::from_millis(1);

fn lock(client: &LockClient) -> Lock {
    client.lock("k").wait(60 * SECOND).lease(60 * SECOND)
}

/// An owner that belongs to the value of a lock: two read guards are one member, and the first release frees the second
/// (distkit 0.7.1).
#[tokio::test]
async fn two_readers_by_one_value_are_two_holds() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let reading = lock(&one).read();
        let (first, second) = (
            reading.acquire().await.unwrap(),
            reading.acquire().await.unwrap(),
        );
        assert_ne!(first.token(), second.token());
        let writing = tokio::spawn(lock(&two).acquire());
        until_waiting(&one, "k", 1).await;
        first.release().await;
        assert_eq!(second.loss(), None);
        assert!(!writing.is_finished(), "the second reader is inside");
        second.release().await;
        writing.await.unwrap().unwrap().release().await;
    })
    .await;
}

/// Readers starve writers (async-rs/async-std#705, asomers/futures-locks#34), and writers starve readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_readers_nor_writers_starve() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let either = |client: &LockClient, reads: bool| match reads {
            true => lock(client).read(),
            false => lock(client),
        };
        for crowd_reads in [true, false] {
            let crowd = [&one, &two].into_iter().cycle().take(16);
            let crowd = crowd.map(|client| {
                let lock = either(client, crowd_reads);
                tokio::spawn(async move {
                    loop {
                        lock.run(tokio::task::yield_now()).await.unwrap();
                    }
                })
            });
            let crowd: Vec<tokio::task::JoinHandle<()>> = crowd.collect();
            for _ in 0..20 {
                either(&one, !crowd_reads).run(async {}).await.unwrap();
            }
            crowd.iter().for_each(tokio::task::JoinHandle::abort);
            join_all(crowd).await;
            until_free(&two, "k").await;
        }
    })
    .await;
}

/// A waiter that is cancelled gives back a permit that it never had (Redisson 4.6.1).
#[tokio::test]
async fn a_caller_that_gives_up_gives_nothing_back() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let smtp = |client: &LockClient| {
            client
                .semaphore("k", 2)
                .wait(60 * SECOND)
                .lease(60 * SECOND)
        };
        let all = smtp(&one).acquire_many(2).await.unwrap();
        let calls: Vec<_> = (0..10)
            .map(|_| tokio::spawn(smtp(&two).acquire()))
            .collect();
        until_waiting(&one, "permits:k", 10).await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        until_waiting(&one, "permits:k", 0).await;
        assert!(
            smtp(&two).try_acquire().await.is_err(),
            "both permits are taken"
        );
        all.release().await;
        until_free(&two, "permits:k").await;
    })
    .await;
}

/// The release of several permits fails if one of them has expired (redisson/redisson#6343).
#[tokio::test]
async fn a_permit_that_has_expired_keeps_no_other_from_its_release() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let smtp = client.semaphore("k", 3).wait(60 * SECOND);
        let brief = smtp.clone().lease(100 * MS).acquire().await.unwrap();
        let others = [
            smtp.clone().lease(60 * SECOND).acquire().await.unwrap(),
            smtp.clone().lease(60 * SECOND).acquire().await.unwrap(),
        ];
        until(async || brief.loss().is_some()).await;
        let [first, last] = others;
        let released = join_all([first, brief, last].map(LockGuard::release)).await;
        assert!(
            matches!(
                released[..],
                [
                    ReleaseOutcome::Released,
                    ReleaseOutcome::Lost(_),
                    ReleaseOutcome::Released
                ]
            ),
            "{released:?}"
        );
        until_free(&client, "permits:k").await;
    })
    .await;
}

/// Among hundreds of semaphores, some callers are never served (redisson/redisson#3573).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_hundreds_of_semaphores_serves_all_its_callers() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let calls = (0..300).flat_map(|number| {
            let calls = [&one, &two, &one].map(|client| {
                let smtp = client.semaphore(format!("k{number}"), 1).wait(60 * SECOND);
                tokio::spawn(async move { smtp.run(tokio::task::yield_now()).await })
            });
            calls.into_iter()
        });
        for call in join_all(calls).await {
            call.unwrap().unwrap();
        }
    })
    .await;
}
