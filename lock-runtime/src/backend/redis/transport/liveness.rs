//! Checks whether the server answers and can carry out commands.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::lease::Moment;

use crate::background::{Context, lock, watched::Watched};
use crate::limits;

/// The moment at which the server last failed to carry out a command, or `None` if it has never failed.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<Moment>>);

impl Readiness {
    pub(crate) fn note(&self, now: Moment) {
        *lock(&self.0) = Some(now);
    }

    pub(crate) fn is_ready(&self, now: Moment) -> bool {
        lock(&self.0).is_none_or(|noted| now.since(noted) >= limits::NOT_READY_AGE)
    }
}

/// The answer to a check, or `None` while the check is under way.
type Answer = Arc<Watched<Option<bool>>>;

/// The newest check of the server and its time limit. If further callers request a check with the same time limit
/// during this check, they share its answer.
#[derive(Debug, Default)]
pub(crate) struct Liveness(Mutex<Option<(Duration, Answer)>>);

impl Liveness {
    /// Returns true if `asking` succeeds within this time, or if the server has sent another
    /// reply since the check began.
    pub(crate) async fn ask(
        &self,
        context: &Arc<Context>,
        within: Duration,
        asking: impl Future<Output = bool> + Send + 'static,
        has_answered_since: impl Fn(Moment) -> bool + Send + 'static,
    ) -> bool {
        let answer = self.join_or_ask(context, within, asking, has_answered_since);
        answer.until(|answered| *answered).await
    }

    fn join_or_ask(
        &self,
        context: &Arc<Context>,
        within: Duration,
        asking: impl Future<Output = bool> + Send + 'static,
        has_answered_since: impl Fn(Moment) -> bool + Send + 'static,
    ) -> Answer {
        let mut liveness = lock(&self.0);
        if let Some((patience, answer)) = &*liveness
            && *patience == within
            && answer.get().is_none()
        {
            return answer.clone();
        }
        let answer = Answer::default();
        *liveness = Some((within, answer.clone()));
        let answers = answer.clone();
        let engine = context.clone();
        // The check runs on the engine's thread, which reads incoming data before it checks the time limit.
        context.spawn(async move {
            let began = engine.now();
            let answered = engine.timeout_at(began + within, asking).await;
            // On a busy machine, the answer to this check can come too late, although other replies arrive.
            answers.replace(Some(answered == Some(true) || has_answered_since(began)));
        });
        answer
    }
}
