//! Rows 1 to 3, 20, 21, 33 and 36 of `docs/faults.md`: processes that are killed, or stopped and continued, and a
//! runtime that is shut down.

use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError};
use support::{
    clock::Clocks,
    cluster::ClusterServers,
    process::Worker,
    server::{RedisServer, ask},
    slowness,
};
use tokio::{io::AsyncBufReadExt, runtime::Builder, time::sleep};

use crate::fixture::{
    MS, NAME, NAMESPACE, SECOND, client, entering, grant, left, row, token_of, until,
    until_waiting, worker, worker_at, worker_command,
};

/// Runs the task of a worker process, which prints a line at each event.
#[tokio::test]
#[ignore = "run as a process of its own by the other tests"]
async fn worker_process() {
    let variable =
        |name: &str| std::env::var(name).expect("the test sets this variable for its workers");
    let lease = Duration::from_millis(variable("WORKER_LEASE_MS").parse().unwrap());
    let client = LockClient::builder()
        .url(variable("WORKER_URL"))
        .namespace(NAMESPACE)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let lock = client.lock("k").wait(60 * SECOND).lease(lease);
    if variable("WORKER_TASK") == "waiters" {
        waiters(&client).await;
        return client.shutdown().await;
    }
    if variable("WORKER_TASK") == "queue" {
        return queue(&client).await;
    }
    if variable("WORKER_TASK") == "readers" {
        let readers: Vec<_> = (0..5).map(|_| lock.clone().read().acquire()).collect();
        let readers = futures_util::future::try_join_all(readers).await.unwrap();
        println!("\ninside {}", readers[0].token());
        return std::future::pending().await;
    }
    if variable("WORKER_TASK") == "permits" {
        let permits = client.semaphore("k", 3).lease(lease);
        let permits = permits.acquire_many(2).await.unwrap();
        println!("\ninside {}", permits.token());
        return std::future::pending().await;
    }
    println!("\nready");
    let ended = lock
        .run(async {
            let hold = lock_runtime::Hold::current().unwrap();
            println!("\ninside {}", hold.token());
            if variable("WORKER_TASK") == "hold" {
                // The body awaits again and again, and reports each await that completes after the loss.
                loop {
                    sleep(10 * MS).await;
                    if let Some(reason) = hold.loss() {
                        println!("\nran on after {reason:?}");
                    }
                }
            }
        })
        .await;
    match ended {
        Ok(()) => println!("\nended"),
        Err(LockError::Lost { .. }) => println!("\nlost"),
        Err(error) => println!("\nfailed {error}"),
    }
    client.shutdown().await;
}

/// Queues a caller for each line of the standard input. Each caller prints its number when it enters. The callers run on
/// two runtimes in turn.
async fn queue(client: &LockClient) {
    let runtimes = [(); 2].map(|()| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    });
    let mut orders = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let mut callers = 0;
    while let Ok(Some(_)) = orders.next_line().await {
        let (lock, number) = (client.lock("k").wait(60 * SECOND), callers);
        runtimes[callers % runtimes.len()].spawn(async move {
            let enter = async { println!("\nentered {number}") };
            lock.run(enter).await.unwrap();
        });
        callers += 1;
    }
    for runtime in runtimes {
        runtime.shutdown_background();
    }
}

/// The number of callers of one worker process.
const WAITERS: usize = 250;

/// Queues [`WAITERS`] callers. Each caller prints its number and token when it has entered.
async fn waiters(client: &LockClient) {
    // The first call opens the connection. If callers request the lock before the connection is open, their order in
    // the queue is not defined.
    client.lock("warm").run(async {}).await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..WAITERS {
        let lock = client.lock("k").wait(120 * SECOND);
        callers.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            println!("\nentered {caller} {}", guard.token());
            guard.release().await;
        });
    }
    callers.join_all().await;
    println!("\nended");
}

