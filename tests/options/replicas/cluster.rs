//! `replicas` in a Redis Cluster whose slots move, or whose primaries are replaced, while a call waits. The replicas of
//! the server that stores the grant have to acknowledge the grant.

use std::time::Instant;

use lock_runtime::LockClient;
use support::{cluster::ClusterServers, server::ask, until};

use super::until_blocked;
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

/// The slot of a lock begins to move, with the grant, while a call waits for a replica that the first server does not
/// have. The call waits for the replica of the server that stores the grant now.
#[tokio::test]
async fn a_call_waits_for_the_replicas_of_the_server_to_which_its_slot_is_moving() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, slot, .. } = &fixture;
    fixture.give_replica(fixture.from, fixture.to).await;
    let lock = fixture.client.lock("k").replicas(1).wait(20 * SECOND);
    let call = tokio::spawn(async move { lock.acquire().await });
    fixture.until_waiting().await;
    cluster.begin_move(*slot, fixture.to).await;
    cluster.move_key(*slot, NAME, fixture.to).await;
    let guard = call.await.unwrap().unwrap();
    cluster.end_move(*slot, fixture.to).await;
    guard.release().await;
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

/// A call waits for two replicas, and one of them is stopped. The other one replaces the primary, and the old primary
/// follows it. The call waits for the replicas of the new primary.
#[tokio::test]
async fn a_call_follows_a_primary_that_was_replaced() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    fixture.give_replica(fixture.to, *from).await;
    let [first, second] = [*from, fixture.to].map(|primary| cluster.replica_of(primary));
    cluster.servers[second].stop_process();
    let lock = fixture.client.lock("k").replicas(2).wait(20 * SECOND);
    let call = tokio::spawn(async move { lock.acquire().await });
    fixture.until_waiting().await;
    let mut primary = cluster.servers[*from].connection().await;
    let write = ["{replicas:k}:replicated", "1", "PX", "1"];
    ask::<()>(&mut primary, redis::cmd("SET").arg(&write)).await;
    let have: usize = ask(&mut primary, redis::cmd("WAIT").arg(1).arg(10_000)).await;
    assert_eq!(have, 1);
    cluster.promote(first, fixture.slot).await;
    until(async || !cluster.claims(*from, fixture.slot).await).await;
    cluster.servers[second].continue_process();
    let guard = call.await.unwrap().unwrap();
    guard.release().await;
}

/// A call waits for a replica, and the process of its primary is stopped. One of two replicas replaces the primary, and
/// the other one follows the new primary. The call finds the new primary.
#[tokio::test]
async fn a_call_leaves_a_primary_that_stops_answering() {
    let fixture = Fixture::start().await;
    let Fixture { cluster, from, .. } = &fixture;
    fixture.give_replica(fixture.to, *from).await;
    let replicas = [*from, fixture.to].map(|primary| &cluster.servers[cluster.replica_of(primary)]);
    replicas.iter().for_each(|replica| replica.stop_process());
    let lock = fixture.client.lock("k").replicas(1).wait(20 * SECOND);
    let call = tokio::spawn(async move { lock.acquire().await });
    fixture.until_waiting().await;
    cluster.servers[*from].stop_process();
    replicas
        .iter()
        .for_each(|replica| replica.continue_process());
    let guard = call.await.unwrap().unwrap();
    cluster.servers[*from].continue_process();
    guard.release().await;
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
