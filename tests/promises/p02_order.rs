//! Promise 2: first come, first served, across all processes.

use std::sync::{Arc, Mutex};

use lock_runtime::LockClient;
use support::{
    PATIENCE,
    server::{ask, shared_server},
};

use crate::stores::{
    SECOND, Store, hold, on_every_topology_with_a_queue, on_stores_with_a_queue, until,
    until_waiting,
};

#[tokio::test]
async fn waiters_enter_in_the_order_in_which_they_queued() {
    on_every_topology_with_a_queue(|store| async move {
        let clients: [LockClient; 3] = store.clients().await;
        let guard = hold(&clients[0], "k").await;
        let entered = Arc::new(Mutex::new(Vec::new()));
        let mut callers = tokio::task::JoinSet::new();
        for place in 0..30 {
            let (client, entered) = (clients[place % 3].clone(), entered.clone());
            callers.spawn(async move {
                let body = async { entered.lock().unwrap().push(place) };
                client.lock("k").wait(20 * SECOND).run(body).await.unwrap();
            });
            until_waiting(&clients[0], "k", place + 1).await;
        }
        guard.release().await;
        callers.join_all().await;
        assert_eq!(*entered.lock().unwrap(), (0..30).collect::<Vec<_>>());
    })
    .await;
}

/// Callers of one client that are neighbours in the queue share a grant, and pass it to each other in order. These
/// callers do not overtake the callers of other clients.
#[tokio::test]
async fn neighbours_of_one_client_keep_the_order_with_others() {
    const CLIENTS: [usize; 20] = [1, 1, 1, 2, 2, 1, 2, 1, 1, 1, 1, 2, 0, 0, 1, 0, 2, 2, 2, 1];
    on_stores_with_a_queue(|store| async move {
        let clients: [LockClient; 3] = store.clients().await;
        let guard = hold(&clients[0], "k").await;
        let (entering, mut entered) = tokio::sync::mpsc::unbounded_channel();
        for (place, client) in CLIENTS.into_iter().enumerate() {
            let (client, entering) = (clients[client].clone(), entering.clone());
            tokio::spawn(async move {
                let guard = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
                entering.send((place, guard)).unwrap();
            });
            until_waiting(&clients[0], "k", place + 1).await;
        }
        guard.release().await;
        let mut newest = None;
        for place in 0..CLIENTS.len() {
            let (caller, guard) = entered.recv().await.unwrap();
            assert_eq!(caller, place);
            assert!(newest < Some(guard.token()), "the tokens do not rise");
            newest = Some(guard.token());
            if store.is_redis() && place == 0 {
                let grant = stored(&store).await;
                assert_eq!(
                    grant.split(' ').count(),
                    3,
                    "the first three callers are not a cohort: {grant}"
                );
            }
            guard.release().await;
        }
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

/// Returns the current grant of `k`, as the server stores it.
async fn stored(store: &Store) -> String {
    let mut redis = shared_server().await.connection().await;
    ask(&mut redis, redis::cmd("GET").arg(store.name("k"))).await
}

/// A Redlock and Redisson's layout have no queue. A waiting caller stores nothing on the servers, so the servers do not
/// know the order of the callers. All callers enter nevertheless.
#[tokio::test]
async fn without_a_queue_the_servers_know_nobody_who_waits_and_all_enter() {
    const CALLERS: usize = 10;
    for store in [Store::redlock().await, Store::redisson().await] {
        eprintln!("on {store:?}");
        let [client, other] = store.clients().await;
        let guard = hold(&other, "k").await;
        let before = client.stats().commands;
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let lock = client.lock("k").wait(PATIENCE);
            callers.spawn(async move { lock.run(async {}).await });
        }
        // After this number of commands, each caller has made a try, or waits for its turn to try.
        until(async || client.stats().commands > before + 4 * CALLERS as u64).await;
        let mut keys = store.keys().await;
        keys.dedup();
        assert_eq!(keys, [store.name("k")]);
        assert_eq!(client.lock("k").status().await.unwrap().waiters, 0);
        guard.release().await;
        for entered in callers.join_all().await {
            entered.unwrap();
        }
    }
}