/// Row 1 of `docs/faults.md`: the holder is killed. The next waiter enters when the holder's lease has ended,
/// regardless of the waiters' leases.
async fn holder_killed(url: &str) {
    row(1, async |seen| {
        // The lease lasts until all waiters have queued, even on a busy machine.
        let lease = (1500.0 * slowness()) as u64;
        let mut holder = worker_at(url, "hold", lease);
        let inside = holder.until("inside").await;
        let held_since = Instant::now();
        let client = client(url).await;
        let mut waiters = tokio::task::JoinSet::new();
        for (place, lease) in [60 * SECOND, SECOND, 20 * SECOND].into_iter().enumerate() {
            let client = client.clone();
            waiters.spawn(async move {
                let guard = client
                    .lock("k")
                    .wait(30 * SECOND)
                    .lease(lease)
                    .acquire()
                    .await
                    .unwrap();
                let entered = (Instant::now(), guard.token().get());
                guard.release().await;
                (place, entered)
            });
            until_waiting(&self::client(url).await, place + 1).await;
        }
        holder.kill();
        let mut entered = Vec::new();
        while let Some(ended) = waiters.join_next().await {
            entered.push(ended.unwrap());
        }
        entered.sort_by_key(|(_, (at, _))| *at);
        let places: Vec<_> = entered.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [0, 1, 2]);
        let first = entered[0].1.0.duration_since(held_since);
        seen.within(
            "the next caller enters after the grant",
            Duration::from_millis(lease),
            first,
        );
        let mut newest = inside.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        for (_, (_, token)) in entered {
            assert!(token > newest);
            newest = token;
        }
    })
    .await;
}

#[tokio::test]
async fn row_01_holder_killed() {
    holder_killed(&RedisServer::start().await.url()).await;
}

#[tokio::test]
async fn row_01_holder_killed_in_a_cluster() {
    holder_killed(&ClusterServers::start(3).await.url()).await;
}

/// Returns the next line of the worker's output that is not empty.
async fn next_word(worker: &mut Worker) -> String {
    loop {
        let line = worker.line().await.expect("the worker still runs");
        if !line.is_empty() {
            return line;
        }
    }
}

/// Row 2 of `docs/faults.md`: the holder is stopped for longer than its lease, and then continued. The holder is
/// notified of the loss before the next await in its body completes.
#[tokio::test]
async fn row_02_holder_stopped_and_continued() {
    row(2, async |seen| {
        let server = RedisServer::start().await;
        let mut holder = worker(&server, "hold", 500);
        let inside = holder.until("inside").await;
        let held_since = Instant::now();
        holder.signal("STOP");
        let client = client(&server.url()).await;
        let next = client.lock("k").wait(10 * SECOND).acquire().await.unwrap();
        let first = held_since.elapsed();
        seen.within("the next caller enters after the grant", 500 * MS, first);
        let stale: u64 = inside.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(next.token().get() > stale);
        holder.signal("CONT");
        let continued = Instant::now();
        // The signal can stop the body between the end of its `.await` and its look at the loss.
        let mut told = next_word(&mut holder).await;
        if told == "ran on after Expired" {
            told = next_word(&mut holder).await;
        }
        assert_eq!(told, "lost");
        seen.within(
            "the stopped holder is notified after it continues",
            20 * MS,
            continued.elapsed(),
        );
        // The late holder did not release the lock of the next holder.
        assert_eq!(next.loss(), None);
        assert!(grant(&server).await.is_some());
        next.release().await;
    })
    .await;
}

