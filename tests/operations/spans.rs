//! Tests of the spans of calls. The tests check which parts of a call the spans cover, and which fields the spans have.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_runtime::{LockClient, LockError, distributed_lock};
use support::{server::RedisServer, stores::until_waiting, until};
use tracing::{
    Event, Id, Level, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use crate::panics::PanickingLayer;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// The record of one span, or of one event in a body.
#[derive(Debug, Clone, Default)]
struct Seen {
    name: String,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

static SEEN: Mutex<BTreeMap<u64, Seen>> = Mutex::new(BTreeMap::new());

/// Lets `look` read or change the spans and events that the subscriber has recorded.
fn seen<T>(look: impl FnOnce(&mut BTreeMap<u64, Seen>) -> T) -> T {
    look(&mut SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns a new ID, which no open span and no entry of [`SEEN`] has.
fn unused_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(u64::MAX / 2);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A subscriber layer that stores the spans of the library, its log events at INFO and above, and the events of this file.
struct Store;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Store {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().target() != "lock_runtime::span" {
            return;
        }
        let mut span = Seen {
            name: attributes.metadata().name().to_owned(),
            parent: context
                .span(id)
                .and_then(|span| Some(span.parent()?.id().into_u64())),
            ..Seen::default()
        };
        attributes.record(&mut span);
        seen(|all| all.insert(id.into_u64(), span));
    }

    fn on_record(&self, id: &Id, values: &span::Record<'_>, _: Context<'_, S>) {
        seen(|all| {
            if let Some(span) = all.get_mut(&id.into_u64()) {
                values.record(span);
            }
        });
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let target = event.metadata().target();
        let name = if target == module_path!() {
            "event"
        } else if target == "lock_runtime" && *event.metadata().level() <= Level::INFO {
            "log"
        } else {
            return;
        };
        {
            let mut told = Seen {
                name: name.to_owned(),
                parent: context.lookup_current().map(|span| span.id().into_u64()),
                ..Seen::default()
            };
            event.record(&mut told);
            seen(|all| all.insert(unused_id(), told));
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        seen(|all| {
            // The registry of `tracing` reuses the ID of a closed span, so the record of the span gets a new ID.
            if let Some(mut span) = all.remove(&id.into_u64()) {
                span.is_closed = true;
                let kept = unused_id();
                for child in all
                    .values_mut()
                    .filter(|child| child.parent == Some(id.into_u64()))
                {
                    child.parent = Some(kept);
                }
                all.insert(kept, span);
            }
        });
    }
}

/// Installs the subscriber of this process, which records the spans.
pub(crate) fn record() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = Registry::default().with(Store).with(PanickingLayer);
        tracing::subscriber::set_global_default(all).expect("no other subscriber is installed");
    });
}

/// The recorded spans of one call.
#[derive(Debug)]
struct Spans {
    call: Seen,
    /// The children of the span of the call, in the order of their names.
    children: Vec<Seen>,
}

impl Spans {
    /// Returns the spans of the call for this key.
    fn of(key: &str) -> Self {
        let mut all = Self::all(key);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn all(key: &str) -> Vec<Self> {
        let has_key = |span: &Seen| {
            span.fields
                .get("lock.key")
                .is_some_and(|found| found == key)
        };
        seen(|all| {
            let calls = all
                .iter()
                .filter(|(_, span)| span.name == "lock" && has_key(span));
            let spans = calls.map(|(id, call)| {
                let mut children: Vec<_> = all
                    .values()
                    .filter(|child| child.parent == Some(*id))
                    .cloned()
                    .collect();
                children.sort_by(|a, b| b.name.cmp(&a.name));
                Self {
                    call: call.clone(),
                    children,
                }
            });
            spans.collect()
        })
    }

    fn names(&self) -> Vec<&str> {
        self.children
            .iter()
            .map(|child| child.name.as_str())
            .collect()
    }

    fn field(&self, name: &str) -> &str {
        self.call.fields.get(name).map_or("", String::as_str)
    }

    fn outcome(&self) -> &str {
        self.field("lock.outcome")
    }
}

/// Returns the log events about a key whose message contains this text, with the fields of the event.
pub(crate) fn logged(key: &str, text: &str) -> Vec<BTreeMap<&'static str, String>> {
    seen(|all| {
        let logs = all.values().filter(|seen| seen.name == "log");
        let is_it = |log: &&Seen| {
            let field = |name| log.fields.get(name).map_or("", String::as_str);
            field("key") == key && field("message").contains(text)
        };
        logs.filter(is_it).map(|log| log.fields.clone()).collect()
    })
}

/// Returns the name of the span that contained the event of the body, for the call for `key`.
fn span_of_body(key: &str) -> Option<String> {
    seen(|all| {
        let is_of_key = |event: &&Seen| event.fields.get("of").is_some_and(|found| found == key);
        let event = all
            .values()
            .filter(|seen| seen.name == "event")
            .find(is_of_key)?;
        Some(all[&event.parent?].name.clone())
    })
}

#[distributed_lock(key = "span:<id>", wait = "20s")]
async fn reserve(id: &str) -> Result<u64, LockError> {
    tracing::info!(of = format!("span:{id}"), "inside");
    Ok(lock_runtime::Hold::current()
        .expect("a body runs inside its hold")
        .token()
        .get())
}

#[distributed_lock(keys = ["span:a:<id>", "span:b:<id>"])]
async fn reserve_both(id: &str) -> Result<(), LockError> {
    Ok(())
}

/// The span of a call has a child for the wait and a child for the hold. The events of the body are in the span of the
/// hold.
#[tokio::test]
async fn a_call_has_spans_for_its_wait_and_its_hold() {
    record();
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let other = LockClient::connect(server.url()).await.unwrap();
    let guard = other.lock("span:waits").acquire().await.unwrap();
    let call = tokio::spawn(client.scope(reserve("waits")));
    until_waiting(&other, "span:waits", 1).await;
    until(async || !Spans::all("span:waits").is_empty()).await;
    let waiting = Spans::all("span:waits");
    let waiting = waiting
        .iter()
        .find(|spans| spans.field("lock.name") == "span:<id>")
        .unwrap();
    assert_eq!(waiting.names(), ["lock.wait"]);
    assert_eq!(waiting.outcome(), "");
    // The span of the second caller has to show that it has waited at least this long.
    tokio::time::sleep(Duration::from_millis(30)).await;
    guard.release().await;
    let token = call.await.unwrap().unwrap();

    let spans = Spans::all("span:waits");
    let spans = spans
        .iter()
        .find(|spans| spans.field("lock.name") == "span:<id>")
        .unwrap();
    assert_eq!(spans.names(), ["lock.wait", "lock.hold"]);
    assert!(spans.call.is_closed && spans.children.iter().all(|child| child.is_closed));
    assert_eq!(spans.field("lock.mode"), "exclusive");
    assert_eq!(spans.field("lock.token"), token.to_string());
    assert_eq!(spans.outcome(), "granted");
    let waited: u64 = spans.field("lock.wait_ms").parse().unwrap();
    assert!((30..20_000).contains(&waited), "{waited}");
    assert_eq!(span_of_body("span:waits").as_deref(), Some("lock.hold"));
}

/// A call with several keys has one span, which names all keys.
#[tokio::test]
async fn a_call_with_several_keys_has_one_span() {
    record();
    let client = LockClient::connect("memory:").await.unwrap();
    client.scope(reserve_both("7")).await.unwrap();
    let spans = Spans::of("span:a:7, span:b:7");
    assert_eq!(spans.field("lock.name"), "span:a:<id>, span:b:<id>");
    assert_eq!(spans.names(), ["lock.wait", "lock.hold"]);
    let keys: Vec<_> = (10..30).map(|id| format!("span:{id}")).collect();
    client
        .locks(&keys)
        .label("many")
        .run(async {})
        .await
        .unwrap();
    let many = Spans::of(&format!("{} and 12 more", keys[..8].join(", ")));
    assert_eq!(many.field("lock.name"), "many");
}

/// The span of a call that reads has another mode than the span of a call that writes.
#[tokio::test]
async fn a_span_says_whether_its_call_reads() {
    record();
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let mode = |key: &str| Spans::of(key).field("lock.mode").to_owned();
    let guard = client.lock("span:read").read().acquire().await.unwrap();
    assert_eq!(mode("span:read"), "read");
    guard.release().await;
    let writing = client.lock("span:written").write().run(async {});
    writing.await.unwrap();
    assert_eq!(mode("span:written"), "exclusive");
    let keys = ["span:read:a", "span:read:b"];
    client.locks(keys).read().run(async {}).await.unwrap();
    assert_eq!(mode("span:read:a, span:read:b"), "read");
}

/// The span of a call says how the call has ended: without the lock, because its future was dropped, because its lease
/// was lost, or as a nested call.
#[tokio::test]
async fn a_span_says_how_the_call_has_ended() {
    record();
    let client = LockClient::connect("memory:").await.unwrap();
    let label = |key: &str, label| client.lock(key).label(label).wait(20 * SECOND);
    let outcome = |key: &str, label| {
        let all = Spans::all(key);
        let found = all.iter().find(|spans| spans.field("lock.name") == label);
        let found = found.unwrap_or_else(|| panic!("{label} has a span"));
        assert!(found.call.is_closed);
        (found.outcome().to_owned(), found.children.len())
    };
    let position = |key: &str, label| {
        let all = Spans::all(key);
        let found = all.iter().find(|spans| spans.field("lock.name") == label);
        let found = found.unwrap_or_else(|| panic!("{label} has a span"));
        found.field("lock.queue_position").to_owned()
    };

    let guard = label("span:end", "holder").acquire().await.unwrap();
    let busy = client.lock("span:end").label("busy").try_acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })));
    assert_eq!(outcome("span:end", "busy"), ("busy".into(), 1));
    let dropped = tokio::spawn(label("span:end", "dropped").run(async {}));
    until_waiting(&client, "span:end", 1).await;
    // The dropped call was in the queue before this call, so this call had the second position.
    let timeout = label("span:end", "timeout").wait(30 * MILLISECOND);
    let timeout = timeout.run(async {}).await;
    assert!(matches!(timeout, Err(LockError::Busy { .. })));
    assert_eq!(outcome("span:end", "timeout"), ("busy".into(), 1));
    assert_eq!(position("span:end", "timeout"), "2");
    assert_eq!(position("span:end", "busy"), "", "this call had no place");
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    assert_eq!(outcome("span:end", "dropped"), ("dropped".into(), 1));

    // The span of a guard covers its hold.
    let holder = |spans: &Spans| spans.field("lock.name") == "holder" && !spans.call.is_closed;
    assert!(Spans::all("span:end").iter().any(holder));
    let nested = label("span:end", "nested").run(async {});
    guard.run(nested).await.unwrap().unwrap();
    assert_eq!(outcome("span:end", "nested"), ("reentered".into(), 2));
    guard
        .run(async { tracing::info!(of = "span:end", "inside") })
        .await
        .unwrap();
    assert_eq!(span_of_body("span:end").as_deref(), Some("lock.hold"));
    guard.release().await;
    assert_eq!(outcome("span:end", "holder"), ("granted".into(), 2));

    let lost = label("span:lost", "lost").lease(Duration::from_millis(20));
    let lost = lost.run(std::future::pending::<()>()).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })));
    assert_eq!(outcome("span:lost", "lost"), ("lost".into(), 2));
}

