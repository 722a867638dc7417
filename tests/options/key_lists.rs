//! `keys = "item:<ids..>"`: one lock for each item of an argument.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    fmt,
    rc::Rc,
    sync::Arc,
};

use async_trait::async_trait;
use axum::extract::Path;
use lock_runtime::{
    BusyWith, Hold, Holds, KeyError, LockClient, LockError, LossReason, distributed_lock,
};

use crate::stores::{
    MS, SECOND, Store, drop_at_any_time, held, hold, on_every_store, on_stores_with_a_queue,
    until_free, until_waiting,
};

fn names(holds: &[Hold]) -> Vec<String> {
    holds.iter().map(|hold| hold.key().to_string()).collect()
}

#[distributed_lock(keys = ["cart:<cart>", "item:<ids..>", "<region>:<cart>"], guard = holds)]
async fn ship(cart: u64, ids: &[u64], region: &str) -> Result<Holds, LockError> {
    Ok(holds)
}

#[distributed_lock(keys = "<ids..>", wait = "20s", guard = holds)]
async fn each(ids: &[&str], body: impl AsyncFnOnce(&Holds)) -> Result<(), LockError> {
    body(&holds).await;
    Ok(())
}

#[distributed_lock(keys = "<ids..>", wait = "0s")]
async fn try_each(ids: &[&str]) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn each_item_is_a_lock() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let body = async |holds: &Holds| {
            assert_eq!(names(holds), ["c", "a", "b"]);
            assert_eq!(held(&other, &["a", "b", "c", "d"]).await, ["a", "b", "c"]);
        };
        client.scope(each(&["c", "a", "b"], body)).await.unwrap();
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn the_holds_are_in_the_order_of_the_keys_and_their_items() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let holds = client.scope(ship(7, &[30, 4], "eu")).await.unwrap();
        assert_eq!(names(&holds), ["cart:7", "item:30", "item:4", "eu:7"]);
        let holds = client.scope(ship(7, &[], "eu")).await.unwrap();
        assert_eq!(names(&holds), ["cart:7", "eu:7"]);
        let holds = client.scope(ship(7, &[4, 4], "item")).await.unwrap();
        assert_eq!(names(&holds), ["cart:7", "item:4", "item:4", "item:7"]);
        assert_eq!(holds[1].token(), holds[2].token());
    })
    .await;
}

