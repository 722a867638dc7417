//! `replicas` in a Redis Cluster whose slots move, or whose primaries are replaced, while a call waits. The replicas of
//! the server that stores the grant have to acknowledge the grant.

use std::time::Instant;

use lock_runtime::{Lock, LockClient, LockError, OnLost};
use support::{cluster::ClusterServers, server::ask, until};

use super::{PATIENCE, assert_not_replicated, until_blocked};
use crate::stores::SECOND;

/// The name of the lock `k` on the servers.
const NAME: &str = "{replicas:k}";

/// A cluster of three primaries with one replica each, and a client that waits for the replicas for up to 20 s.
struct Fixture {
    cluster: ClusterServers,
    client: LockClient,
    /// The slot of the lock `k`.
    slot: u16,
    /// The primary of this slot at the start.
    from: usize,
    /// Another primary.
    to: usize,
}

impl Fixture {
    async fn start() -> Self {
        let cluster = ClusterServers::with_replicas(3).await;
        let builder = LockClient::builder().url(cluster.url());
        let builder = builder.namespace("replicas").replicas(0, 20 * SECOND);
        let slot = cluster.slot_of(NAME).await;
        let from = cluster.primary_of(slot).await;
        Self {
            client: builder.connect_within(support::PATIENCE).await.unwrap(),
            slot,
            from,
            to: (from + 1) % 3,
            cluster,
        }
    }

    /// Waits until a call waits for the replicas of the first primary.
    async fn until_waiting(&self) {
        until_blocked(&self.cluster.servers[self.from], 1).await;
    }

    /// Makes the replica of a primary the replica of another primary.
    async fn give_replica(&self, from: usize, to: usize) {
        let replica = self.cluster.replica_of(from);
        let id: String = self.cluster.tell(to, &["MYID"]).await;
        self.cluster.tell::<()>(replica, &["REPLICATE", &id]).await;
        self.cluster.until_in_sync(replica).await;
        let mut primary = self.cluster.servers[from].connection().await;
        until(async || {
            let mut info = redis::cmd("INFO");
            let info: String = ask(&mut primary, info.arg("replication")).await;
            info.contains("connected_slaves:0\r\n")
        })
        .await;
    }
}

/// Returns a call that re-enters a held lock without extending its lease. The call ends before the next renewal of the
/// lease, so that no other command of the client finds a new primary.
fn nested(lock: &Lock) -> Lock {
    let nested = lock.clone().replicas(1);
    nested.wait(8 * SECOND).lease(5 * SECOND)
}

/// A slot moves while a call waits for a replica that its first server does not have.
#[tokio::test]
async fn a_call_follows_a_slot_that_moves_while_it_waits() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    fixture.give_replica(*from, fixture.to).await;
    let lock = fixture.client.lock("k").replicas(1).wait(20 * SECOND);
    let call = tokio::spawn(async move { lock.acquire().await });
    fixture.until_waiting().await;
    cluster.move_slot(fixture.slot, fixture.to).await;
    let moved = Instant::now();
    let guard = call.await.unwrap().unwrap();
    let took = moved.elapsed();
    assert!(took < 2 * SECOND + support::epsilon(), "{took:?}");
    guard.release().await;
}

/// The grant of a held lock is already on the server to which its slot is moving. A nested call waits for the replica of
/// this server, and not for the replica of the old server.
#[tokio::test]
async fn a_call_waits_for_the_replicas_of_the_server_to_which_its_slot_is_moving() {
    let fixture = Fixture::start().await;
    let lock = fixture.client.lock("k");
    let nested = lock.clone().replicas(1).wait(PATIENCE);
    let body = async {
        let Fixture { cluster, slot, .. } = &fixture;
        cluster.begin_move(*slot, fixture.to).await;
        cluster.move_key(*slot, NAME, fixture.to).await;
        nested.clone().run(async {}).await.unwrap();
        fixture.give_replica(fixture.to, fixture.from).await;
        let refused = nested.run(async {}).await;
        assert_not_replicated(&refused, 1, 0);
        cluster.end_move(*slot, fixture.to).await;
    };
    lock.run(body).await.unwrap();
}

/// The grants of two held locks are on two servers, because their slot is moving. A nested call waits for the replicas
/// of both servers.
#[tokio::test]
async fn a_call_with_several_keys_waits_for_replicas_while_its_slot_is_moving() {
    let fixture = Fixture::start().await;
    let locks = fixture.client.locks(["{t}:a", "{t}:b"]);
    let nested = locks.clone().replicas(1).wait(PATIENCE);
    let cluster = &fixture.cluster;
    let body = async {
        let keys = cluster.keys().await;
        let first = keys.iter().find(|key| key.ends_with("{t}:a")).unwrap();
        let slot = cluster.slot_of(first).await;
        let from = cluster.primary_of(slot).await;
        let to = (from + 1) % 3;
        cluster.begin_move(slot, to).await;
        cluster.move_key(slot, first, to).await;
        nested.clone().run(async {}).await.unwrap();
        fixture.give_replica(from, to).await;
        let refused = nested.run(async {}).await;
        assert_not_replicated(&refused, 1, 0);
        cluster.end_move(slot, to).await;
    };
    locks.run(body).await.unwrap();
}

