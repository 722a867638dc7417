//! The expressions in the placeholders of a key, and the types of their values.

use std::{cell::Cell, fmt, net::IpAddr, num::NonZeroU64, sync::Arc};

use lock_runtime::distributed_lock;
use support::guarded::{guarded, stay};
use uuid::Uuid;

use crate::Locked;

#[derive(Debug, Clone, Copy, PartialEq)]
struct OrderId(u64);

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order/{}", self.0)
    }
}

#[distributed_lock(key = "<id>:<reference>:<shared>")]
async fn newtype(id: OrderId, reference: &OrderId, shared: Arc<OrderId>) -> Locked<u64> {
    stay().await;
    Ok(id.0 + reference.0 + shared.0)
}

#[distributed_lock(key = "{<id>}:<id:raw>")]
async fn uuid(id: Uuid) -> Locked<Uuid> {
    stay().await;
    Ok(id)
}

#[distributed_lock(key = "<a>:<b>:<c>:<d>:<e>:<f>")]
async fn of_the_standard_library(
    a: bool,
    b: char,
    c: IpAddr,
    d: NonZeroU64,
    e: Box<str>,
    f: std::borrow::Cow<'_, str>,
) -> Locked<String> {
    stay().await;
    Ok(format!("{a}{b}{c}{d}{e}{f}"))
}

struct Request {
    user: (u64, User),
}

struct User {
    name: String,
    tags: Vec<String>,
}

#[distributed_lock(key = "<req.user.1.name>:<req.user.0>")]
async fn fields(req: Request, tag: &str) -> Locked<Vec<String>> {
    let mut tags = req.user.1.tags;
    tags.push(tag.into());
    stay().await;
    Ok(tags)
}

struct Counter(Cell<u64>);

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.get().fmt(f)
    }
}

/// A `&Counter` is not `Send`, but the future is `Send`, because the future renders the key before its first await and
/// then drops the reference.
#[distributed_lock(key = "<counter>")]
async fn not_sync(counter: Counter) -> Locked<u64> {
    stay().await;
    counter.0.set(counter.0.get() + 1);
    Ok(counter.0.get())
}

#[tokio::test]
async fn a_newtype() {
    guarded("order%2F1:order%2F2:order%2F3", Ok(6), async || {
        newtype(OrderId(1), &OrderId(2), Arc::new(OrderId(3))).await
    })
    .await;
}

#[tokio::test]
async fn a_uuid() {
    let id = Uuid::new_v4();
    guarded(&format!("{{{id}}}:{id}"), Ok(id), async || uuid(id).await).await;
}

#[tokio::test]
async fn types_of_the_standard_library() {
    guarded(
        "true:%C3%A9:%3A%3A1:7:a%20b:c",
        Ok("trueé::17a bc".into()),
        async || {
            let seven = NonZeroU64::new(7).unwrap();
            of_the_standard_library(
                true,
                'é',
                "::1".parse().unwrap(),
                seven,
                "a b".into(),
                "c".into(),
            )
            .await
        },
    )
    .await;
}

#[tokio::test]
async fn fields_of_which_the_body_moves_one() {
    guarded(
        "a:7",
        Ok(vec!["b".to_owned(), "c".to_owned()]),
        async || {
            let user = User {
                name: "a".into(),
                tags: vec!["b".into()],
            };
            fields(Request { user: (7, user) }, "c").await
        },
    )
    .await;
}

#[tokio::test]
async fn a_value_that_is_not_sync() {
    fn send<F: Send>(future: F) -> F {
        future
    }
    guarded("3", Ok(4), async || {
        send(not_sync(Counter(Cell::new(3)))).await
    })
    .await;
}
