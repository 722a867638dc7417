//! Quorums: nodes that are down, lose their state, answer late or have a different time.

mod callers;
mod down;
mod forgetful;
mod late;

use std::time::Duration;

use lock_runtime::LockClient;
use support::{history::History, server::RedisServer};
use tokio::{task::JoinSet, time::sleep};

use crate::fixture::{MS, NAMESPACE, SECOND, left, until};

/// How long a node may take to answer for a lease of 30 s.
const NODE_PATIENCE: Duration = Duration::from_millis(500);
/// How long a lock stays granted to a caller that is not polled.
const CLAIM: Duration = Duration::from_secs(2);
/// The longest pause between two rounds.
const BACKOFF: Duration = Duration::from_millis(128);

/// A client with this default lease. A node that lost its state is not counted for the longest of these leases.
async fn client(url: &str, lease: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).namespace(NAMESPACE);
    builder.lease(lease).connect().await.unwrap()
}

/// A client whose connections exist, those of this runtime too, and that has asked the nodes over them.
async fn warm(url: &str) -> LockClient {
    let client = client(url, 30 * SECOND).await;
    for _ in 0..3 {
        client.lock("warm").run(async {}).await.unwrap();
        sleep(50 * MS).await;
    }
    client
}

/// Waits until a node has no grants.
async fn until_empty(server: &RedisServer) {
    until(async || left(server).await.is_empty()).await;
}

async fn is_held_on(server: &RedisServer) -> bool {
    crate::fixture::grant(server).await.is_some()
}

/// The grant of another caller on one node.
const OTHERS_GRANT: &str = "1|60000||00000000000000000000000000000001";

/// Contends for `k` with this many tasks for each client, and checks that they exclude each other.
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
