//! Rows 40, 42, 45 and 48 of `docs/faults.md`: cohorts whose process is killed or stopped, cohorts whose grant is lost,
//! and waiters of four processes.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lock_runtime::{LockClient, LockError};
use redis::aio::MultiplexedConnection;
use support::{
    assert_lost,
    clock::now,
    epsilon,
    history::History,
    process::{self, Worker},
    proxy::FaultProxy,
    server::{RedisServer, ask},
};
use tokio::time::sleep;

use crate::{
    fixture::{MS, NAME, NAMESPACE, QUEUE, SECOND, client, grant, left, row, until, until_waiting},
    waiters::{Stored, Waiters, holder, time_to_live, until_cohort},
};

/// Runs as a worker process: its callers queue for `k` in the order of their numbers. Callers that are neighbours in
/// the queue are granted the lock as a cohort.
///
/// The caller whose number is `WORKER_STAYS` prints `entered <number> <token>`, and keeps the lock until its lease is
/// lost. Each other caller leaves at once and prints `visit <number> <token> <entered> <left>`. If `WORKER_NESTED` is
/// 1, caller 0 re-enters the lock with a lease of a minute while it holds the lock.
#[tokio::test]
#[ignore = "run as a process of its own by the other tests"]
async fn worker_process() {
    let variable =
        |name: &str| std::env::var(name).expect("the test sets this variable for its workers");
    let number = |name: &str| variable(name).parse::<usize>().unwrap();
    let url = variable("WORKER_URL");
    let builder = LockClient::builder().url(url).namespace(NAMESPACE);
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    // The first call opens the connection. If callers request the lock before the connection is open, their order in
    // the queue is not defined.
    client.lock("warm").run(async {}).await.unwrap();
    let lease = MS * u32::try_from(number("WORKER_LEASE_MS")).unwrap();
    let (stays, nested) = (number("WORKER_STAYS"), number("WORKER_NESTED") == 1);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..number("WORKER_CALLERS") {
        let lock = client.lock("k").wait(120 * SECOND).lease(lease);
        let again = client.lock("k").lease(60 * SECOND);
        callers.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let (token, entered) = (guard.token(), now());
            let ended = guard.run(async {
                if caller == stays {
                    println!("\nentered {caller} {token}");
                    std::future::pending::<()>().await;
                } else if nested && caller == 0 {
                    again.run(async {}).await.unwrap();
                }
            });
            match ended.await {
                Err(LockError::Lost { .. }) => println!("\nlost {caller}"),
                ended => {
                    ended.unwrap();
                    println!("\nvisit {caller} {token} {entered} {}", now());
                }
            }
            guard.release().await;
        });
    }
    callers.join_all().await;
    println!("\nended");
    client.shutdown().await;
}

/// A value for `stays`: no caller has this number, so every caller leaves at once.
const NOBODY: usize = usize::MAX;

#[derive(Debug, Clone, Copy)]
struct Process {
    callers: usize,
    stays: usize,
    nested: bool,
    lease: Duration,
}

impl Process {
    fn start(self, server: &RedisServer) -> Worker {
        let variables = [
            ("WORKER_URL", server.url()),
            ("WORKER_CALLERS", self.callers.to_string()),
            ("WORKER_STAYS", self.stays.to_string()),
            ("WORKER_NESTED", u8::from(self.nested).to_string()),
            ("WORKER_LEASE_MS", self.lease.as_millis().to_string()),
        ];
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let test = "cohort::losses::worker_process";
        Worker::start(process::of_this_test(test, &variables))
    }
}

