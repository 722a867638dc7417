//! Tests of the printed traces.

use std::sync::Mutex;

use axum::http::HeaderValue;
use shop::telemetry::TracePrinter;
use support::until;
use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

use crate::fixture::{LONG, Store, at_once, buy, locks};

static TRACES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The trace of a request shows how long the request waited for the lock, and how long it held the lock. Only traces of
/// requests with the header `x-trace` are printed.
#[tokio::test]
async fn a_trace_shows_waiting_and_holding() {
    let print = |trace: &str| TRACES.lock().unwrap().push(trace.to_owned());
    tracing_subscriber::registry()
        .with(TracePrinter(print))
        .init();
    let store = Store::new();
    let locks = locks("memory:", LONG).await;
    let shop = store.shop(&locks, at_once()).await;
    shop.restock(&store.item, 9).await;
    shop.buy(&store.item).await;

    let lock = locks.lock(store.lock_key());
    let held = lock.acquire().await.unwrap();
    let mut request = buy(&store.item);
    request
        .headers_mut()
        .insert("x-trace", HeaderValue::from_static("print"));
    let release = async {
        until(async || lock.status().await.unwrap().waiters == 1).await;
        held.release().await;
    };
    tokio::join!(shop.ask(request), release);

    // The trace is sometimes printed a little later than the answer, because a worker thread of SQLite still has a
    // handle to a span of the request.
    until(async || !TRACES.lock().unwrap().is_empty()).await;
    let traces = TRACES.lock().unwrap().clone();
    let [trace] = &traces[..] else {
        panic!("one request is printed: {traces:#?}");
    };
    let lines: Vec<_> = trace.lines().collect();
    let names: Vec<_> = lines
        .iter()
        .map(|line| line.split(" at ").next().unwrap().trim_end())
        .collect();
    let expected = [
        "request",
        "  lock",
        "    lock.wait",
        "    lock.hold",
        "      claim",
        "      authorize",
        "      record",
    ];
    assert_eq!(names, expected, "{trace}");
    assert!(
        lines[0].contains("method=POST  path=/orders  status=201"),
        "{trace}"
    );
    for field in [
        "lock.name=stock:<item>",
        &format!("lock.key={}", store.lock_key()),
        "lock.outcome=granted",
        "lock.token=",
    ] {
        assert!(lines[1].contains(field), "{field}: {trace}");
    }
    // The call first waits for the lock and then holds it, and the request contains the call.
    let rounding = 0.2;
    let (request, call) = (took(lines[0]), took(lines[1]));
    let (wait, hold) = (took(lines[2]), took(lines[3]));
    assert!(request + rounding >= call, "{trace}");
    assert!(call + rounding >= wait + hold, "{trace}");
}

/// Returns for how many milliseconds the span of this line lasted.
fn took(line: &str) -> f64 {
    let (_, text) = line.split_once(" for ").unwrap();
    let number = text.split_whitespace().next().unwrap();
    number.parse().unwrap()
}
