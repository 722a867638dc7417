//! Promise 11: keys cannot be confused. With one key template, two argument lists that print differently never give the
//! same lock.

use std::{cell::Cell, collections::HashMap, fmt, fmt::Display, future::Future};

use lock_runtime::{Hold, KeyError, LockClient, LockError, distributed_lock, escape};
use proptest::prelude::*;
use support::assert_busy;

use crate::stores::on_every_store;

#[distributed_lock(key = "a:<x>:<y>")]
async fn colon(x: &str, y: &str) -> Result<String, LockError> {
    let _ = (x, y);
    Ok(Hold::current().unwrap().key().to_string())
}

#[distributed_lock(key = "{<x>}|<y.0>/b")]
async fn tagged(x: &str, y: (String,)) -> Result<String, LockError> {
    let _ = (x, &y);
    Ok(Hold::current().unwrap().key().to_string())
}

fn rendered<T: Display>(
    call: impl Future<Output = Result<T, LockError>>,
) -> Result<String, LockError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = LockClient::connect("memory:").await.unwrap();
        client.scope(call).await.map(|key| key.to_string())
    })
}

#[test]
fn values_that_contain_separators_do_not_collide() {
    let tuples = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a%3Ab", "c"),
        ("a}", "{b"),
        ("ä", "b c"),
        ("a/b", "|"),
    ];
    let mut keys: HashMap<String, _> = HashMap::new();
    for (x, y) in tuples {
        for key in [
            rendered(colon(x, y)).unwrap(),
            rendered(tagged(x, (y.to_owned(),))).unwrap(),
        ] {
            assert_eq!(
                keys.insert(key.clone(), (x, y)),
                None,
                "two argument lists give the key {key}"
            );
        }
    }
    assert_eq!(rendered(colon("1", "x-y_z.~")).unwrap(), "a:1:x-y_z.~");
    assert_eq!(rendered(colon("a:b", "c")).unwrap(), "a:a%3Ab:c");
}

/// A value that prints up to a million letters. The value counts the letters that are printed before the key refuses
/// further letters.
struct Endless<'a>(&'a Cell<usize>);

impl Display for Endless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        while self.0.get() < 1_000_000 {
            self.0.set(self.0.get() + 1);
            f.write_str("x")?;
        }
        Ok(())
    }
}

#[distributed_lock(key = "a:<x>:<y>")]
async fn printed(x: Endless<'_>, y: Endless<'_>) -> Result<String, LockError> {
    Ok("the body has run".to_owned())
}

#[test]
fn a_value_that_prints_without_end_is_stopped_at_the_limit_of_a_key() {
    let (first, second) = (Cell::new(0), Cell::new(0));
    let refused = rendered(printed(Endless(&first), Endless(&second)));
    let Err(LockError::InvalidKey(KeyError::TooLong { .. })) = refused else {
        panic!("{refused:?}");
    };
    assert!(first.get() <= 1024, "{first:?}");
    assert_eq!(second.get(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn different_arguments_give_different_keys(a in ".{1,8}", b in ".{1,8}", c in ".{1,8}", d in ".{1,8}") {
        let same = (&a, &b) == (&c, &d);
        prop_assert_eq!(rendered(colon(&a, &b)).unwrap() == rendered(colon(&c, &d)).unwrap(), same);
        let (left, right) = (rendered(tagged(&a, (b.clone(),))), rendered(tagged(&c, (d.clone(),))));
        prop_assert_eq!(left.unwrap() == right.unwrap(), same);
    }
}

#[tokio::test]
async fn namespaces_separate_and_cannot_be_confused_either() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let ours = client.lock("b:c").namespace("a").acquire().await.unwrap();
        let theirs = client.lock("c").namespace("a:b").try_acquire().await;
        // In Redisson's layout, namespaces and keys are not escaped, so both calls use the same lock.
        assert_eq!(theirs.is_err(), store.is_redisson());
        assert!(
            client
                .lock("b:c")
                .namespace("a")
                .try_acquire()
                .await
                .is_err()
        );
        ours.release().await;
        if let Ok(theirs) = theirs {
            theirs.release().await;
        }
    })
    .await;
}

#[distributed_lock(key = "name:<name>")]
async fn named(name: impl Display) -> Result<String, LockError> {
    let _ = &name;
    Ok(Hold::current().unwrap().key().to_string())
}

#[test]
fn values_that_print_alike_give_one_key() {
    let seven = rendered(named(7)).unwrap();
    assert_eq!(seven, "name:7");
    assert_eq!(rendered(named("7")).unwrap(), seven);
    assert_ne!(rendered(named("07")).unwrap(), seven);
}

#[distributed_lock(key = "name:<name>", wait = "0s")]
async fn inside(name: &str, body: impl Future<Output = ()>) -> Result<(), LockError> {
    let _ = name;
    body.await;
    Ok(())
}

/// The explicit API (`client.lock`) uses a key as it is. A key with escaped values names the same lock as the key of
/// the attribute. A key with unescaped values can name another lock.
#[tokio::test]
async fn the_explicit_api_uses_a_key_as_is() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        for name in ["a:b", "a b", "ä", "42"] {
            let body = async {
                let escaped = other.lock(format!("name:{}", escape(name)));
                assert_busy(&escaped.try_acquire().await);
                let as_is = other.lock(format!("name:{name}")).try_acquire().await;
                // A number needs no escaping.
                assert_eq!(as_is.is_ok(), name != "42", "{name}: {as_is:?}");
                if let Ok(guard) = as_is {
                    assert_eq!(guard.key().as_str(), format!("name:{name}"));
                    guard.release().await;
                }
            };
            client.scope(inside(name, body)).await.unwrap();
        }
    })
    .await;
}
