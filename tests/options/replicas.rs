//! `replicas`: a body starts only after replicas of the server have acknowledged its grant.

use std::time::{Duration, Instant};

use lock_runtime::{Layout, LockClient, LockError, OptionsError, distributed_lock};
use redis::aio::MultiplexedConnection;
use support::{
    assert_busy,
    cluster::ClusterServers,
    proxy::FaultProxy,
    sentinels::SentinelGroup,
    server::{RedisServer, ask},
    until,
};
use tokio::time::timeout;

use crate::stores::{MS, SECOND, Store, hold, until_waiting};

mod cluster;

/// How long a call waits for replicas in most tests. A replica can be slow while other tests run.
const PATIENCE: Duration = Duration::from_secs(3);

/// A server with replicas.
struct Group {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Group {
    async fn with_replicas(count: usize) -> Self {
        let primary = RedisServer::start().await;
        let mut replicas = Vec::new();
        for _ in 0..count {
            let replica = RedisServer::builder().replica_of(&primary);
            replicas.push(replica.start().await);
        }
        let mut connection = primary.connection().await;
        until(async || acknowledged(&mut connection).await == count).await;
        Self { primary, replicas }
    }

    /// Starts a server with one replica. The replica connects to the server through the proxy.
    async fn with_replica_behind_proxy() -> (Self, FaultProxy) {
        let primary = RedisServer::start().await;
        let proxy = FaultProxy::start(primary.port()).await;
        let replica = RedisServer::builder().replica_at(proxy.port());
        let replicas = vec![replica.start().await];
        let mut connection = primary.connection().await;
        until(async || acknowledged(&mut connection).await == 1).await;
        (Self { primary, replicas }, proxy)
    }

    async fn client(&self) -> LockClient {
        LockClient::builder()
            .url(self.primary.url())
            .namespace("replicas")
            .replicas(0, PATIENCE)
            .connect_within(support::PATIENCE)
            .await
            .unwrap()
    }

    /// Stops the process of a replica, and closes its connection to the primary. If the process continues later, it
    /// receives no further write of the primary.
    async fn cut_off(&self, replica: usize) {
        self.replicas[replica].stop_process();
        let mut primary = self.primary.connection().await;
        let kill = ["KILL", "TYPE", "replica"];
        ask::<usize>(&mut primary, redis::cmd("CLIENT").arg(&kill[..])).await;
        // The other replicas connect again.
        let others = self.replicas.len() - 1;
        until(async || acknowledged(&mut primary).await == others).await;
    }

