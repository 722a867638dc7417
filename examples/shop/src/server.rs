//! Starts the shop, and stops it without losing a request.

use std::{env, error::Error, io, sync::Arc, time::Duration};

use lock_runtime::{LockClient, URL_VARIABLE};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    database::Database,
    http::{App, router},
    orders::{OrderService, PaymentsAfter},
    telemetry,
};

/// How long a request waits for a lock.
const WAIT: Duration = Duration::from_secs(5);

/// How long the payment provider of the example takes.
const PAYMENT: Duration = Duration::from_millis(5);

/// How long a shutdown waits for the requests in progress. After that, the shutdown waits again, for at most the same
/// time, until the locks are released and the database is closed.
const GRACE: Duration = Duration::from_secs(10);

/// Runs one process of the shop, with the settings in the environment, until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if a setting is wrong, the database does not answer, or the port is taken. The shop also starts if
/// the lock server does not answer. Until the lock server answers, the shop reports that it is not ready.
pub async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    telemetry::install_tracing();
    let metrics = telemetry::install_metrics()?;
    // `LOCK_URL` has no default such as `memory:`, because locks in the memory of one process do not exclude another
    // process.
    let url = env::var(URL_VARIABLE).map_err(
        |_| "set LOCK_URL, for example to redis://127.0.0.1/, or to memory: for one process",
    )?;
    let locks = LockClient::builder()
        .url(url)
        .application("shop")
        .wait(WAIT)
        .connect_lazy()?;
    let database = env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite:shop.db?mode=rwc".into());
    let database = Database::open(&database).await?;
    let listen = env::var("SHOP_LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".into());
    let listener = TcpListener::bind(&listen).await?;
    println!("shop listens on http://{}", listener.local_addr()?);

    let payments = Arc::new(PaymentsAfter(PAYMENT));
    let app = App {
        orders: Arc::new(OrderService::new(database.clone(), payments, locks.clone())),
        database,
        locks,
        metrics,
        stopping: CancellationToken::new(),
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve(listener, app, stop, GRACE).await?;
    Ok(())
}

/// Serves the shop until `stop` completes. Then accepts no more connections, finishes the requests in progress,
/// releases their locks, and closes the database. The order matters, because a request in progress needs its lock and
/// the database, and because its lock must not be released before the request has committed. Waits at most `grace` for
/// the requests, at most `grace` for the release of the locks, and at most `grace` for the end of the database
/// connections.
///
/// # Errors
/// Returns the error of the listener.
pub async fn serve(
    listener: TcpListener,
    app: App,
    stop: impl Future<Output = ()>,
    grace: Duration,
) -> io::Result<()> {
    let App {
        locks,
        database,
        stopping,
        ..
    } = app.clone();
    let is_stopping = stopping.clone().cancelled_owned();
    let out_of_patience = async {
        stop.await;
        stopping.cancel();
        sleep(grace).await;
    };
    tokio::select! {
        served = axum::serve(listener, router(app)).with_graceful_shutdown(is_stopping) => served?,
        () = out_of_patience => tracing::warn!("requests were still in progress after {grace:?}"),
    }
    if let Err(left) = locks.shutdown_within(grace).await {
        tracing::warn!(%left, "locks were still held after {grace:?}: they end with their leases");
    }
    if timeout(grace, database.close()).await.is_err() {
        tracing::warn!("database connections were still in use after {grace:?}");
    }
    tracing::info!("the shop has shut down");
    Ok(())
}
