//! Rows 29 and 30 of `docs/faults.md`: nodes that are down.

use std::time::{Duration, Instant, SystemTime};

use lock_runtime::LockError;
use support::{assert_busy, quorum::Quorum, server::ask};
use tokio::time::sleep;

use super::{CLAIM, MARK, NODE_PATIENCE, OTHERS_GRANT, client, contend, until_empty, warm};
use crate::fixture::{MS, NAME, SECOND, epsilon, row, token_of, until};

/// Row 29 of `docs/faults.md`: one of five nodes is killed and another is stopped. No two holds overlap, and callers
/// still acquire locks.
#[tokio::test]
async fn row_29_two_of_five_down() {
    row(29, async |seen| {
        let mut quorum = Quorum::start(5).await;
        let url = quorum.url();
        let before = warm(&url).await;
        quorum.servers[0].kill();
        quorum.servers[4].stop_process();
        let after = client(&url, 30 * SECOND).await;
        let mut slowest = Duration::ZERO;
        for client in [&before, &after].repeat(10) {
            let asked = Instant::now();
            let guard = client.lock("k").try_acquire().await.unwrap();
            slowest = slowest.max(asked.elapsed());
            // The three nodes that are up all have the grant, so nobody else gets a majority.
            let refused = after.lock("k").try_acquire().await;
            assert_busy(&refused);
            guard.release().await;
        }
        seen.within("the slowest acquisition takes", NODE_PATIENCE, slowest);
        // Another caller has the lock on one of the three nodes that are up. The next caller is granted the lock only
        // on the other two nodes, and gives both grants back at once. Only in every fourth round, it first waits for
        // the slower nodes.
        let mut third = quorum.servers[2].connection().await;
        let _: () = ask(&mut third, redis::cmd("SET").arg(NAME).arg(OTHERS_GRANT)).await;
        let before_it = after.stats().commands;
        let refused = after.lock("k").wait(3 * SECOND).acquire().await;
        assert_busy(&refused);
        // Each round sends five commands: a request to each of three nodes, and a release to two of them.
        let rounds = (after.stats().commands - before_it) / 5;
        println!("{rounds} rounds");
        assert!(
            rounds >= 8,
            "only {rounds} rounds: each round waited for the nodes that are down"
        );
        let _: () = ask(&mut third, redis::cmd("DEL").arg(NAME)).await;
        contend(&[before, after], 4, 5).await;
        quorum.servers[4].continue_process();
        for server in &quorum.servers[1..] {
            until_empty(server).await;
        }
    })
    .await;
}

/// One of three nodes refuses all requests, and another node is stopped. A call keeps trying, and gets the lock when the
/// stopped node continues. The error of a call whose `wait` ends before contains the refusal.
#[tokio::test]
async fn a_node_that_refuses_does_not_end_a_call() {
    let quorum = Quorum::start(3).await;
    let client = warm(&quorum.url()).await;
    let full = ["SET", "maxmemory", "1"];
    let mut first = quorum.servers[0].connection().await;
    ask::<()>(&mut first, redis::cmd("CONFIG").arg(&full)).await;
    quorum.servers[1].stop_process();
    let failed = client.lock("k").wait(SECOND).run(async {}).await;
    let Err(LockError::Unreachable { detail, .. }) = failed else {
        panic!("{failed:?}");
    };
    assert!(detail.contains("OOM"), "{detail}");
    let before = client.stats().commands;
    let calling = tokio::spawn(client.lock("k").wait(20 * SECOND).run(async {}));
    until(async || client.stats().commands >= before + 12).await;
    quorum.servers[1].continue_process();
    calling.await.unwrap().unwrap();
}

/// Row 30 of `docs/faults.md`: three of five nodes are stopped. Nobody acquires the lock. The client gives back the
/// grants of single nodes: at once on the two nodes that are up, and on the three stopped nodes when they continue.
#[tokio::test]
async fn row_30_three_of_five_down() {
    row(30, async |seen| {
        let quorum = Quorum::start(5).await;
        let client = warm(&quorum.url()).await;
        let (up, down) = quorum.servers.split_at(2);
        for server in &quorum.servers {
            until_empty(server).await;
        }
        for server in down {
            server.stop_process();
        }
        // On a busy machine, the two nodes that run can answer too late as well.
        let mut answered = Instant::now();
        until(async || {
            let refused = client.lock("k").try_acquire().await;
            answered = Instant::now();
            let Err(LockError::Unreachable { detail, .. }) = refused else {
                panic!("{refused:?}");
            };
            detail.contains("2 of 5 nodes answered, 3 are needed")
        })
        .await;
        for server in up {
            until_empty(server).await;
        }
        let freed = answered.elapsed();
        seen.within(
            "the grants of single nodes are given back",
            Duration::ZERO,
            freed,
        );

        let asked = Instant::now();
        let refused = client.lock("k").wait(SECOND).acquire().await;
        let took = asked.elapsed();
        assert!(
            matches!(refused, Err(LockError::Unreachable { .. })),
            "{refused:?}"
        );
        assert!(
            (SECOND..SECOND + 200 * MS + epsilon()).contains(&took),
            "{took:?}"
        );

        for server in down {
            server.continue_process();
        }
        for server in &quorum.servers {
            until_empty(server).await;
        }
        let guard = client.lock("k").wait(5 * SECOND).acquire().await.unwrap();
        guard.release().await;
    })
    .await;
}