/// The slot of a call with several keys begins to move while the call waits for a replica. The call enters when each of
/// the two servers has a replica, although a server refuses commands with several keys as long as the slot is moving.
#[tokio::test]
async fn a_first_call_with_several_keys_enters_while_its_slot_is_moving() {
    let fixture = Fixture::start().await;
    let Fixture {
        cluster, client, ..
    } = &fixture;
    let locks = client.locks(["{t}:a", "{t}:b"]).wait(20 * SECOND);
    let keys = locks.clone().run(async { cluster.keys().await });
    let keys = keys.await.unwrap();
    let first = keys.iter().find(|key| key.ends_with("{t}:a")).unwrap();
    let slot = cluster.slot_of(first).await;
    let from = cluster.primary_of(slot).await;
    let to = (from + 1) % 3;
    fixture.give_replica(from, to).await;
    let call = tokio::spawn(async move { locks.replicas(1).acquire().await });
    until_blocked(&cluster.servers[from], 1).await;
    cluster.begin_move(slot, to).await;
    cluster.move_key(slot, first, to).await;
    let id: String = cluster.tell(from, &["MYID"]).await;
    let replica = cluster.replica_of(from);
    cluster.tell::<()>(replica, &["REPLICATE", &id]).await;
    let guard = call.await.unwrap().unwrap();
    guard.release().await;
    cluster.end_move(slot, to).await;
}

/// A replica has replaced the primary of a held lock, and the old primary follows it. A nested call waits for the old
/// primary.
#[tokio::test]
async fn a_call_follows_a_primary_that_was_replaced() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    let lock = fixture.client.lock("k");
    let nested = nested(&lock);
    let body = async {
        cluster.until_replicated("{replicas:k}:replicated").await;
        let replica = cluster.replica_of(*from);
        cluster.promote(replica, fixture.slot).await;
        until(async || !cluster.claims(*from, fixture.slot).await).await;
        nested.run(async {}).await.unwrap();
    };
    lock.run(body).await.unwrap();
}

/// The process of a primary with two replicas is stopped. One of the replicas replaces the primary, and the other one
/// follows the new primary. A call that asks the stopped primary finds the new one.
#[tokio::test]
async fn a_call_leaves_a_primary_that_stops_answering() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    fixture.give_replica(fixture.to, *from).await;
    let lock = fixture.client.lock("k");
    let nested = nested(&lock);
    let body = async {
        cluster.servers[*from].stop_process();
        nested.run(async {}).await.unwrap();
        cluster.servers[*from].continue_process();
    };
    lock.replicas(2).run(body).await.unwrap();
}

/// The primary of a held lock was replaced, and the new primary does not have the grant of the lock. A nested call does
/// not enter.
#[tokio::test]
async fn a_call_does_not_enter_without_its_grant_on_the_new_primary() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    let lock = fixture.client.lock("k");
    let nested = nested(&lock);
    let body = async {
        cluster.until_replicated("{replicas:k}:replicated").await;
        let replica = cluster.replica_of(*from);
        cluster.promote(replica, fixture.slot).await;
        let mut promoted = cluster.servers[replica].connection().await;
        ask::<usize>(&mut promoted, redis::cmd("DEL").arg(NAME)).await;
        let lost = nested.run(async {}).await;
        assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    };
    let _ = lock.on_lost(OnLost::Continue).run(body).await;
}

/// The grant of a call disappears from the primary while the call waits for a replica. The replica acknowledges the grant
/// afterwards. The call acquires the lock again before it enters.
#[tokio::test]
async fn a_call_does_not_enter_on_a_grant_that_has_disappeared() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    let lock = fixture.client.lock("k").wait(20 * SECOND);
    lock.clone().run(async {}).await.unwrap();
    let replica = &cluster.servers[cluster.replica_of(*from)];
    replica.stop_process();
    let call = tokio::spawn(async move { lock.replicas(1).acquire().await });
    fixture.until_waiting().await;
    let mut primary = cluster.servers[*from].connection().await;
    ask::<usize>(&mut primary, redis::cmd("DEL").arg(NAME)).await;
    replica.continue_process();
    let guard = call.await.unwrap().unwrap();
    let grant: Option<String> = ask(&mut primary, redis::cmd("GET").arg(NAME)).await;
    let token = format!("{}|", guard.token());
    assert!(
        grant
            .as_ref()
            .is_some_and(|grant| grant.starts_with(&token)),
        "{guard:?}, {grant:?}"
    );
    guard.release().await;
}
