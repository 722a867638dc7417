//! Tests of sales: the locks and the fenced writes keep the stock correct.

use axum::http::StatusCode;
use lock_runtime::{FencingToken, LockError};
use serde_json::json;
use shop::{database::Sale, error::ShopError};
use sqlx::{AnyConnection, Connection};
use std::sync::Arc;
use support::until;
use tokio::task::JoinSet;

use crate::fixture::{Gate, LONG, Store, at_once, locks};

/// Fifty buyers buy each unit once. The buyers use two shops that share the locks and the database, like two processes
/// of the shop.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_buyers_buy_each_unit_once() {
    let store = Store::new();
    let url = format!("memory:{}", store.item);
    let mut shops = Vec::new();
    for _ in 0..2 {
        shops.push(store.shop(&locks(&url, LONG).await, at_once()).await);
    }
    shops[0].restock(&store.item, 30).await;

    let mut buyers = JoinSet::new();
    for number in 0..50 {
        let (shop, item) = (shops[number % 2].clone(), store.item.clone());
        buyers.spawn(async move { shop.buy(&item).await });
    }
    let answers = buyers.join_all().await;
    let with = |status| answers.iter().filter(move |answer| answer.status == status);
    assert_eq!(with(StatusCode::CREATED).count(), 30);
    assert_eq!(with(StatusCode::CONFLICT).count(), 20);
    assert!(with(StatusCode::CONFLICT).all(|answer| answer.field("error") == "sold_out"));

    let units: Vec<i64> = (1..=30).collect();
    shops[1].expect(&store.item, 0, &units).await;
    // A later buyer gets a higher token, and a unit with a lower number, because fewer units are left.
    let mut receipts: Vec<_> = with(StatusCode::CREATED)
        .map(|answer| {
            (
                answer.field("token").as_u64(),
                answer.field("unit").as_i64(),
            )
        })
        .collect();
    receipts.sort_unstable();
    assert!(
        receipts.is_sorted_by(|one, next| one.0 < next.0 && one.1 > next.1),
        "{receipts:?}"
    );
}

/// The database refuses each kind of write whose token is lower than the stored token.
#[tokio::test]
async fn a_lower_token_is_refused() {
    let store = Store::new();
    let database = store.open().await;
    let (item, token) = (store.item.as_str(), FencingToken::new);
    let sale = Sale {
        order: store.item.clone(),
        item,
        unit: 9,
        customer: "ann",
        payment: "payment".into(),
    };
    let unknown = database.claim(item, token(1)).await;
    assert!(matches!(unknown, Err(ShopError::UnknownItem)));

    assert_eq!(database.restock(item, 9, token(4)).await.unwrap(), 9);
    assert_eq!(database.claim(item, token(5)).await.unwrap(), 9);
    let late = [
        database.restock(item, 1, token(4)).await.map(drop),
        database.claim(item, token(4)).await.map(drop),
        database.record(&sale, token(4)).await,
    ];
    for refused in late {
        assert!(matches!(refused, Err(ShopError::Overtaken)), "{refused:?}");
    }
    assert_eq!(database.left(item).await.unwrap(), 9);
    assert!(database.units_sold(item).await.unwrap().is_empty());

    // Several writes with the same token are allowed.
    assert_eq!(database.claim(item, token(5)).await.unwrap(), 9);
    database.record(&sale, token(5)).await.unwrap();
    assert_eq!(database.left(item).await.unwrap(), 8);
    assert_eq!(database.units_sold(item).await.unwrap(), [9]);
}

/// During the payment, a holder with a higher token writes to the database. The shop then sells nothing to the buyer.
#[tokio::test]
async fn an_overtaken_buyer_sells_nothing() {
    let store = Store::new();
    let locks = locks("memory:", LONG).await;
    let payments = Arc::new(Gate::default());
    let shop = store.shop(&locks, payments.clone()).await;
    shop.restock(&store.item, 9).await;
    let overtake = async {
        payments.asked.notified().await;
        let holder = locks.lock(store.lock_key()).status().await.unwrap().holder;
        let token = holder.and_then(|holder| holder.token).unwrap().get();
        let later = FencingToken::new(token + 1);
        shop.0.database.claim(&store.item, later).await.unwrap();
        payments.open.notify_one();
    };
    let (answer, ()) = tokio::join!(shop.buy(&store.item), overtake);
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(answer.field("error"), "overtaken");
    shop.expect(&store.item, 9, &[]).await;
}

