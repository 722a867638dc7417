//! Redlocks whose nodes are primaries of groups that Sentinels watch: a failover inside a node.

use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, Layout, LockClient, ReleaseOutcome};
use support::{
    history::History,
    sentinels::SentinelGroup,
    server::{RedisServer, ask},
};
use tokio::{task::JoinSet, time::sleep};

use super::{MARK, is_held_on};
use crate::fixture::{MS, NAMESPACE, SECOND};

async fn client(nodes: &[String], lease: Duration) -> LockClient {
    let builder = LockClient::builder().redlock_nodes(nodes);
    let builder = builder.namespace(NAMESPACE).lease(lease);
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    // The first call on a tokio runtime opens that runtime's connections.
    client.lock("warm").run(async {}).await.unwrap();
    client
}

async fn mark_on(server: &RedisServer) -> String {
    let mut connection = server.connection().await;
    ask(&mut connection, redis::cmd("GET").arg(MARK)).await
}

/// A lock is held on the primary of a group and on one of two further servers. Sentinels promote a replica that lacks
/// the grant, but has the node's mark, a key that shows whether a node has its state. Until the lease has ended, the
/// promoted replica does not complete a majority with the server that missed the grant. After the longest lease in use,
/// the group counts toward a majority again.
#[tokio::test]
async fn a_promoted_replica_without_the_newest_grant_is_not_counted() {
    const LEASE: Duration = Duration::from_secs(30);
    let mut group = SentinelGroup::start().await;
    let mut servers = [RedisServer::start().await, RedisServer::start().await];
    let nodes = [group.url(), servers[0].url(), servers[1].url()];
    let holder = client(&nodes, LEASE).await;
    let other = client(&nodes, LEASE).await;
    group.until_replicated().await;
    for replica in &group.servers[1..] {
        replica.stop_process();
    }
    // The replicas have all writes up to this point, and receive no later ones.
    let mut cut = redis::cmd("CLIENT");
    cut.arg(&["KILL", "TYPE", "replica"]);
    ask::<u8>(&mut group.servers[0].connection().await, &cut).await;
    servers[1].stop_process();
    let granted = Instant::now();
    let guard = holder.lock("k").lease(LEASE).acquire().await.unwrap();
    // After this pause, the request to the stopped server is past its deadline, so the server does not carry out the
    // request.
    sleep(1200 * MS).await;
    servers[1].continue_process();
    assert!(is_held_on(&group.servers[0]).await && is_held_on(&servers[0]).await);
    group.servers[0].kill();
    for replica in &group.servers[1..] {
        replica.continue_process();
        // The replica's token counter is lower than the holder's token, so the holder could notice that the replica
        // lacks the grant. The test raises the replica's token counter so that the holder does not notice, as if the
        // holder's process had died.
        let mut redis = replica.connection().await;
        let writable = ["CONFIG", "SET", "replica-read-only", "no"];
        ask::<()>(&mut redis, redis::cmd(writable[0]).arg(&writable[1..])).await;
        let newer = guard.token().get() + 1000;
        ask::<()>(&mut redis, redis::cmd("SET").arg("lock:fence").arg(newer)).await;
    }
    let primary = group.promoted_instead_of(0).await;
    let promoted = Instant::now();
    let primary = &group.servers[primary];
    assert!(!is_held_on(primary).await);
    // The holder checks its grant after a third of its lease.
    let mut tries = 0;
    while granted.elapsed() < LEASE / 3 - SECOND {
        let entered = other.lock("k").try_acquire().await;
        assert!(
            entered.is_err(),
            "{entered:?} entered while another caller held the lock"
        );
        tries += 1;
        sleep(50 * MS).await;
    }
    assert!(tries > 5, "the failover took too long: {tries} tries");
    assert!(mark_on(primary).await.starts_with("lost|"));
    // Only one node still has the grant, so the holder's next check would detect the loss.
    let outcome = guard.release().await;
    assert!(matches!(outcome, ReleaseOutcome::Lost(_)), "{outcome:?}");
    let next = other.lock("k").wait(5 * SECOND).acquire().await.unwrap();
    next.release().await;
    // The group counts toward a majority again: the group completes a majority while another node is down.
    servers[0].kill();
    let guard = other.lock("k").wait(2 * LEASE).acquire().await.unwrap();
    assert!(promoted.elapsed() > LEASE - 2 * SECOND, "{promoted:?}");
    assert!(mark_on(primary).await.starts_with("whole|"));
    guard.release().await;
}

