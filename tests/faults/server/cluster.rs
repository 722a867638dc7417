//! A Redis Cluster: slots move, and a primary dies.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use lock_runtime::{LockClient, LockError, LossReason};
use redis::Value;
use support::{cluster::ClusterServers, history::History, server::ask};
use tokio::time::sleep;

use super::load::Load;
use crate::fixture::{MS, NAME, SECOND, client, row, until_waiting};

/// Row 28 of `docs/faults.md`: the slots of all locks move from primary to primary, again and again. During the moves,
/// one caller holds the lock, 20 callers of two clients wait for it, and five other callers keep acquiring locks of
/// their own. The holder keeps its lock, and the waiters enter one at a time, with rising tokens.
#[tokio::test]
async fn row_28_slots_move_under_load() {
    row(28, async |seen| {
        let cluster = Arc::new(ClusterServers::start(3).await);
        let load = Load::start(&cluster.url(), 6 * SECOND).await;
        let mut slots = vec![cluster.slot_of(NAME).await];
        for key in Load::busy_keys() {
            slots.push(cluster.slot_of(&format!("{{faults:{key}}}")).await);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (moved, stopped) = (cluster.clone(), stop.clone());
        let moving = tokio::spawn(async move {
            let mut moves = 0;
            while !stopped.load(Ordering::SeqCst) {
                for slot in &slots {
                    let to = (moved.primary_of(*slot).await + 1) % 3;
                    moved.move_slot(*slot, to).await;
                    moves += 1;
                }
            }
            moves
        });
        sleep(7 * SECOND).await;
        let finished = load.finish().await;
        stop.store(true, Ordering::SeqCst);
        let moves = moving.await.unwrap();
        seen.within(
            "20 waiters enter after the release",
            10 * SECOND,
            finished.waiters,
        );
        seen.within(
            "the longest call for a lock whose slot moves",
            5 * SECOND,
            finished.longest_call,
        );
        println!("{moves} slots were moved during {} calls", finished.calls);
        assert!(moves > 3, "{moves}");
        support::until(async || cluster.keys().await.is_empty()).await;
    })
    .await;
}

/// Row 28 of `docs/faults.md`: the move of a slot takes longer than a lease. The grant of a held lock moves first, and
/// its lease is renewed on the new primary. Other callers of the lock wait until the whole slot has moved. A caller
/// that gives up in the meantime breaks no connection of its client.
async fn slow_move(cluster: ClusterServers, choose_target: impl Fn(usize) -> usize) {
    let (holder, other) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let guard = holder
        .lock("k")
        .lease(2 * SECOND)
        .renew(true)
        .acquire()
        .await
        .unwrap();
    let slot = cluster.slot_of(NAME).await;
    let from = cluster.primary_of(slot).await;
    let to = choose_target(from);
    cluster.begin_move(slot, to).await;
    cluster.move_key(slot, NAME, to).await;
    let lock = other.lock("k").wait(30 * SECOND);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(5 * SECOND).await;
    assert_eq!(guard.loss(), None);
    assert!(!waiting.is_finished());
    let before = connections(&cluster, from).await;
    let refused = other.lock("k").wait(300 * MS).acquire().await;
    assert!(
        matches!(refused, Err(LockError::Unreachable { .. })),
        "{refused:?}"
    );
    cluster.end_move(slot, to).await;
    guard.release().await;
    waiting.await.unwrap().release().await;
    let after = connections(&cluster, from).await;
    assert!(before.is_subset(&after), "{before:?}, {after:?}");
}

/// Row 28 of `docs/faults.md`: a call holds two locks in one slot, and the slot moves slowly. The grant of one lock is on
/// the new primary, and the grant of the other one on the old primary, so no server renews both with one command.
#[tokio::test]
async fn row_28_two_holds_outlive_a_slow_move() {
    row(28, async |_| {
        let cluster = ClusterServers::start(3).await;
        let client = client(&cluster.url()).await;
        let locks = client.locks(["{t}:a", "{t}:b"]).lease(2 * SECOND);
        let guard = locks.renew(true).acquire().await.unwrap();
        let keys = cluster.keys().await;
        let first = keys.iter().find(|key| key.ends_with("{t}:a")).unwrap();
        let slot = cluster.slot_of(first).await;
        let to = (cluster.primary_of(slot).await + 1) % 3;
        cluster.begin_move(slot, to).await;
        cluster.move_key(slot, first, to).await;
        sleep(5 * SECOND).await;
        assert_eq!(guard.loss(), None);
        cluster.end_move(slot, to).await;
        guard.release().await;
    })
    .await;
}

/// Returns the IDs of the connections of all lock clients with a server.
async fn connections(cluster: &ClusterServers, server: usize) -> BTreeSet<u64> {
    let mut connection = cluster.servers[server].connection().await;
    let list: String = ask(&mut connection, redis::cmd("CLIENT").arg("LIST")).await;
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.strip_prefix(name));
        fields.next().map(str::to_owned)
    };
    let lines = list.lines();
    let of_clients = lines.filter(|line| field(line, "name=").is_some_and(|name| !name.is_empty()));
    of_clients
        .map(|line| field(line, "id=").unwrap().parse().unwrap())
        .collect()
}

