//! Tests of Redisson's layout against the real Redisson. In these tests, clients of this crate wait for a JVM, and a
//! JVM waits for clients of this crate. `sh tests/redisson/run.sh` runs these tests.

mod cluster;
mod sentinel;

use std::{collections::VecDeque, time::Duration};

use lock_runtime::{LockClient, Strategy};
use redis::aio::MultiplexedConnection;
use support::{
    assert_busy, assert_lost, epsilon,
    process::Worker,
    server::{ask, shared_server},
    stores::{MS, SECOND, Store, hold, until},
};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{Instant, timeout},
};

/// The lease of a lock that the JVM takes without specifying a lease. The JVM's watchdog renews this lease after each
/// third of its length.
const WATCHDOG: Duration = Duration::from_secs(3);

/// A process on the JVM, which runs `Service.java`.
struct Service {
    worker: Worker,
    /// The answers that the test has not read yet, each with the name of the thread that sent it.
    answers: VecDeque<(String, String)>,
}

impl Service {
    async fn start() -> Self {
        Self::with("single", [shared_server().await.url()]).await
    }

    /// Starts a service whose Redisson uses the servers at these URLs. `mode` is the second argument of `Service.java`.
    async fn with(mode: &str, urls: impl IntoIterator<Item = String>) -> Self {
        let program = spawn_blocking(|| support::jvm::program("Service"))
            .await
            .unwrap();
        let mut command = program.unwrap_or_else(|missing| panic!("{missing}"));
        command
            .arg(WATCHDOG.as_millis().to_string())
            .arg(mode)
            .args(urls);
        let mut worker = Worker::obeying(command);
        worker.until("ready").await;
        Self {
            worker,
            answers: VecDeque::new(),
        }
    }

    /// Sends an order (see `Service.java`) to one of the service's threads.
    fn tell(&mut self, thread: &str, order: &str) {
        self.worker.tell(&format!("{thread} {order}"));
    }

    /// Waits for the next answer from any of these threads. Returns the name of the thread and the answer.
    async fn answer_of(&mut self, threads: &[&str]) -> (String, String) {
        loop {
            let mut answers = self.answers.iter();
            let next = answers.position(|(thread, _)| threads.contains(&thread.as_str()));
            if let Some(answer) = next.and_then(|next| self.answers.remove(next)) {
                return answer;
            }
            let line = self.worker.line().await.expect("the service still runs");
            let (thread, answer) = line
                .split_once(' ')
                .expect("an answer begins with the name of a thread");
            self.answers
                .push_back((thread.to_owned(), answer.to_owned()));
        }
    }

    async fn answer(&mut self, thread: &str) -> String {
        self.answer_of(&[thread]).await.1
    }

    async fn ask(&mut self, thread: &str, order: &str) -> String {
        self.tell(thread, order);
        self.answer(thread).await
    }
}

/// One lock, with a client of this crate and a service on the JVM that both use the lock.
struct Fixture {
    store: Store,
    client: LockClient,
    service: Service,
    redis: MultiplexedConnection,
    name: String,
}

impl Fixture {
    async fn start() -> Self {
        let store = Store::redisson().await;
        Self {
            client: store.client().await,
            service: Service::start().await,
            redis: shared_server().await.connection().await,
            name: store.name("k"),
            store,
        }
    }

    /// Sends an order for the lock to thread `a` of the service, and returns the answer.
    async fn jvm(&mut self, verb: &str, rest: &str) -> String {
        let order = format!("{verb} {} {rest}", self.name);
        self.service.ask("a", order.trim_end()).await
    }

    /// Waits until this many connections are subscribed to the channel on which the lock's releases are announced.
    async fn until_listening(&self, clients: u32) {
        let channel = format!("redisson_lock__channel:{{{}}}", self.name);
        until(async || {
            let mut redis = self.redis.clone();
            let answer: (String, u32) =
                ask(&mut redis, redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel)).await;
            answer.1 == clients
        })
        .await;
    }
}

