//! Callers of a process whose connections are open, but silent.

use std::time::Instant;

use tokio::task::JoinSet;

use crate::{
    epsilon,
    proxy::FaultProxy,
    server::shared_server,
    stores::{SECOND, Store, hold, until_waiting},
};

/// Queues several callers of one process, and then makes the process's connections silent without closing them. The
/// server does not notice that the connections are silent, and grants the lock to the silent callers. Asserts that all
/// silent callers together delay the next caller by at most two seconds.
///
/// # Panics
/// If the next caller enters later.
pub async fn delayed_by_silent(callers: usize) {
    let store = Store::redis().await;
    let proxy = FaultProxy::start(shared_server().await.port()).await;
    let behind = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    let guard = hold(&client, "k").await;
    let mut silent = JoinSet::new();
    for _ in 0..callers {
        let lock = behind.lock("k").wait(20 * SECOND).lease(60 * SECOND);
        silent.spawn(lock.acquire());
    }
    until_waiting(&client, "k", callers).await;
    let next = tokio::spawn(client.lock("k").wait(20 * SECOND).acquire());
    until_waiting(&client, "k", callers + 1).await;
    proxy.blackhole(true);
    let started = Instant::now();
    guard.release().await;
    let entered = next.await.unwrap().unwrap();
    let took = started.elapsed();
    assert!(took < 2 * SECOND + epsilon(), "{took:?}");
    entered.release().await;
    proxy.blackhole(false);
}
