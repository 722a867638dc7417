//! Tests of `#[tracing::instrument]` above and below the attribute. The tests check what the span covers, and what its
//! events report.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use lock_runtime::{LockClient, LockError, distributed_lock};
use support::{
    guarded::{Probe, guarded, stay},
    until,
};
use tracing::{Event, Id, Metadata, Subscriber, field, instrument, span};

use crate::Locked;

/// Records the names of this file's spans in the order in which they began.
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

#[derive(Debug)]
struct Path<T>(T);

/// An extractor that is not `Debug`, so `#[instrument]` has to skip it.
struct State<T>(T);

/// Below `#[distributed_lock]`, the whole argument `Path(id)` has the name `id`, because this is the only name in its
/// pattern. An `#[instrument]` below therefore refers to the number as `id.0`.
#[distributed_lock(key = "<id>")]
#[instrument(skip(app), fields(order = id.0))]
async fn extracted(State(app): State<String>, Path(id): Path<u64>) -> Locked<String> {
    stay().await;
    Ok(format!("{app}{id}"))
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

/// Makes a call while a guard holds the lock. Returns the names of the spans that have begun when the call waits for
/// the lock.
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

/// Attributes expand from top to bottom. If `#[instrument]` is above `#[distributed_lock]`, its span covers only the
/// body. If `#[instrument]` is below `#[distributed_lock]`, the span also covers the wait for the lock.
///
/// All cases are in a single test, because `tracing` caches whether a span is enabled. If the thread of another test
/// reached a span first, without a subscriber, the span would stay disabled for all tests.
#[tokio::test]
async fn a_span_covers_the_waiting_if_it_stands_below() {
    let nothing = Vec::<&str>::new();
    assert_eq!(begun_while_waiting(above(7, "a")).await, nothing);
    assert_eq!(begun_while_waiting(Shop.above(7)).await, nothing);
    assert_eq!(begun_while_waiting(below(7, "a".into())).await, ["below"]);
    assert_eq!(begun_while_waiting(Shop.below(7)).await, ["below"]);
    let call = async || extracted(State("a".to_owned()), Path(7)).await;
    assert_eq!(begun_while_waiting(call()).await, ["extracted"]);

    guarded("7", Ok("a7".into()), call).await;
    guarded("7", Ok("7a".into()), async || above(7, "a").await).await;
    guarded("7", Ok("7a".into()), async || below(7, "a".into()).await).await;
    guarded("7", Ok(7), async || Shop.above(7).await).await;
    guarded("7", Ok(7), async || Shop.below(7).await).await;
}

/// The error of a call, which comes from its body or from its lock.
#[derive(Debug)]
enum Failed {
    Body,
    Lock,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} failed")
    }
}

impl From<LockError> for Failed {
    fn from(_: LockError) -> Self {
        Self::Lock
    }
}

async fn body(id: u64) -> Result<u64, Failed> {
    tokio::task::yield_now().await;
    if id == 0 { Err(Failed::Body) } else { Ok(id) }
}

/// Records the events of `#[instrument]`.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Subscriber for Told {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with(module_path!()) || metadata.target() == "shop"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut told = event.metadata().level().to_string();
        event.record(&mut |field: &field::Field, value: &dyn fmt::Debug| {
            told.push_str(&format!(" {field}={value:?}"));
        });
        self.0.lock().unwrap().push(told);
    }

    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns the events that `#[instrument]` reports for one call.
async fn told<T>(call: impl Future<Output = Result<T, Failed>>) -> Vec<String> {
    let told = Told::default();
    let _default = tracing::subscriber::set_default(told.clone());
    let _ = call.await;
    std::mem::take(&mut *told.0.lock().unwrap())
}

