//! Tests of the check whether the lock server answers, and of the shutdown with a time limit.

use std::{error::Error, time::Duration};

use lock_runtime::{LockClient, LockError, distributed_lock};
use support::{PATIENCE, proxy::FaultProxy, server::RedisServer, until};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

#[distributed_lock(key = "lifecycle:<id>")]
async fn work(id: u64, time: Duration) -> Result<(), LockError> {
    sleep(time).await;
    Ok(())
}

/// A ping succeeds while the server answers, and names the server and the cause while it does not. A ping takes no lock.
#[tokio::test]
async fn a_ping_tells_whether_the_server_answers() {
    let mut server = RedisServer::start().await;
    let client = LockClient::builder().url(server.url());
    let client = client.connect_lazy().unwrap();
    client.ping(30 * SECOND).await.unwrap();
    server.kill();
    support::until(async || client.ping(SECOND).await.is_err()).await;
    let address = format!("127.0.0.1:{}", server.port());
    let error = client.ping(SECOND / 5).await.unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    assert!(error.source().is_some());
    server.restart().await;
    support::until(async || client.ping(SECOND).await.is_ok()).await;
    client.shutdown().await;
    let error = client.ping(SECOND).await.unwrap_err();
    assert_eq!(
        error.source().unwrap().to_string(),
        "the client was shut down"
    );
}

/// A shutdown with a time limit names the bodies that still run at its limit, and leaves nothing once they have ended.
#[tokio::test(start_paused = true)]
async fn a_shutdown_names_the_bodies_that_it_leaves() {
    let client = LockClient::connect("memory:").await.unwrap();
    let long = tokio::spawn(client.scope(work(2, 60 * SECOND)));
    let short = tokio::spawn(client.scope(work(1, 5 * SECOND)));
    let guard = client
        .lock("guard")
        .label("report")
        .acquire()
        .await
        .unwrap();
    sleep(SECOND).await;

    let started = Instant::now();
    let left = client.shutdown_within(20 * SECOND).await.unwrap_err();
    assert_eq!(started.elapsed(), 20 * SECOND);
    let held: Vec<_> = left
        .running
        .iter()
        .map(|hold| (hold.key.as_str(), hold.function))
        .collect();
    let function = concat!(module_path!(), "::work");
    assert_eq!(held, [("guard", "report"), ("lifecycle:2", function)]);
    assert_eq!(left.running[0].token, guard.token());
    assert_eq!(left.unconfirmed, 0);
    let text = left.to_string();
    let expected = format!("still held: guard (`report`, token {})", guard.token());
    assert!(text.starts_with(&expected), "{text}");
    short.await.unwrap().unwrap();

    drop(guard);
    assert_eq!(client.shutdown_within(60 * SECOND).await, Ok(()));
    assert_eq!(started.elapsed(), 59 * SECOND, "the second body has ended");
    long.await.unwrap().unwrap();
}

/// A shutdown with a time limit counts the releases that a silent server has not confirmed.
#[tokio::test]
async fn a_shutdown_counts_the_releases_without_confirmation() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.lock("silent").lease(600 * SECOND);
    let guard = lock.acquire().await.unwrap();
    server.stop_process();
    drop(guard);
    let left = client.shutdown_within(SECOND).await.unwrap_err();
    server.continue_process();
    assert_eq!((left.running.len(), left.unconfirmed), (0, 1));
    assert_eq!(left.to_string(), "without confirmation: 1");
}

/// A shutdown with a time limit counts a refused call whose request was granted, if the answer has not arrived.
#[tokio::test]
async fn a_shutdown_counts_the_calls_without_an_answer() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = LockClient::connect(proxy.url()).await.unwrap();
    client.lock("warm").run(async {}).await.unwrap();
    proxy.hold_replies(true);
    let lock = client.lock("granted").wait(60 * SECOND);
    let call = tokio::spawn(async move { lock.run(async {}).await });
    until(async || {
        server
            .keys()
            .await
            .iter()
            .any(|key| key.contains("granted"))
    })
    .await;
    let left = client.shutdown_within(60 * SECOND).await.unwrap_err();
    assert_eq!((left.running.len(), left.unconfirmed), (0, 1));
    assert_eq!(call.await.unwrap(), Err(LockError::ShutDown));
    proxy.hold_replies(false);
}

/// Over a line with a round trip of 600 ms, the server answers each check of a shutdown, so the shutdown waits for a body
/// that runs for longer than it waits for a silent server (10 s).
#[tokio::test]
async fn a_shutdown_waits_for_a_body_on_a_far_server() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.delay(Duration::from_millis(300));
    let client = LockClient::builder().url(proxy.url());
    let client = client.connect_within(PATIENCE).await.unwrap();
    let guard = client.lock("far").acquire().await.unwrap();
    let body = guard.run(async {
        let down = client.shutdown_within(600 * SECOND);
        tokio::select! {
            left = down => panic!("{left:?} before the end of the body"),
            () = sleep(13 * SECOND) => {}
        }
    });
    body.await.unwrap();
    guard.release().await;
    assert_eq!(client.shutdown_within(600 * SECOND).await, Ok(()));
}
