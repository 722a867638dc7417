//! Tests of Redisson's layout in a Redis Cluster of three primaries, against the real Redisson in cluster mode.

use lock_runtime::{Layout, LockClient, Strategy};
use support::{
    assert_busy, clock,
    cluster::{ClusterServers, shared_cluster},
    server::{RedisServer, ask},
    stores::{MS, SECOND, hold, until},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

use crate::Service;

async fn client(cluster: &ClusterServers) -> LockClient {
    let builder = LockClient::builder().url(cluster.url());
    builder.layout(Layout::Redisson).connect().await.unwrap()
}

async fn service(cluster: &ClusterServers) -> Service {
    let urls: Vec<_> = cluster.servers.iter().map(RedisServer::url).collect();
    Service::with("cluster", urls).await
}

/// Waits until this many connections are subscribed to the shard channel of a lock.
async fn until_listening(cluster: &ClusterServers, lock: &str, clients: u32) {
    let channel = format!("redisson_lock__channel:{{{lock}}}");
    let slot = cluster.slot_of(lock).await;
    until(async || {
        let primary = cluster.primary_of(slot).await;
        let mut redis = cluster.servers[primary].connection().await;
        let mut asking = redis::cmd("PUBSUB");
        let (_, count): (String, u32) =
            ask(&mut redis, asking.arg("SHARDNUMSUB").arg(&channel)).await;
        count == clients
    })
    .await;
}

/// For locks on all primaries, a Rust caller waits for the JVM, and the JVM waits for a Rust caller. Each release wakes
/// the waiting side at once.
#[tokio::test]
async fn in_a_cluster_each_wakes_the_other() {
    let cluster = shared_cluster().await;
    let client = client(cluster).await;
    let mut service = service(cluster).await;
    let mut fastest = SECOND;
    for number in 0..9 {
        let lock = format!("order:{number}:{}", Uuid::new_v4().simple());
        let guard = hold(&client, &lock).await;
        let order = format!("try {lock} 100 1000");
        assert_eq!(service.ask("a", &order).await, "false");
        // The JVM sees a lease of 30 s. Only if the release wakes the JVM, the JVM gets the lock in time.
        service.tell("a", &format!("lock {lock} 20000"));
        until_listening(cluster, &lock, 1).await;
        guard.release().await;
        let entered = timeout(5 * SECOND, service.answer("a")).await;
        assert_eq!(
            entered.expect("the JVM wakes when Rust releases the lock"),
            "in"
        );
        let busy = client.lock(&*lock).wait(100 * MS).acquire().await;
        assert_busy(&busy);
        let waits = client.lock(&*lock).wait(20 * SECOND);
        let (guard, released) = tokio::join!(waits.acquire(), async {
            until_listening(cluster, &lock, 1).await;
            sleep(20 * MS).await;
            let released = Instant::now();
            let order = format!("unlock {lock}");
            assert_eq!(service.ask("a", &order).await, "out");
            released
        });
        fastest = fastest.min(released.elapsed());
        guard.unwrap().release().await;
        until_listening(cluster, &lock, 0).await;
    }
    // Without messages, a waiter would find the free lock 90 ms after the release on average.
    assert!(fastest < 40 * MS, "{fastest:?}");
}

/// Callers in Rust and on the JVM exclude each other, and every caller gets the lock as often as it requests it.
#[tokio::test]
async fn in_a_cluster_both_exclude_each_other_and_nobody_is_missed() {
    let cluster = ClusterServers::start(3).await;
    let mut service = service(&cluster).await;
    let lock = Uuid::new_v4().simple().to_string();
    let counter = format!("inside:{lock}");
    let threads = ["b", "c", "d"];
    for thread in threads {
        service.tell(thread, &format!("visit {lock} {counter} 30 2"));
    }
    let mut running = JoinSet::new();
    let at_counter = cluster.primary_of(cluster.slot_of(&counter).await).await;
    let redis = cluster.servers[at_counter].connection().await;
    for caller in 0..4 {
        let strategy = [Strategy::Notify, Strategy::Spin][caller % 2];
        let client = client(&cluster).await;
        let lock = client.lock(&*lock).strategy(strategy).wait(60 * SECOND);
        let (mut redis, counter) = (redis.clone(), counter.clone());
        running.spawn(async move {
            for _ in 0..30 {
                let body = async {
                    let step = |verb: &str| redis::cmd(verb).arg(&counter).to_owned();
                    let inside: i64 = step("INCR").query_async(&mut redis).await.unwrap();
                    assert_eq!(inside, 1);
                    sleep(2 * MS).await;
                    step("DECR").exec_async(&mut redis).await.unwrap();
                };
                lock.run(body).await.unwrap();
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    for thread in threads {
        let answer = service.answer(thread).await;
        assert_eq!(
            answer, "0",
            "a visit of the JVM overlapped with another holder"
        );
    }
    until_listening(&cluster, &lock, 0).await;
}

#[tokio::test]
async fn in_a_cluster_tokens_of_its_fenced_lock_and_ours_rise_together() {
    let cluster = shared_cluster().await;
    let client = client(cluster).await;
    let mut service = service(cluster).await;
    let lock = Uuid::new_v4().simple().to_string();
    let mut newest = 0;
    for _ in 0..3 {
        let order = format!("fenced {lock} 20000");
        let theirs: u64 = service.ask("a", &order).await.parse().unwrap();
        assert_eq!(service.ask("a", &format!("unfence {lock}")).await, "out");
        let guard = hold(&client, &lock).await;
        let ours = guard.token().get();
        guard.release().await;
        assert!(newest < theirs && theirs < ours, "{newest} {theirs} {ours}");
        newest = ours;
    }
}

/// The time for which one holder held the lock. The fields `entered` and `left` are in ns of the clock that all
/// processes of the machine share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Visit {
    entered: u64,
    left: u64,
    /// The fencing token of the hold, if the holder was in Rust.
    token: Option<u64>,
}

/// While the slot of a lock moves again and again, holders in Rust and on the JVM exclude each other. The JVM polls the
/// lock, because Redisson sometimes misses a release, or returns an error, while it moves a subscription to another
/// server.
#[tokio::test]
async fn in_a_cluster_both_exclude_each_other_while_the_slot_moves() {
    const EACH: usize = 25;
    let cluster = ClusterServers::start(3).await;
    let mut service = service(&cluster).await;
    let lock = Uuid::new_v4().simple().to_string();
    let threads = ["b", "c"];
    for thread in threads {
        service.tell(thread, &format!("poll {lock} {EACH} 2 3000"));
    }
    let mut running = JoinSet::new();
    for caller in 0..4 {
        let strategy = [Strategy::Notify, Strategy::Spin][caller % 2];
        let lock = client(&cluster).await.lock(&*lock).strategy(strategy);
        let lock = lock.wait(20 * SECOND);
        running.spawn(async move {
            let mut visits = Vec::new();
            for _ in 0..EACH {
                let guard = lock.acquire().await.unwrap();
                let entered = clock::now();
                sleep(2 * MS).await;
                visits.push(Visit {
                    entered,
                    left: clock::now(),
                    token: Some(guard.token().get()),
                });
                guard.release().await;
            }
            visits
        });
    }
    let visiting = async {
        let mut visits = Vec::new();
        while let Some(ended) = running.join_next().await {
            visits.extend(ended.unwrap());
        }
        for thread in threads {
            for visit in service.answer(thread).await.split(',') {
                let (entered, left) = visit.split_once('-').expect(visit);
                visits.push(Visit {
                    entered: entered.parse().unwrap(),
                    left: left.parse().unwrap(),
                    token: None,
                });
            }
        }
        visits
    };
    let mut moves = 0;
    let moving = async {
        let slot = cluster.slot_of(&lock).await;
        loop {
            let from = cluster.primary_of(slot).await;
            cluster.move_slot(slot, (from + 1 + moves % 2) % 3).await;
            moves += 1;
            // The slot rests for a while, because a caller can acquire the lock only while its slot does not move.
            sleep(50 * MS).await;
        }
    };
    let mut visits = tokio::select! {
        visits = visiting => visits,
        () = moving => unreachable!("the slot moves until the test ends"),
    };
    assert_eq!(visits.len(), 6 * EACH);
    assert!(moves > 3, "{moves}");
    visits.sort();
    for pair in visits.windows(2) {
        assert!(pair[0].left <= pair[1].entered, "{pair:?}");
    }
    let tokens: Vec<_> = visits.iter().filter_map(|visit| visit.token).collect();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    println!(
        "the slot has moved {moves} times during {} holds",
        visits.len()
    );
}
