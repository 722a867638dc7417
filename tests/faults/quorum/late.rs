//! Nodes that answer late, and nodes whose clocks differ.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LossReason};
use support::{
    assert_busy,
    quorum::{Quorum, url_through},
    server::{RedisServer, ask},
};
use tokio::time::sleep;

use super::{BACKOFF, OTHERS_GRANT, client, contend, is_held_on, until_empty, warm};
use crate::fixture::{MS, NAME, SECOND, epsilon, grant, left, refuse_client_kill, token_of, until};

/// The time limit of a request: a node that reads the request later does not carry it out.
const REQUEST_LIFE: Duration = SECOND;

/// A node does not answer for longer than a lease, and then carries out the requests that it has received in the
/// meantime. No grant is left on the node afterwards.
#[tokio::test]
async fn nothing_is_left_on_a_node_that_was_silent() {
    let quorum = Quorum::start(3).await;
    let proxies = quorum.proxies().await;
    let client = client(&url_through(&proxies), 2 * SECOND).await;
    client.lock("warm").run(async {}).await.unwrap();
    quorum.servers[2].stop_process();
    let ends = Instant::now() + 7 * SECOND;
    while Instant::now() < ends {
        client.lock("k").wait(SECOND).run(async {}).await.unwrap();
        sleep(20 * MS).await;
    }
    quorum.servers[2].continue_process();
    // The reply to this command shows that the node has carried out all requests that it received before.
    let mut asked = quorum.servers[2].connection().await;
    let () = ask(&mut asked, &redis::cmd("PING")).await;
    let mut seen = Vec::new();
    for _ in 0..50 {
        seen.extend(left(&quorum.servers[2]).await);
        sleep(2 * MS).await;
    }
    assert_eq!(seen, [] as [String; 0]);
}

/// The clock of one node is an hour ahead of the others. Nobody enters early, because nodes store the length of a lease
/// and not its end.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clock_ahead_admits_nobody() {
    let mut quorum = Quorum::start(2).await;
    let ahead = RedisServer::builder().clock_ahead(3600);
    quorum.servers.push(ahead.start().await);
    let mut times = Vec::new();
    for server in &quorum.servers {
        let time: (u64, u64) = ask(&mut server.connection().await, &redis::cmd("TIME")).await;
        times.push(time.0);
    }
    assert!(times[2] >= times[0] + 3590, "{times:?}");
    let url = quorum.url();
    let clients = [warm(&url).await, warm(&url).await, warm(&url).await];
    contend(&clients, 4, 10).await;
    // Each node measures the minimum hold by its own clock, and the lock is free when the minimum hold is over.
    let kept = Instant::now();
    let lock = clients[0].lock("k").hold_at_least(500 * MS);
    lock.run(async {}).await.unwrap();
    let guard = clients[1].lock("k").wait(5 * SECOND).acquire().await;
    let took = kept.elapsed();
    assert!(
        (490 * MS..500 * MS + BACKOFF + epsilon()).contains(&took),
        "{took:?}"
    );
    // On the node whose clock is ahead, a lease lasts as long as on the other nodes.
    guard.unwrap().release().await;
    let asked = Instant::now();
    let lock = clients[0].lock("k").lease(500 * MS);
    let guard = lock.acquire().await.unwrap();
    let granted = Instant::now();
    let next = clients[1]
        .lock("k")
        .wait(5 * SECOND)
        .acquire()
        .await
        .unwrap();
    let (least, most) = (asked.elapsed(), granted.elapsed());
    assert!(least >= 490 * MS, "{least:?}");
    assert!(most < 500 * MS + BACKOFF + epsilon(), "{most:?}");
    assert!(next.token() > guard.token());
    next.release().await;
}

/// The lease ends early on one node, as it does if the clock of that node jumps. The other nodes, which still store the
/// grant, are a majority, so nobody else enters.
#[tokio::test]
async fn a_clock_that_jumps_while_all_nodes_hold_admits_nobody() {
    let quorum = Quorum::start(3).await;
    let url = quorum.url();
    let (holder, other) = (warm(&url).await, warm(&url).await);
    let lock = holder.lock("k").lease(SECOND).renew(true);
    lock.run(async {
        for server in &quorum.servers {
            until(async || is_held_on(server).await).await;
        }
        let mut jumping = quorum.servers[2].connection().await;
        let (mut ended, mut tries) = (0, 0);
        let renewed = holder.stats().renewed;
        while holder.stats().renewed < renewed + 4 {
            let expired: u64 = ask(&mut jumping, redis::cmd("PEXPIRE").arg(NAME).arg(0)).await;
            ended += expired;
            let refused = other.lock("k").try_acquire().await;
            assert_busy(&refused);
            tries += 1;
        }
        println!("{ended} leases ended early, {tries} tries");
        assert!(ended > 0);
    })
    .await
    .unwrap();
    assert_eq!(holder.stats().lost, 0);
}

