//! Connecting: a server that starts after its client, the names of a client's connections, Sentinels and clusters.

use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockClient, LockError};
use support::{
    cluster::{ClusterServers, shared_cluster},
    epsilon,
    proxy::FaultProxy,
    quorum::Quorum,
    rights::Deployment,
    sentinels::SentinelGroup,
    server::RedisServer,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A lazy client can be created without a server and without a runtime. While the server is down, a call ends after its
/// `wait`. A call that is waiting when the server starts acquires the lock.
#[test]
fn a_lazy_client_connects_at_the_first_call() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut server = runtime.block_on(RedisServer::start());
    server.kill();
    let builder = LockClient::builder().url(server.url()).wait(300 * MS);
    let client = builder.connect_lazy().unwrap();
    runtime.block_on(async {
        let started = Instant::now();
        let entered = client.lock("order:42").run(async {}).await;
        assert!(
            matches!(entered, Err(LockError::Unreachable { .. })),
            "{entered:?}"
        );
        assert!(started.elapsed() < 300 * MS + epsilon());
        let lock = client.lock("order:42").wait(20 * SECOND);
        let waiting = tokio::spawn(async move { lock.run(async {}).await });
        tokio::task::yield_now().await;
        server.begin_restart();
        waiting.await.unwrap().unwrap();
        assert_eq!(client.stats().acquired, 1);
        client.shutdown().await;
    });
}

/// A server is so far away that its handshake takes longer than a second. A client connects, connects again after a break,
/// and connects at its first call if it is lazy.
#[tokio::test]
async fn a_client_connects_to_a_far_server() {
    const ROUND_TRIP: Duration = Duration::from_millis(600);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.delay(ROUND_TRIP / 2);
    let builder = || LockClient::builder().url(proxy.url()).wait(20 * SECOND);
    let client = builder().connect_within(10 * SECOND).await.unwrap();
    let lock = client.lock("k");
    lock.run(async {}).await.unwrap();
    proxy.cut();
    lock.run(async {}).await.unwrap();
    builder().connect().await.unwrap();
    let lazy = builder().connect_lazy().unwrap();
    lazy.lock("k").run(async {}).await.unwrap();
}

/// The nodes of a Redlock start one after another, so the client does not reach all nodes when it connects. The client
/// therefore cannot know that the Redlock is new. The nodes count toward a majority only after the longest lease, here
/// one second, has passed.
#[tokio::test]
async fn a_lazy_redlock_connects_at_the_first_call() {
    let mut quorum = Quorum::start(3).await;
    for node in &mut quorum.servers {
        node.kill();
    }
    let builder = LockClient::builder().url(quorum.url()).lease(SECOND);
    let client = builder.wait(300 * MS).connect_lazy().unwrap();
    let started = Instant::now();
    let entered = client.lock("order:42").run(async {}).await;
    let Err(LockError::Unreachable { detail, .. }) = &entered else {
        panic!("{entered:?}");
    };
    assert!(detail.to_string().contains("can be used"), "{detail}");
    assert!(started.elapsed() < 300 * MS + epsilon());
    let lock = client.lock("order:42").wait(20 * SECOND);
    let waiting = tokio::spawn(async move { lock.run(async {}).await });
    tokio::task::yield_now().await;
    for node in &mut quorum.servers {
        node.restart().await;
    }
    waiting.await.unwrap().unwrap();
    let locks = client.locks(["a", "b"]).wait(SECOND);
    locks.run(async {}).await.unwrap();
    client.shutdown().await;
}

/// A call is dropped after the shutdown of a lazy client. The clean-up of the dropped call opens no connection.
#[tokio::test]
async fn a_lazy_client_stays_closed() {
    let server = RedisServer::start().await;
    let other = LockClient::connect(server.url()).await.unwrap();
    let guard = other.lock("k").acquire().await.unwrap();
    let client = LockClient::builder().url(server.url()).connect_lazy();
    let client = client.unwrap();
    let mut call = Box::pin(client.lock("k").wait(60 * SECOND).acquire());
    let waits = tokio::time::timeout(300 * MS, &mut call).await;
    assert!(waits.is_err(), "the lock is taken");
    client.shutdown().await;
    let connections = client.stats().connections;
    drop(call);
    let status = client.lock("k").status().await;
    assert_eq!(status, Err(LockError::ShutDown));
    assert_eq!(client.stats().connections, connections);
    guard.release().await;
}