#[tokio::test]
async fn it_waits_for_us() {
    let mut fixture = Fixture::start().await;
    let guard = hold(&fixture.client, "k").await;
    let left = fixture.jvm("try", "300 1000").await;
    assert_eq!(left, "false");
    assert_eq!(
        fixture.jvm("unlock", "").await,
        "IllegalMonitorStateException"
    );
    // Each release has to wake the next of the three threads, long before the lease of `guard` (30 s) would end.
    let threads = ["b", "c", "d"];
    for thread in threads {
        let order = format!("lock {} 20000", fixture.name);
        fixture.service.tell(thread, &order);
    }
    fixture.until_listening(1).await;
    let start = Instant::now();
    guard.release().await;
    let (mut entered, mut left) = (0, 0);
    while left < threads.len() {
        match fixture.service.answer_of(&threads).await {
            (thread, answer) if answer == "in" => {
                entered += 1;
                let order = format!("unlock {}", fixture.name);
                fixture.service.tell(&thread, &order);
            }
            (_, answer) => {
                assert_eq!(answer, "out");
                left += 1;
            }
        }
    }
    assert_eq!(entered, threads.len());
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    until(async || fixture.store.keys().await.is_empty()).await;
}

#[tokio::test]
async fn we_wait_for_it_and_its_count_stands() {
    let mut fixture = Fixture::start().await;
    for strategy in [Strategy::Notify, Strategy::Spin] {
        assert_eq!(fixture.jvm("lock", "20000").await, "in");
        assert_eq!(fixture.jvm("lock", "20000").await, "in");
        let lock = fixture.client.lock("k").strategy(strategy);
        let busy = lock.clone().wait(300 * MS).acquire().await;
        assert_busy(&busy);
        let lock = lock.wait(20 * SECOND);
        let mut waiting = Box::pin(lock.acquire());
        assert!(timeout(100 * MS, &mut waiting).await.is_err());
        assert_eq!(fixture.jvm("unlock", "").await, "out");
        assert!(timeout(500 * MS, &mut waiting).await.is_err());
        assert_eq!(fixture.jvm("count", "").await, "1");
        assert_eq!(fixture.jvm("unlock", "").await, "out");
        let guard = timeout(5 * SECOND, waiting).await.unwrap().unwrap();
        assert_eq!(fixture.jvm("count", "").await, "0");
        guard.release().await;
    }
    until(async || fixture.store.keys().await.is_empty()).await;
}

#[tokio::test]
async fn both_exclude_each_other_and_nobody_is_missed() {
    let mut fixture = Fixture::start().await;
    let counter = format!("inside:{}", fixture.name);
    let threads = ["b", "c", "d"];
    for thread in threads {
        let order = format!("visit {} {counter} 30 2", fixture.name);
        fixture.service.tell(thread, &order);
    }
    let mut running = JoinSet::new();
    for process in 0..2 {
        let client = fixture.store.client().await;
        for caller in 0..3 {
            let strategy = fixture.store.strategies()[(process + caller) % 2];
            let lock = client.lock("k").strategy(strategy).wait(60 * SECOND);
            let (mut redis, counter) = (fixture.redis.clone(), counter.clone());
            running.spawn(async move {
                for _ in 0..30 {
                    let body = async {
                        let step = |verb: &str| redis::cmd(verb).arg(&counter).to_owned();
                        let inside: i64 = step("INCR").query_async(&mut redis).await.unwrap();
                        assert_eq!(inside, 1);
                        tokio::time::sleep(2 * MS).await;
                        step("DECR").exec_async(&mut redis).await.unwrap();
                    };
                    lock.run(body).await.unwrap();
                }
            });
        }
    }
    running.join_all().await;
    for thread in threads {
        assert_eq!(
            fixture.service.answer(thread).await,
            "0",
            "a visit of the JVM overlapped with another holder"
        );
    }
    fixture.until_listening(0).await;
    ask::<()>(&mut fixture.redis, redis::cmd("DEL").arg(&counter)).await;
    until(async || fixture.store.keys().await.is_empty()).await;
}

