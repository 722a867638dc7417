//! Tests of the layer that handles each request under a lock.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Request, StatusCode},
    routing::get,
};
use lock_runtime::{LockClient, LockError};
use recipes::lock_layer::LockLayer;
use tokio::{
    join,
    time::{Instant, sleep},
};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

use crate::fixture::machines;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a service that takes a second for each request.
fn service(
    locks: &LockClient,
) -> impl Service<u64, Response = u64, Error = BoxError, Future: Send> + Clone {
    let work = service_fn(async |id: u64| {
        sleep(SECOND).await;
        Ok::<_, BoxError>(id)
    });
    LockLayer::new(locks.clone(), |id: &u64| format!("order:{id}")).layer(work)
}

#[tokio::test(start_paused = true)]
async fn requests_with_one_key_are_handled_one_after_another() {
    let [one, other] = machines().await;
    let start = Instant::now();
    let (first, second, third) = join!(
        service(&one).oneshot(7),
        service(&other).oneshot(7),
        service(&one).oneshot(8),
    );
    assert_eq!((first.unwrap(), second.unwrap(), third.unwrap()), (7, 7, 8));
    assert_eq!(start.elapsed(), 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_or_loses_its_lock_releases_it() {
    let [one, other] = machines().await;
    let dropped = tokio::time::timeout(SECOND / 2, service(&one).oneshot(7)).await;
    assert!(dropped.is_err());
    let testing = one.testing().expect("the client is in-process");
    let (lost, ()) = join!(service(&one).oneshot(7), async {
        sleep(SECOND / 2).await;
        assert!(testing.lose("order:7"));
    });
    let error = lost.unwrap_err();
    let error = error.downcast_ref::<LockError>();
    assert!(matches!(error, Some(LockError::Lost { .. })), "{error:?}");
    let next = other.lock("order:7").try_acquire().await;
    next.expect("the lock is free").release().await;
}

#[tokio::test(start_paused = true)]
async fn an_axum_router_answers_with_the_status_of_the_error() {
    let [locks, _] = machines().await;
    let answer = async |error: BoxError| {
        let error = error.downcast_ref::<LockError>();
        let status = error.map_or(500, LockError::http_status);
        StatusCode::from_u16(status).expect("a status of HTTP")
    };
    let key =
        |request: &Request<Body>| format!("path:{}", lock_runtime::escape(request.uri().path()));
    let layers = (
        HandleErrorLayer::new(answer),
        LockLayer::new(locks.clone(), key),
    );
    let router: Router = Router::new().route("/orders", get(async || "sold").layer(layers));
    let ask = async || {
        let request = Request::get("/orders").body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(ask().await, StatusCode::OK);
    locks
        .testing()
        .expect("in-process")
        .unreachable(60 * SECOND);
    assert_eq!(ask().await, StatusCode::SERVICE_UNAVAILABLE);
}
