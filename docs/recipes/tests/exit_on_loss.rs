//! A test of the process that ends when it loses a lock.

use std::{os::unix::process::ExitStatusExt, thread, time::Duration};

use lock_runtime::LockClient;
use support::{
    process::{Mortal, of_this_test},
    server::RedisServer,
};

/// A process whose body blocks its thread, so the engine cannot drop it.
#[tokio::test]
#[ignore = "run as a process of its own by the other test"]
async fn blocks_under_a_lock() {
    let url = std::env::var("RECIPE_URL").expect("the other test sets the variable");
    let locks = recipes::exit_on_loss::builder(&url)
        .connect()
        .await
        .unwrap();
    let lock = locks
        .lock("leader")
        .lease(Duration::from_secs(1))
        .renew(true);
    let blocked = lock
        .run(async { thread::sleep(Duration::from_secs(60)) })
        .await;
    panic!("the process goes on after the loss: {blocked:?}");
}

#[tokio::test]
async fn a_process_that_blocks_ends_when_its_lock_is_released_by_force() {
    let server = RedisServer::start().await;
    let url = server.url();
    let command = of_this_test(
        "exit_on_loss::blocks_under_a_lock",
        &[("RECIPE_URL", url.as_str())],
    );
    let mut process = Mortal::start(command).unwrap();
    let operator = LockClient::connect(url).await.unwrap();
    let lock = operator.lock("leader");
    let mut token = None;
    support::until(async || {
        let holder = lock.status().await.unwrap().holder;
        token = holder.and_then(|holder| holder.token);
        token.is_some()
    })
    .await;
    lock.force_release(token.unwrap(), "a test").await.unwrap();
    support::until(async || process.ended().is_some()).await;
    let status = process.ended().unwrap();
    assert_eq!(status.signal(), Some(6), "{status}");
}