#[tokio::test]
async fn both_watchdogs_renew() {
    let mut fixture = Fixture::start().await;
    // The JVM's watchdog renews the lease of this lock again and again, so the lock is still busy after twice the
    // length of its lease.
    assert_eq!(fixture.jvm("lock", "").await, "in");
    let lock = fixture.client.lock("k").lease(SECOND).renew(true);
    let busy = lock.clone().wait(2 * WATCHDOG).acquire().await;
    assert_busy(&busy);
    assert_eq!(fixture.jvm("unlock", "").await, "out");
    lock.run(async {
        let order = format!("try {} 4000 1000", fixture.name);
        assert_eq!(fixture.service.ask("a", &order).await, "false");
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_forced_unlock_is_a_loss_and_the_dead_are_survived() {
    let mut fixture = Fixture::start().await;
    let lock = fixture.client.lock("k").lease(SECOND).renew(true);
    let forced = lock.run(async {
        let order = format!("force {}", fixture.name);
        assert_eq!(fixture.service.ask("a", &order).await, "true");
        std::future::pending::<()>().await;
    });
    let lost = timeout(SECOND + epsilon(), forced).await.unwrap();
    assert_lost(&lost);
    // The guard is leaked, so nobody releases the lock. The JVM gets the lock when the lease of the guard has ended.
    let gone = fixture
        .client
        .lock("k")
        .lease(SECOND)
        .acquire()
        .await
        .unwrap();
    std::mem::forget(gone);
    let start = Instant::now();
    assert_eq!(fixture.jvm("lock", "2000").await, "in");
    let took = start.elapsed();
    assert!(took < SECOND + epsilon(), "{took:?}");
    // The JVM's process is killed. This crate's client gets the lock when the lease of the JVM's hold has ended.
    fixture.service.worker.kill();
    let start = Instant::now();
    let lock = fixture.client.lock("k").wait(20 * SECOND);
    lock.run(async {}).await.unwrap();
    let took = start.elapsed();
    assert!(took < 2200 * MS + epsilon(), "{took:?}");
}

#[tokio::test]
async fn its_spin_lock_is_the_same_lock() {
    let mut fixture = Fixture::start().await;
    let guard = hold(&fixture.client, "k").await;
    let order = format!("spin {} 20000", fixture.name);
    fixture.service.tell("a", &order);
    guard.release().await;
    assert_eq!(fixture.service.answer("a").await, "in");
    // The release of Redisson's spin lock publishes no message, so a probe has to find the lock free.
    let lock = fixture.client.lock("k").wait(20 * SECOND);
    let mut entering = Box::pin(lock.acquire());
    assert!(timeout(300 * MS, &mut entering).await.is_err());
    assert_eq!(fixture.jvm("unspin", "").await, "out");
    let start = Instant::now();
    entering.await.unwrap().release().await;
    let took = start.elapsed();
    assert!(took < 200 * MS + epsilon(), "{took:?}");
}

#[tokio::test]
async fn tokens_of_its_fenced_lock_and_ours_rise_together() {
    let mut fixture = Fixture::start().await;
    let mut newest: u64 = fixture.jvm("fenced", "20000").await.parse().unwrap();
    assert_eq!(fixture.jvm("unfence", "").await, "out");
    for _ in 0..3 {
        let guard = hold(&fixture.client, "k").await;
        let ours = guard.token().get();
        guard.release().await;
        let theirs: u64 = fixture.jvm("fenced", "20000").await.parse().unwrap();
        assert!(newest < ours && ours < theirs, "{newest} {ours} {theirs}");
        assert_eq!(fixture.jvm("unfence", "").await, "out");
        newest = theirs;
    }
}