    /// Ends the primary, and makes a replica the new primary. Returns a client of the new primary.
    async fn promote(mut self, replica: usize) -> (LockClient, Self) {
        self.primary.kill();
        self.replicas[replica].continue_process();
        let mut promoted = self.replicas[replica].connection().await;
        ask::<()>(&mut promoted, redis::cmd("REPLICAOF").arg("NO").arg("ONE")).await;
        let client = LockClient::builder()
            .url(self.replicas[replica].url())
            .namespace("replicas");
        (
            client.connect_within(support::PATIENCE).await.unwrap(),
            self,
        )
    }
}

/// Writes to the server, and returns how many replicas acknowledge this write.
async fn acknowledged(connection: &mut MultiplexedConnection) -> usize {
    ask::<i64>(connection, redis::cmd("INCRBY").arg("written").arg(1)).await;
    ask(connection, redis::cmd("WAIT").arg(9).arg(50)).await
}

/// Waits until this number of calls wait for the replicas of a server.
async fn until_blocked(server: &RedisServer, calls: usize) {
    let mut admin = server.connection().await;
    until(async || {
        let info: String = ask(&mut admin, redis::cmd("INFO").arg("clients")).await;
        info.contains(&format!("blocked_clients:{calls}\r\n"))
    })
    .await;
}

/// Returns how many connections the server has, not counting those of its replicas.
async fn connections(admin: &mut MultiplexedConnection) -> usize {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST").arg("TYPE").arg("normal");
    let list: String = ask(admin, &list).await;
    list.lines().count()
}

#[track_caller]
fn assert_not_replicated<T>(outcome: &Result<T, LockError>, wanted: usize, acknowledged: usize) {
    match outcome {
        Err(LockError::NotReplicated {
            wanted: w,
            acknowledged: a,
            ..
        }) => assert_eq!((*w, *a), (wanted, acknowledged)),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the call entered"),
    }
}

#[tokio::test]
async fn a_promoted_replica_that_has_acknowledged_a_grant_admits_nobody() {
    let group = Group::with_replicas(2).await;
    let client = group.client().await;
    group.cut_off(1).await;
    let guard = client.lock("k").replicas(1).acquire().await.unwrap();
    let (promoted, _group) = group.promote(0).await;
    let refused = promoted.lock("k").wait(300 * MS).acquire().await;
    assert_busy(&refused);
    drop(guard);
}

#[tokio::test]
async fn a_promoted_replica_that_has_not_acknowledged_a_grant_admits_a_second_holder() {
    let group = Group::with_replicas(2).await;
    let client = group.client().await;
    group.cut_off(1).await;
    let guard = client.lock("k").replicas(1).acquire().await.unwrap();
    let (promoted, _group) = group.promote(1).await;
    let second = promoted.lock("k").wait(300 * MS).acquire().await.unwrap();
    assert!(second.token() > guard.token());
    second.release().await;
    drop(guard);
}

/// The process of a primary is stopped, its replica is promoted, and the old primary continues. The old primary grants
/// locks as before, but no replica acknowledges these grants.
#[tokio::test]
async fn a_primary_that_was_replaced_while_it_stood_still_admits_nobody() {
    let group = Group::with_replicas(1).await;
    let client = group.client().await;
    client.lock("k").replicas(1).run(async {}).await.unwrap();
    group.primary.stop_process();
    let mut promoted = group.replicas[0].connection().await;
    ask::<()>(&mut promoted, redis::cmd("REPLICAOF").arg("NO").arg("ONE")).await;
    group.primary.continue_process();
    client.lock("k").run(async {}).await.unwrap();
    let refused = client.lock("k").replicas(1).acquire().await;
    assert_not_replicated(&refused, 1, 0);
}

/// A grant that too few replicas acknowledge is given back at once.
#[tokio::test]
async fn without_its_replicas_a_call_gives_the_lock_back() {
    let group = Group::with_replicas(2).await;
    let [client, other] = [group.client().await, group.client().await];
    group.cut_off(1).await;
    let begun = Instant::now();
    let lock = client.lock("k").replicas(2).wait(60 * SECOND);
    let refused = lock.acquire().await;
    let took = begun.elapsed();
    assert_not_replicated(&refused, 2, 1);
    assert!(
        (PATIENCE..PATIENCE + support::epsilon()).contains(&took),
        "{took:?}"
    );
    let lock = other.lock("k").replicas(1).wait(SECOND);
    lock.run(async {}).await.unwrap();
    group.replicas[1].continue_process();
}

/// `wait` also bounds the time that a call waits for replicas. With a `wait` of less than 1 ms, the bound is 0.9 s.
#[tokio::test]
async fn the_wait_for_replicas_is_part_of_the_acquisition() {
    let group = Group::with_replicas(1).await;
    let client = LockClient::builder()
        .url(group.primary.url())
        .replicas(1, 60 * SECOND);
    let client = client.connect_within(support::PATIENCE).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    group.cut_off(0).await;
    for (wait, at_most) in [(300 * MS, 300 * MS), (MS / 2, 900 * MS)] {
        let begun = Instant::now();
        let refused = client.lock("k").wait(wait).acquire().await;
        assert_not_replicated(&refused, 1, 0);
        let took = begun.elapsed();
        assert!(took < at_most + support::epsilon(), "{wait:?}: {took:?}");
    }
    group.replicas[0].continue_process();
}

#[distributed_lock(key = "attribute:<id>", replicas = 1)]
async fn guarded(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(keys = ["attribute:<id>", "attribute:other"], replicas = 2)]
async fn guarded_twice(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[tokio::test]
async fn the_attribute_waits_for_replicas() {
    let group = Group::with_replicas(1).await;
    let client = group.client().await;
    assert_eq!(client.scope(guarded(7)).await, Ok(7));
    assert_not_replicated(&client.scope(guarded_twice(7)).await, 2, 1);
    // The failed call has given back both of its locks.
    let both = client.locks(["attribute:7", "attribute:other"]);
    both.wait(SECOND).run(async {}).await.unwrap();
}

/// A release can grant the lock to a waiter, alone or as a member of a cohort. Such a waiter also waits for replicas.
#[tokio::test]
async fn callers_that_have_queued_wait_for_replicas() {
    let group = Group::with_replicas(1).await;
    let [client, other] = [group.client().await, group.client().await];
    let guard = hold(&other, "k").await;
    let calls = [1, 1, 9].map(|replicas| {
        let lock = client.lock("k").wait(20 * SECOND).replicas(replicas);
        tokio::spawn(async move { lock.run(async {}).await })
    });
    until_waiting(&other, "k", 3).await;
    guard.release().await;
    let mut refused = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(()) => {}
            outcome => {
                assert_not_replicated(&outcome, 9, 1);
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 1);
    other.lock("k").wait(SECOND).run(async {}).await.unwrap();
}

/// The grant that a release passes to a waiter lasts only for a claim (2 s) until the waiter confirms it. When the body
/// of this waiter starts, the whole lease is stored on the replica.
#[tokio::test]
async fn the_whole_lease_of_a_caller_that_has_queued_is_on_its_replica() {
    let (group, proxy) = Group::with_replica_behind_proxy().await;
    let [client, other] = [group.client().await, group.client().await];
    let guard = hold(&other, "k").await;
    let lock = client.lock("k").wait(20 * SECOND).replicas(1);
    let call = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_waiting(&other, "k", 1).await;
    let mut replica = group.replicas[0].connection().await;
    // The replica receives each write 100 ms late. If the call did not wait for the replica, the replica would lack the
    // newest write.
    proxy.delay(100 * MS);
    guard.release().await;
    let queued = call.await.unwrap();
    let left: u64 = ask(&mut replica, redis::cmd("PTTL").arg("{replicas:k}")).await;
    assert!((25_000..=30_000).contains(&left), "{left} ms");
    queued.release().await;
}

/// Returns how many scripts and how many `WAIT` commands the server has carried out.
async fn carried_out(server: &RedisServer) -> (u64, u64) {
    let costs = server.costs().await;
    let waits = costs.get("wait").map_or(0, |cost| cost.calls);
    (server.scripts().await, waits)
}

/// A nested call that asks for as many replicas as the outermost call, or for fewer, enters what is held. It sends no
/// command.
#[tokio::test]
async fn a_nested_call_does_not_ask_the_replicas() {
    let group = Group::with_replicas(1).await;
    let builder = LockClient::builder().url(group.primary.url());
    let builder = builder.replicas(1, PATIENCE);
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    let lock = client.lock("k");
    let body = async {
        let before = carried_out(&group.primary).await;
        lock.clone().run(async {}).await.unwrap();
        for replicas in [0, 1] {
            let nested = lock.clone().replicas(replicas);
            nested.run(async {}).await.unwrap();
            let several = client.locks(["k", "l"]).replicas(replicas);
            several.run(async {}).await.unwrap();
        }
        assert_eq!(carried_out(&group.primary).await, before);
    };
    client.locks(["k", "l"]).run(body).await.unwrap();
}

/// A nested call that asks for more replicas than the outermost call is refused at once: it sends no command, takes none
/// of its other locks, and does not wait for the sibling that has the turn. In process, it is refused too.
#[tokio::test]
async fn a_nested_call_for_more_replicas_is_refused() {
    let group = Group::with_replicas(2).await;
    for client in [group.client().await, Store::memory().client().await] {
        let lock = client.lock("k").wait(SECOND).replicas(1);
        let guard = lock.acquire().await.unwrap();
        let (wanted, held) = (2, 1);
        let error = OptionsError::MoreReplicasThanHeld { wanted, held };
        let error = LockError::InvalidOptions(error);
        let body = async {
            let sibling = lock.acquire().await.unwrap();
            let before = carried_out(&group.primary).await;
            let one = lock.clone().replicas(2).run(async {}).await;
            let several = client.locks(["a", "k"]).wait(SECOND).replicas(2);
            let several = several.run(async {}).await;
            assert_eq!([one, several], [Err(error.clone()), Err(error)]);
            assert_eq!(carried_out(&group.primary).await, before);
            sibling.release().await;
        };
        guard.run(body).await.unwrap();
        guard.release().await;
        let free = client.lock("k").replicas(2);
        free.run(async {}).await.unwrap();
    }
}

/// A call that is dropped while it waits for replicas gives its lock back.
#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_for_replicas_leaves_nothing() {
    let group = Group::with_replicas(1).await;
    let [client, other] = [group.client().await, group.client().await];
    for delay in 0..20 {
        let call = client.lock("k").replicas(2).acquire();
        let _ = timeout(delay * 5 * MS, call).await;
        other.lock("k").wait(SECOND).run(async {}).await.unwrap();
    }
}

/// When calls are dropped while they wait for replicas, their `WAIT` commands end on the server too.
#[tokio::test]
async fn dropped_calls_end_their_wait_at_the_server() {
    let group = Group::with_replicas(1).await;
    let client = group.client().await;
    client.lock("k").replicas(1).run(async {}).await.unwrap();
    let mut admin = group.primary.connection().await;
    let waiting = async |admin: &mut MultiplexedConnection| {
        let info: String = ask(admin, redis::cmd("INFO").arg("clients")).await;
        info.contains("blocked_clients:0\r\n")
    };
    let mut calls: Vec<_> = (0..100)
        .map(|key| Box::pin(client.lock(key.to_string()).replicas(2).acquire()))
        .collect();
    until(async || {
        for call in &mut calls {
            let _ = futures_util::poll!(call.as_mut());
        }
        !waiting(&mut admin).await
    })
    .await;
    let dropped = Instant::now();
    drop(calls);
    until(async || waiting(&mut admin).await).await;
    let took = dropped.elapsed();
    assert!(took < support::epsilon(), "{took:?}");
}

/// A call waits for replicas, and is never polled again. The engine gives back the call's lock a claim (2 s) after the
/// replicas have answered. The lease of the lock and the time limit for the replicas are both longer.
#[tokio::test]
async fn a_call_that_is_never_polled_again_gives_its_lock_back() {
    let group = Group::with_replicas(1).await;
    let builder = LockClient::builder().url(group.primary.url());
    let builder = builder.namespace("replicas").replicas(1, 20 * SECOND);
    let [client, other] = [
        builder.connect_within(support::PATIENCE).await.unwrap(),
        group.client().await,
    ];
    let mut call = Box::pin(client.lock("k").wait(20 * SECOND).acquire());
    let mut connection = group.primary.connection().await;
    until(async || {
        let polled = futures_util::poll!(call.as_mut());
        assert!(
            polled.is_pending(),
            "the call is not polled again once it has the lock"
        );
        ask::<usize>(&mut connection, redis::cmd("EXISTS").arg("{replicas:k}")).await == 1
    })
    .await;
    // The next poll reads the grant, and sends the request to wait for the replicas.
    let _ = futures_util::poll!(call.as_mut());
    let begun = Instant::now();
    other
        .lock("k")
        .wait(20 * SECOND)
        .run(async {})
        .await
        .unwrap();
    let took = begun.elapsed();
    assert!(took < 3 * SECOND + support::epsilon(), "{took:?}");
    drop(call);
}

/// The replica acknowledges each grant 0.8 s late. A body starts only if most of its lease is left after the
/// acknowledgement, so a lease of one second is too short.
#[tokio::test]
async fn a_body_needs_most_of_its_lease_on_the_replicas() {
    let (group, proxy) = Group::with_replica_behind_proxy().await;
    let builder = LockClient::builder().url(group.primary.url());
    let builder = builder.namespace("replicas").replicas(1, 20 * SECOND);
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    proxy.delay(400 * MS);
    for renew in [false, true] {
        let lock = client.lock("k").lease(SECOND).renew(renew).wait(4 * SECOND);
        let refused = lock.acquire().await;
        // On a busy machine, the call can read the last answer when no time for another try is left.
        if !matches!(refused, Err(LockError::Busy { .. })) {
            assert_not_replicated(&refused, 1, 0);
        }
    }
    let guard = client
        .lock("k")
        .lease(20 * SECOND)
        .wait(5 * SECOND)
        .acquire();
    let guard = guard.await.unwrap();
    let mut replica = group.replicas[0].connection().await;
    let left: u64 = ask(&mut replica, redis::cmd("PTTL").arg("{replicas:k}")).await;
    assert!(left > 13_000, "{left} ms");
    guard.release().await;
}

/// A call with many keys waits for replicas over a single connection.
#[tokio::test]
async fn a_call_with_many_keys_uses_one_connection() {
    let group = Group::with_replicas(1).await;
    let client = group.client().await;
    client.lock("k").run(async {}).await.unwrap();
    let mut admin = group.primary.connection().await;
    let before = connections(&mut admin).await;
    let keys: Vec<_> = (0..100).map(|key| key.to_string()).collect();
    let inside = client.locks(keys.clone()).replicas(1).run(async {
        assert!(connections(&mut admin).await <= before + 1);
    });
    inside.await.unwrap();
    let refused = client.locks(keys.clone()).replicas(2).acquire().await;
    assert_not_replicated(&refused, 2, 1);
    let free = client.locks(keys).replicas(1).wait(SECOND);
    free.run(async {}).await.unwrap();
}

/// The process of a primary is stopped, and Sentinels promote a replica. The next call waits for a replica of the new
/// primary, although the client still has connections to the old primary.
/// Sixteen calls use all connections on which calls wait for replicas. Another call does not ask for its replicas in
/// time. The server is reachable nevertheless.
#[tokio::test]
async fn a_call_that_gets_no_connection_in_time_is_not_replicated() {
    let group = Group::with_replicas(1).await;
    group.cut_off(0).await;
    let builder = LockClient::builder().url(group.primary.url());
    let client = builder
        .replicas(1, 20 * SECOND)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let lock = |key: usize| client.lock(key.to_string()).wait(20 * SECOND);
    let calls: Vec<_> = (0..16)
        .map(|key| tokio::spawn(lock(key).acquire()))
        .collect();
    until_blocked(&group.primary, 16).await;
    let refused = lock(16).wait(2 * SECOND).acquire().await;
    assert_not_replicated(&refused, 1, 0);
    calls.into_iter().for_each(|call| call.abort());
}

#[tokio::test]
async fn a_primary_that_stops_answering_is_left() {
    let group = SentinelGroup::start().await;
    let client = LockClient::builder().url(group.url()).replicas(1, PATIENCE);
    let client = client.connect_within(support::PATIENCE).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    group.servers[0].stop_process();
    group.promoted_instead_of(0).await;
    client
        .lock("k")
        .wait(20 * SECOND)
        .run(async {})
        .await
        .unwrap();
    group.servers[0].continue_process();
}

/// A shutdown ends the calls that wait for replicas.
#[tokio::test]
async fn a_shutdown_ends_calls_that_wait_for_replicas() {
    let group = Group::with_replicas(1).await;
    let builder = LockClient::builder().url(group.primary.url());
    let client = builder
        .replicas(2, 20 * SECOND)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let lock = client.lock("k").wait(20 * SECOND);
    let call = tokio::spawn(async move { lock.acquire().await });
    let mut admin = group.primary.connection().await;
    until(async || {
        let info: String = ask(&mut admin, redis::cmd("INFO").arg("clients")).await;
        info.contains("blocked_clients:1\r\n")
    })
    .await;
    let begun = Instant::now();
    client.shutdown().await;
    let ended = call.await.unwrap();
    assert!(matches!(ended, Err(LockError::ShutDown)), "{ended:?}");
    let took = begun.elapsed();
    assert!(took < SECOND + support::epsilon(), "{took:?}");
    let keys: Vec<String> = ask(&mut admin, redis::cmd("KEYS").arg("{lock:*")).await;
    assert!(keys.is_empty(), "{keys:?}");
}

/// A primary without free memory refuses new grants, but a release grants the lock to a waiter. The waiter can wait until
/// replicas have acknowledged this grant.
#[tokio::test]
async fn without_free_memory_a_grant_is_replicated() {
    let group = Group::with_replicas(1).await;
    let client = group.client().await;
    let guard = hold(&client, "k").await;
    let lock = client.lock("k").wait(20 * SECOND).replicas(1);
    let call = tokio::spawn(lock.run(async {}));
    until_waiting(&client, "k", 1).await;
    let mut admin = group.primary.connection().await;
    let full = ["SET", "maxmemory", "1mb"];
    ask::<()>(&mut admin, redis::cmd("CONFIG").arg(&full[..])).await;
    guard.release().await;
    call.await.unwrap().unwrap();
}

/// The primaries of a cluster and of a Sentinel group have replicas. Locks in Redisson's layout are replicated like
/// other locks.
#[tokio::test]
async fn on_every_primary_that_has_replicas() {
    let cluster = ClusterServers::with_replicas(3).await;
    let sentinels = SentinelGroup::start().await;
    let group = Group::with_replicas(1).await;
    let urls = [cluster.url(), sentinels.url(), group.primary.url()];
    for (url, replicas) in urls.iter().zip([1, 2, 1]) {
        let client = LockClient::builder().url(url).replicas(replicas, PATIENCE);
        let client = client.connect_within(support::PATIENCE).await.unwrap();
        // The keys are in different slots of the cluster.
        for key in 0..20 {
            client.lock(key.to_string()).run(async {}).await.unwrap();
        }
        let refused = client.lock("k").replicas(replicas + 1).acquire().await;
        assert_not_replicated(&refused, replicas + 1, replicas);
    }
    let client = LockClient::builder()
        .url(group.primary.url())
        .layout(Layout::Redisson)
        .replicas(1, PATIENCE);
    let client = client.connect_within(support::PATIENCE).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    let refused = client.lock("k").replicas(2).acquire().await;
    assert_not_replicated(&refused, 2, 1);
}

/// The in-process backend has no replicas, so it ignores the option `replicas`. A Redlock refuses the option.
#[tokio::test]
async fn backends_without_replicas() {
    let client = Store::memory().client().await;
    client.lock("k").replicas(9).run(async {}).await.unwrap();
    let client = Store::redlock().await.client().await;
    let refused = client.lock("k").replicas(1).acquire().await;
    assert!(
        matches!(refused, Err(LockError::Refused { .. })),
        "{refused:?}"
    );
    client.lock("k").wait(SECOND).run(async {}).await.unwrap();
}

/// If the Redis user may not send `WAIT`, the error names the missing right.
#[tokio::test]
async fn a_missing_right_is_named() {
    let group = Group::with_replicas(1).await;
    let mut admin = group.primary.connection().await;
    let rules = ["SETUSER", "default", "-wait"];
    ask::<()>(&mut admin, redis::cmd("ACL").arg(&rules[..])).await;
    let client = group.client().await;
    let refused = client.lock("k").replicas(1).acquire().await;
    match refused {
        Err(LockError::Refused { detail, .. }) => {
            assert!(detail.contains("`ACL SETUSER <user> +wait`"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    client.lock("k").wait(SECOND).run(async {}).await.unwrap();
}

/// Many calls wait for replicas at the same time, each over a connection of its own. Afterwards, at most 16 of these
/// connections remain, and a shutdown closes them.
#[tokio::test]
async fn the_connections_of_many_calls_are_closed() {
    let group = Group::with_replicas(1).await;
    let client = group.client().await;
    let mut admin = group.primary.connection().await;
    let before = connections(&mut admin).await;
    let calls = (0..40).map(|key| {
        let lock = client.lock(key.to_string()).replicas(1);
        tokio::spawn(async move { lock.run(async {}).await.unwrap() })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        call.await.unwrap();
    }
    until(async || connections(&mut admin).await <= before + 16).await;
    client.shutdown().await;
    drop(client);
    until(async || connections(&mut admin).await <= before).await;
}
