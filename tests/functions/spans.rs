//! `#[tracing::instrument]` above and below the attribute: what the span covers.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use lock_runtime::{LockClient, distributed_lock};
use support::{
    guarded::{Probe, guarded, stay},
    until,
};
use tracing::{Metadata, Subscriber, instrument, span};

use crate::Locked;

/// Keeps the names of this file's spans, in the order in which they began.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<&'static str>>>, Arc<AtomicU64>);

impl Subscriber for Begun {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == module_path!()
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        self.0.lock().unwrap().push(attributes.metadata().name());
        span::Id::from_u64(self.1.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[instrument]
#[distributed_lock(key = "<id>")]
async fn above(id: u64, text: &str) -> Locked<String> {
    stay().await;
    Ok(format!("{id}{text}"))
}

#[distributed_lock(key = "<id>")]
#[instrument(skip(text), fields(more = text))]
async fn below(id: u64, mut text: String) -> Locked<String> {
    stay().await;
    text.insert_str(0, &id.to_string());
    Ok(text)
}

struct Shop;

#[async_trait]
trait Pays {
    async fn above(&self, id: u64) -> Locked<u64>;
    async fn below(&self, id: u64) -> Locked<u64>;
}

#[async_trait]
impl Pays for Shop {
    #[instrument(skip(self))]
    #[distributed_lock(key = "<id>")]
    async fn above(&self, id: u64) -> Locked<u64> {
        stay().await;
        Ok(id)
    }

    #[distributed_lock(key = "<id>")]
    #[instrument(skip(self))]
    async fn below(&self, id: u64) -> Locked<u64> {
        stay().await;
        Ok(id)
    }
}

/// The spans that have begun when the call waits for the lock.
async fn begun_while_waiting<T>(call: impl Future<Output = Locked<T>>) -> Vec<&'static str> {
    let begun = Begun::default();
    let _default = tracing::subscriber::set_default(begun.clone());
    let client = LockClient::connect("memory:").await.unwrap();
    let held = client.lock("7").acquire().await.unwrap();
    let mut call = pin!(Probe::default().scope(client.scope(call)));
    tokio::select! {
        biased;
        _ = &mut call => panic!("the call entered a lock that is held"),
        () = until(async || client.lock("7").status().await.unwrap().waiters == 1) => {}
    }
    let while_waiting = begun.0.lock().unwrap().clone();
    held.release().await;
    tokio::select! {
        biased;
        _ = &mut call => panic!("the body ended"),
        () = until(async || begun.0.lock().unwrap().len() == 1) => {}
    }
    while_waiting
}

/// Attributes run from the top: above, the span becomes part of the body; below, it is around the lock.
///
/// One test for all: `tracing` keeps what the first thread without a subscriber says about a span.
#[tokio::test]
async fn a_span_covers_the_waiting_if_it_stands_below() {
    let nothing = Vec::<&str>::new();
    assert_eq!(begun_while_waiting(above(7, "a")).await, nothing);
    assert_eq!(begun_while_waiting(Shop.above(7)).await, nothing);
    assert_eq!(begun_while_waiting(below(7, "a".into())).await, ["below"]);
    assert_eq!(begun_while_waiting(Shop.below(7)).await, ["below"]);

    guarded("7", Ok("7a".into()), async || above(7, "a").await).await;
    guarded("7", Ok("7a".into()), async || below(7, "a".into()).await).await;
    guarded("7", Ok(7), async || Shop.above(7).await).await;
    guarded("7", Ok(7), async || Shop.below(7).await).await;
}
