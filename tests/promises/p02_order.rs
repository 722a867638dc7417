//! First come, first served, over all processes.

use std::sync::{Arc, Mutex};

use crate::stores::{SECOND, hold, on_stores_with_a_queue, until_waiting};

#[tokio::test]
async fn waiters_enter_in_the_order_in_which_they_queued() {
    on_stores_with_a_queue(|store| async move {
        let clients = [
            store.client().await,
            store.client().await,
            store.client().await,
        ];
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
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
        assert_eq!(*entered.lock().unwrap(), (0..30).collect::<Vec<_>>());
    })
    .await;
}
