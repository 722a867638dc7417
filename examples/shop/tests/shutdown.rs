//! The graceful shutdown.

use std::sync::Arc;

use axum::{body::Body, http::StatusCode};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use lock_runtime::LockError;
use shop::server::serve;
use support::until;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use crate::fixture::{Gate, LONG, Store, buy, locks};

/// A shop that stops accepts no connections, finishes the request in progress, and then closes its clients.
#[tokio::test]
async fn a_request_in_progress_is_finished() {
    let store = Store::new();
    let locks = locks("memory:", LONG).await;
    let payments = Arc::new(Gate::default());
    let shop = store.shop(&locks, payments.clone()).await;
    shop.restock(&store.item, 9).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, shop.0.clone(), async {
        let _ = stopped.await;
    }));

    let mut request = buy(&store.item);
    *request.uri_mut() = format!("http://{address}/orders").parse().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let response = tokio::spawn(client.request(request));
    payments.asked.notified().await;
    stop.send(()).unwrap();
    until(async || TcpStream::connect(address).await.is_err()).await;
    assert!(!served.is_finished());
    let lock = locks.lock(store.lock_key());
    assert!(lock.status().await.unwrap().holder.is_some());

    payments.open.notify_one();
    assert_eq!(
        response.await.unwrap().unwrap().status(),
        StatusCode::CREATED
    );
    served.await.unwrap().unwrap();
    assert!(matches!(lock.acquire().await, Err(LockError::ShutDown)));
    assert!(shop.0.database.ping().await.is_err());
    assert_eq!(
        store.open().await.units_sold(&store.item).await.unwrap(),
        [9]
    );
}