/// Returns the numbers after `word` if the line begins with `word`, otherwise `None`.
fn numbers<const N: usize>(line: &str, word: &str) -> Option<[u64; N]> {
    let mut fields = line.split(' ');
    if fields.next() != Some(word) {
        return None;
    }
    let numbers: Option<Vec<u64>> = fields.map(|field| field.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Returns how much of the lease of `k` is left.
async fn rest(redis: &mut MultiplexedConnection) -> Duration {
    time_to_live(redis).await.expect("the lock is held")
}

/// Row 40 of `docs/faults.md`: two processes are killed. The first process is killed while member number `stays` of its
/// cohort holds the lock. The second process is killed while its callers wait in the queue. When the lease of the
/// member `stays` has ended, the callers of the test's own clients enter in the order of the queue. Returns the time
/// from the end of this lease until the next caller enters.
async fn killed_in_a_cohort(stays: usize) -> Duration {
    const LEASE: Duration = Duration::from_millis(1500);
    const MEMBERS: usize = 64;
    let server = RedisServer::start().await;
    let mut redis = server.connection().await;
    let others = [client(&server.url()).await, client(&server.url()).await];
    let mut waiters = Waiters::at(&server).await;
    let guard = holder(&others[0]).await;
    let process = Process {
        callers: MEMBERS,
        stays,
        nested: false,
        lease: LEASE,
    };
    let mut worker = process.start(&server);
    waiters.until_queued(MEMBERS).await;
    // Callers of two other clients queue between the callers of two worker processes.
    for caller in 0..4 {
        let lock = others[caller % 2].lock("k").wait(60 * SECOND);
        waiters.queue(lock.lease(30 * SECOND)).await;
    }
    let mut second = process.start(&server);
    waiters.until_queued(2 * MEMBERS + 4).await;
    waiters.queue(others[0].lock("k").wait(60 * SECOND)).await;
    guard.release().await;
    let cohort = until_cohort(&server, MEMBERS).await;
    let entered = worker.until("entered").await;
    let [_, token] = numbers(&entered, "entered").unwrap();
    assert_eq!(token, cohort.token + stays as u64);
    second.kill();
    worker.kill();
    let left = rest(&mut redis).await;
    let ends = Instant::now() + left;
    assert!(left <= LEASE, "{left:?} of a lease of {LEASE:?} are left");
    let first = waiters.next().await;
    assert_eq!(first.caller, 0);
    assert!(first.token() > cohort.token + MEMBERS as u64 - 1);
    let took = first.at.saturating_duration_since(ends);
    first.leave().await;
    waiters.pass(1..5).await;
    waiters.assert_clean();
    until(async || self::left(&server).await.is_empty()).await;
    took
}

#[tokio::test]
async fn row_40_process_of_a_cohort_killed() {
    row(40, async |seen| {
        for stays in [0, 30, 63] {
            let took = killed_in_a_cohort(stays).await;
            seen.within(
                "the next caller enters after the end of the lease",
                Duration::ZERO,
                took,
            );
        }
    })
    .await;
}

/// The command with which an operator deletes the grant.
#[derive(Debug, Clone, Copy)]
enum Removal {
    Del,
    FlushAll,
}

/// Row 42 of `docs/faults.md`: an operator deletes the grant of a cohort after the cohort's second member has held the
/// lock for `inside`. Returns the time from the deletion until the second member of the cohort is notified of the loss.
async fn removed(removal: Removal, inside: Duration) -> Duration {
    const LEASE: Duration = Duration::from_millis(900);
    const MEMBERS: usize = 5;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let (ours, other) = (client(&server.url()).await, client(&proxy.url()).await);
    let mut waiters = Waiters::at(&server).await;
    let guard = holder(&ours).await;
    let lock = ours.lock("k").wait(60 * SECOND).lease(LEASE);
    waiters.queue_many(MEMBERS, &lock).await;
    waiters
        .queue_many(2, &other.lock("k").wait(60 * SECOND))
        .await;
    guard.release().await;
    let cohort = until_cohort(&server, MEMBERS).await;
    waiters.pass([0]).await;
    let mut second = waiters.next().await;
    second.loses();
    sleep(inside).await;
    // Holds back the probes of the other client until the third member of the cohort has entered. A probe of the other
    // client would find the lock free, and grant it to a caller of the other client.
    proxy.hold_requests(true);
    let removed = Instant::now();
    let mut command = match removal {
        Removal::Del => redis::cmd("DEL"),
        Removal::FlushAll => redis::cmd("FLUSHALL"),
    };
    if let Removal::Del = removal {
        command.arg(NAME);
    }
    let mut redis = server.connection().await;
    command.exec_async(&mut redis).await.unwrap();
    let lost = second.guard.run(std::future::pending::<()>()).await;
    let took = removed.elapsed();
    assert_lost(&lost);
    // The next member of the cohort enters under a new grant.
    let third = waiters.next().await;
    assert_eq!(third.caller, 2);
    assert!(third.token() > cohort.token + MEMBERS as u64 - 1);
    // The remaining members of the cohort return to their places at the next probe of their session.
    let returned = third.at.saturating_duration_since(removed);
    assert!(returned < 200 * MS + epsilon(), "{returned:?}");
    proxy.hold_requests(false);
    // The release of the second member of the cohort does not affect the grant of the third member.
    second.leave().await;
    assert_eq!(third.guard.loss(), None);
    until(async || queue_length(&server).await == 2).await;
    third.leave().await;
    waiters.pass(3..MEMBERS + 2).await;
    waiters.assert_clean();
    assert_eq!(ours.stats().lost, 1);
    until(async || left(&server).await.is_empty()).await;
    took
}

/// Row 42 of `docs/faults.md`: an operator deletes the grant of a cohort, and another process takes the lock. Each turn
/// is shorter than the round trip of a probe. Therefore, the member of the cohort that holds the lock when a probe is
/// sent has left before the answer arrives. The session still learns from the answer that the grant is lost.
#[tokio::test]
async fn row_42_turns_pass_during_a_probe() {
    row(42, async |seen| {
        const MEMBERS: usize = 64;
        const LINE: Duration = Duration::from_millis(80);
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (ours, other) = (client(&proxy.url()).await, client(&server.url()).await);
        let guard = holder(&other).await;
        let deleted = Arc::new(Mutex::new(None::<Instant>));
        let late = Arc::new(Mutex::new(Duration::ZERO));
        let mut members = Vec::new();
        for _ in 0..MEMBERS {
            let (lock, deleted, late) = (
                ours.lock("k").wait(60 * SECOND),
                deleted.clone(),
                late.clone(),
            );
            members.push(tokio::spawn(async move {
                let body = async {
                    if let Some(deleted) = *deleted.lock().unwrap() {
                        *late.lock().unwrap() = deleted.elapsed();
                    }
                    sleep(40 * MS).await;
                };
                lock.run(body).await
            }));
        }
        until_waiting(&other, MEMBERS).await;
        guard.release().await;
        until_cohort(&server, MEMBERS).await;
        proxy.delay(LINE);
        sleep(SECOND).await;
        let mut redis = server.connection().await;
        ask::<()>(&mut redis, redis::cmd("DEL").arg(NAME)).await;
        *deleted.lock().unwrap() = Some(Instant::now());
        let guard = other.lock("k").lease(60 * SECOND).acquire().await.unwrap();
        // During this sleep, all members would have their turns if the session did not notice the loss.
        sleep(3 * SECOND).await;
        let late = *late.lock().unwrap();
        seen.within(
            "the last member enters after the deletion",
            200 * MS + 2 * LINE,
            late,
        );
        guard.release().await;
        for member in members {
            // The call of the member that held the lock at the deletion can return `Lost`.
            let _ = member.await.unwrap();
        }
    })
    .await;
}

/// Row 42 of `docs/faults.md`: the server loses all data while a process is cut off, and another process takes the lock.
/// When the first process connects again, its waiting members queue behind the new holder, and none of them takes a turn
/// of the lost grant.
#[tokio::test]
async fn row_42_no_turn_passes_after_a_reconnection() {
    row(42, async |_| {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (ours, other) = (client(&proxy.url()).await, client(&server.url()).await);
        let guard = holder(&other).await;
        let first = ours.lock("k").wait(60 * SECOND).acquire();
        let first = tokio::spawn(first);
        until_waiting(&other, 1).await;
        let mut members = Vec::new();
        for number in 2..4 {
            members.push(tokio::spawn(ours.lock("k").wait(60 * SECOND).acquire()));
            until_waiting(&other, number).await;
        }
        guard.release().await;
        until_cohort(&server, 3).await;
        let first = first.await.unwrap().unwrap();
        proxy.refuse(true);
        proxy.cut();
        let mut redis = server.connection().await;
        ask::<()>(&mut redis, &redis::cmd("FLUSHALL")).await;
        let newer = other.lock("k").wait(SECOND).acquire().await.unwrap();
        proxy.refuse(false);
        until_waiting(&other, 2).await;
        first.release().await;
        // A member that is offered a turn of the lost grant takes the turn within this time.
        sleep(300 * MS).await;
        assert!(members.iter().all(|member| !member.is_finished()));
        let token = newer.token();
        newer.release().await;
        for member in members {
            let guard = member.await.unwrap().unwrap();
            assert!(guard.token() > token);
            guard.release().await;
        }
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}

/// Returns the number of waiters in the queue.
async fn queue_length(server: &RedisServer) -> usize {
    let mut redis = server.connection().await;
    ask(&mut redis, redis::cmd("ZCARD").arg(QUEUE)).await
}

#[tokio::test]
async fn row_42_grant_of_a_cohort_deleted() {
    row(42, async |seen| {
        // If the caller had to wait, the engine confirms the hold 100 ms after the grant. The first deletion comes
        // before this confirmation, so the confirmation detects the deletion. The second deletion comes after the
        // confirmation, so a probe detects the deletion.
        for inside in [Duration::ZERO, 120 * MS] {
            let took = removed(Removal::Del, inside).await;
            seen.within("the holder is notified after the deletion", 300 * MS, took);
        }
    })
    .await;
}

#[tokio::test]
async fn row_42_flushall_in_a_cohort() {
    row(42, async |seen| {
        let took = removed(Removal::FlushAll, Duration::ZERO).await;
        seen.within("the holder is notified after the deletion", 300 * MS, took);
    })
    .await;
}

/// Row 42 of `docs/faults.md`: the process of a cohort is stopped for longer than the lease, and the caller behind the
/// cohort enters. When the process continues, the member of the cohort that held the lock is notified of the loss. The
/// members of the cohort that have not had their turns queue again, ahead of a caller that has queued in the meantime.
#[tokio::test]
async fn row_42_process_of_a_cohort_stopped() {
    const MEMBERS: usize = 4;
    row(42, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let mut waiters = Waiters::at(&server).await;
        let guard = holder(&client).await;
        let process = Process {
            callers: MEMBERS,
            stays: 1,
            nested: false,
            lease: 500 * MS,
        };
        let mut worker = process.start(&server);
        waiters.until_queued(MEMBERS).await;
        let lock = client.lock("k").wait(60 * SECOND);
        waiters.queue(lock.clone()).await;
        guard.release().await;
        let cohort = until_cohort(&server, MEMBERS).await;
        worker.until("entered 1 ").await;
        worker.signal("STOP");
        let next = waiters.next().await;
        assert!(next.token() > cohort.token + MEMBERS as u64 - 1);
        waiters.queue(lock).await;
        worker.signal("CONT");
        worker.until("lost 1").await;
        // The queue contains the caller that has queued in the meantime, and the members of the cohort that have not
        // had their turns yet.
        waiters.until_queued(1 + MEMBERS - 2).await;
        assert_eq!(next.guard.loss(), None);
        let newest = next.token();
        next.leave().await;
        let mut visits = Vec::new();
        for _ in 2..MEMBERS {
            let line = worker.until("visit").await;
            let [caller, token, _, _] = numbers(&line, "visit").unwrap();
            visits.push((caller, token));
        }
        let last = waiters.next().await;
        let token = last.token();
        last.leave().await;
        visits.push((MEMBERS as u64, token));
        let callers: Vec<u64> = visits.iter().map(|(caller, _)| *caller).collect();
        assert_eq!(callers, [2, 3, 4]);
        let tokens = std::iter::once(newest).chain(visits.iter().map(|(_, token)| *token));
        assert!(tokens.is_sorted_by(|a, b| a < b), "{newest}, {visits:?}");
        worker.until("ended").await;
        waiters.assert_clean();
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}

/// Row 45 of `docs/faults.md`: the first member of a cohort re-enters the lock with a lease of a minute, and so keeps the
/// grant alone. The process is killed while the next of its callers holds the lock. The lock is free when the lease of this
/// caller has ended.
#[tokio::test]
async fn row_45_killed_after_a_longer_nested_lease() {
    const LEASE: Duration = Duration::from_secs(2);
    row(45, async |seen| {
        let server = RedisServer::start().await;
        let mut redis = server.connection().await;
        let client = client(&server.url()).await;
        let mut waiters = Waiters::at(&server).await;
        let guard = holder(&client).await;
        let process = Process {
            callers: 3,
            stays: 1,
            nested: true,
            lease: LEASE,
        };
        let mut worker = process.start(&server);
        waiters.until_queued(3).await;
        waiters.queue(client.lock("k").wait(60 * SECOND)).await;
        // The `PEXPIRE` commands that the server runs from now on show whether the nested entry has extended the lease.
        let asked = server.calls().await.get("pexpire").copied().unwrap_or(0);
        guard.release().await;
        worker.until("entered 1 ").await;
        let left = rest(&mut redis).await;
        assert!(left <= LEASE, "{left:?}");
        let held = Stored::read(&grant(&server).await.expect("the second caller's grant"));
        let extended = server.calls().await.get("pexpire").copied().unwrap_or(0);
        assert!(
            extended >= asked + 2,
            "the nested call has not extended the lease"
        );
        let ends = Instant::now() + rest(&mut redis).await;
        worker.kill();
        let next = waiters.next().await;
        assert!(next.token() > held.token);
        let took = next.at.saturating_duration_since(ends);
        seen.within(
            "the next caller enters after the end of the lease",
            Duration::ZERO,
            took,
        );
        next.leave().await;
        waiters.assert_clean();
        assert_eq!(grant(&server).await, None);
    })
    .await;
}

/// Row 48 of `docs/faults.md`: a thousand callers of four processes queue at the same time. Several callers of a
/// process share a request.
#[tokio::test]
async fn row_48_a_thousand_queue_in_groups() {
    const PROCESSES: usize = 4;
    const CALLERS: usize = 250;
    row(48, async |seen| {
        let server = RedisServer::start().await;
        let mut redis = server.connection().await;
        let client = client(&server.url()).await;
        let mut waiters = Waiters::at(&server).await;
        let guard = holder(&client).await;
        let asked = server.scripts().await;
        let start = Instant::now();
        let process = Process {
            callers: CALLERS,
            stays: NOBODY,
            nested: false,
            lease: 30 * SECOND,
        };
        let mut workers: Vec<_> = (0..PROCESSES).map(|_| process.start(&server)).collect();
        waiters.until_queued(PROCESSES * CALLERS).await;
        let queue: Vec<String> =
            ask(&mut redis, redis::cmd("ZRANGE").arg(QUEUE).arg(0).arg(-1)).await;
        let released = Instant::now();
        guard.release().await;
        let mut visits = Vec::new();
        for (process, worker) in workers.iter_mut().enumerate() {
            while let Some(line) = worker.line().await.filter(|line| line != "ended") {
                if let Some([caller, token, entered, left]) = numbers(&line, "visit") {
                    visits.push((token, process, caller, entered, left));
                }
            }
        }
        seen.within(
            "all callers have held the lock",
            10 * SECOND,
            released.elapsed(),
        );
        let took = start.elapsed();
        visits.sort_unstable();
        assert_eq!(visits.len(), PROCESSES * CALLERS);
        // Across all processes, callers enter in the order of the queue. Within a process, callers enter in the order
        // in which they began to wait.
        let session_ids = queue.iter().map(|member| member.split('|').nth(1).unwrap());
        let mut of: [Option<&str>; PROCESSES] = [None; PROCESSES];
        let mut next = [0; PROCESSES];
        let (history, base, origin) = (History::new(), Instant::now(), now());
        for ((token, process, caller, entered, left), session_id) in
            visits.into_iter().zip(session_ids)
        {
            assert_eq!(
                *of[process].get_or_insert(session_id),
                session_id,
                "callers did not enter in the order of the queue"
            );
            assert_eq!(
                caller, next[process],
                "callers did not enter in the order of their calls"
            );
            next[process] += 1;
            let at = |time: u64| base - Duration::from_nanos(origin - time);
            history.record("k", token, at(entered), at(left));
        }
        history.check().assert_clean(PROCESSES * CALLERS);
        // The bound allows one script for every ten callers, and five probes a second for each process. It also allows
        // 40 further scripts, because a script can be sent twice when it is used for the first time.
        let looks = took.as_millis() / 200 * PROCESSES as u128;
        let scripts = u128::from(server.scripts().await - asked);
        let most = (PROCESSES * CALLERS / 10) as u128 + looks + 40;
        println!(
            "row 48: {scripts} scripts (at most {looks} of them are probes) for {} callers",
            PROCESSES * CALLERS
        );
        assert!(scripts <= most, "{scripts} scripts, {looks} probes");
        until(async || self::left(&server).await.is_empty()).await;
    })
    .await;
}
