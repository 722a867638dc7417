//! Rows 29 to 31, and what else can happen to a quorum: nodes that are down, come back empty, answer late or have
//! another time.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::{Duration, Instant, SystemTime},
};

use lock_runtime::{Lock, LockClient, LockError, LockGuard, distributed_lock};
use support::{
    history::History,
    quorum::{Quorum, url_through},
    server::RedisServer,
};
use tokio::{task::JoinSet, time::sleep};

use crate::scene::{MS, NAME, NAMESPACE, SECOND, epsilon, left, row, token_of, until, worker_at};

/// How long one of these nodes may take to answer for a lease of 30 s.
const NODE_PATIENCE: Duration = Duration::from_millis(500);
/// How long a lock stays granted to a caller that is not polled.
const CLAIM: Duration = Duration::from_secs(2);
/// The longest pause between two rounds.
const BACKOFF: Duration = Duration::from_millis(128);

/// A client whose leases are so long where a call does not say so: a node that lost its state is not counted for the
/// longest of them.
async fn client(url: &str, lease: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).namespace(NAMESPACE);
    builder.lease(lease).connect().await.unwrap()
}

/// A client that has its connections already, those of this runtime too, and has asked the nodes over them.
async fn warm(url: &str) -> LockClient {
    let client = client(url, 30 * SECOND).await;
    for _ in 0..3 {
        client.lock("warm").run(async {}).await.unwrap();
        sleep(50 * MS).await;
    }
    client
}

/// The grants on one node.
async fn until_empty(server: &RedisServer) {
    until(async || left(server).await.is_empty()).await;
}

async fn is_held_on(server: &RedisServer) -> bool {
    crate::scene::grant(server).await.is_some()
}

/// What another caller has on one node.
const OTHERS_GRANT: &str = "1|60000||00000000000000000000000000000001";

/// Contends for `k` with so many tasks for each client, and checks that they exclude each other.
async fn contend(clients: &[LockClient], tasks: usize, turns: usize) {
    let history = History::strict();
    let mut callers = JoinSet::new();
    for client in clients {
        for _ in 0..tasks {
            let (client, history) = (client.clone(), history.clone());
            callers.spawn(async move {
                for _ in 0..turns {
                    let guard = client.lock("k").wait(30 * SECOND).acquire().await.unwrap();
                    let inside = history.enter("k", guard.token().get());
                    tokio::task::yield_now().await;
                    inside.exit();
                    guard.release().await;
                }
            });
        }
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    history.check().assert_clean(clients.len() * tasks * turns);
}

/// Row 29: one node killed and one stopped, of five: exclusive, and acquisitions go on.
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
            // The others cannot get it from what is left.
            let refused = after.lock("k").try_acquire().await;
            assert!(
                matches!(refused, Err(LockError::Busy { .. })),
                "{refused:?}"
            );
            guard.release().await;
        }
        seen.within("the slowest acquisition", NODE_PATIENCE, slowest);
        // Somebody else has one of the three: who gets the other two gives them back at once, but for one round of four.
        let mut third = quorum.servers[2].connection().await;
        let mut part = redis::cmd("SET");
        part.arg(NAME).arg(OTHERS_GRANT);
        let _: () = part.query_async(&mut third).await.unwrap();
        let before_it = after.stats().commands;
        let refused = after.lock("k").wait(3 * SECOND).acquire().await;
        assert!(matches!(refused, Err(LockError::Busy { .. })));
        // Three nodes are asked, and two leave.
        let rounds = (after.stats().commands - before_it) / 5;
        println!("{rounds} rounds");
        assert!(
            rounds >= 11,
            "{rounds} rounds: each has waited for those that are down"
        );
        let _: () = redis::cmd("DEL")
            .arg(NAME)
            .query_async(&mut third)
            .await
            .unwrap();
        contend(&[before, after], 4, 5).await;
        quorum.servers[4].continue_process();
        for server in &quorum.servers[1..] {
            until_empty(server).await;
        }
    })
    .await;
}

