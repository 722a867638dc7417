//! A shop for tests. This shop needs no servers, because its locks are in this process, and its database is a file.

use std::{env, fs, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode, header::CONTENT_TYPE},
};
use lock_runtime::LockClient;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::Serialize;
use serde_json::{Value, json};
use shop::{
    database::Database,
    error::ShopError,
    http::{App, Delivery, NewOrder, router},
    orders::{OrderService, Payments, PaymentsAfter},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;

/// How long a request waits for a lock. The time is longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An HTTP answer of the shop.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the value of a field of the body.
    pub(crate) fn field(&self, name: &str) -> Value {
        let body: Value = serde_json::from_str(&self.body).expect("the body is JSON");
        body[name].clone()
    }
}

/// A database that one test uses.
pub(crate) struct Store {
    pub(crate) url: String,
    /// The item that the test sells. No other test sells this item, so several tests can use one database.
    pub(crate) item: String,
    folder: PathBuf,
}

impl Store {
    /// Creates a SQLite file, or uses the database in the environment variable `SHOP_TEST_DATABASE`.
    pub(crate) fn new() -> Self {
        let name = Uuid::new_v4().simple();
        let folder = env::temp_dir().join(format!("shop-test-{name}"));
        fs::create_dir(&folder).expect("a folder");
        let file = format!("sqlite:{}?mode=rwc", folder.join("shop.db").display());
        Self {
            url: env::var("SHOP_TEST_DATABASE").unwrap_or(file),
            item: format!("tea-{name}"),
            folder,
        }
    }

    pub(crate) fn lock_key(&self) -> String {
        format!("stock:{}", self.item)
    }

    pub(crate) async fn open(&self) -> Database {
        Database::open(&self.url).await.expect("a database")
    }

    /// Opens a shop on this database.
    pub(crate) async fn shop(&self, locks: &LockClient, payments: Arc<dyn Payments>) -> Shop {
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        self.measured_shop(locks, payments, metrics).await
    }

    /// Opens a shop on this database. The shop's address `/metrics` shows the given metrics.
    pub(crate) async fn measured_shop(
        &self,
        locks: &LockClient,
        payments: Arc<dyn Payments>,
        metrics: PrometheusHandle,
    ) -> Shop {
        let (database, locks) = (self.open().await, locks.clone());
        let orders = OrderService::new(database.clone(), payments, locks.clone());
        Shop(App {
            orders: Arc::new(orders),
            database,
            locks,
            metrics,
            stopping: CancellationToken::new(),
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A shop to which a test sends requests without a network.
#[derive(Clone)]
pub(crate) struct Shop(pub(crate) App);

impl Shop {
    pub(crate) async fn ask(&self, request: Request<Body>) -> Answer {
        let router: Router = router(self.0.clone());
        let response = router.oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.into()).expect("a text"),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Request::get(path).body(Body::empty()).expect("a request"))
            .await
    }

    pub(crate) async fn buy(&self, item: &str) -> Answer {
        self.ask(buy(item)).await
    }

    /// Adds units to the stock of an item.
    pub(crate) async fn restock(&self, item: &str, units: u32) {
        let path = format!("/stock/{item}");
        let answer = self.ask(post(&path, &Delivery { units })).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }

    /// Asserts how many units of an item are left, and which units were sold.
    pub(crate) async fn expect(&self, item: &str, left: i64, sold: &[i64]) {
        let stock = self.get(&format!("/stock/{item}")).await;
        assert_eq!(stock.field("left"), json!(left));
        assert_eq!(self.0.database.units_sold(item).await.unwrap(), sold);
    }
}

/// Returns a request that buys a unit.
pub(crate) fn buy(item: &str) -> Request<Body> {
    let order = NewOrder {
        item: item.to_owned(),
        customer: "ann".to_owned(),
    };
    post("/orders", &order)
}

fn post(path: &str, body: &impl Serialize) -> Request<Body> {
    let body = serde_json::to_vec(body).expect("JSON");
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    request.body(body.into()).expect("a request")
}

/// Returns a client of locks in this process, whose calls wait for `wait`.
pub(crate) async fn locks(url: &str, wait: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).wait(wait);
    builder.connect().await.expect("locks in this process")
}

/// Returns a payment provider that accepts every payment at once.
pub(crate) fn at_once() -> Arc<dyn Payments> {
    Arc::new(PaymentsAfter(Duration::ZERO))
}

/// A payment provider that authorizes a payment only when the test allows it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) asked: Notify,
    pub(crate) open: Notify,
}

#[async_trait]
impl Payments for Gate {
    async fn authorize(&self, _customer: &str) -> Result<String, ShopError> {
        self.asked.notify_one();
        self.open.notified().await;
        Ok("payment".to_owned())
    }
}
