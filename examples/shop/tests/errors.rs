//! Tests of the HTTP answers for errors.

use std::{future::pending, time::Duration};

use axum::{
    body::to_bytes,
    http::{StatusCode, header::RETRY_AFTER},
    response::IntoResponse,
};
use lock_runtime::LockClient;
use serde_json::Value;
use shop::error::ShopError;

use crate::fixture::{Answer, LONG, Store, at_once, locks};

fn expect(answer: &Answer, status: StatusCode, error: &str, retry_after: Option<&str>) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.field("error"), error);
    let header = answer.headers.get(RETRY_AFTER);
    assert_eq!(header.map(|value| value.to_str().unwrap()), retry_after);
}

#[tokio::test]
async fn a_busy_lock_is_503_and_nothing_is_sold() {
    let store = Store::new();
    let locks = locks("memory:", Duration::from_millis(20)).await;
    let shop = store.shop(&locks, at_once()).await;
    shop.restock(&store.item, 9).await;
    let held = locks.lock(store.lock_key()).acquire().await.unwrap();
    let answer = shop.buy(&store.item).await;
    expect(&answer, StatusCode::SERVICE_UNAVAILABLE, "busy", Some("1"));
    shop.expect(&store.item, 9, &[]).await;
    held.release().await;
    assert_eq!(shop.buy(&store.item).await.status, StatusCode::CREATED);
    shop.expect(&store.item, 8, &[9]).await;
}

#[tokio::test]
async fn an_unreachable_lock_server_is_503() {
    let store = Store::new();
    // No server listens on port 1.
    let builder = LockClient::builder().url("redis://127.0.0.1:1/");
    let locks = builder.wait(Duration::from_millis(100)).connect_lazy();
    let shop = store.shop(&locks.unwrap(), at_once()).await;
    let answer = shop.buy(&store.item).await;
    expect(
        &answer,
        StatusCode::SERVICE_UNAVAILABLE,
        "locks_unreachable",
        Some("1"),
    );
}

#[tokio::test]
async fn a_client_that_was_shut_down_is_503() {
    let store = Store::new();
    let locks = locks("memory:", LONG).await;
    let shop = store.shop(&locks, at_once()).await;
    locks.shutdown().await;
    let answer = shop.buy(&store.item).await;
    expect(
        &answer,
        StatusCode::SERVICE_UNAVAILABLE,
        "shutting_down",
        Some("1"),
    );
}

#[tokio::test]
async fn a_mistake_of_the_client_is_4xx() {
    let store = Store::new();
    let shop = store.shop(&locks("memory:", LONG).await, at_once()).await;
    let answer = shop.buy(&store.item).await;
    expect(&answer, StatusCode::NOT_FOUND, "unknown_item", None);
    let answer = shop.buy("").await;
    expect(&answer, StatusCode::BAD_REQUEST, "invalid_item", None);
}

#[tokio::test]
async fn a_lost_lease_is_500_and_tells_the_client_to_check() {
    let locks = locks("memory:", LONG).await;
    let lock = locks.lock("stock:tea").lease(Duration::from_millis(20));
    let lost = lock.run(pending::<()>()).await.unwrap_err();
    let response = ShopError::from(lost).into_response();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(response.headers().get(RETRY_AFTER).is_none());
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["error"], "lost");
    let message = problem["message"].as_str().unwrap();
    assert!(message.contains("may have been placed"), "{message}");
}