/// A majority grants the lock, but the answers of the nodes arrive when most of the lease is over. The caller does not
/// get the lock, and no grant is left on a node.
#[tokio::test]
async fn a_quorum_that_answers_too_late_is_no_grant() {
    let quorum = Quorum::start(3).await;
    let proxies = quorum.proxies().await;
    let client = warm(&url_through(&proxies)).await;
    for proxy in &proxies {
        proxy.delay(6 * MS);
    }
    let mut late = 0;
    for _ in 0..50 {
        // A client waits at least 20 ms for a node, so it still receives the answers. The lease is 16 ms long, and less
        // than half of it is left when the answers arrive.
        let refused = client.lock("k").lease(16 * MS).try_acquire().await;
        let detail = match refused {
            Err(LockError::Unreachable { detail, .. }) => detail,
            // On a busy machine, a node can still have the grant of the try before.
            Err(LockError::Busy { .. }) => continue,
            other => panic!("{other:?}"),
        };
        late += usize::from(detail.contains("granted, but took"));
        for server in &quorum.servers {
            until_empty(server).await;
        }
    }
    println!("{late} of 50 majorities were too late");
    assert!(late > 0);
    // With a lease of one second, more than half of the lease is left when the answers arrive, which is enough.
    let guard = client.lock("k").lease(SECOND).try_acquire().await.unwrap();
    assert!(
        guard.remaining() < SECOND - 12 * MS,
        "{:?}",
        guard.remaining()
    );
    guard.release().await;
    for server in &quorum.servers {
        until_empty(server).await;
    }
}

/// Two of three nodes carry out the request, but their answers arrive after the client has stopped waiting for them.
/// The client gives back the grants of these nodes.
#[tokio::test]
async fn answers_after_the_nodes_patience_are_given_back() {
    let quorum = Quorum::start(3).await;
    let proxies = quorum.proxies().await;
    let client = warm(&url_through(&proxies)).await;
    for wait in [Duration::ZERO, 300 * MS] {
        for proxy in &proxies[1..] {
            proxy.hold_replies(true);
        }
        let before = quorum.servers[1].scripts().await;
        let lock = client.lock("k").lease(2 * SECOND).wait(wait);
        let refused = lock.run(async { unreachable!("the body is not run") });
        let refused: Result<(), _> = refused.await;
        assert!(
            matches!(refused, Err(LockError::Unreachable { .. })),
            "{refused:?}"
        );
        // The client gives back the grants of the two nodes before it receives any answer of these nodes.
        for server in &quorum.servers {
            until_empty(server).await;
        }
        assert!(quorum.servers[1].scripts().await >= before + 2);
        for proxy in &proxies[1..] {
            proxy.hold_replies(false);
        }
    }
    client.lock("k").wait(SECOND).run(async {}).await.unwrap();
}

/// A node's connection breaks while a request for the lock is on its way. The caller acquires the lock on the other
/// nodes, and releases it over a new connection. After that, the node reads the request. The time limit of the request
/// has passed, so the node does nothing.
#[tokio::test]
async fn a_node_refuses_a_request_that_arrives_after_the_release() {
    let quorum = Quorum::start(3).await;
    for server in &quorum.servers {
        refuse_client_kill(server).await;
    }
    let proxies = quorum.proxies().await;
    let client = warm(&url_through(&proxies)).await;
    let (node, server) = (&proxies[2], &quorum.servers[2]);
    node.deliver_after_cut(true);
    node.hold_requests(true);
    node.hold_old_requests(true);
    let before = node.request_bytes();
    let lock = client.lock("k").wait(SECOND);
    let (guard, ()) = tokio::join!(lock.acquire(), node.until_requested(before));
    node.cut();
    node.hold_requests(false);
    // A second call shows that the client has reconnected to the node.
    let other = client.lock("other").wait(SECOND);
    until(async || {
        let _entered = other.acquire().await.unwrap();
        !left(server).await.is_empty()
    })
    .await;
    guard.unwrap().release().await;
    until_empty(server).await;
    // After this pause, the time limit of the request has passed, so the node must not carry out the request.
    sleep(REQUEST_LIFE + 500 * MS).await;
    let scripts = server.scripts().await;
    node.hold_old_requests(false);
    until(async || server.scripts().await > scripts).await;
    assert_eq!(left(server).await, [] as [String; 0]);
}