#[tokio::test]
async fn row_28_a_hold_outlives_a_slow_move() {
    row(28, async |_| {
        let cluster = ClusterServers::start(3).await;
        slow_move(cluster, |from| (from + 1) % 3).await;
    })
    .await;
}

/// Until the whole slot has moved, the server that joins stores no slot, so the map of the slots does not name this
/// server.
#[tokio::test]
async fn row_28_a_hold_outlives_a_slow_move_to_a_server_that_joins() {
    row(28, async |_| {
        let mut cluster = ClusterServers::start(3).await;
        let joined = cluster.join().await;
        slow_move(cluster, |_| joined).await;
    })
    .await;
}

/// Row 28 of `docs/faults.md`: the primary of a lock is killed. At that time, one caller holds the lock, 20 callers of
/// two clients wait for it, and five other callers keep acquiring locks of their own. The primary's replica, which has
/// the grant and the queue, becomes the new primary. The holder keeps its lock, and the waiters enter one at a time.
#[tokio::test]
async fn row_28_a_primary_dies() {
    row(28, async |seen| {
        let mut cluster = ClusterServers::with_replicas(3).await;
        let load = Load::start(&cluster.url(), 30 * SECOND).await;
        let primary = cluster.primary_of(cluster.slot_of(NAME).await).await;
        cluster.until_replicated("{faults:k}:replicated").await;
        cluster.servers[primary].kill();
        let killed = Instant::now();
        load.finish_after_failover(seen, killed, "{faults:k}:other")
            .await;
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a replica that lacks the grant replaces the primary of a lock. The first holder is
/// notified long before its next renewal would be due, and another caller enters with a greater token.
#[tokio::test]
async fn row_28_a_grant_is_not_replicated() {
    row(28, async |seen| {
        let mut cluster = ClusterServers::with_replicas(3).await;
        let (holder, other) = (client(&cluster.url()).await, client(&cluster.url()).await);
        let slot = cluster.slot_of(NAME).await;
        let primary = cluster.primary_of(slot).await;
        let replica = cluster.replica_of(primary);
        cluster.until_in_sync(replica).await;
        cluster.cut_off(replica, primary).await;
        let guard = holder.lock("k").lease(3600 * SECOND).acquire().await;
        let guard = guard.unwrap();
        cluster.servers[primary].kill();
        cluster.servers[replica].continue_process();
        cluster.until_primary(replica, slot).await;
        let promoted = Instant::now();
        assert_eq!(guard.lost().await, LossReason::NotHeld);
        seen.within(
            "the first holder is notified after the promotion",
            2 * SECOND,
            promoted.elapsed(),
        );
        let second = other.lock("k").wait(20 * SECOND).acquire().await.unwrap();
        assert!(second.token() > guard.token());
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a server joins the cluster, and takes over the slot of a lock that has a holder and
/// waiters. The holder keeps its lock, and the waiters enter one at a time.
#[tokio::test]
async fn row_28_a_server_joins() {
    row(28, async |_| {
        let mut cluster = ClusterServers::start(3).await;
        let load = Load::start(&cluster.url(), 6 * SECOND).await;
        let joined = cluster.join().await;
        cluster.move_slot(cluster.slot_of(NAME).await, joined).await;
        sleep(7 * SECOND).await;
        load.finish().await;
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a slot has moved, and a client with a waiting caller has not noticed the move yet. When
/// the lock is released, the waiting caller and a caller on the new primary do not hold the lock at the same time.
#[tokio::test]
async fn row_28_a_moved_waiter_does_not_enter_beside_another() {
    const ROUNDS: usize = 20;
    row(28, async |_| {
        let cluster = ClusterServers::start(3).await;
        let url = cluster.url();
        let [holder, early, late] = [client(&url).await, client(&url).await, client(&url).await];
        let slot = cluster.slot_of(NAME).await;
        let history = History::strict();
        let enter = |client: &LockClient| {
            let (lock, history) = (client.lock("k").wait(20 * SECOND), history.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let inside = history.enter("k", guard.token().get());
                sleep(20 * MS).await;
                inside.exit();
                guard.release().await;
            })
        };
        for _ in 0..ROUNDS {
            let guard = holder.lock("k").acquire().await.unwrap();
            let inside = history.enter("k", guard.token().get());
            let early = enter(&early);
            until_waiting(&holder, 1).await;
            cluster
                .move_slot(slot, (cluster.primary_of(slot).await + 1) % 3)
                .await;
            // Usually, the call of the client `late` reaches the new primary before the next probe of the client
            // `early`.
            let late = enter(&late);
            support::until(async || {
                late.is_finished() || holder.lock("k").status().await.unwrap().waiters >= 2
            })
            .await;
            inside.exit();
            guard.release().await;
            early.await.unwrap();
            late.await.unwrap();
        }
        history.check().assert_clean(3 * ROUNDS);
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a slot is taken from its primary, and later given to another primary. A waiting caller,
/// whose client has learned that no server stores the slot, acquires the lock soon after a server stores the slot
/// again.
#[tokio::test]
async fn row_28_a_slot_has_no_primary_for_a_while() {
    row(28, async |seen| {
        let cluster = ClusterServers::start(3).await;
        let client = client(&cluster.url()).await;
        client.lock("k").run(async {}).await.unwrap();
        let number = cluster.slot_of(NAME).await;
        let slot = number.to_string();
        let from = cluster.primary_of(number).await;
        for server in 0..3 {
            let forgotten: Value = cluster.tell(server, &["DELSLOTS", &slot]).await;
            assert_eq!(forgotten, Value::Okay);
        }
        let refused = client.lock("k").wait(2 * SECOND).acquire().await;
        assert!(
            matches!(refused, Err(LockError::Unreachable { .. })),
            "{refused:?}"
        );
        let lock = client.lock("k").wait(20 * SECOND);
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap().release().await });
        // During this pause, the client reads the map of the slots, in which this slot has no primary.
        sleep(SECOND).await;
        let since = Instant::now();
        let to = (from + 1) % 3;
        // A message that the former primary sent before `DELSLOTS` can arrive later, and give the slot back to it. If
        // there was no such message, this command fails.
        let mut forgetting = redis::cmd("CLUSTER");
        forgetting.arg(&["DELSLOTS", &slot]);
        let mut connection = cluster.servers[to].connection().await;
        let _: Result<(), redis::RedisError> = forgetting.query_async(&mut connection).await;
        cluster.tell::<()>(to, &["ADDSLOTS", &slot]).await;
        cluster.until_agreed().await;
        waiting.await.unwrap();
        seen.within(
            "the caller enters after the slot has a primary again",
            10 * SECOND,
            since.elapsed(),
        );
    })
    .await;
}
