//! Which runtimes of callers do not run.
//!
//! A runtime whose threads are all blocked polls none of its callers. If each of these callers were offered its turn, each
//! offer would have to end by itself before the next caller gets the turn. The engine therefore asks a runtime whose
//! caller does not take an offer: it spawns a task there. Until this task runs, no caller of the runtime is offered a turn.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use foldhash::HashMap;
use lock_core::lease::Moment;

use crate::background::{Context, RuntimeId, TaskRuntime, lock};

/// A runtime counts as silent if it has not answered for this time.
const SILENT_AFTER: Duration = Duration::from_millis(500);
/// A question is forgotten after this time, because a runtime that has ended never answers.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The runtimes that the engine has asked and that have not answered yet, each with the moment of the question.
#[derive(Debug, Default, Clone)]
pub(crate) struct Runtimes(Arc<Mutex<HashMap<RuntimeId, Moment>>>);

impl Runtimes {
    /// Asks a runtime whether it runs, unless an answer is still awaited.
    pub(crate) fn ask(&self, context: &Context, runtime: &TaskRuntime, now: Moment) {
        let id = runtime.id();
        {
            let mut asked = lock(&self.0);
            asked.retain(|_, since| now < *since + FORGOTTEN_AFTER);
            if asked.contains_key(&id) {
                return;
            }
            asked.insert(id, now);
        }
        let answering = self.clone();
        context.spawn_on(runtime, async move {
            lock(&answering.0).remove(&id);
        });
    }

    /// Returns whether each runtime has answered.
    pub(crate) fn have_answered(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Returns whether the engine has asked the runtime some time ago, and the runtime has not answered.
    pub(crate) fn is_silent(&self, runtime: &TaskRuntime, now: Moment) -> bool {
        let since = lock(&self.0).get(&runtime.id()).copied();
        since.is_some_and(|since| since + SILENT_AFTER <= now)
    }
}
