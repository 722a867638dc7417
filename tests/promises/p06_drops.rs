//! Promise 6: hundreds of calls are dropped in each state of an acquisition, and leave nothing behind.
//!
//! Each test prints how many calls it dropped in its state. At most `support::epsilon()` after the last drop, no key is
//! left on the server. If the connection is cut at the drop, a key can remain until its claim or lease ends.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use lock_runtime::LockClient;
use redis::aio::MultiplexedConnection;
use support::{
    poll_unread,
    proxy::FaultProxy,
    server::{RedisServer, shared_server},
};
use uuid::Uuid;

const DROPS: usize = 500;
const SECOND: Duration = Duration::from_secs(1);

/// The parts that every test uses: a namespace, a client whose calls are dropped, another client that holds locks, and
/// a connection that lists the keys on the server.
struct Fixture {
    namespace: String,
    dropping: LockClient,
    other: LockClient,
    observer: MultiplexedConnection,
}

impl Fixture {
    async fn on(server: &RedisServer, dropping_url: &str) -> Self {
        let namespace = Uuid::new_v4().simple().to_string();
        let client = |url: String| {
            let namespace = namespace.clone();
            async move {
                let builder = LockClient::builder().url(url).namespace(namespace);
                builder
                    .connect()
                    .await
                    .expect("the test server can be reached")
            }
        };
        let fixture = Self {
            dropping: client(dropping_url.to_owned()).await,
            other: client(server.url()).await,
            observer: server.connection().await,
            namespace: namespace.clone(),
        };
        // The connections of both clients are opened before any call is dropped.
        fixture.dropping.lock("warm").run(async {}).await.unwrap();
        fixture.other.lock("warm").run(async {}).await.unwrap();
        fixture
    }

    async fn direct() -> Self {
        let server = shared_server().await;
        Self::on(server, &server.url()).await
    }

    /// Returns all keys of the namespace that are left on the server.
    async fn left(&mut self) -> Vec<String> {
        let pattern = format!("*{}*", self.namespace);
        let keys = redis::cmd("KEYS")
            .arg(pattern)
            .query_async(&mut self.observer)
            .await;
        keys.expect("the server lists its keys")
    }