/// Calls have no spans if a filter turns off the spans' target. The log events remain.
#[tokio::test]
async fn a_filter_turns_the_spans_off() {
    record();
    let spans = Arc::new(Mutex::new(Vec::new()));
    struct Quiet(Arc<Mutex<Vec<&'static str>>>);
    impl Subscriber for Quiet {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == "lock_runtime"
        }
        fn new_span(&self, attributes: &span::Attributes<'_>) -> Id {
            self.0.lock().unwrap().push(attributes.metadata().name());
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(event.metadata().target());
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
    let quiet = tracing::subscriber::set_default(Quiet(spans.clone()));
    let client = LockClient::connect("memory:").await.unwrap();
    client.lock("span:quiet").run(async {}).await.unwrap();
    drop(quiet);
    let seen = spans.lock().unwrap().clone();
    assert!(
        !seen.is_empty() && seen.iter().all(|name| *name == "lock_runtime"),
        "{seen:?}"
    );
}

/// A subscriber for the level INFO gets one span for each call. The events of the body are inside this span.
#[tokio::test]
async fn a_call_has_one_span_at_the_level_info() {
    record();
    #[derive(Default)]
    struct Names {
        spans: Vec<&'static str>,
        entered: Vec<u64>,
        around_body: Option<usize>,
    }
    struct Info(Arc<Mutex<Names>>);
    impl Subscriber for Info {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= Level::INFO
        }
        fn new_span(&self, attributes: &span::Attributes<'_>) -> Id {
            let mut names = self.0.lock().unwrap();
            names.spans.push(attributes.metadata().name());
            Id::from_u64(names.spans.len() as u64)
        }
        fn record(&self, _: &Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            let mut names = self.0.lock().unwrap();
            names.around_body = Some(names.entered.len());
        }
        fn enter(&self, id: &Id) {
            self.0.lock().unwrap().entered.push(id.into_u64());
        }
        fn exit(&self, id: &Id) {
            let last = self.0.lock().unwrap().entered.pop();
            assert_eq!(last, Some(id.into_u64()), "the inner span is left first");
        }
    }
    let names = Arc::new(Mutex::new(Names::default()));
    let client = LockClient::connect("memory:").await.unwrap();
    let info = tracing::subscriber::set_default(Info(names.clone()));
    client.scope(reserve("info")).await.unwrap();
    drop(info);
    let names = names.lock().unwrap();
    assert_eq!(names.spans, ["lock"]);
    assert_eq!(names.around_body, Some(1), "the body is inside the span");
    assert!(names.entered.is_empty());
}

/// The event of a loss is inside the span of its call, although the engine's thread notices the loss.
#[tokio::test]
async fn a_loss_is_reported_inside_the_span_of_its_call() {
    record();
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let key = "span:deleted";
    let lock = client.lock(key).lease(SECOND).renew(true);
    let lost = lock.run(async {
        let mut connection = server.connection().await;
        let mut delete = redis::cmd("DEL");
        delete.arg(format!("{{lock:{key}}}"));
        let deleted: i64 = delete.query_async(&mut connection).await.unwrap();
        assert_eq!(deleted, 1);
        std::future::pending::<()>().await;
    });
    assert!(matches!(lost.await, Err(LockError::Lost { .. })));
    let parents = |all: &mut BTreeMap<u64, Seen>| {
        let losses = all.values().filter(|seen| {
            let message = seen.fields.get("message");
            seen.fields.get("key").is_some_and(|found| found == key)
                && message.is_some_and(|message| message.contains("lease lost"))
        });
        losses.map(|loss| loss.parent).collect::<Vec<_>>()
    };
    // The engine's thread logs the loss after it has ended the call, and then closes the span.
    support::until(async || match seen(parents)[..] {
        [Some(parent)] => seen(|all| all[&parent].is_closed),
        _ => false,
    })
    .await;
    let [Some(parent)] = seen(parents)[..] else {
        panic!("one event, inside a span");
    };
    let parent = seen(|all| all[&parent].clone());
    assert_eq!(parent.name, "lock");
    assert_eq!(parent.fields["lock.key"], key);
    assert!(parent.is_closed, "the hold does not keep the span open");
}