/// Row 30: three of five are stopped: no grant, and what two of them granted is free again; also what the others
/// granted when they went on.
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
        let refused = client.lock("k").try_acquire().await;
        let answered = Instant::now();
        let Err(LockError::Unreachable { detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            detail.contains("2 of 5 nodes answered, 3 are needed"),
            "{detail}"
        );
        for server in up {
            until_empty(server).await;
        }
        let freed = answered.elapsed();
        seen.within("partial grants are free", Duration::ZERO, freed);

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

/// Row 31: a lock is held on two of three nodes, and one of these comes back empty: with the third it is no majority,
/// for clients that have seen it go and for those that have not, until the lease has ended.
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
        // The third has the request still; it is given back as soon as it has been carried out.
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
            assert!(
                matches!(refused, Err(LockError::Busy { .. })),
                "{refused:?}"
            );
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
                "the next one enters after the grant",
                LEASE + BACKOFF,
                after,
            );
            assert!(after > LEASE - 100 * MS, "{after:?}");
            assert!(next > token);
        }
        guard.release().await;

        // Counted again, it makes a majority with the third.
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

/// Row 31: nodes that have never been used count where all of them are there; where one is missing it may be the only one
/// that remembers.
#[tokio::test]
async fn row_31_a_beginning_needs_all_nodes() {
    row(31, async |_| {
        let mut quorum = Quorum::start(3).await;
        quorum.servers[0].kill();
        let client = client(&quorum.url(), SECOND).await;
        let refused = client.lock("k").wait(2 * SECOND).acquire().await;
        let Err(LockError::Unreachable { detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("started without its state"), "{detail}");
        // With the third there, none of them remembers a lease.
        quorum.servers[0].restart().await;
        let lock = client.lock("k").wait(10 * SECOND);
        lock.acquire().await.unwrap().release().await;

        let beginning = Quorum::start(3).await;
        let client = self::client(&beginning.url(), 30 * SECOND).await;
        // Far less than the longest lease, for which a node that lost its state is not counted.
        let lock = client.lock("k").wait(5 * SECOND);
        lock.acquire().await.unwrap().release().await;
    })
    .await;
}

/// A hold on two of three nodes: the third was silent when it was granted, and answers again.
async fn held_on_two(quorum: &Quorum, lock: Lock) -> LockGuard {
    quorum.servers[2].stop_process();
    let guard = lock.acquire().await.unwrap();
    // The request that the third node still has comes too late.
    sleep(1200 * MS).await;
    quorum.servers[2].continue_process();
    assert!(is_held_on(&quorum.servers[0]).await && is_held_on(&quorum.servers[1]).await);
    guard
}

/// The lock is not to be had before the hold's lease has ended.
async fn excluded_until_the_end(clients: &[LockClient], guard: &LockGuard, lease: Duration) {
    while guard.loss().is_none() {
        for client in clients {
            let entered = client.lock("k").lease(lease).try_acquire().await;
            assert!(
                entered.is_err() || guard.loss().is_some(),
                "{entered:?} entered beside a hold that has {:?} left",
                guard.remaining()
            );
        }
        sleep(20 * MS).await;
    }
}

/// Row 31: a node comes back empty while another client, whose leases are short, uses the quorum. The node
/// is not counted until the longest lease in use has ended, whichever client has it. Neither the locks of the other
/// client nor a client that connects later shorten that time.
#[tokio::test]
async fn row_31_another_clients_lock_ends_no_quarantine() {
    row(31, async |_| {
        const LEASE: Duration = Duration::from_secs(5);
        let mut quorum = Quorum::start(3).await.in_use().await;
        let url = quorum.url();
        let (holder, short) = (client(&url, SECOND).await, client(&url, SECOND).await);
        for client in [&holder, &short] {
            client.lock("warm").run(async {}).await.unwrap();
        }
        let guard = held_on_two(&quorum, holder.lock("k").lease(LEASE)).await;
        quorum.servers[1].restart().await;
        sleep(1200 * MS).await;
        let lock = short.lock("other").wait(SECOND);
        lock.run(async {}).await.unwrap();
        let late = client(&url, SECOND).await;
        excluded_until_the_end(&[short, late], &guard, SECOND).await;
    })
    .await;
}

/// Row 31: a living node is flushed. It grants nothing before what it forgot has ended.
#[tokio::test]
async fn row_31_a_flushed_node_is_not_counted() {
    row(31, async |_| {
        const LEASE: Duration = Duration::from_secs(5);
        let quorum = Quorum::start(3).await.in_use().await;
        let holder = client(&quorum.url(), SECOND).await;
        let other = client(&quorum.url(), SECOND).await;
        let guard = held_on_two(&quorum, holder.lock("k").lease(LEASE)).await;
        let mut flushed = quorum.servers[1].connection().await;
        redis::cmd("FLUSHALL")
            .exec_async(&mut flushed)
            .await
            .unwrap();
        excluded_until_the_end(&[other], &guard, LEASE).await;
    })
    .await;
}

/// A node that comes back with its state is counted at once.
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

/// A renewed hold is on two of three nodes, for the third was silent when it was granted, or has lost its state since. It
/// comes to the third, so that another one may go.
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
        let back = crate::scene::grant(&quorum.servers[2]).await.unwrap();
        assert_eq!(token_of(&back), guard.token().get());
        quorum.servers[1].kill();
        sleep(3 * SECOND).await;
        assert_eq!(guard.loss(), None, "restarted: {restarted}");
        guard.release().await;
        until_empty(&quorum.servers[0]).await;
        until_empty(&quorum.servers[2]).await;
    }
}