    /// Waits until no key is left, and returns how long that took. Panics if the wait takes longer than `at_most`.
    async fn until_clean(&mut self, at_most: Duration) -> Duration {
        let started = Instant::now();
        loop {
            let left = self.left().await;
            if left.is_empty() {
                return started.elapsed();
            }
            assert!(
                started.elapsed() < at_most,
                "left behind after {at_most:?}: {left:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    async fn until_waiters(&self, key: &str, waiters: usize) {
        while self.other.lock(key).status().await.unwrap().waiters != waiters {
            tokio::task::yield_now().await;
        }
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn report(state: &str, drops: usize, clean_after: Duration) {
    println!("{drops} calls dropped {state}: nothing left after {clean_after:?}");
    assert!(
        drops >= DROPS,
        "only {drops} calls were dropped in this state"
    );
}

#[tokio::test]
async fn unsent() {
    let mut fixture = Fixture::direct().await;
    let before = fixture.dropping.stats().commands;
    for i in 0..DROPS {
        let lock = fixture.dropping.lock(format!("k{i}"));
        let call = lock.acquire();
        drop(call);
    }
    assert_eq!(fixture.dropping.stats().commands, before);
    let took = fixture.until_clean(support::epsilon()).await;
    report("unsent", DROPS, took);
}

/// Each call is dropped after its first poll has issued a request, and before it reads the answer. Before every third
/// drop, the test yields to the runtime once.
#[tokio::test]
async fn unanswered() {
    let mut fixture = Fixture::direct().await;
    let before = fixture.dropping.stats().commands;
    let mut drops = 0;
    while drops < DROPS {
        let lock = fixture.dropping.lock(format!("k{drops}")).wait(10 * SECOND);
        let mut call = Box::pin(lock.acquire());
        assert!(!poll_unread(&fixture.dropping, call.as_mut()).await);
        drops += 1;
        if drops % 3 == 0 {
            // During this yield, the runtime writes the request, but reads no answer yet.
            tokio::task::yield_now().await;
        }
        drop(call);
    }
    assert!(fixture.dropping.stats().commands >= before + DROPS as u64);
    let took = fixture.until_clean(support::epsilon()).await;
    report("unanswered", drops, took);
}

#[tokio::test]
async fn queued() {
    let mut fixture = Fixture::direct().await;
    let guard = fixture.other.lock("k").acquire().await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..DROPS {
        let lock = fixture.dropping.lock("k").wait(60 * SECOND);
        calls.spawn(async move { lock.acquire().await.map(drop) });
    }
    fixture.until_waiters("k", DROPS).await;
    calls.shutdown().await;
    fixture.until_waiters("k", 0).await;
    guard.release().await;
    let took = fixture.until_clean(support::epsilon()).await;
    report("queued", DROPS, took);
}

#[tokio::test]
async fn granted_but_not_polled() {
    let mut fixture = Fixture::direct().await;
    let mut drops = 0;
    for i in 0..DROPS {
        let key = format!("k{i}");
        let guard = fixture.other.lock(&key).acquire().await.unwrap();
        let lock = fixture.dropping.lock(&key).wait(60 * SECOND);
        let mut call = Box::pin(lock.acquire());
        while fixture.other.lock(&key).status().await.unwrap().waiters == 0 {
            let _ = poll_once(call.as_mut());
            tokio::task::yield_now().await;
        }
        // This poll reads the reply with the call's place in the queue. From here on, the call is not polled.
        let _ = poll_once(call.as_mut());
        guard.release().await;
        drops += usize::from(
            fixture
                .other
                .lock(&key)
                .status()
                .await
                .unwrap()
                .holder
                .is_some(),
        );
        drop(call);
    }
    let took = fixture.until_clean(support::epsilon()).await;
    report("granted but not polled", drops, took);
}

#[tokio::test]
async fn held() {
    let mut fixture = Fixture::direct().await;
    let mut guards = Vec::new();
    for i in 0..DROPS {
        guards.push(
            fixture
                .dropping
                .lock(format!("k{i}"))
                .acquire()
                .await
                .unwrap(),
        );
    }
    drop(guards);
    let took = fixture.until_clean(support::epsilon()).await;
    report("held", DROPS, took);
}

#[tokio::test]
async fn releasing() {
    let mut fixture = Fixture::direct().await;
    let mut drops = 0;
    for i in 0..DROPS {
        let guard = fixture
            .dropping
            .lock(format!("k{i}"))
            .acquire()
            .await
            .unwrap();
        let mut release = Box::pin(guard.release());
        drops += usize::from(!poll_unread(&fixture.dropping, release.as_mut()).await);
        if i % 2 == 0 {
            tokio::task::yield_now().await;
        }
        drop(release);
    }
    let took = fixture.until_clean(support::epsilon()).await;
    report("releasing", drops, took);
}

/// The connection is cut just before the call is dropped. The cleanup uses another connection, and no key is left when
/// the claim or the lease has ended.
#[tokio::test]
async fn with_the_connection_cut_at_the_drop() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let mut fixture = Fixture::on(&server, &proxy.url()).await;
    let lease = 2 * SECOND;
    let mut drops = [0; 4];
    for i in 0..4 * DROPS {
        let key = format!("k{i}");
        let lock = fixture.dropping.lock(&key).wait(10 * SECOND).lease(lease);
        match i % 4 {
            0 => {
                let mut call = Box::pin(lock.acquire());
                let _ = poll_once(call.as_mut());
                tokio::task::yield_now().await;
                proxy.cut();
                drop(call);
                drops[0] += 1;
            }
            1 => {
                let guard = fixture
                    .other
                    .lock(&key)
                    .lease(lease)
                    .acquire()
                    .await
                    .unwrap();
                let mut call = Box::pin(lock.acquire());
                while fixture.other.lock(&key).status().await.unwrap().waiters == 0 {
                    let _ = poll_once(call.as_mut());
                    tokio::task::yield_now().await;
                }
                proxy.cut();
                drop(call);
                drop(guard);
                drops[1] += 1;
            }
            2 => {
                let guard = lock.acquire().await.unwrap();
                proxy.cut();
                drop(guard);
                drops[2] += 1;
            }
            _ => {
                let guard = lock.acquire().await.unwrap();
                let mut release = pin!(guard.release());
                let _ = poll_once(release.as_mut());
                proxy.cut();
                drops[3] += 1;
            }
        }
    }
    println!(
        "calls dropped with a cut connection (unanswered, queued, held, releasing): {drops:?}"
    );
    let took = fixture.until_clean(lease + support::epsilon()).await;
    for drops in drops {
        report("with the connection cut", drops, took);
    }
}

/// For each byte of a request and of its reply, breaks the connection after this byte, and then drops the call.
#[tokio::test]
async fn at_every_byte() {
    let server = shared_server().await;
    let proxy = FaultProxy::start(server.port()).await;
    let mut fixture = Fixture::on(server, &proxy.url()).await;
    let lease = 2 * SECOND;
    let sent = (proxy.request_bytes(), proxy.reply_bytes());
    let guard = fixture.dropping.lock("length").acquire().await.unwrap();
    let lengths = [proxy.request_bytes() - sent.0, proxy.reply_bytes() - sent.1];
    guard.release().await;
    let mut drops = 0;
    for (side, length) in lengths.into_iter().enumerate() {
        for bytes in 0..=length {
            fixture.dropping.lock("warm").run(async {}).await.unwrap();
            let connections = proxy.connections();
            if side == 0 {
                proxy.cut_after_request_bytes(bytes);
            } else {
                proxy.cut_after_reply_bytes(bytes);
            }
            let lock = fixture.dropping.lock(format!("k{side}:{bytes}"));
            let mut call = Box::pin(lock.wait(10 * SECOND).lease(lease).acquire());
            // Polls the call until it is ready or its client reconnects.
            while poll_once(call.as_mut()).is_pending() && proxy.connections() == connections {
                tokio::task::yield_now().await;
            }
            drop(call);
            drops += 1;
        }
    }
    let took = fixture.until_clean(lease + support::epsilon()).await;
    println!("{drops} calls dropped at each of {lengths:?} bytes: nothing left after {took:?}");
    assert!(lengths.iter().all(|length| *length > 10), "{lengths:?}");
}
