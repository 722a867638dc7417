//! Two primaries of one slot, one after the other or side by side, and how clients learn which primary stores a slot.

use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError};
use support::{
    cluster::ClusterServers,
    server::{RedisServer, ask},
};
use tokio::time::sleep;

use crate::fixture::{MS, NAME, NAMESPACE, SECOND, client, row, token, until};

/// Row 28 of `docs/faults.md`: a primary is demoted, and promoted again without the grants that another primary made in
/// between. The next token of the first primary is greater than the tokens of the other primary. The client stays
/// connected to the first primary, and does not notice the two promotions.
#[tokio::test]
async fn row_28_a_primary_is_promoted_again() {
    row(28, async |_| {
        // On a busy machine, the idle client can have connected again, which makes the case another one.
        for _ in 0..5 {
            if promoted_again().await {
                return;
            }
        }
        panic!("the idle client always connects again");
    })
    .await;
}

/// Returns whether the idle client has used its old connection to the primary that is promoted again.
async fn promoted_again() -> bool {
    let mut cluster = ClusterServers::with_replicas(3).await;
    let [idle, other] = [client(&cluster.url()).await, client(&cluster.url()).await];
    let slot = cluster.slot_of(NAME).await;
    let first = cluster.primary_of(slot).await;
    let second = cluster.replica_of(first);
    let before = token(&idle).await;
    cluster.until_replicated("{faults:k}:replicated").await;
    cluster.promote(second, slot).await;
    cluster.until_in_sync(first).await;
    cluster.cut_off(first, second).await;
    let between = token(&other).await;
    assert!(between > before, "{between}, {before}");
    cluster.servers[second].kill();
    cluster.servers[first].continue_process();
    cluster.promote(first, slot).await;
    let connections = idle.stats().connections;
    let after = token(&idle).await;
    assert!(after > between, "{after}, {between}");
    idle.stats().connections == connections
}