#[distributed_lock(keys = ["k", "j"], wait = "60s", lease = "20s")]
async fn both() -> Result<(), LockError> {
    Ok(())
}

/// A waiter whose round has a majority, and which is not polled any more, gives it back within a claim. Polled again, it
/// asks again.
#[tokio::test]
async fn a_waiter_that_is_not_polled_keeps_a_quorum_for_a_claim() {
    let quorum = Quorum::start(3).await;
    let (waiter, other) = (warm(&quorum.url()).await, warm(&quorum.url()).await);
    for several in [false, true] {
        let lock = waiter.lock("k").wait(60 * SECOND);
        let mut waiting: Pin<Box<dyn Future<Output = ()> + Send>> = if several {
            let waiting = waiter.scope(both());
            Box::pin(async move { waiting.await.unwrap() })
        } else {
            Box::pin(async move { lock.run(async {}).await.unwrap() })
        };
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        until(async || is_held_on(&quorum.servers[0]).await).await;
        let asked = Instant::now();
        let guard = other.lock("k").wait(30 * SECOND).acquire().await.unwrap();
        let took = asked.elapsed();
        println!("entered after {took:?} beside a waiter that is not polled");
        assert!(took < CLAIM + BACKOFF + epsilon(), "{took:?}");
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        guard.release().await;
        waiting.await;
        for server in &quorum.servers {
            until_empty(server).await;
        }
    }
}

/// A node takes requests and says nothing until the leases of all of them have ended: nothing is left there then.
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
    // All that it had been sent has been carried out.
    let mut asked = quorum.servers[2].connection().await;
    let () = redis::cmd("PING").query_async(&mut asked).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..50 {
        seen.extend(left(&quorum.servers[2]).await);
        sleep(2 * MS).await;
    }
    assert_eq!(seen, [] as [String; 0]);
}

