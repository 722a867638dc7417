//! Promise 12: the cost of a lock, in scripts that the server counts.

use crate::stores::{MS, SECOND, Store, hold, until, until_waiting};
use lock_runtime::{Layout, LockClient};
use support::{
    quorum::Quorum,
    server::{RedisServer, ask},
};
use tokio::time::sleep;

async fn store() -> (RedisServer, LockClient) {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    // Each script runs once before the test counts scripts, so that the counts do not depend on whether the server
    // knows the scripts.
    let guard = hold(&client, "warm").await;
    let waiting = client.lock("warm").wait(SECOND).run(sleep(150 * MS));
    let (entered, ()) = tokio::join!(waiting, async {
        until_waiting(&client, "warm", 1).await;
        guard.release().await;
    });
    entered.unwrap();
    (server, client)
}

#[tokio::test]
async fn uncontended_one_script_in_and_one_out() {
    let (server, client) = store().await;
    let before = server.scripts().await;
    for _ in 0..100 {
        client.lock("k").run(async {}).await.unwrap();
    }
    assert_eq!(server.scripts().await - before, 200);
}

/// The client itself counts its commands, because the servers of a cluster also count those of other tests.
#[tokio::test]
async fn in_a_cluster_and_behind_sentinels_one_command_in_and_one_out() {
    for store in [Store::cluster().await, Store::sentinel().await] {
        let client = store.client().await;
        let keys: Vec<_> = (0..10).map(|number| format!("k{number}")).collect();
        // The first calls open the connections to the primaries.
        for key in &keys {
            client.lock(key).run(async {}).await.unwrap();
        }
        let before = client.stats().commands;
        for key in keys.iter().cycle().take(100) {
            client.lock(key).run(async {}).await.unwrap();
        }
        assert_eq!(client.stats().commands - before, 200, "{store:?}");
    }
}

#[tokio::test]
async fn in_redissons_layout_one_script_in_and_one_out() {
    let server = RedisServer::start().await;
    let builder = LockClient::builder().url(server.url());
    let client = builder
        .layout(Layout::Redisson)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    client.lock("k").run(async {}).await.unwrap();
    let before = server.scripts().await;
    for _ in 0..100 {
        client.lock("k").run(async {}).await.unwrap();
    }
    assert_eq!(server.scripts().await - before, 200);
}

#[tokio::test]
async fn contended_in_one_process_a_few_scripts_for_all() {
    let (server, client) = store().await;
    let before = server.scripts().await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        callers.spawn(async move {
            client
                .lock("k")
                .wait(20 * SECOND)
                .run(sleep(2 * MS))
                .await
                .unwrap();
        });
    }
    callers.join_all().await;
    let scripts = server.scripts().await - before;
    // The first caller sends one request. All other callers share one or two requests, and each of their cohorts sends
    // one release.
    assert!(scripts <= 12, "{scripts} scripts for 100 acquisitions");
}

/// Many callers of one process use the same key again and again. On average, three acquisitions need at most one
/// script.
#[tokio::test]
async fn a_hot_key_costs_its_process_far_less_than_a_script_each() {
    const CALLERS: u64 = 64;
    const TURNS: u64 = 20;
    let (server, client) = store().await;
    let before = server.scripts().await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move {
            for _ in 0..TURNS {
                let lock = client.lock("k").wait(20 * SECOND);
                lock.run(tokio::task::yield_now()).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    let scripts = server.scripts().await - before;
    println!("{scripts} scripts for {} acquisitions", CALLERS * TURNS);
    assert!(
        scripts * 3 <= CALLERS * TURNS,
        "{scripts} scripts for {} acquisitions",
        CALLERS * TURNS
    );
}

#[tokio::test]
async fn a_longer_hold_that_had_waited_costs_one_more() {
    let (server, client) = store().await;
    let guard = hold(&client, "k").await;
    let before = server.scripts().await;
    let body = client.lock("k").wait(5 * SECOND).run(sleep(300 * MS));
    let ((), entered) = tokio::join!(
        async {
            sleep(10 * MS).await;
            guard.release().await;
        },
        body
    );
    entered.unwrap();
    // The four scripts are the caller's request, the release that grants it the lock, the confirmation of the caller's
    // grant, and the caller's own release.
    assert_eq!(server.scripts().await - before, 4);
}

#[tokio::test]
async fn a_waiting_process_probes_five_times_a_second_however_many_wait_in_it() {
    let (server, client) = store().await;
    let other = Store::on(&server.url()).client().await;
    let lock = other.lock("k").namespace("shared");
    let guard = lock.acquire().await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        callers.spawn(async move {
            client
                .lock("k")
                .namespace("shared")
                .wait(20 * SECOND)
                .run(async {})
                .await
                .unwrap();
        });
    }
    let probe = Store::on(&server.url()).client().await;
    crate::stores::until(async || {
        probe
            .lock("k")
            .namespace("shared")
            .status()
            .await
            .unwrap()
            .waiters
            == 50
    })
    .await;
    let before = server.scripts().await;
    sleep(2 * SECOND).await;
    let looks = server.scripts().await - before;
    assert!((8..=11).contains(&looks), "{looks} probes in two seconds");
    guard.release().await;
    callers.join_all().await;
}

#[tokio::test]
async fn re_entry_of_a_renewed_lease_sends_nothing() {
    let (server, client) = store().await;
    client
        .lock("k")
        .run(async {
            let before = server.scripts().await;
            for _ in 0..10 {
                client.lock("k").run(async {}).await.unwrap();
            }
            assert_eq!(server.scripts().await - before, 0);
        })
        .await
        .unwrap();
}

/// A message notifies a waiter of its grant. Without this message, each handoff would need a probe.
#[tokio::test]
async fn a_handoff_needs_no_probe() {
    const ROUNDS: usize = 10;
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let [client, other] = store.clients().await;
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        let guard = hold(&client, "k").await;
        let waiting = tokio::spawn(other.lock("k").wait(10 * SECOND).acquire());
        until_waiting(&client, "k", 1).await;
        let before = server.scripts().await;
        guard.release().await;
        let next = waiting.await.unwrap().unwrap();
        costs.push(server.scripts().await - before);
        next.release().await;
    }
    // Most handoffs cost only one script, the release. During some handoffs, the heartbeat also sends a probe.
    let alone = costs.iter().filter(|cost| **cost == 1).count();
    assert!(alone >= ROUNDS / 2, "{costs:?}");
    assert_eq!(other.stats().missed_wakeups, 0);
}

