//! Handlers of an axum router. The handlers' keys and clients are parts of extractors. The placeholder `<id>` stands
//! for the number in an argument `Path(id): Path<u64>`, and `<id.0>` stands for the number in an argument `id:
//! Path<u64>`.

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, State},
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use lock_runtime::{LockClient, LockError, distributed_lock};
use support::guarded::{Probe, guarded, stay};
use tower::ServiceExt as _;

#[derive(Clone)]
struct Shop {
    name: &'static str,
    locks: LockClient,
}

/// The service's response to a request that failed with a `LockError`.
struct ApiError(LockError);

impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.0 {
            LockError::Busy { .. } => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, self.0.to_string()).into_response()
    }
}

#[distributed_lock(key = "order:<id.0>", client = shop.locks)]
async fn pay(shop: State<Shop>, id: Path<u64>, body: String) -> Result<String, ApiError> {
    stay().await;
    Ok(format!("{}: {} paid with {body}", shop.name, *id))
}

/// A handler that uses the client of the enclosing scope, and whose key contains two parts of the path.
#[distributed_lock(key = "<path.0.0>/<path.0.1>")]
async fn cancel(
    State(shop): State<Shop>,
    path: Path<(String, u64)>,
) -> Result<(StatusCode, String), ApiError> {
    let Path((user, id)) = path;
    stay().await;
    Ok((StatusCode::ACCEPTED, format!("{}{user}{id}", shop.name)))
}

#[distributed_lock(key = "order:<id>:<item>", client = shop.locks)]
async fn refund(
    State(shop): State<Shop>,
    Path((id, mut item)): Path<(u64, u64)>,
) -> Result<String, ApiError> {
    item += 1;
    stay().await;
    Ok(format!("{}: {item} of {id} refunded", shop.name))
}

#[distributed_lock(key = "order:<id.0>", wait = "0s", client = shop.locks)]
async fn ship(shop: State<Shop>, id: Path<u64>) -> Result<String, ApiError> {
    stay().await;
    Ok(format!("{}: {} shipped", shop.name, *id))
}

fn router() -> Router {
    Router::new()
        .route("/orders/{id}/pay", post(pay))
        .route("/users/{user}/orders/{id}/cancel", post(cancel))
        .route("/orders/{id}/items/{item}/refund", post(refund))
        .route("/orders/{id}/ship", get(ship))
        .with_state(Shop {
            name: "shop",
            locks: LockClient::current().unwrap(),
        })
}

async fn request(method: &str, path: &str, body: &'static str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::from(body)).unwrap();
    let response = router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1024).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn two_requests_for_one_order_exclude_each_other() {
    let paid = (StatusCode::OK, "shop: 7 paid with cash".to_owned());
    guarded("order:7", paid, async || {
        request("POST", "/orders/7/pay", "cash").await
    })
    .await;
    let cancelled = (StatusCode::ACCEPTED, "shopa b7".to_owned());
    let refunded = (StatusCode::OK, "shop: 9 of 7 refunded".to_owned());
    guarded("order:7:8", refunded, async || {
        request("POST", "/orders/7/items/8/refund", "").await
    })
    .await;
    guarded("a%20b/7", cancelled, async || {
        request("POST", "/users/a%20b/orders/7/cancel", "").await
    })
    .await;
}

/// Each request runs in its own task, as in a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_tasks_exclude_each_other() {
    let paid = (StatusCode::OK, "shop: 7 paid with cash".to_owned());
    guarded("order:7", paid, async || {
        let (client, probe) = (LockClient::current().unwrap(), Probe::current());
        let served = client.scope(request("POST", "/orders/7/pay", "cash"));
        tokio::spawn(probe.scope(served)).await.unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_busy_lock_is_the_services_own_answer() {
    let client = LockClient::connect("memory:").await.unwrap();
    let held = client.lock("order:7").acquire().await.unwrap();
    let (status, text) = client.scope(request("GET", "/orders/7/ship", "")).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(text.contains("order:7"), "{text}");
    held.release().await;
    client.shutdown().await;
    let (status, _) = client.scope(request("GET", "/orders/7/ship", "")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}
