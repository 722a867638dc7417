//! Redlocks with nodes that are down, lose their state, answer late or have clocks that differ.

mod callers;
mod down;
mod forgetful;
mod late;

use std::time::Duration;

use lock_runtime::LockClient;
use support::{history::History, server::RedisServer};
use tokio::{task::JoinSet, time::sleep};

use crate::fixture::{MS, NAMESPACE, SECOND, left, until};

/// The longest time for which a client waits for a node's answer if the lease is 30 s.
const NODE_PATIENCE: Duration = Duration::from_millis(500);
/// The longest time for which a lock stays granted to a caller that is not polled, and so does not take the lock.
const CLAIM: Duration = Duration::from_secs(2);
/// The longest pause between two rounds of requests of an acquisition.
const BACKOFF: Duration = Duration::from_millis(128);

/// The key of a node's mark, which shows whether the node has its state.
const MARK: &str = "lock:fence:whole";

/// Returns a client with this default lease. The lease also affects the quarantine of a node that lost its state, which
/// lasts until the longest lease in use has passed.
async fn client(url: &str, lease: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).namespace(NAMESPACE);
    builder
        .lease(lease)
        .connect_within(support::PATIENCE)
        .await
        .unwrap()
}

/// Returns a client whose connections have already carried requests.
async fn warm(url: &str) -> LockClient {
    let client = client(url, 30 * SECOND).await;
    for _ in 0..3 {
        client.lock("warm").run(async {}).await.unwrap();
        sleep(50 * MS).await;
    }
    client
}

/// Waits until a node stores no grants.
async fn until_empty(server: &RedisServer) {
    until(async || left(server).await.is_empty()).await;
}

async fn is_held_on(server: &RedisServer) -> bool {
    crate::fixture::grant(server).await.is_some()
}

/// The grant that a test stores on a node so that another caller seems to have the lock there.
const OTHERS_GRANT: &str = "1|60000||00000000000000000000000000000001";

/// Contends for `k` with `tasks` tasks for each client, and asserts that the tasks exclude each other.
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
    callers.join_all().await;
    history.check().assert_clean(clients.len() * tasks * turns);
}