/// One of three groups loses its primary, which is killed while a caller holds the lock and 20 callers of two clients
/// wait. The promoted replica does not count toward a majority yet. The holder nevertheless keeps its lock, and the
/// waiters enter one at a time, with rising tokens.
#[tokio::test]
async fn a_failover_in_one_of_three_groups_admits_one_caller_at_a_time() {
    const WAITERS: usize = 20;
    let mut groups = [
        SentinelGroup::start().await,
        SentinelGroup::start().await,
        SentinelGroup::start().await,
    ];
    let nodes = groups.each_ref().map(SentinelGroup::url);
    let lease = 30 * SECOND;
    let clients = [client(&nodes, lease).await, client(&nodes, lease).await];
    let history = History::strict();
    let guard = clients[0].lock("k").acquire().await.unwrap();
    let inside = history.enter("k", guard.token().get());
    let mut waiting = JoinSet::new();
    for caller in 0..WAITERS {
        let lock = clients[caller % 2].lock("k").wait(180 * SECOND);
        let history = history.clone();
        waiting.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let inside = history.enter("k", guard.token().get());
            sleep(5 * MS).await;
            inside.exit();
            guard.release().await;
        });
    }
    sleep(300 * MS).await;
    groups[0].servers[0].kill();
    groups[0].promoted_instead_of(0).await;
    assert_eq!(waiting.len(), WAITERS);
    assert_eq!(guard.loss(), None);
    inside.exit();
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    waiting.join_all().await;
    history.check().assert_clean(WAITERS + 1);
}

/// The mark of a group contains the replication ID of its primary. The mark of a single server contains no replication
/// ID.
#[tokio::test]
async fn the_mark_of_a_group_names_its_primary() {
    let group = SentinelGroup::start().await;
    let servers = [RedisServer::start().await, RedisServer::start().await];
    let nodes = [group.url(), servers[0].url(), servers[1].url()];
    let _client = client(&nodes, SECOND).await;
    let info = redis::cmd("INFO").arg("replication").to_owned();
    let info: String = ask(&mut group.servers[0].connection().await, &info).await;
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("master_replid:"));
    let mark = mark_on(&group.servers[0]).await;
    assert!(mark.starts_with("whole|"), "{mark}");
    assert_eq!(mark.rsplit('|').next(), id.map(str::trim));
    assert_eq!(mark_on(&servers[0]).await.split('|').count(), 3);
}

#[tokio::test]
async fn unusable_nodes_are_refused() {
    let server = RedisServer::start().await;
    let connect = async |nodes: &[&str]| {
        let builder = LockClient::builder().redlock_nodes(nodes.iter().copied());
        builder.connect().await.err()
    };
    let (url, b) = (server.url(), "redis://127.0.0.1:1");
    let few = ConnectError::TooFewServers { servers: 2 };
    assert_eq!(connect(&[&url, b]).await, Some(few));
    let cluster = "redis+cluster://127.0.0.1:1,127.0.0.1:2";
    let refused = connect(&[&url, b, cluster]).await;
    assert_eq!(refused, Some(ConnectError::ClusterNode));
    let twice = connect(&[&url, b, &url]).await;
    assert!(matches!(twice, Some(ConnectError::SameServerTwice { .. })));
    // Two of these URLs name the same server by different host names.
    let by_name = url.replace("127.0.0.1", "localhost");
    let twice = connect(&[&url, &by_name, b]).await;
    assert!(
        matches!(twice, Some(ConnectError::SameServerTwice { .. })),
        "{twice:?}"
    );
    let builder = LockClient::builder().redlock_nodes([&url, b, "redis://127.0.0.1:2"]);
    let refused = builder.layout(Layout::Redisson).connect().await.err();
    assert_eq!(refused, Some(ConnectError::UnsupportedLayout));
}