/// The clock of one node is an hour ahead of the others': leases are times and not moments, so nobody gets in by it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clock_ahead_admits_nobody() {
    let mut quorum = Quorum::start(2).await;
    let ahead = RedisServer::builder().clock_ahead(3600);
    quorum.servers.push(ahead.start().await);
    let mut times = Vec::new();
    for server in &quorum.servers {
        let time: (u64, u64) = redis::cmd("TIME")
            .query_async(&mut server.connection().await)
            .await
            .unwrap();
        times.push(time.0);
    }
    assert!(times[2] >= times[0] + 3590, "{times:?}");
    let url = quorum.url();
    let clients = [warm(&url).await, warm(&url).await, warm(&url).await];
    contend(&clients, 4, 10).await;
    // Kept by the time of each node, and free at its end.
    let kept = Instant::now();
    let lock = clients[0].lock("k").hold_at_least(500 * MS);
    lock.run(async {}).await.unwrap();
    let guard = clients[1].lock("k").wait(5 * SECOND).acquire().await;
    let took = kept.elapsed();
    assert!(
        (490 * MS..500 * MS + BACKOFF + epsilon()).contains(&took),
        "{took:?}"
    );
    // A lease is as long there as on the others.
    let guard = {
        guard.unwrap().release().await;
        clients[0]
            .lock("k")
            .lease(500 * MS)
            .acquire()
            .await
            .unwrap()
    };
    let granted = Instant::now();
    let next = clients[1]
        .lock("k")
        .wait(5 * SECOND)
        .acquire()
        .await
        .unwrap();
    let took = granted.elapsed();
    assert!(
        (450 * MS..500 * MS + BACKOFF + epsilon()).contains(&took),
        "{took:?}"
    );
    assert!(next.token() > guard.token());
    next.release().await;
}

/// The clock of one node jumps while a lock is held on all: the lease ends early there, and the others are a majority.
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
            let expired: u64 = redis::cmd("PEXPIRE")
                .arg(NAME)
                .arg(0)
                .query_async(&mut jumping)
                .await
                .unwrap();
            ended += expired;
            let refused = other.lock("k").try_acquire().await;
            assert!(
                matches!(refused, Err(LockError::Busy { .. })),
                "{refused:?}"
            );
            tries += 1;
        }
        println!("{ended} leases ended early, {tries} tries");
        assert!(ended > 0);
    })
    .await
    .unwrap();
    assert_eq!(holder.stats().lost, 0);
}

/// The counter of one node is far ahead, by its clock or its past: a token that it offered is known to a majority
/// before the body starts, so that those after it are greater without that node.
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
        let mut set = redis::cmd("SET");
        set.arg("lock:fence")
            .arg(u64::try_from(far.as_micros()).unwrap());
        set.exec_async(&mut node).await.unwrap();
        // Into a majority that the node is part of, sooner or later.
        let mut newest = 0;
        until(async || {
            let guard = client.lock("k").wait(SECOND).acquire().await.unwrap();
            assert!(guard.token().get() > newest);
            newest = guard.token().get();
            for server in &quorum.servers[number..] {
                if let Some(grant) = crate::scene::grant(server).await {
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
                "{} after {newest}",
                guard.token()
            );
            newest = guard.token().get();
            guard.release().await;
        }
    }
}

