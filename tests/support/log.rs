//! The library's log records, stored for the tests that read them.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// One log event.
#[allow(missing_docs, reason = "the names explain the fields")]
#[derive(Debug, Clone)]
pub struct Record {
    pub level: Level,
    pub message: String,
    pub fields: BTreeMap<&'static str, String>,
}

static RECORDS: Mutex<Vec<Record>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to store the library's events in the whole process: all events at INFO and above, and events about ignored
/// messages at any level.
///
/// # Panics
/// If the process has another global subscriber of `tracing`.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Log::default())
            .expect("no other subscriber is set");
    });
}

/// Returns the events at INFO and above that have this value in this field, oldest first.
#[must_use]
pub fn about(field: &str, value: &str) -> Vec<Record> {
    let mut records = of_any_level(field, value);
    records.retain(|record| record.level <= Level::INFO);
    records
}

/// Returns the events of any level that have this value in this field, oldest first.
#[must_use]
pub fn of_any_level(field: &str, value: &str) -> Vec<Record> {
    let is_about = |record: &&Record| record.fields.get(field).is_some_and(|text| text == value);
    all().iter().filter(is_about).cloned().collect()
}

/// Returns the events whose message contains this text, oldest first.
#[must_use]
pub fn saying(text: &str) -> Vec<Record> {
    let says = |record: &&Record| record.message.contains(text);
    all().iter().filter(says).cloned().collect()
}

#[derive(Default)]
struct Log {
    spans: AtomicU64,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let level = *metadata.level();
        target.starts_with("lock_runtime")
            && (level <= Level::INFO || metadata.fields().field("payload").is_some())
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut record = Record {
            level: *event.metadata().level(),
            message: String::new(),
            fields: BTreeMap::new(),
        };
        event.record(&mut record);
        all().push(record);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.insert(field.name(), value);
        }
    }
}