/// A node is down while many calls run, and restarts after the leases of these calls have ended. The restarted node
/// receives no releases of locks whose leases have ended.
#[tokio::test]
async fn a_node_that_starts_late_gets_no_old_releases() {
    const CALLS: u64 = 200;
    let mut quorum = Quorum::start(3).await.in_use().await;
    let url = quorum.url();
    let client = client(&url, SECOND).await;
    client.lock("warm").run(async {}).await.unwrap();
    until(async || client.stats().connections >= 3).await;
    quorum.servers[2].kill();
    for _ in 0..CALLS {
        let lock = client.lock("k").lease(300 * MS).wait(5 * SECOND);
        lock.run(async {}).await.unwrap();
    }
    // The engine retries a release for at least a claim (2 s), which is longer than the leases of this test.
    sleep(CLAIM + epsilon()).await;
    let connections = client.stats().connections;
    let node = &mut quorum.servers[2];
    node.restart().await;
    until(async || client.stats().connections > connections).await;
    // Another client notices that the node has lost its state. After a while (its quarantine), the node counts toward a
    // majority again.
    let _other = super::client(&url, SECOND).await;
    let mut asked = node.connection().await;
    until(async || {
        let mark: Option<String> = ask(&mut asked, redis::cmd("GET").arg(MARK)).await;
        mark.is_some_and(|mark| mark.starts_with("whole"))
    })
    .await;
    let scripts = node.scripts().await;
    println!("{scripts} scripts after {CALLS} calls");
    assert!(scripts < CALLS / 4, "{scripts} scripts");
}

/// A node that was down when a lock was granted has no grant to release. Therefore, after a long outage of the node, no
/// releases wait for it, however long the leases are.
#[tokio::test]
async fn a_node_gets_no_releases_of_grants_that_it_missed() {
    const CALLS: u64 = 200;
    let mut quorum = Quorum::start(3).await.in_use().await;
    let client = client(&quorum.url(), 60 * SECOND).await;
    client.lock("warm").run(async {}).await.unwrap();
    until(async || client.stats().connections >= 3).await;
    quorum.servers[2].kill();
    for _ in 0..CALLS {
        let lock = client.lock("k").wait(5 * SECOND);
        lock.run(async {}).await.unwrap();
    }
    let connections = client.stats().connections;
    quorum.servers[2].restart().await;
    until(async || client.stats().connections > connections).await;
    // If releases waited for a connection to the node, they would be sent before the requests of these calls.
    for _ in 0..3 {
        client.lock("k").run(async {}).await.unwrap();
    }
    let node = &quorum.servers[2];
    until(async || node.scripts().await > 0).await;
    let scripts = node.scripts().await;
    println!("{scripts} scripts after {CALLS} calls");
    assert!(scripts < CALLS / 4, "{scripts} scripts");
}

/// The fencing counter of one node is far ahead of the others. If a grant takes its token from this node, a majority
/// stores that token before the body starts. Later tokens are therefore greater, even if this node is down.
#[tokio::test]
async fn tokens_rise_over_quorums() {
    let mut quorum = Quorum::start(5).await.in_use().await;
    let client = warm(&quorum.url()).await;
    let hour = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        + 3600 * SECOND;
    for (number, far) in [(0, 2 * hour), (1, 3 * hour)] {
        let mut node = quorum.servers[number].connection().await;
        ask::<()>(
            &mut node,
            redis::cmd("SET")
                .arg("lock:fence")
                .arg(u64::try_from(far.as_micros()).unwrap()),
        )
        .await;
        // Acquires and releases the lock until the node whose counter is ahead has been part of a majority.
        let mut newest = 0;
        until(async || {
            let guard = client.lock("k").wait(SECOND).acquire().await.unwrap();
            assert!(guard.token().get() > newest);
            newest = guard.token().get();
            for server in &quorum.servers[number..] {
                if let Some(grant) = crate::fixture::grant(server).await {
                    assert!(token_of(&grant) <= newest || u128::from(newest) < far.as_micros());
                }
            }
            guard.release().await;
            u128::from(newest) > far.as_micros()
        })
        .await;
        quorum.servers[number].kill();
        for _ in 0..10 {
            let guard = client.lock("k").wait(SECOND).acquire().await.unwrap();
            assert!(
                guard.token().get() > newest,
                "token {} after token {newest}",
                guard.token()
            );
            newest = guard.token().get();
            guard.release().await;
        }
    }
}

/// A hold survives the loss of any minority of the nodes, even of the nodes that granted the lock first.
#[tokio::test]
async fn a_hold_survives_the_loss_of_any_minority() {
    for lost in [[0, 1], [1, 2], [3, 4]] {
        let mut quorum = Quorum::start(5).await;
        let client = warm(&quorum.url()).await;
        let guard = client
            .lock("k")
            .lease(SECOND)
            .renew(true)
            .acquire()
            .await
            .unwrap();
        // Waits until the slower nodes have stored the grant too.
        for server in &quorum.servers {
            until(async || {
                let grant = crate::fixture::grant(server).await;
                grant.is_some_and(|grant| token_of(&grant) == guard.token().get())
            })
            .await;
        }
        for number in lost {
            quorum.servers[number].kill();
        }
        let renewed = client.stats().renewed;
        until(async || client.stats().renewed >= renewed + 4).await;
        assert_eq!(guard.loss(), None);
        guard.release().await;
        assert_eq!(client.stats().lost, 0);
    }
}