/// A majority grants, and its answers come when most of the lease is over: that is no grant, and nothing stays.
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
        // In time for the node's share, which is 20 ms at least, and not for the lease.
        let refused = client.lock("k").lease(16 * MS).try_acquire().await;
        let Err(LockError::Unreachable { detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        late += usize::from(detail.contains("granted, but took"));
        for server in &quorum.servers {
            until_empty(server).await;
        }
    }
    println!("{late} of 50 majorities were too late");
    assert!(late > 0);
    // More than half of it is left: enough.
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

/// Two of three carry the request out, and their answers come after the nodes' patience.
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
        // It was granted there and given back, before the client could know either.
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

/// Calls dropped at any instant, the lock free or held by another: nothing stays on any node.
#[tokio::test]
async fn calls_dropped_at_any_instant_leave_nothing_on_any_node() {
    let quorum = Quorum::start(3).await;
    let proxies = quorum.proxies().await;
    let (client, other) = (
        warm(&url_through(&proxies)).await,
        warm(&quorum.url()).await,
    );
    for (proxy, delay) in proxies.iter().zip([200, 500, 900]) {
        proxy.delay(Duration::from_micros(delay));
    }
    let mut dropped = 0;
    for round in 0..300 {
        let guard = match round % 3 {
            0 => Some(other.lock("k").wait(5 * SECOND).acquire().await.unwrap()),
            _ => None,
        };
        let call = client.lock("k").wait(5 * SECOND).run(sleep(MS));
        let after = Duration::from_micros(round * 30);
        dropped += usize::from(tokio::time::timeout(after, call).await.is_err());
        if round % 50 == 49 {
            proxies[0].cut();
        }
        drop(guard);
    }
    println!("{dropped} of 300 calls were dropped");
    assert!(dropped > 100);
    let ended = Instant::now();
    for server in &quorum.servers {
        until_empty(server).await;
    }
    println!("nothing is left after {:?}", ended.elapsed());
    assert!(
        ended.elapsed() < SECOND + epsilon(),
        "{:?}",
        ended.elapsed()
    );
    client.lock("k").wait(SECOND).run(async {}).await.unwrap();
}

/// A process is killed while it holds: the others enter when its lease has ended.
#[tokio::test]
async fn a_killed_holder_blocks_for_the_rest_of_its_lease() {
    let quorum = Quorum::start(3).await;
    let lease = 1500;
    let mut holder = worker_at(&quorum.url(), "hold", lease);
    let inside = holder.until("inside").await;
    let client = warm(&quorum.url()).await;
    let refused = client.lock("k").try_acquire().await;
    assert!(
        matches!(refused, Err(LockError::Busy { .. })),
        "{refused:?}"
    );
    holder.kill();
    let killed = Instant::now();
    let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
    let took = killed.elapsed();
    println!("entered {took:?} after the death of a holder with {lease} ms");
    assert!(
        took < Duration::from_millis(lease) + BACKOFF + epsilon(),
        "{took:?}"
    );
    let stale: u64 = inside.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(guard.token().get() > stale);
    guard.release().await;
}

/// Whoever waits enters soon after the release; dropped, it leaves nothing; shut down, it is told.
#[tokio::test]
async fn whoever_waits_tries_again_until_it_enters_or_leaves() {
    let quorum = Quorum::start(3).await;
    let (holder, waiter) = (warm(&quorum.url()).await, warm(&quorum.url()).await);
    let waiting = || {
        let waiter = waiter.clone();
        tokio::spawn(async move { waiter.lock("k").wait(60 * SECOND).acquire().await })
    };
    let until_refused = async || {
        let before = waiter.stats().commands;
        // Two rounds, each asking three nodes.
        until(async || waiter.stats().commands >= before + 6).await;
    };
    let guard = holder.lock("k").acquire().await.unwrap();
    let entering = waiting();
    until_refused().await;
    let released = Instant::now();
    guard.release().await;
    let guard = entering.await.unwrap().unwrap();
    let took = released.elapsed();
    println!("entered {took:?} after the release");
    assert!(took < BACKOFF + epsilon(), "{took:?}");
    assert_eq!(waiter.stats().waited, 1);

    let leaving = waiting();
    until_refused().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    guard.release().await;
    for server in &quorum.servers {
        until_empty(server).await;
    }

    let guard = holder.lock("k").acquire().await.unwrap();
    let refused = waiting();
    until_refused().await;
    waiter.shutdown().await;
    assert!(matches!(refused.await.unwrap(), Err(LockError::ShutDown)));
    guard.release().await;
    for server in &quorum.servers {
        until_empty(server).await;
    }
}

/// A hold survives the loss of any minority while it lasts, also of nodes that were quicker than the others when it
/// was granted.
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
        // The slower ones have joined.
        for server in &quorum.servers {
            until(async || {
                let grant = crate::scene::grant(server).await;
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
