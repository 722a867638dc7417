//! Functions with type, lifetime and const parameters.

use std::{fmt::Display, marker::PhantomData};

use lock_runtime::{KeyPart, LockError, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

#[distributed_lock(key = "<id>")]
async fn bound<T: Display + Clone>(id: T) -> Locked<Vec<T>> {
    stay().await;
    Ok(vec![id.clone(), id])
}

#[distributed_lock(key = "<id>")]
async fn key_part<T: KeyPart>(id: T) -> Locked<T> {
    stay().await;
    Ok(id)
}

#[distributed_lock(key = "<id>")]
async fn where_clause<'a, T, E>(id: &'a T, other: Vec<T>) -> Result<(&'a T, usize), E>
where
    T: Display + 'a,
    Vec<T>: Clone,
    E: From<LockError>,
{
    stay().await;
    Ok((id, other.len()))
}

#[distributed_lock(key = "<all.0>:<N>")]
#[allow(non_snake_case)]
async fn an_argument_in_capitals(all: (u64,), N: u64) -> Locked<u64> {
    stay().await;
    Ok(all.0 + N)
}

#[distributed_lock(key = "const:<id>")]
async fn const_generic<const N: usize, const UP: bool>(id: u64, all: [u64; N]) -> Locked<[u64; N]> {
    stay().await;
    Ok(all.map(|n| if UP { n + id + N as u64 } else { n }))
}

#[tokio::test]
async fn bounds() {
    guarded("a", Ok(vec!["a", "a"]), async || bound("a").await).await;
    guarded("7", Ok(7), async || key_part(7).await).await;
    guarded::<Locked<_>>("7", Ok((&7, 2)), async || {
        where_clause(&7, vec![1, 2]).await
    })
    .await;
}

#[tokio::test]
async fn const_generics() {
    guarded("1:2", Ok(3), async || {
        an_argument_in_capitals((1,), 2).await
    })
    .await;
    guarded("const:1", Ok([4, 5]), async || {
        const_generic::<2, true>(1, [1, 2]).await
    })
    .await;
    guarded("const:1", Ok([1]), async || {
        const_generic::<1, false>(1, [1]).await
    })
    .await;
}

struct Shard<'a, T, const N: usize> {
    name: &'a str,
    kind: PhantomData<T>,
}

impl<'a, T: Display + Default, const N: usize> Shard<'a, T, N> {
    const fn new(name: &'a str) -> Self {
        Self {
            name,
            kind: PhantomData,
        }
    }

    #[distributed_lock(key = "shard:<self.name>:<row>")]
    async fn row<R>(&self, row: T, read: R) -> Locked<(&'a str, String, usize)>
    where
        R: AsyncFnOnce(&T) -> String,
    {
        stay().await;
        let text = read(&row).await;
        Ok((self.name, text, N))
    }
}

#[tokio::test]
async fn methods_of_a_generic_impl() {
    let shard = Shard::<u64, 4>::new("a");
    guarded("shard:a:7", Ok(("a", "7!".into(), 4)), async || {
        shard.row(7, async |row| format!("{row}!")).await
    })
    .await;
}

/// A trait with an associated type, which is the type of an argument that a key contains.
trait Stored {
    type Id: Display + Copy;
    const TABLE: &'static str;
}

struct Orders;

impl Stored for Orders {
    type Id = u64;
    const TABLE: &'static str = "orders";
}

#[distributed_lock(key = "<table>/<id>")]
async fn projected<S: Stored>(table: &str, id: S::Id) -> Locked<<S as Stored>::Id> {
    stay().await;
    assert_eq!(table, S::TABLE);
    Ok(id)
}

#[tokio::test]
async fn an_associated_type() {
    guarded("orders/7", Ok(7), async || {
        projected::<Orders>("orders", 7).await
    })
    .await;
}
