//! Row 31 of `docs/faults.md`: nodes that restart without their state, and nodes that were silent when a lock was
//! granted.

use std::time::{Duration, Instant};

use lock_runtime::{Lock, LockClient, LockError, LockGuard};
use support::{
    assert_busy,
    quorum::{Quorum, url_through},
    server::{RedisServer, ask},
};
use tokio::{task::JoinSet, time::sleep};

use super::{BACKOFF, MARK, client, is_held_on, until_empty};
use crate::fixture::{MS, NAME, SECOND, epsilon, row, token_of, until};

/// Row 31 of `docs/faults.md`: a lock is held on two of three nodes, and one of these two restarts without its state.
/// Until the lease has ended, no client counts the restarted node and the third node as a majority, whether or not the
/// client saw the restart.
#[tokio::test]
async fn row_31_node_returns_empty() {
    row(31, async |seen| {
        const LEASE: Duration = Duration::from_secs(4);
        let mut quorum = Quorum::start(3).await.in_use().await;
        let url = quorum.url();
        let (holder, witness) = (client(&url, LEASE).await, client(&url, LEASE).await);
        for client in [&holder, &witness] {
            client.lock("warm").run(async {}).await.unwrap();
        }
        for server in &quorum.servers {
            until_empty(server).await;
        }
        quorum.servers[2].stop_process();
        let granted = Instant::now();
        let guard = holder.lock("k").lease(LEASE).acquire().await.unwrap();
        let token = guard.token();
        // After this pause, the client has stopped waiting for the third node. When the third node continues, it
        // carries out the request late, and the client gives the grant back at once.
        sleep(LEASE / 10 + 50 * MS).await;
        quorum.servers[2].continue_process();
        until_empty(&quorum.servers[2]).await;
        assert!(is_held_on(&quorum.servers[0]).await && is_held_on(&quorum.servers[1]).await);
        quorum.servers[1].restart().await;
        let restarted = Instant::now();

        let newcomer = client(&url, LEASE).await;
        let mut next = JoinSet::new();
        for client in [&witness, &newcomer] {
            let refused = client.lock("k").try_acquire().await;
            assert_busy(&refused);
            let client = client.clone();
            next.spawn(async move {
                let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
                let entered = (Instant::now(), guard.token());
                guard.release().await;
                entered
            });
        }
        while let Some(entered) = next.join_next().await {
            let (entered, next) = entered.unwrap();
            let after = entered.duration_since(granted);
            seen.within(
                "the next caller enters after the grant",
                LEASE + BACKOFF,
                after,
            );
            assert!(after > LEASE - 100 * MS, "{after:?}");
            assert!(next > token);
        }
        guard.release().await;

        // The restarted node now counts toward a majority again, so this node and the third node are a majority.
        quorum.servers[0].kill();
        for client in [witness, newcomer] {
            let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
            assert!(guard.token() > token);
            guard.release().await;
        }
        assert!(restarted.elapsed() > LEASE - SECOND);
    })
    .await;
}

