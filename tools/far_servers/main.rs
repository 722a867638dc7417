//! Measures what a client gets from a server that is far away, and writes the table of `docs/guides/far-servers.md`:
//! `cargo run --bin far_servers -- --write`. Without `--write`, the program prints the table.
//!
//! A proxy delays each direction of the client's connections by half of the round trip. A second client is near the
//! server; it holds the lock, and watches the queue.

use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError};
use support::{
    PATIENCE,
    page::{self, Grid},
    proxy::FaultProxy,
    server::RedisServer,
    stores::{MS, SECOND, Store, hold, until_free, until_waiting},
};

/// The measured steps, in the order of the rows.
const STEPS: [&str; 9] = [
    "connect",
    "enter a free lock",
    "release",
    "`Busy` after `wait = \"2s\"`",
    "`Busy` with `wait = \"0s\"`",
    "enter after another holder's release",
    "queue entry gone after the call was dropped",
    "body of 7 s under a renewed lease of 3 s",
    "`shutdown` with one release under way",
];

fn shown(took: Duration) -> String {
    format!("{} ms", took.as_millis())
}

fn busy(result: Result<(), LockError>, began: Instant) -> String {
    match result {
        Err(LockError::Busy { .. }) => shown(began.elapsed()),
        other => format!("{other:?}"),
    }
}

/// Returns the results of all steps over a line with this round trip.
async fn measure(round_trip: Duration) -> Vec<String> {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let near = store.client().await;
    hold(&near, "warm").await.release().await;
    proxy.delay(round_trip / 2);
    let mut results = Vec::new();

    let began = Instant::now();
    let builder = store.through(&proxy.url()).builder();
    let far: LockClient = match builder.connect_within(PATIENCE).await {
        Ok(far) => far,
        Err(error) => return vec![error.to_string()],
    };
    results.push(shown(began.elapsed()));
    // The first call on a runtime opens the runtime's own connection.
    hold(&far, "warm").await.release().await;

    let began = Instant::now();
    let guard = hold(&far, "k").await;
    results.push(shown(began.elapsed()));
    let began = Instant::now();
    guard.release().await;
    results.push(shown(began.elapsed()));

    let guard = hold(&near, "k").await;
    for wait in [2 * SECOND, Duration::ZERO] {
        let began = Instant::now();
        let refused = far.lock("k").wait(wait).acquire().await;
        results.push(busy(refused.map(drop), began));
    }

    let waiting = tokio::spawn(far.lock("k").wait(PATIENCE).acquire());
    until_waiting(&near, "k", 1).await;
    let began = Instant::now();
    guard.release().await;
    let entered = waiting.await.expect("the call does not panic");
    results.push(shown(began.elapsed()));
    entered.expect("the lock is free").release().await;

    let guard = hold(&near, "k").await;
    let waiting = tokio::spawn(far.lock("k").wait(PATIENCE).acquire());
    until_waiting(&near, "k", 1).await;
    let began = Instant::now();
    waiting.abort();
    until_waiting(&near, "k", 0).await;
    results.push(shown(began.elapsed()));
    guard.release().await;

    let renewed = far.lock("k").lease(3 * SECOND).renew(true);
    let ended = renewed.run(tokio::time::sleep(7000 * MS)).await;
    results.push(ended.map_or_else(|error| format!("{error:?}"), |()| "completes".into()));

    drop(hold(&far, "k").await);
    let began = Instant::now();
    far.shutdown().await;
    results.push(shown(began.elapsed()));
    until_free(&near, "k").await;
    results
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut table = Grid::new("", STEPS);
    for round_trip in [20, 100, 200, 300, 600] {
        let results = measure(round_trip * MS).await;
        let mut results = results.into_iter();
        table.column(format!("{round_trip} ms"), |_| results.next());
    }
    let table = table.markdown();
    if std::env::args().any(|arg| arg == "--write") {
        let page = support::root().join("docs/guides/far-servers.md");
        page::update(&page, "measured", &table)?;
    } else {
        print!("{table}");
    }
    Ok(())
}
