//! The spans and metrics of one call. The spans show how long the call waited, and how long it held its locks.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use lock_core::{error::LockError, fencing::FencingToken, lease::Moment, options::Mode};
use tracing::{Span, field::Empty};

use crate::{
    acquire::spec::AcquireSpec,
    events::metrics::{self, EXCLUSIVE},
    lease::{release::ReleaseOutcome, shared::Shared},
};

/// The `tracing` target of all spans. A filter can turn the spans off without the log events.
const TARGET: &str = "lock_runtime::span";
/// The maximum number of keys that the span field `lock.key` contains.
const NAMED_KEYS: usize = 8;

/// The outcome that is recorded if the future of a call is dropped before the call has its locks.
const DROPPED: &str = "dropped";

/// The spans of a call that are entered until this value is dropped. The fields are dropped in this order, so the inner span
/// is left first.
pub(crate) struct InSpan<'a> {
    _phase: tracing::span::Entered<'a>,
    _call: tracing::span::Entered<'a>,
}

/// The spans and metrics of one call. This value exists from the first poll of the acquisition until the call has left
/// its locks. It contains `None` if nobody records spans and the feature `metrics` is off.
#[derive(Default)]
pub(crate) struct CallRecord(Option<Box<Recorded>>);

struct Recorded {
    /// The span that covers the whole call.
    call: Span,
    /// The span that covers the wait for the locks, and later the span that covers the hold.
    phase: Span,
    shared: Arc<Shared>,
    label: &'static str,
    began: Moment,
    is_acquiring: bool,
}

impl CallRecord {
    /// Begins the record of a call that asks for these locks. `specs` must not be empty.
    pub(crate) fn begin(specs: &[AcquireSpec]) -> Self {
        let first = &specs[0];
        let call = tracing::info_span!(
            target: TARGET, "lock",
            lock.name = first.site.label(), lock.key = %Keys(specs), lock.mode = mode_of(specs),
            lock.wait_ms = Empty, lock.queue_position = Empty, lock.token = Empty, lock.outcome = Empty,
        );
        if call.is_disabled() && !metrics::ENABLED {
            return Self(None);
        }
        metrics::start(first.site.label());
        metrics::waiting(first.site.label(), 1.0);
        Self(Some(Box::new(Recorded {
            phase: tracing::debug_span!(target: TARGET, parent: &call, "lock.wait"),
            call,
            shared: first.shared.clone(),
            label: first.site.label(),
            began: first.now(),
            is_acquiring: true,
        })))
    }

    /// Runs `entering`, the acquisition of the call, inside the span of the wait.
    pub(crate) async fn acquiring<F: Future>(&self, mut entering: Pin<&mut F>) -> F::Output {
        std::future::poll_fn(|cx| {
            let _inside = self.enter();
            entering.as_mut().poll(cx)
        })
        .await
    }

    /// Enters the span of the call, and in it the span of its wait or hold. The span of the call is entered too, because a
    /// subscriber for the level INFO does not have the inner span.
    pub(crate) fn enter(&self) -> Option<InSpan<'_>> {
        self.0.as_ref().map(|recorded| {
            let call = recorded.call.enter();
            InSpan {
                _phase: recorded.phase.enter(),
                _call: call,
            }
        })
    }

    /// Returns the span of the call; a disabled span if nobody records spans.
    pub(crate) fn span(&self) -> Span {
        let recorded = self.0.as_ref();
        recorded.map_or_else(Span::none, |recorded| recorded.call.clone())
    }

    /// Ends the span of the wait, and begins the span of the hold. `token` is the fencing token if the call has one
    /// lock. `again` is true if the call has re-entered a lock that an enclosing call holds.
    pub(crate) fn acquired(&mut self, token: Option<FencingToken>, again: bool) {
        let Some(recorded) = &mut self.0 else {
            return;
        };
        recorded.end_wait(if again { "reentered" } else { "granted" });
        if let Some(token) = token {
            recorded.call.record("lock.token", token.get());
        }
        recorded.phase = tracing::debug_span!(target: TARGET, parent: &recorded.call, "lock.hold");
    }

    /// Ends the span of the wait of a call that did not get its locks.
    pub(crate) fn failed(&mut self, error: &LockError) {
        let Some(recorded) = &mut self.0 else {
            return;
        };
        if let LockError::Busy {
            held_by: Some(held_by),
            ..
        } = error
            && let Some(ahead) = held_by.ahead
        {
            recorded.call.record("lock.queue_position", ahead + 1);
        }
        recorded.end_wait(outcome(error));
    }

    /// Ends the record of a call that has left its locks with these outcomes.
    pub(crate) fn left<'a>(self, mut outcomes: impl Iterator<Item = &'a ReleaseOutcome>) {
        if let Some(recorded) = &self.0
            && outcomes.any(|outcome| matches!(outcome, ReleaseOutcome::Lost(_)))
        {
            recorded.call.record("lock.outcome", "lost");
        }
    }
}

impl Recorded {
    fn end_wait(&mut self, outcome: &'static str) {
        self.is_acquiring = false;
        let took = self.shared.backend.now().since(self.began);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.call.record("lock.wait_ms", ms);
        self.call.record("lock.outcome", outcome);
        metrics::waiting(self.label, -1.0);
        metrics::acquisition(self.label, outcome, took);
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if self.is_acquiring {
            self.end_wait(DROPPED);
        }
    }
}

impl fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRecord").finish_non_exhaustive()
    }
}

/// Returns the value of the span field `lock.mode`: `read` if the call only reads.
fn mode_of(specs: &[AcquireSpec]) -> &'static str {
    match specs.iter().all(|spec| spec.terms.mode == Mode::Read) {
        true => "read",
        false => EXCLUSIVE,
    }
}

fn outcome(error: &LockError) -> &'static str {
    match error {
        LockError::Busy { .. } => "busy",
        LockError::Lost { .. } => "lost",
        LockError::Unreachable { .. } => "unreachable",
        LockError::Refused { .. } => "refused",
        LockError::WrongLayout { .. } => "wrong_layout",
        LockError::NotReplicated { .. } => "not_replicated",
        LockError::ShutDown => "shut_down",
        _ => "failed",
    }
}

/// The keys of a call, separated by commas.
struct Keys<'a>(&'a [AcquireSpec]);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, spec) in self.0.iter().take(NAMED_KEYS).enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{}", spec.key)?;
        }
        match self.0.len().saturating_sub(NAMED_KEYS) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
