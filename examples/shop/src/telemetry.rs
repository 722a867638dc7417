//! Logs, traces and metrics.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use lock_runtime::{METRIC_BUCKETS, describe_metrics};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::{
    Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// How often the metrics recorder does its upkeep, which frees memory.
const UPKEEP: Duration = Duration::from_secs(5);

/// The `tracing` target of a request's span if [`TracePrinter`] has to print the trace of this request.
pub const PRINTED: &str = "shop::printed";

/// Installs the recorder of the metrics for the process. Call this function before the first lock is used.
///
/// # Errors
/// Returns an error if the process has a recorder already.
pub fn install_metrics() -> Result<PrometheusHandle, BuildError> {
    let seconds = Matcher::Suffix("_seconds".into());
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &METRIC_BUCKETS)?
        .install_recorder()?;
    describe_metrics();
    let recorder = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            recorder.run_upkeep();
        }
    });
    Ok(metrics)
}

/// Installs the subscriber that writes the log and the printed traces to the standard error.
pub fn install_tracing() {
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(log.with_filter(LevelFilter::INFO))
        .with(TracePrinter(|trace: &str| eprint!("{trace}")))
        .init();
}

/// Passes the trace of a request to a function when the request has ended. For each span of the request, the trace
/// shows when the span began, how long it lasted, and its fields.
///
/// A service that exports its spans, for instance with `tracing-opentelemetry`, does not need this layer.
#[derive(Debug)]
pub struct TracePrinter<P>(pub P);

/// The spans of one request, in the order in which they began.
type Trace = Arc<Mutex<Vec<Row>>>;

struct Row {
    /// The span's name, indented by two spaces for each enclosing span.
    name: String,
    began: Instant,
    took: Duration,
    fields: String,
}

/// The trace to which a span belongs, and the span's position in this trace.
#[derive(Clone)]
struct Place {
    trace: Trace,
    index: usize,
    depth: usize,
}

impl<S, P> Layer<S> for TracePrinter<P>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    P: Fn(&str) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let metadata = attributes.metadata();
        let parent = span
            .parent()
            .and_then(|parent| parent.extensions().get::<Place>().cloned());
        let (trace, depth) = match parent {
            Some(parent) => (parent.trace, parent.depth + 1),
            None if metadata.target() == PRINTED => (Trace::default(), 0),
            None => return,
        };
        let mut row = Row {
            name: format!("{:1$}{2}", "", 2 * depth, metadata.name()),
            began: Instant::now(),
            took: Duration::ZERO,
            fields: String::new(),
        };
        attributes.record(&mut row);
        let mut rows = trace.lock().unwrap_or_else(PoisonError::into_inner);
        let index = rows.len();
        rows.push(row);
        drop(rows);
        span.extensions_mut().insert(Place {
            trace,
            index,
            depth,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(Place { trace, index, .. }) = span.extensions().get()
        {
            let mut rows = trace.lock().unwrap_or_else(PoisonError::into_inner);
            values.record(&mut rows[*index]);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id)
            && let Some(Place { trace, index, .. }) = span.extensions().get()
        {
            let mut rows = trace.lock().unwrap_or_else(PoisonError::into_inner);
            rows[*index].took = rows[*index].began.elapsed();
            // A span closes after its children. When the first span of the trace closes, all spans of the trace have
            // therefore closed.
            if *index == 0 {
                (self.0)(&text(&rows));
            }
        }
    }
}

impl Visit for Row {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.fields, "  {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.fields, "  {field}={value}");
    }
}

fn text(rows: &[Row]) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    rows.iter().fold(String::new(), |mut text, row| {
        let began = ms(row.began - rows[0].began);
        let _ = writeln!(
            text,
            "{:<15} at {began:>6.1} ms for {:>6.1} ms{}",
            row.name,
            ms(row.took),
            row.fields
        );
        text
    })
}
