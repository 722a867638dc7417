//! Latches: several parts of some work, and those who wait until all of them are done.

use std::time::Duration;

use futures_util::future::join_all;
use lock_runtime::{KeyError, Latch, Latched, LockClient, LockError, OptionsError};
use support::{
    proxy::FaultProxy,
    server::RedisServer,
    stores::{SECOND, Store, on_every_topology_with_a_queue, on_stores_with_a_queue, until},
};
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);

fn latch(client: &LockClient, parts: u32) -> Latch {
    client.latch("import", parts, 60 * SECOND)
}

fn wait(latch: &Latch) -> JoinHandle<Result<Latched, LockError>> {
    let latch = latch.clone();
    tokio::spawn(async move { latch.wait(60 * SECOND).await })
}

/// Waits until this number of callers wait for the present round.
async fn until_waiting(latch: &Latch, callers: usize) {
    until(async || latch.waiting().await == Ok(callers)).await;
}

/// Waits until the store contains only counters and records.
async fn until_clean(store: &Store) {
    until(async || store.keys().await.iter().all(|key| key.ends_with("fence"))).await;
}

async fn ended(waiters: Vec<JoinHandle<Result<Latched, LockError>>>) -> Vec<Latched> {
    let ended = join_all(waiters).await.into_iter();
    ended.map(|end| end.unwrap().unwrap()).collect()
}

#[tokio::test]
async fn all_who_wait_continue_when_the_last_part_is_done() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let (here, there) = (latch(&one, 3), latch(&two, 3));
        assert_eq!(here.status().await, Ok(None));
        let waiters = [&here, &there, &here, &there, &there].map(wait).into();
        until_waiting(&latch(&one, 1), 5).await;
        for (done, part) in ["a", "b", "a", "b"].into_iter().enumerate() {
            let round = there.count_down(part).await.unwrap();
            assert_eq!(
                round.left,
                [2, 1, 1, 1][done],
                "a repeated part counts once"
            );
        }
        let status = here.status().await.unwrap().unwrap();
        assert!(!status.is_reached() && !status.is_expired() && status.parts == 3);
        assert_eq!(here.wait(Duration::ZERO).await, Ok(Latched::TimedOut));
        let last = here.count_down("c").await.unwrap();
        assert!(last.is_reached() && last.round == status.round);
        assert_eq!(here.waiting().await, Ok(0), "all enter with the last part");
        assert_eq!(ended(waiters).await, [Latched::Reached; 5]);
        // Who comes late sees the result, and a part that comes late changes nothing.
        assert_eq!(there.wait(60 * SECOND).await, Ok(Latched::Reached));
        assert_eq!(there.count_down("d").await.unwrap().left, 0);
        until_clean(&store).await;
    })
    .await;
}

#[tokio::test]
async fn a_round_expires_with_its_life() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let brief = one.latch("import", 2, 1500 * MS);
        brief.count_down("a").await.unwrap();
        let other = latch(&two, 7); // the first use has named the parts and the life
        let waiters = [&brief, &other].map(wait).into();
        assert_eq!(ended(waiters).await, [Latched::Expired; 2]);
        let late = other.count_down("b").await.unwrap();
        assert!(late.is_expired() && late.left == 1 && late.parts == 2);
        assert_eq!(other.wait(60 * SECOND).await, Ok(Latched::Expired));
        until_clean(&store).await;
    })
    .await;
}

#[tokio::test]
async fn a_round_is_forgotten_as_long_after_its_end_as_it_has_lasted() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let brief = client.latch("import", 1, 100 * MS);
        let first = brief.count_down("a").await.unwrap().round;
        until(async || brief.status().await.unwrap().is_none()).await;
        let second = brief.count_down("a").await.unwrap();
        assert!(second.round > first && second.is_reached());
    })
    .await;
}

/// Several callers that end the same round begin one new round.
#[tokio::test]
async fn a_restart_begins_the_next_round_once() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let (here, there) = (latch(&one, 1), latch(&two, 1));
        let first = here.count_down("a").await.unwrap().round;
        let second = here.restart(first).await.unwrap();
        assert!(second.round > first && second.left == 1);
        assert_eq!(there.restart(first).await.unwrap().round, second.round);
        // Those who wait for a round that somebody ends are told so.
        let waiters = [&here, &there].map(wait).into();
        until_waiting(&latch(&one, 1), 2).await;
        let third = there.restart(second.round).await.unwrap();
        assert_eq!((third.left, third.parts), (1, 1));
        assert_eq!(ended(waiters).await, [Latched::Expired; 2]);
        let waiters = [&here, &there].map(wait).into();
        until_waiting(&latch(&one, 1), 2).await;
        assert!(here.count_down("a").await.unwrap().is_reached());
        assert_eq!(ended(waiters).await, [Latched::Reached; 2]);
        until_clean(&store).await;
    })
    .await;
}

#[tokio::test]
async fn a_latch_of_no_parts_is_reached() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        assert_eq!(latch(&client, 0).wait(SECOND).await, Ok(Latched::Reached));
    })
    .await;
}

/// A caller that is dropped waits no longer, and the others do.
#[tokio::test]
async fn a_caller_that_is_dropped_leaves_nothing() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let dropped = wait(&latch(&one, 1));
        let waiters = vec![wait(&latch(&two, 1))];
        until_waiting(&latch(&one, 1), 2).await;
        dropped.abort();
        until_waiting(&latch(&one, 1), 1).await;
        latch(&one, 1).count_down("a").await.unwrap();
        assert_eq!(ended(waiters).await, [Latched::Reached]);
        until_clean(&store).await;
    })
    .await;
}

