//! Tests of the idempotent `POST`.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header::RETRY_AFTER},
    routing,
};
use lock_runtime::LockClient;
use recipes::idempotent_post::{TABLES, post};
use tokio::{join, time};
use tower::ServiceExt;

use crate::fixture::{Store, machines};

const PAYMENTS: &str = "SELECT COUNT(*) FROM payments";

/// The status of an answer, its body, and its header `Retry-After`.
type Answer = (StatusCode, String, Option<String>);

async fn pay(locks: &LockClient, store: &Store, key: &str, request: &str) -> Answer {
    let state = (locks.clone(), store.database.clone());
    let router: Router = Router::new()
        .route("/payments", routing::post(post))
        .with_state(state);
    let request = Request::post("/payments")
        .header("Idempotency-Key", key)
        .body(request.to_owned());
    let response = router
        .oneshot(request.unwrap().map(Body::from))
        .await
        .unwrap();
    let status = response.status();
    let pause = response.headers().get(RETRY_AFTER);
    let pause = pause.map(|pause| pause.to_str().unwrap().to_owned());
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.into()).unwrap(), pause)
}

#[tokio::test]
async fn equal_requests_pay_once_and_get_one_answer() {
    let store = Store::new(TABLES).await;
    let [one, other] = machines().await;
    let (first, second) = join!(
        pay(&one, &store, "k", "5 EUR"),
        pay(&other, &store, "k", "5 EUR")
    );
    assert_eq!(first, (StatusCode::OK, "payment 1".to_owned(), None));
    assert_eq!(second, first);
    assert_eq!(pay(&one, &store, "k", "5 EUR").await, first);
    assert_eq!(store.number(PAYMENTS).await, 1);

    let reused = pay(&one, &store, "k", "6 EUR").await;
    assert_eq!(reused.0, StatusCode::UNPROCESSABLE_ENTITY);
    let without_a_key = pay(&one, &store, "", "5 EUR").await;
    assert_eq!(without_a_key.0, StatusCode::BAD_REQUEST);
    assert_eq!(pay(&one, &store, "l", "5 EUR").await.1, "payment 2");
}

#[tokio::test]
async fn a_request_without_its_lock_can_be_repeated() {
    let store = Store::new(TABLES).await;
    let [one, other] = machines().await;
    let held = other.lock("payment:k").acquire().await.unwrap();
    // These requests do not reach the database, so the clock can be paused.
    time::pause();
    let busy = pay(&one, &store, "k", "5 EUR").await;
    assert_eq!(
        busy,
        (StatusCode::CONFLICT, String::new(), Some("1".to_owned()))
    );
    one.testing()
        .expect("in-process")
        .unreachable(Duration::from_secs(60));
    let unreachable = pay(&one, &store, "k", "5 EUR").await;
    assert_eq!(unreachable.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unreachable.2.as_deref(), Some("1"));
    time::resume();
    held.release().await;
    assert_eq!(store.number(PAYMENTS).await, 0);
}

/// A request loses its lock while the database delays its work. The client repeats it, because it got no answer.
#[tokio::test]
async fn a_request_that_loses_its_lock_pays_once() {
    let store = Store::new(TABLES).await;
    let [one, other] = machines().await;
    let mut writer = store.database.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut *writer)
        .await
        .unwrap();
    let testing = one.testing().expect("the client is in-process");
    let (lost, ()) = join!(
        pay(&one, &store, "k", "5 EUR"),
        support::until(async || testing.lose("payment:k")),
    );
    assert_eq!(
        lost,
        (StatusCode::INTERNAL_SERVER_ERROR, String::new(), None)
    );
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut *writer)
        .await
        .unwrap();
    assert_eq!(pay(&other, &store, "k", "5 EUR").await.0, StatusCode::OK);
    assert_eq!(store.number(PAYMENTS).await, 1);
}

/// A later holder stores its answer while a late holder does its work, here by a trigger.
#[tokio::test]
async fn the_primary_key_undoes_the_work_of_a_late_request() {
    let store = Store::new(TABLES).await;
    let [one, _] = machines().await;
    let later = "CREATE TRIGGER later AFTER INSERT ON payments
        BEGIN INSERT INTO answers VALUES ('k', '', ''); END";
    store.run(later).await;
    let late = pay(&one, &store, "k", "5 EUR").await;
    assert_eq!(late.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(store.number(PAYMENTS).await, 0);
}