/// Row 3 of `docs/faults.md`: the holder's machine is suspended for longer than the lease. During the suspension, the
/// monotonic clock of the machine and the timers that use this clock stand still.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_03_holder_suspended() {
    const LEASE: u64 = 4000;
    const SUSPENDED: Duration = Duration::from_millis(4500);
    row(3, async |seen| {
        let server = RedisServer::start().await;
        let clocks = Clocks::new(server.folder());
        let mut command = worker_command(&server.url(), "hold", LEASE);
        clocks.wind(&mut command);
        let mut holder = Worker::start(command);
        holder.until("inside").await;
        let stopped = Instant::now();
        holder.signal("STOP");
        let client = client(&server.url()).await;
        let lock = client.lock("k").wait(10 * SECOND);
        let next = lock.acquire().await.unwrap();
        let first = stopped.elapsed();
        let lease = Duration::from_millis(LEASE);
        seen.within("the next caller enters after the grant", lease, first);
        sleep(SUSPENDED.saturating_sub(stopped.elapsed())).await;
        clocks.set_monotonic_behind(SUSPENDED);
        holder.signal("CONT");
        let continued = Instant::now();
        // The signal can stop the body between the end of its `.await` and its look at the loss.
        let mut told = next_word(&mut holder).await;
        if told == "ran on after Expired" {
            told = next_word(&mut holder).await;
        }
        assert_eq!(told, "lost");
        seen.within(
            "the stopped holder is notified after it continues",
            20 * MS,
            continued.elapsed(),
        );
        assert_eq!(next.loss(), None);
        next.release().await;
    })
    .await;
}

/// Row 20 of `docs/faults.md`: a thousand callers in four processes wait for one lock. The callers enter in the order
/// in which they queued.
#[tokio::test]
async fn row_20_a_thousand_waiters() {
    const PROCESSES: usize = 4;
    row(20, async |seen| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let guard = client
            .lock("k")
            .lease(120 * SECOND)
            .acquire()
            .await
            .unwrap();
        let mut workers = Vec::new();
        for process in 1..=PROCESSES {
            workers.push(worker(&server, "waiters", 30_000));
            until_waiting(&client, process * WAITERS).await;
        }
        let asked = server.scripts().await;
        let start = Instant::now();
        guard.release().await;
        let mut entered = Vec::new();
        for (process, worker) in workers.iter_mut().enumerate() {
            loop {
                let line = next_word(worker).await;
                if line == "ended" {
                    break;
                }
                let said: Vec<&str> = line.split(' ').collect();
                let [_, caller, token] = said[..] else {
                    // Skips the lines that the test harness prints.
                    continue;
                };
                if let (Ok(caller), Ok(token)) = (caller.parse::<usize>(), token.parse::<u64>()) {
                    entered.push((token, process, caller));
                }
            }
        }
        let took = start.elapsed();
        entered.sort_unstable();
        let order: Vec<_> = entered
            .iter()
            .map(|(_, process, caller)| (*process, *caller))
            .collect();
        let queued =
            (0..PROCESSES).flat_map(|process| (0..WAITERS).map(move |caller| (process, caller)));
        assert!(
            order.iter().copied().eq(queued),
            "callers did not enter in the order in which they queued"
        );
        // The test counts the scripts that are sent after all callers have queued. After a caller has queued, it sends
        // at most one script, its release. Each process also sends five probes a second.
        let callers = u64::try_from(PROCESSES * WAITERS).unwrap();
        let looks =
            u64::try_from(took.as_millis() / 200 + 1).unwrap() * u64::try_from(PROCESSES).unwrap();
        let scripts = server.scripts().await - asked;
        assert!(
            scripts <= callers + 1 + looks,
            "{scripts} scripts, {looks} probes"
        );
        seen.within("all callers have held the lock", 30 * SECOND, took);
        until(async || left(&server).await.is_empty()).await;
    })
    .await;
}

