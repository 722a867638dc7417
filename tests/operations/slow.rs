//! Tests of the log events about bodies that block their threads or outlive their leases, and about long waits.

use std::{error::Error, thread, time::Duration};

use lock_runtime::{LockClient, LockError, OnLost, Strategy, distributed_lock};
use support::server::RedisServer;
use tokio::{
    task::JoinSet,
    time::{self, Instant, sleep},
};

use crate::spans::{logged, record};

const SECOND: Duration = Duration::from_secs(1);

#[distributed_lock(key = "slow:<id>", wait = "60s")]
async fn work(id: &str, time: Duration) -> Result<(), LockError> {
    sleep(time).await;
    Ok(())
}

/// If a poll of a body lasts for two seconds, the engine warns once, while the body still blocks its thread.
#[tokio::test]
async fn a_body_that_blocks_its_thread_is_reported() {
    record();
    let client = LockClient::connect("memory:").await.unwrap();
    let lock = client.lock("blocks").label("job");
    let warned = || logged("blocks", "not polled for 2 s");
    let body = lock.run(async {
        let began = std::time::Instant::now();
        while warned().is_empty() {
            assert!(began.elapsed() < 120 * SECOND, "no warning");
            thread::sleep(SECOND / 100);
        }
        // Another long poll of the same hold is not reported.
        tokio::task::yield_now().await;
        thread::sleep(3 * SECOND);
    });
    body.await.unwrap();
    let warned = warned();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert_eq!(warned[0]["function"], "job");
    assert!(warned[0].contains_key("token"));
}

/// A body blocks its thread beyond the end of its fixed lease. The engine then does not warn that the lease is nearly
/// over, but says how long after the loss the body has ended. A body that ends soon after the loss is not reported.
#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_its_lease_is_reported() {
    record();
    let client = LockClient::connect("memory:").await.unwrap();
    let locks = |key| client.lock(key).label("job").lease(10 * SECOND);
    let ended = |key| logged(key, "the body has ended");
    // `advance` moves the clock within one poll, as a body does that blocks its thread.
    let lost = locks("outlives").run(time::advance(17 * SECOND)).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })));
    let events = ended("outlives");
    assert_eq!(events.len(), 1, "{events:?}");
    let message = &events[0]["message"];
    assert_eq!(message, "the body has ended 7.0 s after its lease was lost");
    assert_eq!(events[0]["function"], "job");
    assert_eq!(logged("outlives", "lease lost").len(), 1);
    assert!(logged("outlives", "80 %").is_empty());

    let goes_on = locks("goes on").on_lost(OnLost::Continue);
    goes_on.run(sleep(13 * SECOND)).await.unwrap();
    assert!(ended("goes on")[0]["message"].contains(" 3.0 s "));
    assert_eq!(logged("goes on", "80 %").len(), 1);

    let lost = locks("prompt").run(sleep(60 * SECOND)).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })));
    locks("in time").run(sleep(5 * SECOND)).await.unwrap();
    assert!(ended("prompt").is_empty() && ended("in time").is_empty());
}

/// A call that has waited for ten seconds is reported once, with the holder. Of several calls for one lock, one is
/// reported.
#[tokio::test(start_paused = true)]
async fn a_long_wait_is_reported_with_the_holder() {
    record();
    let client = LockClient::builder().url("memory:").application("shop");
    let client = client.connect().await.unwrap();
    let waits = || logged("slow:wait", "still waiting");
    let started = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let call = client.scope(work("wait", 12 * SECOND));
        calls.spawn(call);
    }
    sleep(9 * SECOND).await;
    assert!(waits().is_empty());
    sleep(2 * SECOND).await;
    let events = waits();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0]["waited"].starts_with("10"), "{events:?}");
    let function = concat!(module_path!(), "::work");
    assert_eq!(events[0]["function"], function);
    let message = &events[0]["message"];
    assert!(message.contains("held by shop@"), "{message}");
    assert!(message.contains(function), "{message}");
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    assert_eq!(started.elapsed(), 60 * SECOND);

    // A call that spins is reported, too.
    let guard = client.lock("slow:spin").acquire().await.unwrap();
    let spin = client.lock("slow:spin").strategy(Strategy::Spin);
    let busy = spin.wait(25 * SECOND).run(async {}).await;
    assert!(matches!(busy, Err(LockError::Busy { .. })));
    let events = logged("slow:spin", "still waiting");
    assert_eq!(events.len(), 1, "{events:?}");
    guard.release().await;
}

/// The details of `Unreachable` name the server, whether it refuses connections or is silent.
#[tokio::test]
async fn an_unreachable_server_is_named() {
    let client = LockClient::builder().url("redis://127.0.0.1:1/");
    let client = client.wait(SECOND / 5).connect_lazy().unwrap();
    let silent = RedisServer::start().await;
    let address = format!("127.0.0.1:{}", silent.port());
    let other = LockClient::builder().url(silent.url()).wait(SECOND / 5);
    let other = other.connect().await.unwrap();
    other.lock("k").run(async {}).await.unwrap();
    silent.stop_process();
    let unanswered = other.lock("k").run(async {}).await.unwrap_err();
    silent.continue_process();
    let source = unanswered.source().unwrap().to_string();
    assert!(source.contains(&address), "{unanswered:?}");

    let errors = [
        client.lock("k").run(async {}).await.unwrap_err(),
        client.lock("k").status().await.unwrap_err(),
        client.lock("k").try_acquire().await.unwrap_err(),
    ];
    for error in errors {
        let source = error.source().unwrap().to_string();
        assert!(source.contains("127.0.0.1:1"), "{error:?}");
    }
}