/// A database connection whose open transaction delays the commit of a buyer. The connection itself can still read the
/// stock.
struct Delay(AnyConnection);

impl Delay {
    /// Begins to delay the commits of other connections. SQLite cannot commit while another connection reads, and
    /// Postgres cannot insert an order while another connection has locked the table.
    async fn begin(store: &Store) -> Self {
        let mut connection = AnyConnection::connect(&store.url).await.unwrap();
        let lock = if store.url.starts_with("sqlite") {
            "SELECT item FROM stock"
        } else {
            "LOCK TABLE orders IN SHARE MODE"
        };
        for statement in ["BEGIN", lock] {
            let query = sqlx::query(statement);
            query.execute(&mut connection).await.unwrap();
        }
        Self(connection)
    }

    /// Returns the number of units that are left according to the committed data.
    async fn left(&mut self, item: &str) -> i64 {
        let query = sqlx::query_scalar("SELECT left_over FROM stock WHERE item = $1");
        query.bind(item).fetch_one(&mut self.0).await.unwrap()
    }

    /// Waits until another connection's commit is delayed.
    async fn until_effective(&self, store: &Store) {
        let mut probe = AnyConnection::connect(&store.url).await.unwrap();
        let is_sqlite = store.url.starts_with("sqlite");
        if is_sqlite {
            let at_once = sqlx::query("PRAGMA busy_timeout = 0");
            at_once.execute(&mut probe).await.unwrap();
        }
        until(async || {
            if is_sqlite {
                // While a commit waits for readers, SQLite refuses further readers.
                let read = sqlx::query("SELECT item FROM stock");
                return read.execute(&mut probe).await.is_err();
            }
            let waiting =
                "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass";
            let waiting = sqlx::query(waiting).fetch_all(&mut probe).await;
            !waiting.unwrap().is_empty()
        })
        .await;
    }

    async fn end(mut self) {
        let query = sqlx::query("COMMIT");
        query.execute(&mut self.0).await.unwrap();
    }
}

/// The lock is released after the commit. With an earlier release, the next buyer would get the lock while the database
/// still shows the old stock.
#[tokio::test]
async fn the_lock_is_released_after_the_commit() {
    let store = Store::new();
    let locks = locks("memory:", LONG).await;
    let payments = Arc::new(Gate::default());
    let shop = store.shop(&locks, payments.clone()).await;
    shop.restock(&store.item, 9).await;
    let buyer = tokio::spawn({
        let (shop, item) = (shop.clone(), store.item.clone());
        async move { shop.buy(&item).await }
    });
    // The buyer has already stored its token in the stock's row, so only the buyer's later transaction is delayed.
    payments.asked.notified().await;
    let mut delay = Delay::begin(&store).await;
    payments.open.notify_one();
    delay.until_effective(&store).await;

    assert_eq!(
        delay.left(&store.item).await,
        9,
        "the sale is not committed"
    );
    let lock = locks.lock(store.lock_key());
    let entered = lock.try_acquire().await;
    assert!(
        matches!(entered, Err(LockError::Busy { .. })),
        "a buyer that reads 9 units enters"
    );

    let next = tokio::spawn({
        let (lock, database, item) = (lock.clone(), shop.0.database.clone(), store.item.clone());
        lock.run(async move { database.left(&item).await })
    });
    until(async || lock.status().await.unwrap().waiters == 1).await;
    delay.end().await;
    assert_eq!(next.await.unwrap().unwrap().unwrap(), 8);
    assert_eq!(buyer.await.unwrap().field("unit"), json!(9));
}