/// Defines a function and a method under `#[async_trait]`, each with `#[instrument]` above and below the attribute.
/// Checks which events `#[instrument]` reports for a returned value and for a returned error.
macro_rules! matrix {
    ($id:ident: $($case:ident $options:tt => $value:expr, $error:expr;)*) => {
        $(mod $case {
            use super::*;

            #[instrument $options]
            #[distributed_lock(key = "k", wait = "0s")]
            async fn above($id: u64) -> Result<u64, Failed> {
                body($id).await
            }

            #[distributed_lock(key = "k", wait = "0s")]
            #[instrument $options]
            async fn below($id: u64) -> Result<u64, Failed> {
                body($id).await
            }

            #[derive(Debug)]
            struct Shop;

            #[async_trait]
            trait Pays {
                async fn above(&self, $id: u64) -> Result<u64, Failed>;
                async fn below(&self, $id: u64) -> Result<u64, Failed>;
            }

            #[async_trait]
            impl Pays for Shop {
                #[instrument $options]
                #[distributed_lock(key = "k", wait = "0s")]
                async fn above(&self, $id: u64) -> Result<u64, Failed> {
                    body($id).await
                }

                #[distributed_lock(key = "k", wait = "0s")]
                #[instrument $options]
                async fn below(&self, $id: u64) -> Result<u64, Failed> {
                    body($id).await
                }
            }

            pub(super) async fn check() {
                let (value, error): (Vec<&str>, Vec<&str>) = ($value.into(), $error.into());
                let client = LockClient::connect("memory:").await.unwrap();
                client.scope(async {
                    assert_eq!(told(above(1)).await, value);
                    assert_eq!(told(below(1)).await, value);
                    assert_eq!(told(Shop.above(1)).await, value);
                    assert_eq!(told(Shop.below(1)).await, value);
                    assert_eq!(told(above(0)).await, error);
                    assert_eq!(told(below(0)).await, error);
                    assert_eq!(told(Shop.above(0)).await, error);
                    assert_eq!(told(Shop.below(0)).await, error);
                }).await;
                // An `#[instrument]` below the attribute also reports the error of a busy lock.
                let _held = client.lock("k").acquire().await.unwrap();
                let busy: Vec<_> = error.iter().map(|told| told.replace("Body", "Lock")).collect();
                client.scope(async {
                    assert_eq!(told(above(1)).await, Vec::<String>::new());
                    assert_eq!(told(below(1)).await, busy);
                    assert_eq!(told(Shop.above(1)).await, Vec::<String>::new());
                    assert_eq!(told(Shop.below(1)).await, busy);
                }).await;
            }
        })*

        #[tokio::test]
        async fn every_option_of_instrument_in_both_orders() {
            $($case::check().await;)*
        }
    };
}

matrix! { id:
    plain() => [], [];
    named(name = "pay", level = "debug", target = "shop") => [], [];
    skipped(skip(id)) => [], [];
    skipped_all(skip_all) => [], [];
    with_fields(fields(id, double = id * 2, text = %id, empty = field::Empty)) => [], [];
    with_parent(parent = None) => [], [];
    with_cause(follows_from = [Id::from_u64(1)]) => [], [];
    error(err) => [], ["ERROR error=Body failed"];
    error_by_debug(err(Debug)) => [], ["ERROR error=Body"];
    error_at_level(err(level = "warn", Display)) => [], ["WARN error=Body failed"];
    value(ret) => ["INFO return=Ok(1)"], ["INFO return=Err(Body)"];
    value_at_level(ret(level = "debug")) => ["DEBUG return=Ok(1)"], ["DEBUG return=Err(Body)"];
    both(err, ret) => ["INFO return=1"], ["ERROR error=Body failed"];
    both_with_forms(ret(Display), err(Debug)) => ["INFO return=1"], ["ERROR error=Body"];
    all(
        name = "pay", parent = None, follows_from = [Id::from_u64(1)], target = "shop", level = "trace", skip_all,
        fields(id = id + 1), err(level = "info"), ret(level = "warn")
    ) => ["WARN return=1"], ["INFO error=Body failed"];
}