/// The key of a node's token counter.
const FENCE: &str = "lock:fence";

/// A Redlock whose nodes have equal token counters, and one client that is connected to all nodes.
struct Redlock {
    quorum: Quorum,
    store: Store,
    client: LockClient,
}

impl Redlock {
    async fn start() -> Self {
        let quorum = Quorum::start(3).await;
        let store = Store::on(&quorum.url());
        let redlock = Self {
            client: store.client().await,
            store,
            quorum,
        };
        // Each script runs once before the test counts scripts, so that the counts do not depend on whether the nodes
        // know the scripts.
        for _ in 0..3 {
            redlock.call().await;
        }
        until(async || redlock.client.stats().connections >= 3).await;
        redlock.call().await;
        let mut newest = 0_u64;
        for server in &redlock.quorum.servers {
            let mut redis = server.connection().await;
            newest = newest.max(ask(&mut redis, redis::cmd("GET").arg(FENCE)).await);
        }
        for server in &redlock.quorum.servers {
            let mut redis = server.connection().await;
            ask::<()>(&mut redis, redis::cmd("SET").arg(FENCE).arg(newest)).await;
        }
        redlock
    }

    /// Returns the grants of `k` on the nodes.
    async fn grants(&self) -> Vec<Option<String>> {
        let mut grants = Vec::new();
        for server in &self.quorum.servers {
            let name = self.store.name("k");
            let mut redis = server.connection().await;
            grants.push(ask(&mut redis, redis::cmd("GET").arg(name)).await);
        }
        grants
    }

    /// Acquires `k`, and releases it after all nodes have answered. The release waits for all nodes, because a node
    /// that grants the lock late would need a separate release.
    async fn call(&self) {
        let guard = hold(&self.client, "k").await;
        let token = format!("{}|", guard.token());
        until(async || {
            let grants = self.grants().await;
            let has_token = |grant: &Option<String>| {
                grant
                    .as_ref()
                    .is_some_and(|grant| grant.starts_with(&token))
            };
            grants.iter().all(has_token)
        })
        .await;
        // After this pause, the client has also read the answers of all nodes.
        sleep(20 * MS).await;
        guard.release().await;
        until(async || self.grants().await.iter().all(Option::is_none)).await;
    }

    /// Returns the number of scripts that each node has run.
    async fn scripts(&self) -> Vec<u64> {
        let mut scripts = Vec::new();
        for server in &self.quorum.servers {
            scripts.push(server.scripts().await);
        }
        scripts
    }

    /// Returns the number of scripts that each node has run since the numbers in `before` were read.
    async fn since(&self, before: &[u64]) -> Vec<u64> {
        let now = self.scripts().await.into_iter();
        now.zip(before).map(|(now, before)| now - before).collect()
    }
}

#[tokio::test]
async fn on_a_redlock_one_script_in_and_one_out_for_each_node() {
    let redlock = Redlock::start().await;
    let mut sent = Vec::new();
    // On a busy machine, a node can answer late, and is sent one more script.
    for _ in 0..5 {
        let before = redlock.scripts().await;
        for _ in 0..10 {
            redlock.call().await;
        }
        sent = redlock.since(&before).await;
        if sent == [20; 3] {
            return;
        }
    }
    panic!("{sent:?}");
}

/// The token counter of one node is ahead of the others. If the counters differ, the client sends the agreed token to
/// the nodes that have offered another token.
#[tokio::test]
async fn on_a_redlock_counters_that_differ_cost_a_second_round_trip() {
    let redlock = Redlock::start().await;
    let mut ahead = redlock.quorum.servers[0].connection().await;
    ask::<u64>(&mut ahead, redis::cmd("INCRBY").arg(FENCE).arg(1_000_000)).await;
    let before = redlock.scripts().await;
    redlock.call().await;
    let scripts = redlock.since(&before).await;
    // If the node that is ahead is part of the majority, the other two nodes take its token. If that node is not part
    // of the majority, it takes the token of the other two nodes.
    let asked_again: Vec<_> = scripts.iter().map(|scripts| *scripts > 2).collect();
    assert!(
        asked_again == [false, true, true] || asked_again == [true, false, false],
        "{scripts:?}"
    );
}
