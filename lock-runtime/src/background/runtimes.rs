//! Which runtimes of callers do not run.
//!
//! A runtime whose threads are all blocked polls none of its callers. If each of these callers were offered its turn, each
//! offer would have to end by itself before the next caller gets the turn. The engine therefore asks a runtime whose
//! caller does not take an offer: it spawns a task there. Until this task runs, the callers that the runtime has polled
//! before the question are offered no turn. A caller that is polled later is offered its turn, because a thread outside of
//! the runtime's worker threads can poll it: the thread of `block_on`, or that of a blocking call.

use lock_core::lease::Moment;

use crate::background::{AskedRuntimes, Context, Polled, isolated, lock};
use crate::limits;

/// The runtimes that the engine has asked and that have not answered yet.
#[derive(Debug, Default, Clone)]
pub(crate) struct Runtimes(AskedRuntimes);

impl Context {
    pub(crate) fn runtimes(&self) -> Runtimes {
        Runtimes(self.asked.clone())
    }
}

impl Runtimes {
    /// Asks the runtime that polled a caller whether it runs. If an answer is still awaited, the question counts from now
    /// for a caller that was polled after it.
    pub(crate) fn ask(&self, context: &Context, caller: &Polled, now: Moment) {
        let id = caller.on.id();
        {
            let mut asked = lock(&self.0);
            if let Some(since) = asked.get_mut(&id) {
                if *since < caller.at {
                    *since = now;
                }
                return;
            }
            asked.insert(id, now);
        }
        let answering = self.clone();
        // A hook of the user's runtime can run here.
        isolated(|| {
            context.spawn_on(&caller.on, async move {
                lock(&answering.0).remove(&id);
            })
        });
    }

    /// Returns whether each runtime has answered.
    pub(crate) fn have_answered(&self, now: Moment) -> bool {
        let mut asked = lock(&self.0);
        asked.retain(|_, since| now < *since + limits::FORGOTTEN_AFTER);
        asked.is_empty()
    }

    /// Returns whether the engine has asked the runtime of this caller some time ago, and after the caller was polled, and
    /// the runtime has not answered.
    pub(crate) fn is_silent(&self, caller: &Polled, now: Moment) -> bool {
        let since = lock(&self.0).get(&caller.on.id()).copied();
        since.is_some_and(|since| caller.at <= since && since + limits::SILENT_AFTER <= now)
    }
}
