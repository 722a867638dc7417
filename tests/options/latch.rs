//! Latches: several parts of some work, and those who wait until all of them are done.

use std::time::Duration;

use futures_util::future::join_all;
use lock_runtime::{KeyError, Latch, Latched, LockClient, LockError, OptionsError};
use support::{
    proxy::FaultProxy,
    server::RedisServer,
    stores::{
        SECOND, Store, on_every_topology_with_a_queue, on_stores_with_a_queue, until, until_free,
        until_waiting,
    },
};
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
const KEY: &str = "latch:import";

fn latch(client: &LockClient, parts: u32) -> Latch {
    client.latch("import", parts, 60 * SECOND)
}

fn wait(latch: &Latch) -> JoinHandle<Result<Latched, LockError>> {
    let latch = latch.clone();
    tokio::spawn(async move { latch.wait(60 * SECOND).await })
}

/// Returns the number of callers that wait for the latch.
async fn waiting(client: &LockClient) -> usize {
    client.lock(KEY).status().await.unwrap().waiters
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
        until_waiting(&one, KEY, 5).await;
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
        let left = waiting(&one).await;
        assert_eq!(left, 0, "all enter with the last part");
        assert_eq!(ended(waiters).await, [Latched::Reached; 5]);
        // Who comes late sees the result, and a part that comes late changes nothing.
        assert_eq!(there.wait(60 * SECOND).await, Ok(Latched::Reached));
        assert_eq!(there.count_down("d").await.unwrap().left, 0);
        until_free(&one, KEY).await;
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
        until_free(&one, KEY).await;
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
        until_waiting(&one, KEY, 2).await;
        let third = there.restart(second.round).await.unwrap();
        assert_eq!((third.left, third.parts), (1, 1));
        assert_eq!(ended(waiters).await, [Latched::Expired; 2]);
        let waiters = [&here, &there].map(wait).into();
        until_waiting(&one, KEY, 2).await;
        assert!(here.count_down("a").await.unwrap().is_reached());
        assert_eq!(ended(waiters).await, [Latched::Reached; 2]);
        until_free(&one, KEY).await;
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
        until_waiting(&one, KEY, 2).await;
        dropped.abort();
        until_waiting(&one, KEY, 1).await;
        latch(&one, 1).count_down("a").await.unwrap();
        assert_eq!(ended(waiters).await, [Latched::Reached]);
        until_free(&one, KEY).await;
    })
    .await;
}

/// A server that has lost its data has lost the parts that were counted. Nobody is told that they were all counted.
#[tokio::test]
async fn a_latch_that_the_server_has_lost_is_not_reached() {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let import = client.latch("import", 2, 3 * SECOND);
    import.count_down("a").await.unwrap();
    let waiters = vec![wait(&import)];
    until_waiting(&client, KEY, 1).await;
    let before = import.status().await.unwrap().unwrap().round;
    let mut connection = server.connection().await;
    redis::cmd("FLUSHALL")
        .exec_async(&mut connection)
        .await
        .unwrap();
    until(async || {
        import
            .status()
            .await
            .is_ok_and(|round| round.is_some_and(|it| it.round != before))
    })
    .await;
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
    proxy.hold_replies(true);
    let counting = tokio::spawn({
        let import = latch(&behind.clone(), 3);
        async move { import.count_down("a").await }
    });
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
        let expected = LockError::InvalidOptions(OptionsError::LifeOutOfRange);
        assert_eq!(refused, Err(expected));
    }
    let empty = latch(&client, 1).count_down("").await;
    assert_eq!(empty, Err(LockError::InvalidKey(KeyError::Empty)));
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
