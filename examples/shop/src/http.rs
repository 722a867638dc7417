//! The HTTP interface of the shop.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use lock_page::LockPage;
use lock_runtime::LockClient;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field::Empty, info_span};

use crate::{
    database::Database,
    error::ShopError,
    orders::{Orders, Receipt},
    telemetry,
};

/// The time within which the database and the lock server have to answer a readiness check.
const READY_WITHIN: Duration = Duration::from_secs(1);

/// The shared state that the HTTP handlers use.
#[derive(Debug, Clone)]
pub struct App {
    /// The service that sells items.
    pub orders: Arc<dyn Orders>,
    /// The database, for the readiness check.
    pub database: Database,
    /// The lock client, for the readiness check and the page of locks.
    pub locks: LockClient,
    /// The recorder of the metrics.
    pub metrics: PrometheusHandle,
    /// This token is cancelled when the shop shuts down. The cancellation ends the streams of the live page of locks,
    /// because open streams would delay the shutdown.
    pub stopping: CancellationToken,
}

/// Returns the routes of the shop. A proxy in front of a public shop should forward only `/orders` and `/stock`.
pub fn router(app: App) -> Router {
    let page = LockPage::new(app.locks.clone()).closing(app.stopping.clone());
    Router::new()
        .route("/orders", post(buy))
        .route("/stock/{item}", get(stock).post(restock))
        .layer(middleware::from_fn(traced))
        .route("/health/live", get(async || "live"))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .nest("/locks", page.into_router())
        .with_state(app)
}

/// The body of `POST /orders`.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewOrder {
    /// The name of the item.
    pub item: String,
    /// The buyer.
    pub customer: String,
}

/// The body of `POST /stock/{item}`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Delivery {
    /// The number of units to add.
    pub units: u32,
}

/// The stock of an item.
#[derive(Debug, Serialize)]
pub struct Stock {
    /// The number of units that are left.
    pub left: i64,
}

async fn buy(
    State(app): State<App>,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, Json<Receipt>), ShopError> {
    let receipt = app.orders.buy(&order.item, &order.customer).await?;
    Ok((StatusCode::CREATED, Json(receipt)))
}

async fn stock(State(app): State<App>, Path(item): Path<String>) -> Result<Json<Stock>, ShopError> {
    let left = app.orders.left(&item).await?;
    Ok(Json(Stock { left }))
}

async fn restock(
    State(app): State<App>,
    Path(item): Path<String>,
    Json(delivery): Json<Delivery>,
) -> Result<Json<Stock>, ShopError> {
    let left = app.orders.restock(&item, delivery.units).await?;
    Ok(Json(Stock { left }))
}

/// Answers 200 if the database and the lock server answer within [`READY_WITHIN`], and 503 otherwise.
async fn ready(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let ping = app.locks.ping(READY_WITHIN);
    let (database, locks) = tokio::join!(timeout(READY_WITHIN, app.database.ping()), ping);
    let is_ready = matches!(database, Ok(Ok(()))) && locks.is_ok();
    let database = match database {
        Ok(Ok(())) => "ok",
        Ok(Err(_)) => "the database fails",
        Err(_) => "the database does not answer",
    };
    let locks = locks.map_or_else(|error| error.to_string(), |_| "ok".to_owned());
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let state = json!({ "database": database, "locks": locks });
    (status, Json(state))
}

async fn metrics(State(app): State<App>) -> Response {
    let format = [("content-type", "text/plain; version=0.0.4")];
    (format, app.metrics.render()).into_response()
}

/// Handles a request inside a span. If the request has the header `x-trace`, its trace is printed.
async fn traced(request: Request, next: Next) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let span = if request.headers().contains_key("x-trace") {
        info_span!(target: telemetry::PRINTED, "request", %method, path, status = Empty)
    } else {
        info_span!("request", %method, path, status = Empty)
    };
    let respond = async {
        let response = next.run(request).await;
        Span::current().record("status", response.status().as_u16());
        response
    };
    respond.instrument(span).await
}