/// A server that has lost its data has lost the parts that were counted. Nobody is told that they were all counted.
#[tokio::test]
async fn a_latch_that_the_server_has_lost_is_not_reached() {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let import = client.latch("import", 2, 60 * SECOND);
    import.count_down("a").await.unwrap();
    let waiters = vec![wait(&import)];
    until_waiting(&latch(&client, 1), 1).await;
    let mut connection = server.connection().await;
    redis::cmd("FLUSHALL")
        .exec_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(ended(waiters).await, [Latched::Expired]);
}

/// A part whose answer is lost counts once.
#[tokio::test]
async fn a_part_whose_answer_is_lost_counts_once() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let client = store.client().await;
    let behind = store.through(&proxy.url()).client().await;
    let import = latch(&client, 3);
    import.wait(Duration::ZERO).await.unwrap();
    latch(&behind, 3).status().await.unwrap();
    proxy.delay(100 * MS);
    let asked = proxy.wait_for_request(b"count");
    let counting = tokio::spawn({
        let import = latch(&behind, 3);
        async move { import.count_down("a").await }
    });
    asked.await;
    proxy.hold_replies(true);
    until(async || import.status().await.unwrap().unwrap().left == 2).await;
    proxy.cut();
    proxy.hold_replies(false);
    assert_eq!(counting.await.unwrap().unwrap().left, 2);
    assert_eq!(import.status().await.unwrap().unwrap().left, 2);
}

#[tokio::test]
async fn latches_that_make_no_sense_are_refused() {
    let client = Store::memory().client().await;
    for life in [Duration::ZERO, 25 * 3600 * SECOND] {
        let refused = client.latch("import", 1, life).count_down("a").await;
        let expected = LockError::InvalidOptions(OptionsError::LatchOutOfRange);
        assert_eq!(refused, Err(expected));
    }
    let many = latch(&client, 100_001).count_down("a").await;
    let expected = LockError::InvalidOptions(OptionsError::LatchOutOfRange);
    assert_eq!(many, Err(expected));
    for part in [String::new(), "a".repeat(1025)] {
        let refused = latch(&client, 1).count_down(part).await;
        let expected = LockError::InvalidOptions(OptionsError::PartOutOfRange);
        assert_eq!(refused, Err(expected));
    }
    let empty = LockError::InvalidKey(KeyError::Empty);
    let nameless = client.latch("", 1, SECOND).count_down("a").await;
    assert_eq!(nameless, Err(empty.clone()));
    let nameless = client.semaphore("", 1).acquire().await;
    assert_eq!(nameless.map(drop), Err(empty.clone()));
    assert_eq!(client.leader("").run(async |_| {}).await, Err(empty));
    for store in [Store::redlock().await, Store::redisson().await] {
        let client = store.client().await;
        let expected = LockError::InvalidOptions(OptionsError::NoReaders);
        assert_eq!(
            latch(&client, 1).count_down("a").await,
            Err(expected.clone())
        );
        assert_eq!(latch(&client, 1).wait(SECOND).await, Err(expected));
    }
}

/// A call that holds several keys waits for a latch whose name sorts before these keys. It sends no more requests than a wait
/// outside of a call, and does not block the thread of an in-process client.
#[tokio::test]
async fn a_wait_inside_another_call_waits() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let (import, locks) = (latch(&client, 1), client.locks(["x", "y"]));
        let waiting = locks.run(async { import.wait(60 * SECOND).await });
        let counting = async {
            until_waiting(&import, 1).await;
            let before = client.stats().commands;
            tokio::time::sleep(500 * MS).await;
            let sent = client.stats().commands - before;
            import.count_down("a").await.unwrap();
            sent
        };
        let (end, sent) = tokio::join!(waiting, counting);
        assert_eq!(end, Ok(Ok(Latched::Reached)));
        assert!(sent < 20, "{sent} commands in half a second");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_ends_by_a_paused_clock() {
    let client = Store::memory().client().await;
    for micros in [1, 500, 999, 1000, 1500] {
        let wait = Duration::from_micros(micros);
        assert_eq!(latch(&client, 1).wait(wait).await, Ok(Latched::TimedOut));
    }
}

/// Rounds that are reached follow each other quickly. Nobody who waited for one of them is told that it has expired, and nobody
/// waits for the end of another round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_waiter_learns_of_its_own_round() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        for _ in 0..20 {
            let import = latch(&two, 1);
            let waiters: Vec<_> = (0..10).map(|_| wait(&latch(&one, 1))).collect();
            until_waiting(&import, 10).await;
            for _ in 0..5 {
                let reached = import.count_down("a").await.unwrap();
                assert!(reached.is_reached());
                import.restart(reached.round).await.unwrap();
            }
            assert_eq!(ended(waiters).await, [Latched::Reached; 10]);
        }
    })
    .await;
}

/// A part whose answer is lost, and whose round is over when its request is repeated, does not count in the next round.
#[tokio::test]
async fn a_repeated_part_does_not_count_in_the_next_round() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let client = store.client().await;
    let behind = store.through(&proxy.url()).client().await;
    let (here, there) = (latch(&client, 2), latch(&behind, 2));
    let round = there.count_down("a").await.unwrap().round;
    proxy.delay(100 * MS);
    let asked = proxy.wait_for_request(b"count");
    let counting = tokio::spawn({
        let there = there.clone();
        async move { there.count_down("b").await }
    });
    asked.await;
    proxy.hold_replies(true);
    until(async || here.status().await.unwrap().unwrap().left == 0).await;
    here.restart(round).await.unwrap();
    proxy.cut();
    proxy.hold_replies(false);
    counting.await.unwrap().unwrap();
    let next = here.status().await.unwrap().unwrap();
    assert!(next.round > round && next.left == 2, "{next:?}");
}