/// Row 31 of `docs/faults.md`: nodes that have never been used count toward a majority at once if all nodes are up. If
/// a node is down, the unused nodes do not count toward a majority yet, because the missing node can be the only node
/// that stores a lease.
#[tokio::test]
async fn row_31_a_beginning_needs_all_nodes() {
    row(31, async |_| {
        let mut quorum = Quorum::start(3).await;
        quorum.servers[0].kill();
        let client = client(&quorum.url(), SECOND).await;
        // The call waits for longer than the quarantine, the time for which a node that lost its state does not count
        // toward a majority.
        let refused = client.lock("k").wait(6 * SECOND).acquire().await;
        let Err(LockError::Unreachable { detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("started without its state"), "{detail}");
        // With all three nodes up, the client knows that none of the nodes stores a lease.
        quorum.servers[0].restart().await;
        let lock = client.lock("k").wait(10 * SECOND);
        lock.acquire().await.unwrap().release().await;

        let beginning = Quorum::start(3).await;
        let client = self::client(&beginning.url(), 30 * SECOND).await;
        // The call's `wait` is far shorter than the quarantine of a node, which lasts for the longest lease in use.
        let lock = client.lock("k").wait(5 * SECOND);
        lock.acquire().await.unwrap().release().await;
    })
    .await;
}

/// Returns a hold on two of three nodes. The third node was silent while the lock was granted, and answers again when
/// this function returns.
async fn held_on_two(quorum: &Quorum, lock: Lock) -> LockGuard {
    quorum.servers[2].stop_process();
    let guard = lock.acquire().await.unwrap();
    // After this pause, the request to the third node is past its deadline, so the node does not carry out the request.
    sleep(1200 * MS).await;
    quorum.servers[2].continue_process();
    assert!(is_held_on(&quorum.servers[0]).await && is_held_on(&quorum.servers[1]).await);
    guard
}

/// Asserts that none of the clients acquires the lock before the lease of the hold has ended.
async fn excluded_until_the_end(clients: &[LockClient], guard: &LockGuard, lease: Duration) {
    while guard.loss().is_none() {
        for client in clients {
            let entered = client.lock("k").lease(lease).try_acquire().await;
            assert!(
                entered.is_err() || guard.loss().is_some(),
                "{entered:?} entered although another hold has {:?} left",
                guard.remaining()
            );
        }
        sleep(20 * MS).await;
    }
}

/// Row 31 of `docs/faults.md`: a node restarts without its state while a client with short leases uses the Redlock. The
/// node is not counted until the longest lease that any client uses has passed. Neither the client with short leases
/// nor a client that connects later shortens this quarantine.
#[tokio::test]
async fn row_31_another_clients_lock_ends_no_quarantine() {
    row(31, async |_| {
        const LEASE: Duration = Duration::from_secs(5);
        let mut quorum = Quorum::start(3).await.in_use().await;
        let (url, proxies) = (quorum.url(), quorum.proxies().await);
        let holder = client(&url_through(&proxies), SECOND).await;
        let short = client(&url, SECOND).await;
        for client in [&holder, &short] {
            client.lock("warm").run(async {}).await.unwrap();
        }
        let guard = held_on_two(&quorum, holder.lock("k").lease(LEASE)).await;
        // Cuts the holder off from the nodes, because otherwise the holder would store its grant on the node that
        // missed the grant.
        proxies.iter().for_each(|proxy| proxy.blackhole(true));
        quorum.servers[1].restart().await;
        sleep(1200 * MS).await;
        let lock = short.lock("other").wait(SECOND);
        lock.run(async {}).await.unwrap();
        let late = client(&url, SECOND).await;
        excluded_until_the_end(&[short, late], &guard, SECOND).await;
    })
    .await;
}

/// Row 31 of `docs/faults.md`: `FLUSHALL` deletes the state of a running node. The flushed node does not count until
/// the leases that it stored before have ended.
#[tokio::test]
async fn row_31_a_flushed_node_is_not_counted() {
    row(31, async |_| {
        const LEASE: Duration = Duration::from_secs(5);
        let quorum = Quorum::start(3).await.in_use().await;
        let holder = client(&quorum.url(), SECOND).await;
        let other = client(&quorum.url(), SECOND).await;
        let guard = held_on_two(&quorum, holder.lock("k").lease(LEASE)).await;
        let mut flushed = quorum.servers[1].connection().await;
        ask::<()>(&mut flushed, &redis::cmd("FLUSHALL")).await;
        excluded_until_the_end(&[other], &guard, LEASE).await;
    })
    .await;
}

/// A node loses its state, and one client after another notices the loss. The first client starts the node's
/// quarantine, the time for which the node does not count toward a majority. Clients that notice the loss later do not
/// restart the quarantine.
#[tokio::test]
async fn a_quarantine_begins_when_the_first_client_notices() {
    const LEASE: Duration = Duration::from_secs(20);
    for restarted in [false, true] {
        let mut quorum = Quorum::start(3).await.in_use().await;
        let url = quorum.url();
        let (first, second) = (client(&url, LEASE).await, client(&url, LEASE).await);
        for client in [&first, &second] {
            client.lock("warm").run(async {}).await.unwrap();
            until(async || client.stats().connections >= 3).await;
        }
        let node = &mut quorum.servers[1];
        if restarted {
            node.restart().await;
            for client in [&first, &second] {
                until(async || client.stats().connections >= 4).await;
            }
        } else {
            let mut flushed = node.connection().await;
            ask::<()>(&mut flushed, &redis::cmd("FLUSHALL")).await;
        }
        let mut asked = node.connection().await;
        let mut began = None;
        for (place, client) in [Some(first), Some(second), None].into_iter().enumerate() {
            let client = match client {
                Some(client) => client,
                None => super::client(&url, LEASE).await,
            };
            node.reset_stats().await;
            // A client notices the loss when it requests a lock. The client then reads the node's mark, a key that
            // shows whether the node has its state. Each call sends two scripts to the node, so the client has read the
            // mark after about six calls (12 scripts). The first client also writes the mark, which can take longer.
            until(async || {
                client.lock("k").run(async {}).await.unwrap();
                let mark: Option<String> =
                    ask(&mut asked.clone(), redis::cmd("GET").arg(MARK)).await;
                node.scripts().await >= 12 && mark.is_some()
            })
            .await;
            // After its shutdown, this client sends no script that the test would count for the next client.
            client.shutdown().await;
            let mark: String = ask(&mut asked, redis::cmd("GET").arg(MARK)).await;
            let (state, rest) = mark.split_once('|').unwrap();
            assert_eq!(state, "lost");
            let since = rest.split('|').next().unwrap().to_owned();
            let began = began.get_or_insert_with(|| since.clone());
            assert_eq!(since, *began, "client {place}, restarted: {restarted}");
        }
    }
}

/// A body with `hold_at_least` returns, and the lease is far shorter than the minimum hold. The lock stays taken for
/// the rest of the minimum hold on two of three nodes, and one of these two nodes loses its state. The node that lost
/// its state does not count toward a majority before the minimum hold is over.
#[tokio::test]
async fn a_retained_lock_outlives_the_loss_of_a_node() {
    const LEAST: Duration = Duration::from_secs(6);
    let quorum = Quorum::start(3).await.in_use().await;
    let url = quorum.url();
    let (holder, other) = (client(&url, SECOND).await, client(&url, SECOND).await);
    for client in [&holder, &other] {
        client.lock("warm").run(async {}).await.unwrap();
    }
    quorum.servers[2].stop_process();
    let lock = holder.lock("k").hold_at_least(LEAST);
    let asked = Instant::now();
    let entered = lock.run(async { Instant::now() }).await.unwrap();
    // After this pause, the request to the third node is past its deadline, so the node does not carry out the request.
    sleep((1200 * MS).saturating_sub(asked.elapsed())).await;
    quorum.servers[2].continue_process();
    let mut flushed = quorum.servers[1].connection().await;
    ask::<()>(&mut flushed, &redis::cmd("FLUSHALL")).await;
    until_empty(&quorum.servers[2]).await;
    assert!(is_held_on(&quorum.servers[0]).await);
    let lock = other.lock("k").wait(20 * SECOND);
    let next = lock.run(async { Instant::now() }).await.unwrap();
    let took = next.duration_since(entered);
    println!("the next caller enters after {took:?}");
    assert!(took >= LEAST - 20 * MS, "{took:?}");
    assert!(took < LEAST + BACKOFF + epsilon(), "{took:?}");
}

/// A node that restarts with its state counts toward a majority at once.
#[tokio::test]
async fn a_node_that_kept_its_state_is_counted_at_once() {
    let mut quorum = Quorum::start(2).await;
    let kept = RedisServer::builder().aof_always().start().await;
    quorum.servers.push(kept);
    let holder = client(&quorum.url(), 30 * SECOND).await;
    holder.lock("k").run(async {}).await.unwrap();
    quorum.servers[2].restart().await;
    quorum.servers[0].kill();
    let lock = holder.lock("k").wait(2 * SECOND);
    lock.run(async {}).await.unwrap();
}

/// A renewed hold is on two of three nodes, because the third node was silent when the lock was granted, or has lost
/// its state since then. The holder's client stores the grant on the third node too, so the hold survives the failure
/// of another node.
#[tokio::test]
async fn a_hold_returns_to_a_node_that_missed_it() {
    for restarted in [false, true] {
        let mut quorum = Quorum::start(3).await.in_use().await;
        let client = client(&quorum.url(), 2 * SECOND).await;
        client.lock("warm").run(async {}).await.unwrap();
        let guard = if restarted {
            let guard = client.lock("k").acquire().await.unwrap();
            quorum.servers[2].restart().await;
            guard
        } else {
            held_on_two(&quorum, client.lock("k")).await
        };
        until(async || is_held_on(&quorum.servers[2]).await).await;
        let back = crate::fixture::grant(&quorum.servers[2]).await.unwrap();
        assert_eq!(token_of(&back), guard.token().get());
        quorum.servers[1].kill();
        sleep(3 * SECOND).await;
        assert_eq!(guard.loss(), None, "restarted: {restarted}");
        guard.release().await;
        until_empty(&quorum.servers[0]).await;
        until_empty(&quorum.servers[2]).await;
    }
}

/// A client stores its grant on a node that missed the grant, but the node's answer is lost with the connection. The
/// client also sends the release to this node.
#[tokio::test]
async fn a_hold_that_returned_without_an_answer_is_released() {
    let quorum = Quorum::start(3).await.in_use().await;
    let proxies = quorum.proxies().await;
    let client = client(&url_through(&proxies), 6 * SECOND).await;
    client.lock("warm").run(async {}).await.unwrap();
    let guard = held_on_two(&quorum, client.lock("k")).await;
    let node = &proxies[2];
    // The proxy delivers the request to the node although the connection is cut.
    node.deliver_after_cut(true);
    node.delay(50 * MS);
    let keys = format!("{NAME}\r\n$10\r\nlock:fence\r\n$16\r\n{MARK}\r\n");
    node.wait_for_request(keys.as_bytes()).await;
    node.cut();
    until(async || is_held_on(&quorum.servers[2]).await).await;
    let released = Instant::now();
    guard.release().await;
    until_empty(&quorum.servers[2]).await;
    let took = released.elapsed();
    // Without a release, the lease would end only after more than 3 s.
    assert!(took < SECOND + epsilon(), "{took:?}");
}