#[tokio::test]
async fn without_items_nothing_runs() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let body = async |_: &Holds| unreachable!("the body runs without a lock");
        let refused = client.scope(each(&[], body)).await;
        assert!(
            matches!(refused, Err(LockError::InvalidKey(KeyError::NoKeys))),
            "{refused:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_item_without_text_is_refused() {
    let store = Store::memory();
    let client = store.client().await;
    match client.scope(try_each(&["a", ""])).await {
        Err(LockError::InvalidKey(KeyError::EmptyPart { placeholder })) => {
            assert_eq!(placeholder, "ids..");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(held(&client, &["a"]).await, [] as [&str; 0]);
}

#[tokio::test]
async fn items_are_escaped() {
    let store = Store::memory();
    let client = store.client().await;
    let body = async |holds: &Holds| assert_eq!(names(holds), ["a%3Ab", "%3C"]);
    client.scope(each(&["a:b", "<"], body)).await.unwrap();
}

#[tokio::test]
async fn a_try_takes_all_or_none() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let guard = hold(&other, "b").await;
        match client.scope(try_each(&["c", "b", "a"])).await {
            Err(LockError::Busy { key, with, .. }) => {
                assert_eq!((key.as_str(), with), ("b", BusyWith::AnotherProcess));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(held(&other, &["a", "b", "c"]).await, ["b"]);
        guard.release().await;
        client.scope(try_each(&["c", "b", "a"])).await.unwrap();
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn opposite_orders_never_deadlock() {
    on_every_store(|store| async move {
        let (one, two) = (store.client().await, store.client().await);
        let body = async |_: &Holds| tokio::task::yield_now().await;
        for _ in 0..20 {
            let (up, down) = tokio::join!(
                one.scope(each(&["a", "b", "c"], body)),
                two.scope(each(&["c", "b", "a"], body)),
            );
            up.and(down).unwrap();
        }
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn nested_in_itself_it_enters_again() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let outer = async |outer: &Holds| {
            let inner = async |inner: &Holds| {
                assert_eq!(names(inner), ["c", "b"]);
                assert_eq!(inner[1].token(), outer[1].token());
            };
            each(&["c", "b"], inner).await.unwrap();
        };
        client.scope(each(&["a", "b"], outer)).await.unwrap();
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn dropped_at_any_time_it_leaves_nothing() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let body = async |_: &Holds| tokio::time::sleep(2 * MS).await;
        let call = || client.scope(each(&["b", "a"], body));
        drop_at_any_time(&other, ["a", "b"], 60, call).await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[distributed_lock(keys = "<ids..>", wait = "20s", lease = "1s", renew = true)]
async fn renewed(ids: Vec<String>, body: impl Future<Output = ()>) -> Result<(), LockError> {
    body.await;
    Ok(())
}

#[tokio::test]
async fn the_loss_of_one_ends_the_body() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let body = async {
        store.delete("a").await;
        std::future::pending::<()>().await;
    };
    match client
        .scope(renewed(vec!["b".into(), "a".into()], body))
        .await
    {
        Err(LockError::Lost { key, reason, .. }) => {
            assert_eq!((key.as_str(), reason), ("a", LossReason::NotHeld));
        }
        other => panic!("{other:?}"),
    }
    until_free(&other, "a").await;
    until_free(&other, "b").await;
}

#[distributed_lock(keys = "<ids..>", wait = "100ms", on_busy = fallback(later))]
async fn now(ids: Vec<u64>) -> Result<usize, LockError> {
    Ok(ids.len())
}

async fn later(ids: Vec<u64>, error: LockError) -> Result<usize, LockError> {
    assert!(matches!(error, LockError::Busy { .. }), "{error}");
    Ok(100 * ids.len())
}

#[tokio::test]
async fn the_list_may_be_moved_by_the_body_and_by_the_fallback() {
    let store = Store::memory();
    let [client, other] = store.clients().await;
    assert_eq!(client.scope(now(vec![1, 2])).await.unwrap(), 2);
    let guard = hold(&other, "2").await;
    assert_eq!(client.scope(now(vec![1, 2])).await.unwrap(), 200);
    guard.release().await;
    // A call with an empty list fails with `KeyError::NoKeys`, and is not reported as busy.
    let refused = client.scope(now(Vec::new())).await;
    assert!(
        matches!(refused, Err(LockError::InvalidKey(KeyError::NoKeys))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn it_waits_for_each_item_in_turn() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let (a, b) = (hold(&other, "a").await, hold(&other, "b").await);
        let body = async |_: &Holds| {};
        let (entered, ()) = tokio::join!(client.scope(each(&["b", "a"], body)), async {
            until_waiting(&other, "a", 1).await;
            a.release().await;
            until_waiting(&other, "b", 1).await;
            assert_eq!(held(&other, &["a"]).await, ["a"]);
            b.release().await;
        });
        entered.unwrap();
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

/// A user-defined type. A `for` loop can iterate over a reference to the type, and its field `items` is itself a list.
struct Cart {
    items: Vec<Item>,
}

struct Item(u64);

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl<'a> IntoIterator for &'a Cart {
    type Item = &'a Item;
    type IntoIter = std::slice::Iter<'a, Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

macro_rules! of_type {
    ($($name:ident: $list:ty),* $(,)?) => {$(
        #[distributed_lock(keys = "<list..>", guard = holds)]
        async fn $name(#[allow(unused_mut)] mut list: $list) -> Result<Vec<String>, LockError> {
            let _ = &mut list;
            Ok(names(&holds))
        }
    )*};
}

of_type! {
    slice: &[u64],
    slice_to_change: &mut [u64],
    array: [u64; 2],
    borrowed_array: &[u64; 2],
    vec: Vec<u64>,
    borrowed_vec: &Vec<u64>,
    vec_to_change: &mut Vec<u64>,
    texts: Vec<String>,
    boxed: Box<[u64]>,
    shared: Arc<[u64]>,
    shared_vec: Rc<Vec<u64>>,
    borrowed_shared: &Arc<[u64]>,
    cow: Cow<'_, [u64]>,
    deque: VecDeque<u64>,
    set: BTreeSet<u64>,
    borrowed_set: &HashSet<u64>,
    twice_borrowed: &&[&str],
    own: Cart,
    borrowed_own: &Cart,
}

#[distributed_lock(keys = "<cart.items..>", guard = holds)]
async fn field(cart: Cart) -> Result<Vec<String>, LockError> {
    assert_eq!(cart.items.len(), holds.len());
    Ok(names(&holds))
}

#[distributed_lock(keys = "<list..>", guard = holds)]
async fn part_of_a_pattern(Path(list): Path<Vec<u64>>) -> Result<Vec<String>, LockError> {
    Ok(names(&holds))
}

#[distributed_lock(keys = "<list..>", guard = holds)]
async fn generic<T: fmt::Display>(list: &[T]) -> Result<Vec<String>, LockError> {
    Ok(names(&holds))
}

#[distributed_lock(keys = "<list..>", guard = holds)]
async fn any_list<L>(list: L) -> Result<Vec<String>, LockError>
where
    for<'a> &'a L: IntoIterator<Item = &'a u64>,
{
    Ok(names(&holds))
}

impl Cart {
    #[distributed_lock(keys = ["<self.items..>", "<more..>"], guard = holds)]
    async fn method(&self, more: &[u64]) -> Result<Vec<String>, LockError> {
        Ok(names(&holds))
    }
}

#[async_trait]
trait Ship {
    async fn ship(&self, more: Vec<u64>) -> Result<Vec<String>, LockError>;
}

#[async_trait]
impl Ship for Cart {
    #[distributed_lock(keys = ["<self.items..>", "<more..>"], guard = holds)]
    async fn ship(&self, more: Vec<u64>) -> Result<Vec<String>, LockError> {
        drop(more);
        Ok(names(&holds))
    }
}

fn cart(ids: &[u64]) -> Cart {
    Cart {
        items: ids.iter().copied().map(Item).collect(),
    }
}

#[tokio::test]
async fn a_list_is_whatever_can_be_iterated_by_reference() {
    let client = Store::memory().client().await;
    let lists = async {
        let set = HashSet::from([7]);
        let shared: Arc<[u64]> = [3, 1].into();
        for names in [
            slice(&[3, 1]).await,
            slice_to_change(&mut [3, 1]).await,
            array([3, 1]).await,
            borrowed_array(&[3, 1]).await,
            vec(vec![3, 1]).await,
            borrowed_vec(&vec![3, 1]).await,
            vec_to_change(&mut vec![3, 1]).await,
            texts(vec!["3".into(), "1".into()]).await,
            boxed([3, 1].into()).await,
            borrowed_shared(&shared).await,
            self::shared(shared).await,
            shared_vec(vec![3, 1].into()).await,
            cow([3, 1][..].into()).await,
            deque([3, 1].into()).await,
            twice_borrowed(&&["3", "1"][..]).await,
            own(cart(&[3, 1])).await,
            borrowed_own(&cart(&[3, 1])).await,
            field(cart(&[3, 1])).await,
            part_of_a_pattern(Path(vec![3, 1])).await,
            generic(&[3_u8, 1]).await,
            any_list(vec![3, 1]).await,
            cart(&[3]).method(&[1]).await,
            cart(&[3]).ship(vec![1]).await,
        ] {
            assert_eq!(names.unwrap(), ["3", "1"]);
        }
        assert_eq!(set_of([3, 1]).await, ["1", "3"]);
        assert_eq!(borrowed_set(&set).await.unwrap(), ["7"]);
    };
    client.scope(lists).await;
}

async fn set_of(ids: [u64; 2]) -> Vec<String> {
    set(ids.into()).await.unwrap()
}

/// The future of the call is `Send` for any list type, because the keys are rendered before the first await.
#[tokio::test]
async fn a_list_asks_nothing_of_the_future() {
    fn send<F: Send>(future: F) -> F {
        future
    }
    let client = LockClient::connect("memory:").await.unwrap();
    let cells = vec![std::cell::Cell::new(1)];
    client.scope(send(cells_of(Cells(cells)))).await.unwrap();
}

struct Cells(Vec<std::cell::Cell<u64>>);

impl IntoIterator for &Cells {
    type Item = u64;
    type IntoIter = std::vec::IntoIter<u64>;

    fn into_iter(self) -> Self::IntoIter {
        let values: Vec<_> = self.0.iter().map(std::cell::Cell::get).collect();
        values.into_iter()
    }
}

#[distributed_lock(keys = "<cells..>")]
async fn cells_of(cells: Cells) -> Result<(), LockError> {
    tokio::task::yield_now().await;
    drop(cells);
    Ok(())
}

#[distributed_lock(keys = "<stock..>", guard = holds)]
async fn pairs(stock: Pairs) -> Result<Vec<String>, LockError> {
    Ok(names(&holds))
}

/// A list whose iterator computes its items.
struct Pairs(BTreeMap<u64, u64>);

impl<'a> IntoIterator for &'a Pairs {
    type Item = String;
    type IntoIter = Box<dyn Iterator<Item = String> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        let pairs = self.0.iter();
        Box::new(pairs.map(|(place, item)| format!("{place}-{item}")))
    }
}

#[tokio::test]
async fn items_may_be_values() {
    let client = Store::memory().client().await;
    let stock = Pairs(BTreeMap::from([(1, 7), (2, 8)]));
    let names = client.scope(pairs(stock)).await.unwrap();
    assert_eq!(names, ["1-7", "2-8"]);
    let wait = client.lock("1-7").wait(SECOND);
    wait.run(async {}).await.unwrap();
}