/// Row 21 of `docs/faults.md`: a process is killed while its caller waits in the queue. When the lock is next released,
/// the release skips the dead caller at once. `server` is the server that stores the lock.
async fn queued_process_killed(url: &str, server: &RedisServer) {
    row(21, async |seen| {
        let client = client(url).await;
        let guard = client.lock("k").acquire().await.unwrap();
        let mut queued = worker_at(url, "pass", 30_000);
        queued.until("ready").await;
        until_waiting(&client, 1).await;
        queued.kill();
        let next = entering(client.lock("k").wait(30 * SECOND));
        until_waiting(&client, 2).await;
        // The server can need a moment to notice the closed socket. The test waits until the server has noticed it, so
        // that the measured time does not include this moment.
        let mut observer = server.connection().await;
        until(async || {
            let clients: String = ask(
                &mut observer,
                redis::cmd("CLIENT").arg("LIST").arg("TYPE").arg("pubsub"),
            )
            .await;
            clients.lines().count() <= 2
        })
        .await;
        let released = Instant::now();
        guard.release().await;
        let (entered, guard) = next.await.unwrap();
        let took = entered.duration_since(released);
        seen.within(
            "the next caller enters after the release",
            Duration::ZERO,
            took,
        );
        guard.release().await;
        assert_eq!(left(server).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn row_21_queued_process_killed() {
    let server = RedisServer::start().await;
    queued_process_killed(&server.url(), &server).await;
}

/// Runs the test of row 21 in a cluster. In a cluster, a session counts as gone if it no longer listens at the primary
/// of the lock.
#[tokio::test]
async fn row_21_queued_process_killed_in_a_cluster() {
    let cluster = ClusterServers::start(3).await;
    let primary = cluster.primary_of(cluster.slot_of(NAME).await).await;
    queued_process_killed(&cluster.url(), &cluster.servers[primary]).await;
}

/// Row 33 of `docs/faults.md`: a runtime is shut down. One of its tasks holds a lock, and another task waits for the
/// same lock. Neither a grant nor a queue entry is left on the server.
#[tokio::test]
async fn row_33_runtime_shut_down_while_held_and_while_waiting() {
    row(33, async |seen| {
        let server = RedisServer::start().await;
        let observer = client(&server.url()).await;
        let url = server.url();
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (held, waiting) = runtime
            .spawn(async move {
                let client = client(&url).await;
                let guard = client.lock("k").acquire().await.unwrap();
                let held = tokio::spawn(async move {
                    guard.run(std::future::pending::<()>()).await.unwrap();
                });
                let waiting = tokio::spawn(async move {
                    let _guard = client.lock("k").wait(60 * SECOND).acquire().await.unwrap();
                });
                (held, waiting)
            })
            .await
            .unwrap();
        until_waiting(&observer, 1).await;
        let started = Instant::now();
        runtime.shutdown_background();
        until(async || left(&server).await.is_empty()).await;
        let took = started.elapsed();
        seen.within(
            "nothing is left on the server after the shutdown",
            SECOND,
            took,
        );
        drop((held, waiting));
    })
    .await;
}

/// Row 36 of `docs/faults.md`: a waiting process is granted the lock while it is stopped, and continues after the grant
/// has ended. The body of the waiting call never starts on that grant, and the call queues again.
#[tokio::test]
async fn row_36_waiter_stopped_past_its_grant() {
    row(36, async |_| {
        let server = RedisServer::start().await;
        let client = client(&server.url()).await;
        let guard = client.lock("k").acquire().await.unwrap();
        let mut waiter = worker(&server, "pass", 500);
        waiter.until("ready").await;
        until_waiting(&client, 1).await;
        waiter.signal("STOP");
        guard.release().await;
        let stale = token_of(
            &grant(&server)
                .await
                .expect("the stopped waiter is granted the lock"),
        );
        let next = client.lock("k").wait(10 * SECOND).acquire().await.unwrap();
        let newer = next.token().get();
        assert!(newer > stale);
        waiter.signal("CONT");
        // The waiter is in the queue again, and does not hold the lock.
        until_waiting(&client, 1).await;
        assert_eq!(next.loss(), None);
        next.release().await;
        let inside = waiter.until("inside").await;
        let token: u64 = inside.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(
            token > newer,
            "the body started under token {token} after token {newer} was granted"
        );
        waiter.until("ended").await;
    })
    .await;
}
