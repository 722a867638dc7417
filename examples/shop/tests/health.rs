//! The health checks.

use axum::http::{StatusCode, header::CONTENT_TYPE};
use lock_runtime::LockClient;

use crate::fixture::{LONG, Store, at_once, locks};

#[tokio::test]
async fn a_shop_is_ready_if_the_database_and_the_lock_server_answer() {
    let store = Store::new();
    let shop = store.shop(&locks("memory:", LONG).await, at_once()).await;
    let answer = shop.get("/health/ready").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        (answer.field("database"), answer.field("locks")),
        ("ok".into(), "ok".into())
    );

    shop.0.database.close().await;
    let answer = shop.get("/health/ready").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.field("database"), "the database fails");
    assert_eq!(answer.field("locks"), "ok");
}

#[tokio::test]
async fn a_shop_is_live_but_not_ready_while_the_lock_server_is_away() {
    let store = Store::new();
    // No server listens on port 1.
    let builder = LockClient::builder().url("redis://127.0.0.1:1/");
    let shop = store
        .shop(&builder.connect_lazy().unwrap(), at_once())
        .await;
    let answer = shop.get("/health/ready").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.field("database"), "ok");
    let locks = answer.field("locks").to_string();
    assert!(locks.contains("was not ready"), "{locks}");
    assert_eq!(shop.get("/health/live").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_page_of_locks_is_mounted() {
    let store = Store::new();
    let shop = store.shop(&locks("memory:", LONG).await, at_once()).await;
    let answer = shop.get("/locks").await;
    assert_eq!(answer.status, StatusCode::OK);
    let kind = answer.headers[CONTENT_TYPE].to_str().unwrap();
    assert!(kind.starts_with("text/html"), "{kind}");
}
