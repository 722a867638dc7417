//! Checks that the metrics at `/metrics` count exactly the requests that the test has sent.

#[expect(dead_code, reason = "the other test target uses the rest")]
mod fixture;

use std::{collections::BTreeMap, time::Duration};

use axum::http::StatusCode;
use shop::telemetry::install_metrics;
use support::until;

use crate::fixture::{LONG, Shop, Store, at_once, locks};

/// Returns the metrics of the lock `stock:<item>` from `/metrics`. Leaves out the times in the histograms, because they
/// differ from run to run.
async fn series(shop: &Shop) -> BTreeMap<String, f64> {
    let text = shop.get("/metrics").await.body;
    let label = "name=\"stock:<item>\",kind=\"exclusive\"";
    let lines = text.lines().filter(|line| line.contains(label));
    let series = lines.map(|line| line.rsplit_once(' ').expect("a series and its value"));
    let series = series.filter(|(name, _)| !name.contains("_bucket{") && !name.contains("_sum{"));
    let series = series.map(|(name, value)| {
        let value = value.parse().expect("a number");
        (name.replace(label, ""), value)
    });
    series.collect()
}

#[tokio::test]
async fn metrics_equal_what_was_done() {
    let metrics = install_metrics().unwrap();
    let store = Store::new();
    let url = format!("memory:{}", store.item);
    let patient = locks(&url, LONG).await;
    let impatient = locks(&url, Duration::from_millis(20)).await;
    let shop = store
        .measured_shop(&patient, at_once(), metrics.clone())
        .await;
    let hasty = store.measured_shop(&impatient, at_once(), metrics).await;

    // The lock is granted once for the added units, once for each of the two sold units, and once for the buyer that
    // gets no unit.
    shop.restock(&store.item, 2).await;
    for status in [
        StatusCode::CREATED,
        StatusCode::CREATED,
        StatusCode::CONFLICT,
    ] {
        assert_eq!(shop.buy(&store.item).await.status, status);
    }
    // Three requests find the lock busy, and a fourth request is dropped while it waits for the lock.
    let lock = patient.lock(store.lock_key()).label("test");
    let held = lock.acquire().await.unwrap();
    for _ in 0..3 {
        let answer = hasty.buy(&store.item).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    let waiting = tokio::spawn({
        let (shop, item) = (shop.clone(), store.item.clone());
        async move { shop.buy(&item).await }
    });
    until(async || lock.status().await.unwrap().waiters == 1).await;
    assert_eq!(series(&shop).await["lock_waiting{}"], 1.0);
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    held.release().await;

    let expected = [
        ("lock_acquire_seconds_count{,outcome=\"busy\"}", 3.0),
        ("lock_acquire_seconds_count{,outcome=\"dropped\"}", 1.0),
        ("lock_acquire_seconds_count{,outcome=\"granted\"}", 4.0),
        ("lock_held_seconds_count{,outcome=\"released\"}", 4.0),
        ("lock_holding{}", 0.0),
        ("lock_waiting{}", 0.0),
        // These counters exist before their first event.
        ("lock_lease_warnings_total{}", 0.0),
        ("lock_lost_total{,reason=\"expired\"}", 0.0),
        ("lock_lost_total{,reason=\"not_held\"}", 0.0),
        ("lock_renewals_total{,outcome=\"failed\"}", 0.0),
        ("lock_renewals_total{,outcome=\"renewed\"}", 0.0),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(series(&shop).await, BTreeMap::from(expected));
}
