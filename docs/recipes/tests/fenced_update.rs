//! Tests of the fenced update.

use lock_runtime::LockError;
use recipes::fenced_update::{CLAIM, SaleError, TABLE, sell};

use crate::fixture::{Store, machines};

const LEFT: &str = "SELECT left_over FROM stock";

async fn store_with(units: i64) -> Store {
    let store = Store::new(TABLE).await;
    store
        .run(&format!(
            "INSERT INTO stock (item, left_over) VALUES ('tea', {units})"
        ))
        .await;
    store
}

#[tokio::test]
async fn two_buyers_get_the_last_two_units() {
    let store = store_with(2).await;
    let [one, other] = machines().await;
    let (first, second) = tokio::join!(
        sell(&one, &store.database, "tea", async {}),
        sell(&other, &store.database, "tea", async {}),
    );
    let mut left = [first.unwrap(), second.unwrap()];
    left.sort_unstable();
    assert_eq!(left, [0, 1]);
    let third = sell(&one, &store.database, "tea", async {}).await;
    assert!(matches!(third, Err(SaleError::SoldOut)), "{third:?}");
}

/// During the payment, a later holder claims the row. The engine of the buyer has not noticed the loss.
#[tokio::test]
async fn a_buyer_that_was_overtaken_sells_nothing() {
    let store = store_with(2).await;
    let [one, other] = machines().await;
    let overtake = async {
        let holder = other.lock("stock:tea").status().await.unwrap().holder;
        let token = holder.and_then(|holder| holder.token).unwrap().get();
        let claim = sqlx::query(CLAIM).bind(token.cast_signed() + 1).bind("tea");
        claim.fetch_one(&store.database).await.unwrap();
    };
    let sold = sell(&one, &store.database, "tea", overtake).await;
    assert!(matches!(sold, Err(SaleError::Overtaken)), "{sold:?}");
    assert_eq!(store.number(LEFT).await, 2);
}

#[tokio::test]
async fn a_buyer_that_loses_the_lock_sells_nothing() {
    let store = store_with(2).await;
    let [one, _] = machines().await;
    let testing = one.testing().expect("the client is in-process");
    let payment = async {
        assert!(testing.lose("stock:tea"));
        tokio::task::yield_now().await;
    };
    let sold = sell(&one, &store.database, "tea", payment).await;
    assert!(
        matches!(sold, Err(SaleError::Lock(LockError::Lost { .. }))),
        "{sold:?}"
    );
    assert_eq!(store.number(LEFT).await, 2);
}