/// A lazy client checks the server at its first call, as `connect` does. Calls enter once the server passes the checks.
#[tokio::test]
async fn a_lazy_client_uses_no_server_that_evicts_keys() {
    let server = RedisServer::builder()
        .arg("--maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    let builder = LockClient::builder().url(server.url()).wait(300 * MS);
    let client = builder.connect_lazy().unwrap();
    let entered = client.lock("order:42").run(async {}).await;
    let Err(LockError::Unreachable { detail, .. }) = &entered else {
        panic!("{entered:?}");
    };
    assert!(detail.to_string().contains("allkeys-lru"), "{detail}");
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory-policy").arg("noeviction");
    set.exec_async(&mut server.connection().await)
        .await
        .unwrap();
    let lock = client.lock("order:42").wait(20 * SECOND);
    lock.run(async {}).await.unwrap();
}

/// `connect_lazy` reports wrong settings at once, although it opens no connection.
#[test]
fn a_lazy_client_reports_wrong_settings() {
    let lazy = |url: &str| LockClient::builder().url(url).connect_lazy();
    assert!(matches!(
        lazy("http://host/"),
        Err(ConnectError::InvalidUrl { .. })
    ));
    assert!(matches!(
        lazy("redlock://one,two"),
        Err(ConnectError::TooFewServers { servers: 2 })
    ));
    assert!(lazy("memory:").is_ok());
}

/// The nodes of a Redlock are named one by one. A list whose nodes are not three different servers is refused.
#[tokio::test]
async fn each_node_of_a_redlock_is_a_server_of_its_own() {
    let quorum = Quorum::start(3).await;
    let [a, b, c] = [0, 1, 2].map(|number: usize| quorum.servers[number].url());
    let connect = |nodes: &[&str]| {
        let builder = LockClient::builder().redlock_nodes(nodes.iter().copied());
        builder.connect()
    };
    let client = connect(&[&a, &b, &c]).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    let few = ConnectError::TooFewServers { servers: 2 };
    assert_eq!(connect(&[&a, &b]).await.err(), Some(few));
    let cluster = "redis+cluster://127.0.0.1:1,127.0.0.1:2";
    let refused = connect(&[&a, &b, cluster]).await.err();
    assert_eq!(refused, Some(ConnectError::ClusterNode));
    let group = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/shop";
    let refused = connect(&[&a, &b, group]).await.err();
    assert_eq!(refused, Some(ConnectError::SentinelNode));
    // The last URL names the same server as the first, by another host name.
    let by_name = a.replace("127.0.0.1", "localhost");
    for twice in [&a, &by_name] {
        let refused = connect(&[&a, &b, twice]).await.err();
        assert!(
            matches!(refused, Some(ConnectError::SameServerTwice { .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn connecting_can_wait_for_a_server_that_starts() {
    let mut server = RedisServer::start().await;
    server.kill();
    let builder = || LockClient::builder().url(server.url());
    let started = Instant::now();
    let refused = builder().connect_within(500 * MS).await;
    assert!(
        matches!(refused, Err(ConnectError::Unreachable { .. })),
        "{refused:?}"
    );
    let waited = started.elapsed();
    assert!(
        waited > 200 * MS && waited < 500 * MS + epsilon(),
        "{waited:?}"
    );
    let connecting = tokio::spawn(builder().connect_within(20 * SECOND));
    tokio::task::yield_now().await;
    server.begin_restart();
    let client = connecting.await.unwrap().unwrap();
    client.lock("order:42").run(async {}).await.unwrap();
}

/// `connect_within` does not wait if the password is wrong, because the password stays wrong.
#[tokio::test]
async fn connecting_does_not_wait_for_what_does_not_pass() {
    let server = RedisServer::builder()
        .arg("--requirepass", "secret")
        .start()
        .await;
    let started = Instant::now();
    let url = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let builder = LockClient::builder().url(url);
    let refused = builder.connect_within(20 * SECOND).await;
    assert!(
        matches!(refused, Err(ConnectError::Authentication { .. })),
        "{refused:?}"
    );
    assert!(started.elapsed() < epsilon());
}

/// The server lists the connections of a client under the client's name, or under the name of the program if the client
/// has no name.
#[tokio::test]
async fn connections_have_the_name_of_their_client() {
    let server = RedisServer::start().await;
    let names = async || {
        let mut list = redis::cmd("CLIENT");
        list.arg("LIST");
        let mut connection = server.connection().await;
        let list: String = list.query_async(&mut connection).await.unwrap();
        let field = |line: &str| {
            let mut fields = line.split(' ');
            let name = fields.find_map(|field| field.strip_prefix("name="));
            name.unwrap_or_default().to_owned()
        };
        let mut names: Vec<_> = list.lines().map(field).collect();
        names.retain(|name| !name.is_empty());
        names.dedup();
        names
    };
    let builder = LockClient::builder().url(server.url());
    let client = builder
        .application("shop at night")
        .connect()
        .await
        .unwrap();
    client.lock("order:42").run(async {}).await.unwrap();
    assert_eq!(names().await, ["shop-at-night"]);
    client.shutdown().await;
    drop(client);
    let client = LockClient::connect(server.url()).await.unwrap();
    client.lock("order:42").run(async {}).await.unwrap();
    let program = std::env::current_exe().unwrap();
    let program = program.file_stem().unwrap().to_string_lossy();
    assert_eq!(names().await, [program]);
}

/// The error for a wrong Sentinel URL names the fault. If the Sentinels require other credentials than the servers, a
/// client connects with `sentinel_credentials`.
#[tokio::test]
async fn sentinel_errors_say_what_is_wrong() {
    let group = SentinelGroup::start().await;
    let unknown = group.url().replace("/shop", "/office");
    let refused = LockClient::connect(unknown).await;
    assert!(
        matches!(refused, Err(ConnectError::UnknownGroup { .. })),
        "{refused:?}"
    );
    let missing = group.url().replace("/shop", "/");
    let refused = LockClient::connect(missing).await;
    assert!(
        matches!(refused, Err(ConnectError::InvalidUrl { .. })),
        "{refused:?}"
    );
    let mut set = redis::cmd("ACL");
    set.arg(Deployment::Sentinel.printed());
    for sentinel in &group.sentinels {
        let mut connection = sentinel.connection().await;
        set.exec_async(&mut connection).await.unwrap();
        let mut off = redis::cmd("ACL");
        off.arg(&["SETUSER", "default", "off"]);
        off.exec_async(&mut connection).await.unwrap();
    }
    let refused = LockClient::connect(group.url()).await;
    assert!(
        matches!(refused, Err(ConnectError::Authentication { .. })),
        "{refused:?}"
    );
    let builder = LockClient::builder().url(group.url());
    let builder = builder.sentinel_credentials("locks", "secret");
    let client = builder.connect().await.unwrap();
    client.lock("order:42").run(async {}).await.unwrap();
}

/// The first of three Sentinels hangs, and the second is killed. A client still finds the primary at once.
#[tokio::test]
async fn one_sentinel_is_enough() {
    let mut group = SentinelGroup::start().await;
    group.sentinels[0].stop_process();
    group.sentinels[1].kill();
    let started = Instant::now();
    let client = LockClient::connect(group.url()).await.unwrap();
    client.lock("order:42").run(async {}).await.unwrap();
    assert!(started.elapsed() < 300 * MS + epsilon());
    group.sentinels[0].continue_process();
}

/// A lazy client of a Redis Cluster learns the servers of the cluster at its first call.
#[tokio::test]
async fn a_lazy_client_finds_its_cluster() {
    let url = shared_cluster().await.url();
    // No server listens at the first address, so the client learns the servers of the cluster from the second address.
    let second = url.split(',').nth(1).unwrap();
    let builder = LockClient::builder().url(format!("redis+cluster://127.0.0.1:1,{second}"));
    let client = builder.namespace("lazy").connect_lazy().unwrap();
    for key in ["a", "b", "c", "d", "e", "f"] {
        client.lock(key).run(async {}).await.unwrap();
    }
    client.shutdown().await;
    let nobody = LockClient::builder().url("redis+cluster://127.0.0.1:1");
    let client = nobody.wait(300 * MS).connect_lazy().unwrap();
    let refused = client.lock("a").run(async {}).await;
    assert!(
        matches!(refused, Err(LockError::Unreachable { .. })),
        "{refused:?}"
    );
}

/// A user of a Redis Cluster needs only the rights that docs/guides/acl.md lists.
#[tokio::test]
async fn a_user_with_few_rights_can_use_a_cluster() {
    let cluster = ClusterServers::start(3).await;
    let mut set = redis::cmd("ACL");
    set.arg(Deployment::Cluster.printed());
    for server in &cluster.servers {
        set.exec_async(&mut server.connection().await)
            .await
            .unwrap();
    }
    let url = cluster.url().replace("//", "//locks:secret@");
    let [first, second] = [
        LockClient::connect(&url).await,
        LockClient::connect(&url).await,
    ];
    let (first, second) = (first.unwrap(), second.unwrap());
    let lock = first.lock("k").lease(SECOND).renew(true);
    let guard = lock.acquire().await.unwrap();
    let waiting = second.lock("k").wait(20 * SECOND);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    support::until(async || first.lock("k").status().await.unwrap().waiters == 1).await;
    // The test moves the lock to another server. The client renews the grant during the move.
    let slot = cluster.slot_of("{lock:k}").await;
    let to = (cluster.primary_of(slot).await + 1) % 3;
    cluster.begin_move(slot, to).await;
    cluster.move_key(slot, "{lock:k}", to).await;
    let renewed = first.stats().renewed;
    support::until(async || first.stats().renewed > renewed + 1).await;
    cluster.end_move(slot, to).await;
    guard.release().await;
    waiting.await.unwrap().release().await;
}

/// One primary of a cluster is stopped or killed, so its slots have no primary until a replica takes over. A client can
/// connect nevertheless. Locks on the other primaries can be used at once, and locks on the dead primary after the
/// failover.
#[tokio::test]
async fn a_client_connects_during_a_failover() {
    type Gone = fn(&mut RedisServer);
    let stopped: Gone = |server| server.stop_process();
    let killed: Gone = RedisServer::kill;
    for gone in [stopped, killed] {
        let mut cluster = ClusterServers::with_replicas(3).await;
        let slot = cluster.slot_of("{lock:k}").await;
        let dead = cluster.primary_of(slot).await;
        let mut other = 0;
        while is_on(&cluster, dead, other).await {
            other += 1;
        }
        let url = cluster.url();
        gone(&mut cluster.servers[dead]);
        let started = Instant::now();
        let client = LockClient::connect(&url).await.unwrap();
        let connected = started.elapsed();
        assert!(connected < SECOND + epsilon(), "{connected:?}");
        client.lock(other.to_string()).run(async {}).await.unwrap();
        let refused = client.lock("k").wait(100 * MS).run(async {}).await;
        // On a slow machine, the failover may be over already.
        if !cluster.claims(cluster.replica_of(dead), slot).await {
            assert!(
                matches!(refused, Err(LockError::Unreachable { .. })),
                "{refused:?}"
            );
        }
        let lock = client.lock("k").wait(20 * SECOND);
        lock.run(async {}).await.unwrap();
        client.shutdown().await;
    }
}

/// Returns whether this primary stores the lock.
async fn is_on(cluster: &ClusterServers, primary: usize, key: u32) -> bool {
    let slot = cluster.slot_of(&format!("{{lock:{key}}}")).await;
    cluster.primary_of(slot).await == primary
}

/// A client does not connect if most primaries of a cluster do not answer, because such a cluster promotes no replica.
#[tokio::test]
async fn a_client_needs_most_primaries() {
    let mut cluster = ClusterServers::start(3).await;
    cluster.servers[0].kill();
    cluster.servers[1].kill();
    let refused = LockClient::connect(cluster.url()).await;
    assert!(
        matches!(refused, Err(ConnectError::Unreachable { .. })),
        "{refused:?}"
    );
}

/// One primary evicts keys or requires a password. Connecting fails with an error that names this fault, even if
/// another primary is dead.
#[tokio::test]
async fn a_fault_of_one_primary_is_an_error() {
    let mut cluster = ClusterServers::start(3).await;
    let set = async |server: &RedisServer, setting: &str, value: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(setting).arg(value);
        let mut connection = server.connection().await;
        set.exec_async(&mut connection).await.unwrap();
    };
    set(&cluster.servers[1], "maxmemory-policy", "allkeys-lru").await;
    for all_answer in [true, false] {
        if !all_answer {
            cluster.servers[0].kill();
        }
        let refused = LockClient::connect(cluster.url()).await;
        assert!(
            matches!(refused, Err(ConnectError::Eviction { .. })),
            "{refused:?}"
        );
    }
    set(&cluster.servers[1], "maxmemory-policy", "noeviction").await;
    set(&cluster.servers[1], "requirepass", "secret").await;
    let refused = LockClient::connect(cluster.url()).await;
    assert!(
        matches!(refused, Err(ConnectError::Authentication { .. })),
        "{refused:?}"
    );
}

/// A primary is dead when the client connects, and its replica evicts keys. Calls for locks of the promoted replica
/// return `Unreachable` with the reason.
#[tokio::test]
async fn a_promoted_replica_is_checked() {
    let mut cluster = ClusterServers::with_replicas(3).await;
    let slot = cluster.slot_of("{lock:k}").await;
    let dead = cluster.primary_of(slot).await;
    let replica = cluster.replica_of(dead);
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory-policy").arg("allkeys-lru");
    set.exec_async(&mut cluster.servers[replica].connection().await)
        .await
        .unwrap();
    cluster.servers[dead].kill();
    let client = LockClient::connect(cluster.url()).await.unwrap();
    cluster.until_primary(replica, slot).await;
    let refused = client.lock("k").wait(3 * SECOND).run(async {}).await;
    let Err(LockError::Unreachable { detail, .. }) = &refused else {
        panic!("{refused:?}");
    };
    assert!(detail.to_string().contains("allkeys-lru"), "{detail}");
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory-policy").arg("noeviction");
    set.exec_async(&mut cluster.servers[replica].connection().await)
        .await
        .unwrap();
    let lock = client.lock("k").wait(20 * SECOND);
    lock.run(async {}).await.unwrap();
}