/// Row 28 of `docs/faults.md`: a replica replaces a primary whose process is stopped, and grants a lock. When the old
/// primary continues, it does not know the new primary yet, so the old primary also grants the lock to a caller. The
/// old primary's grant comes later, so it has the greater token.
#[tokio::test]
async fn row_28_a_stopped_primary_continues() {
    row(28, async |_| {
        let cluster = ClusterServers::with_replicas(3).await;
        let late = client(&cluster.url()).await;
        let slot = cluster.slot_of(NAME).await;
        let first = cluster.primary_of(slot).await;
        let second = cluster.replica_of(first);
        token(&late).await;
        cluster.until_replicated("{faults:k}:replicated").await;
        cluster.servers[first].stop_process();
        cluster.until_primary(second, slot).await;
        let early = client(&cluster.url()).await;
        let before = token(&early).await;
        let sent = late.stats().commands;
        let (lock, acquired) = (late.lock("k").wait(20 * SECOND), Instant::now());
        let acquiring = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until(async || late.stats().commands > sent).await;
        cluster.servers[first].continue_process();
        let guard = acquiring.await.unwrap();
        println!("the old primary answered after {:?}", acquired.elapsed());
        assert!(guard.token().get() > before, "{guard:?}, {before}");
        let before = guard.token().get();
        guard.release().await;
        let after = token(&early).await;
        assert!(after > before, "{after}, {before}");
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a replica replaces a primary whose process is stopped. A client that still uses the old
/// primary requests the lock with `replicas = 1`, so its caller enters only after a replica has acknowledged the grant.
/// The old primary has lost its replica. Therefore, this caller does not enter while another caller holds the lock on
/// the new primary.
#[tokio::test]
async fn row_28_a_stopped_primary_has_no_replica() {
    row(28, async |_| {
        let cluster = ClusterServers::with_replicas(3).await;
        let late = client(&cluster.url()).await;
        let slot = cluster.slot_of(NAME).await;
        let first = cluster.primary_of(slot).await;
        let second = cluster.replica_of(first);
        token(&late).await;
        cluster.until_replicated("{faults:k}:replicated").await;
        cluster.servers[first].stop_process();
        cluster.until_primary(second, slot).await;
        let early = client(&cluster.url()).await;
        let guard = early.lock("k").wait(20 * SECOND).acquire().await.unwrap();
        let sent = late.stats().commands;
        let lock = late.lock("k").wait(3 * SECOND).replicas(1);
        let acquiring = tokio::spawn(async move { lock.acquire().await.map(drop) });
        until(async || late.stats().commands > sent).await;
        cluster.servers[first].continue_process();
        let refused = acquiring.await.unwrap();
        assert!(
            matches!(
                refused,
                Err(LockError::NotReplicated { .. }
                    | LockError::Busy { .. }
                    | LockError::Unreachable { .. })
            ),
            "{refused:?}"
        );
        assert_eq!(guard.loss(), None);
        guard.release().await;
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a primary is cut off from the other servers, and still claims a slot that another
/// primary has taken over. A client that connects gets the answer of the isolated primary first, but uses the answers
/// of the other servers.
#[tokio::test]
async fn row_28_an_isolated_primary_does_not_decide() {
    row(28, async |_| {
        let cluster = ClusterServers::start(3).await;
        for number in 0..3 {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", "cluster-require-full-coverage", "no"]);
            ask::<()>(&mut cluster.servers[number].connection().await, &set).await;
        }
        let slot = cluster.slot_of(NAME).await;
        let isolated = cluster.primary_of(slot).await;
        let others: Vec<_> = (0..3).filter(|number| *number != isolated).collect();
        isolate(&cluster, isolated, &others).await;
        // The other servers agree that one of them stores the slot. This server then has the greatest epoch.
        let (slot_text, to) = (slot.to_string(), others[0]);
        cluster.tell::<()>(to, &["ADDSLOTS", &slot_text]).await;
        cluster.tell::<redis::Value>(to, &["BUMPEPOCH"]).await;
        until(async || epoch(&cluster, others[1]).await == epoch(&cluster, to).await).await;
        assert!(epoch(&cluster, isolated).await < epoch(&cluster, to).await);
        let holder = LockClient::builder()
            .url(format!(
                "redis+cluster://127.0.0.1:{}",
                cluster.servers[to].port()
            ))
            .namespace(NAMESPACE);
        let holder = holder.connect_within(support::PATIENCE).await.unwrap();
        let guard = holder.lock("k").acquire().await.unwrap();
        for other in &others {
            cluster.servers[*other].stop_process();
        }
        let builder = LockClient::builder()
            .url(cluster.url())
            .namespace(NAMESPACE);
        let connecting = tokio::spawn(builder.connect_within(20 * SECOND));
        // During this time, the isolated primary answers.
        sleep(200 * MS).await;
        for other in &others {
            cluster.servers[*other].continue_process();
        }
        let client = connecting.await.unwrap().unwrap();
        let entered = client.lock("k").wait(Duration::ZERO).acquire().await;
        assert!(
            matches!(entered, Err(LockError::Busy { .. })),
            "{entered:?}"
        );
        guard.release().await;
    })
    .await;
}

/// Row 28 of `docs/faults.md`: a client holds locks on all primaries, and many of these locks are renewed at the same
/// moment. One primary does not answer. Only the leases of the locks on this primary end.
#[tokio::test]
async fn row_28_a_silent_primary_costs_no_other_lease() {
    const LOCKS: usize = 60;
    const LEASE: Duration = Duration::from_secs(3);
    row(28, async |_| {
        let cluster = ClusterServers::start(3).await;
        for server in &cluster.servers {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", "cluster-require-full-coverage", "no"]);
            ask::<()>(&mut server.connection().await, &set).await;
        }
        let client = client(&cluster.url()).await;
        let mut on_silent = Vec::new();
        for number in 0..LOCKS {
            let slot = cluster.slot_of(&format!("{{faults:{number}}}")).await;
            on_silent.push(cluster.primary_of(slot).await == 0);
        }
        let mut guards = Vec::new();
        for number in 0..LOCKS {
            let lock = client.lock(number.to_string()).lease(LEASE).renew(true);
            guards.push(lock.acquire().await.unwrap());
        }
        cluster.servers[0].stop_process();
        sleep(2 * LEASE).await;
        let lost: Vec<_> = guards.iter().map(|guard| guard.loss().is_some()).collect();
        assert_eq!(lost, on_silent);
        cluster.servers[0].continue_process();
        for guard in guards {
            guard.release().await;
        }
    })
    .await;
}

/// Makes a server and the other servers forget each other, so that they ignore each other's messages.
async fn isolate(cluster: &ClusterServers, isolated: usize, others: &[usize]) {
    let id: String = cluster.tell(isolated, &["MYID"]).await;
    for other in others {
        let theirs: String = cluster.tell(*other, &["MYID"]).await;
        cluster.tell::<()>(isolated, &["FORGET", &theirs]).await;
        cluster.tell::<()>(*other, &["FORGET", &id]).await;
    }
}

/// Returns the newest epoch that a server knows.
async fn epoch(cluster: &ClusterServers, server: usize) -> u64 {
    let info: String = cluster.tell(server, &["INFO"]).await;
    let lines = info.lines();
    let mut epochs = lines.filter_map(|line| line.strip_prefix("cluster_current_epoch:"));
    epochs.next().unwrap().trim().parse().unwrap()
}

/// Row 28 of `docs/faults.md`: a primary without a replica is killed. Each idle client asks the other servers at most
/// twice a second which primary stores which slot.
#[tokio::test]
async fn row_28_idle_clients_ask_rarely_while_a_primary_is_dead() {
    const CLIENTS: u64 = 3;
    const MEASURED: u64 = 4;
    row(28, async |_| {
        let mut cluster = ClusterServers::start(3).await;
        let mut idle = Vec::new();
        for _ in 0..CLIENTS {
            idle.push(client(&cluster.url()).await);
        }
        cluster.servers[0].kill();
        // An idle client asks its first questions at shorter intervals.
        sleep(2 * SECOND).await;
        let before = map_reads(&cluster.servers[1]).await;
        sleep(MEASURED as u32 * SECOND).await;
        let reads = map_reads(&cluster.servers[1]).await - before;
        println!("{CLIENTS} clients read the map of the slots {reads} times in {MEASURED} s");
        assert!(reads > 0, "the clients do not look for a new primary");
        assert!(reads <= CLIENTS * (2 * MEASURED + 1), "{reads}");
    })
    .await;
}

/// Returns how often clients have asked a server which primary stores which slot.
async fn map_reads(server: &RedisServer) -> u64 {
    let calls = server.calls().await;
    calls.get("cluster|slots").copied().unwrap_or_default()
}
