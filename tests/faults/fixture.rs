//! Helpers that the tests of the fault matrix share.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, Hold, Lock, LockClient, LockGuard};
use support::{
    assert_lost,
    process::{self, Worker},
    server::{RedisServer, ask},
};
pub(crate) use support::{epsilon, matrix::row, until};
use tokio::{sync::oneshot, task::JoinHandle};
use uuid::Uuid;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The namespace that all processes of one test share.
pub(crate) const NAMESPACE: &str = "faults";

pub(crate) async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).namespace(NAMESPACE);
    let client = builder
        .connect_within(60 * SECOND)
        .await
        .expect("the test server can be reached");
    // `connect` closes the connection of its check. The first call finds the client's own connection.
    let warm = format!("warm:{}", Uuid::new_v4());
    client
        .lock(warm)
        .wait(60 * SECOND)
        .run(async {})
        .await
        .expect("the test server grants the lock");
    client
}

/// Acquires and releases `k`. Returns the token of the grant.
pub(crate) async fn token(client: &LockClient) -> u64 {
    let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
    let token = guard.token().get();
    guard.release().await;
    token
}

/// Waits until `waiters` callers wait for the lock `k`.
pub(crate) async fn until_waiting(client: &LockClient, waiters: usize) {
    until(async || client.lock("k").status().await.unwrap().waiters == waiters).await;
}

/// Starts a task that acquires the lock. The task returns the moment at which it acquired the lock, and the guard.
pub(crate) fn entering(lock: Lock) -> JoinHandle<(Instant, LockGuard)> {
    tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        (Instant::now(), guard)
    })
}

/// Starts a call that keeps the lock until it is notified of the loss. Returns the call's token, and a task that returns
/// the moment of the notification.
pub(crate) async fn holding_until_lost(lock: Lock) -> (FencingToken, JoinHandle<Instant>) {
    let (enters, entered) = oneshot::channel();
    let holding = tokio::spawn(async move {
        let body = async {
            enters.send(Hold::current().unwrap().token()).unwrap();
            std::future::pending::<()>().await;
        };
        assert_lost(&lock.run(body).await);
        Instant::now()
    });
    (entered.await.unwrap(), holding)
}

/// Returns the stored grant of `k`, in the form `token|lease|session_id|owner|words|since`, or `None` if `k` is free.
pub(crate) async fn grant(server: &RedisServer) -> Option<String> {
    let mut connection = server.connection().await;
    ask(&mut connection, redis::cmd("GET").arg(NAME)).await
}

pub(crate) const NAME: &str = "{faults:k}";
pub(crate) const QUEUE: &str = "{faults:k}:queue";

pub(crate) fn token_of(grant: &str) -> u64 {
    grant.split('|').next().unwrap().parse().unwrap()
}

/// Starts a worker process, which carries out `task` with the lock `k` and prints each step.
pub(crate) fn worker(server: &RedisServer, task: &str, lease_ms: u64) -> Worker {
    worker_at(&server.url(), task, lease_ms)
}

pub(crate) fn worker_at(url: &str, task: &str, lease_ms: u64) -> Worker {
    Worker::start(worker_command(url, task, lease_ms))
}

/// Returns the command that starts a worker process for this task.
pub(crate) fn worker_command(url: &str, task: &str, lease_ms: u64) -> Command {
    process::of_this_test(
        "holder::processes::worker_process",
        &[
            ("WORKER_URL", url),
            ("WORKER_TASK", task),
            ("WORKER_LEASE_MS", &lease_ms.to_string()),
        ],
    )
}

/// Returns the keys on the test's own server, except the counters of fencing tokens.
pub(crate) async fn left(server: &RedisServer) -> Vec<String> {
    let keys = server.keys().await.into_iter();
    keys.filter(|key| !key.contains("fence")).collect()
}

/// Takes the right to use `CLIENT KILL` away from the server's default user, so that a client cannot close its old
/// connections.
pub(crate) async fn refuse_client_kill(server: &RedisServer) {
    let mut rules = redis::cmd("ACL");
    // In Redis 6.2, a rule cannot remove `CLIENT KILL` alone. These rules therefore remove `CLIENT`, and allow two
    // subcommands.
    let others = ["-client", "+client|id", "+client|setname"];
    rules.arg("SETUSER").arg("default").arg(&others);
    ask::<()>(&mut server.connection().await, &rules).await;
}

/// Lets a server refuse all writes, or accept them again.
pub(crate) async fn set_writable(server: &RedisServer, is_writable: bool) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("min-replicas-to-write");
    set.arg(u8::from(!is_writable));
    ask::<()>(&mut server.connection().await, &set).await;
}
