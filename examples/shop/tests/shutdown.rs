//! Tests of the graceful shutdown.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{
        Request, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
};
use hyper_util::{
    client::{self, legacy::Client},
    rt::TokioExecutor,
};
use lock_runtime::LockError;
use shop::server::serve;
use support::until;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use crate::fixture::{Gate, LONG, Shop, Store, buy, locks};

type Response = JoinHandle<Result<StatusCode, client::legacy::Error>>;

/// A shop that listens on a port, with one request in progress that waits for the payment provider.
struct Open {
    store: Store,
    shop: Shop,
    payments: Arc<Gate>,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<io::Result<()>>,
    response: Response,
}

/// Sends a request that buys a unit, and returns the status of the response.
fn send(address: SocketAddr, item: &str) -> Response {
    let mut request = buy(item);
    *request.uri_mut() = format!("http://{address}/orders").parse().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let response = client.request(request);
    tokio::spawn(async { Ok(response.await?.status()) })
}

/// Opens a shop with the grace time `grace`, sends it a request, and returns when the request waits for the payment
/// provider.
async fn open(grace: Duration) -> Open {
    let store = Store::new();
    let payments = Arc::new(Gate::default());
    let locks = locks("memory:", LONG).await;
    let shop = store.shop(&locks, payments.clone()).await;
    shop.restock(&store.item, 9).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.unwrap() };
    let served = tokio::spawn(serve(listener, shop.0.clone(), stopped, grace));

    let response = send(address, &store.item);
    payments.asked.notified().await;
    Open {
        store,
        shop,
        payments,
        address,
        stop,
        served,
        response,
    }
}

/// When a shop stops, it accepts no more connections, finishes the requests in progress, and then closes its lock
/// client and its database. A request that still waits for its lock counts as a request in progress.
#[tokio::test]
async fn requests_in_progress_are_finished() {
    let open = open(LONG).await;
    let (store, shop) = (&open.store, &open.shop);
    let lock = shop.0.locks.lock(store.lock_key());
    let waiting = send(open.address, &store.item);
    until(async || lock.status().await.unwrap().waiters == 1).await;
    open.stop.send(()).unwrap();
    until(async || TcpStream::connect(open.address).await.is_err()).await;
    assert!(!open.served.is_finished());
    assert!(lock.status().await.unwrap().holder.is_some());

    open.payments.open.notify_one();
    assert_eq!(open.response.await.unwrap().unwrap(), StatusCode::CREATED);
    open.payments.open.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap(), StatusCode::CREATED);
    open.served.await.unwrap().unwrap();
    assert!(matches!(lock.acquire().await, Err(LockError::ShutDown)));
    assert!(shop.0.database.ping().await.is_err());
    let sold = store.open().await.units_sold(&store.item).await.unwrap();
    assert_eq!(sold, [8, 9]);
}

/// A request that never ends delays the shutdown by no more than the grace time.
#[tokio::test]
async fn a_request_that_hangs_does_not_keep_the_shop_open() {
    let open = open(Duration::from_millis(50)).await;
    open.stop.send(()).unwrap();
    timeout(LONG, open.served).await.unwrap().unwrap().unwrap();
    assert!(!open.response.is_finished());
}

/// A viewer of the live page of locks does not delay the shutdown of the shop.
#[tokio::test]
async fn the_live_page_ends_with_the_shop() {
    let open = open(LONG).await;
    open.payments.open.notify_one();
    open.response.await.unwrap().unwrap();
    let page = format!("http://{}/locks", open.address);
    let page = Request::get(page).header(ACCEPT, "text/event-stream");
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let live = client
        .request(page.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(live.headers()[CONTENT_TYPE], "text/event-stream");
    open.stop.send(()).unwrap();
    timeout(LONG / 2, open.served)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}