/// The clocks of the nodes and of the client can drift apart by 1 % of a lease and 2 ms. A client therefore treats each
/// lease as shorter by this time.
#[tokio::test]
async fn a_lease_leaves_room_for_clocks_that_drift() {
    let quorum = Quorum::start(3).await;
    let client = warm(&quorum.url()).await;
    for lease in [3 * SECOND, 20 * SECOND] {
        let certain = lease - lease / 100 - 2 * MS;
        let guard = client.lock("k").lease(lease).acquire().await.unwrap();
        let left = guard.remaining();
        assert!(left <= certain && left + epsilon() > certain, "{left:?}");
        let mut node = quorum.servers[0].connection().await;
        let on_the_node: i64 = ask(&mut node, redis::cmd("PTTL").arg(NAME)).await;
        let on_the_node = Duration::from_millis(on_the_node.unsigned_abs());
        assert!(
            on_the_node >= guard.remaining() + lease / 100,
            "{on_the_node:?}"
        );
        guard.release().await;
        until_empty(&quorum.servers[0]).await;
    }
}

/// The data that a majority of the nodes loses while a lock is held.
#[derive(Debug, Clone, Copy)]
enum Loses {
    /// The nodes lose the grant, because their clocks jump ahead.
    Lease,
    /// The nodes lose all keys, because an operator runs `FLUSHALL`.
    State,
}

/// A majority loses a grant, so a second holder is admitted. The second holder has a greater token, and the first
/// holder is notified of the loss.
#[tokio::test]
async fn a_majority_that_loses_a_grant_admits_a_second_holder() {
    // The second holder has to enter before the first renewal, after a third of the lease.
    const LEASE: Duration = Duration::from_secs(9);
    for loses in [Loses::Lease, Loses::State] {
        let quorum = Quorum::start(3).await;
        let holder = warm(&quorum.url()).await;
        let lock = holder.lock("k").lease(LEASE).renew(true);
        let guard = lock.acquire().await.unwrap();
        for server in &quorum.servers {
            until(async || is_held_on(server).await).await;
        }
        let (nodes, command) = match loses {
            Loses::Lease => (2, redis::cmd("PEXPIRE").arg(NAME).arg(0).to_owned()),
            Loses::State => (3, redis::cmd("FLUSHALL")),
        };
        let other = match loses {
            Loses::Lease => Some(warm(&quorum.url()).await),
            Loses::State => None,
        };
        for server in &quorum.servers[..nodes] {
            let mut node = server.connection().await;
            command.exec_async(&mut node).await.unwrap();
        }
        let lost = Instant::now();
        let other = match other {
            Some(other) => other,
            // A client that connects after the `FLUSHALL` finds nodes without any state, as if they had never been
            // used.
            None => client(&quorum.url(), 30 * SECOND).await,
        };
        let second = other.lock("k").wait(SECOND).acquire().await.unwrap();
        assert_eq!(
            guard.loss(),
            None,
            "{loses:?}: the first holder was notified too early"
        );
        assert!(second.token() > guard.token(), "{loses:?}");
        guard.lost().await;
        let told = lost.elapsed();
        assert!(told < LEASE / 3 + epsilon(), "{loses:?}: {told:?}");
        second.release().await;
    }
}

/// Only one node still has the grant of a holder. Another owner has the lock with the same token on the second node,
/// and with another token on the third node. The holder is notified of the loss at its next renewal or check.
#[tokio::test]
async fn a_grant_with_the_same_token_is_not_the_holders() {
    const LEASE: Duration = Duration::from_secs(3);
    let quorum = Quorum::start(3).await;
    let client = warm(&quorum.url()).await;
    for renewed in [false, true] {
        let lock = client.lock("k").lease(LEASE).renew(renewed);
        let guard = lock.acquire().await.unwrap();
        for server in &quorum.servers {
            until(async || {
                let grant = grant(server).await;
                grant.is_some_and(|grant| token_of(&grant) == guard.token().get())
            })
            .await;
        }
        let own = grant(&quorum.servers[1]).await.unwrap();
        let mut fields: Vec<&str> = own.split('|').collect();
        let other = format!("{:032x}", 1);
        fields[3] = &other;
        let same_token = fields.join("|");
        for (server, other) in [
            (&quorum.servers[1], same_token.as_str()),
            (&quorum.servers[2], OTHERS_GRANT),
        ] {
            let mut node = server.connection().await;
            let mut set = redis::cmd("SET");
            set.arg(NAME).arg(other).arg("KEEPTTL");
            ask::<()>(&mut node, &set).await;
        }
        let taken = Instant::now();
        guard.lost().await;
        let told = taken.elapsed();
        println!("the holder was notified after {told:?}, renewed: {renewed}");
        assert!(told < LEASE / 3 + epsilon(), "{told:?}");
        assert_eq!(guard.loss(), Some(LossReason::NotHeld));
        drop(guard);
        until_empty(&quorum.servers[0]).await;
        for server in &quorum.servers[1..] {
            let mut node = server.connection().await;
            ask::<()>(&mut node, redis::cmd("DEL").arg(NAME)).await;
        }
    }
}
