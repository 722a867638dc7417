//! The demo: a Redis server, two processes of the shop with one SQLite file, and many buyers.

use std::{env, error::Error, fs, mem, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use support::{
    process::{Worker, dies_with_parent},
    server::{RedisServer, is_installed},
};
use tokio::{signal::ctrl_c, task::JoinSet, time::sleep};
use uuid::Uuid;

use crate::database::Database;

const ITEM: &str = "tea";
const UNITS: i64 = 40;
const BUYERS: u32 = 100;
/// The number of buyers that come first. The other buyers come when each of these buyers has bought a unit.
const EARLY_BUYERS: u32 = 20;
/// The number of the buyer whose request has the header `x-trace`. This buyer is one of the early buyers, so it gets a
/// unit.
const TRACED_BUYER: u32 = 7;
/// How long a buyer waits before it repeats a request to a busy shop. The shop's header `Retry-After` has the same
/// time.
const RETRY: Duration = Duration::from_secs(1);

type Failure = Box<dyn Error + Send + Sync>;

/// When the demo ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The demo ends after the sale.
    AfterSale,
    /// The demo ends when Ctrl-C is pressed.
    AtCtrlC,
}

/// Runs the demo.
///
/// # Errors
/// Returns an error if `redis-server` is not installed, or if not every unit was sold exactly once.
pub async fn run(end: End) -> Result<(), Failure> {
    if !is_installed("redis-server") {
        return Err("the demo needs `redis-server`: install the package redis-server (apt-get) or redis (brew)".into());
    }
    let folder = env::temp_dir().join(format!("shop-{}", Uuid::new_v4().simple()));
    fs::create_dir(&folder)?;
    let database = format!("sqlite:{}?mode=rwc", folder.join("shop.db").display());
    let outcome = sell(&database, end).await;
    fs::remove_dir_all(&folder)?;
    outcome
}

async fn sell(database: &str, end: End) -> Result<(), Failure> {
    let redis = RedisServer::start().await;
    println!("redis-server at {}", redis.url());
    let mut shops = Vec::new();
    for _ in 0..2 {
        shops.push(Shop::start(database, &redis.url()).await?);
    }

    let client = Client::builder(TokioExecutor::new()).build_http();
    let url = format!("{}/stock/{ITEM}", shops[0].url);
    let (_, stock) = post(&client, &url, &json!({ "units": UNITS }), false).await?;
    println!(
        "{BUYERS} buyers want one unit each, {} units are in stock",
        stock["left"]
    );

    let mut buyers = JoinSet::new();
    let mut units = Vec::new();
    for number in 0..BUYERS {
        if number == EARLY_BUYERS {
            units.extend(
                mem::take(&mut buyers)
                    .join_all()
                    .await
                    .into_iter()
                    .flatten(),
            );
        }
        let shop = &shops[number as usize % shops.len()].url;
        buyers.spawn(buy(client.clone(), format!("{shop}/orders"), number));
    }
    units.extend(buyers.join_all().await.into_iter().flatten());
    units.sort_unstable();

    // Each unit has to be in exactly one receipt and in exactly one order, and the stock has to be empty.
    let expected: Vec<i64> = (1..=UNITS).collect();
    let database = Database::open(database).await?;
    if units != expected
        || database.units_sold(ITEM).await? != expected
        || database.left(ITEM).await? != 0
    {
        return Err(format!("the sale went wrong: the units {units:?} were sold").into());
    }
    database.close().await;
    println!("every unit was sold exactly once: {} receipts", units.len());

    if end == End::AtCtrlC {
        for shop in &shops {
            println!("{0}/locks  {0}/metrics  {0}/health/ready", shop.url);
        }
        println!("press Ctrl-C to end");
        ctrl_c().await?;
    }
    for shop in &mut shops {
        shop.stop().await;
    }
    Ok(())
}

/// A running process of the shop, and its URL.
struct Shop {
    process: Worker,
    url: String,
}

impl Shop {
    async fn start(database: &str, locks: &str) -> Result<Self, Failure> {
        let mut command = dies_with_parent(env::current_exe()?);
        command
            .env("DATABASE_URL", database)
            .env("LOCK_URL", locks)
            .env("SHOP_LISTEN", "127.0.0.1:0");
        let mut process = Worker::start(command);
        let line = process.line().await.ok_or("a shop has ended")?;
        println!("{line}");
        let url = line.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(Self { process, url })
    }

    /// Sends SIGTERM, and waits until the process has ended.
    async fn stop(&mut self) {
        self.process.signal("TERM");
        while self.process.line().await.is_some() {}
    }
}

type HttpClient = Client<HttpConnector, Body>;

/// Repeats the request for one unit until the shop sells a unit or is sold out. Returns the number of the sold unit.
async fn buy(client: HttpClient, url: String, number: u32) -> Option<i64> {
    let order = json!({ "item": ITEM, "customer": format!("buyer {number}") });
    loop {
        match post(&client, &url, &order, number == TRACED_BUYER).await {
            Ok((StatusCode::SERVICE_UNAVAILABLE, _)) => sleep(RETRY).await,
            Ok((_, answer)) => return answer["unit"].as_i64(),
            Err(failure) => {
                eprintln!("buyer {number}: {failure}");
                return None;
            }
        }
    }
}

/// Sends a request, and returns the status and the body of the answer.
async fn post(
    client: &HttpClient,
    url: &str,
    body: &Value,
    trace: bool,
) -> Result<(StatusCode, Value), Failure> {
    let mut request = Request::post(url).header("content-type", "application/json");
    if trace {
        request = request.header("x-trace", "print");
    }
    let response = client
        .request(request.body(body.to_string().into())?)
        .await?;
    let status = response.status();
    let body = to_bytes(Body::new(response.into_body()), usize::MAX).await?;
    Ok((status, serde_json::from_slice(&body)?))
}
