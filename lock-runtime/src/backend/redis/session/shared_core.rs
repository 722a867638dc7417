//! The [core](super::super::core) under its mutex. The callers whose wait has ended are told after the mutex is unlocked.

use std::sync::{Arc, Mutex};

use lock_core::{key::LockName, lease::Moment};
use tokio::sync::oneshot;

use crate::{
    backend::redis::{
        core::{
            Core, Ended, Link, Parts,
            cohorts::{Passed, TakenUp},
        },
        protocol::{grant::GrantSnapshot, request::AcquireRequest},
    },
    background::{Polled, isolated, lock, runtimes::Runtimes},
};

/// The values that the engine stores in the core.
#[derive(Clone)]
pub(crate) enum Engine {}

impl Parts for Engine {
    type Request = Arc<AcquireRequest>;
    type Caller = Caller;
    type Batch = oneshot::Sender<()>;
}

/// A caller that waits for its turn.
pub(crate) struct Caller {
    /// The tokio runtime that has polled the caller.
    pub(crate) polled: Option<Polled>,
    pub(crate) told: oneshot::Sender<Ended>,
}

/// The core of a client for one server or one Redis Cluster. While its mutex is locked, only the mutex of [`Runtimes`] is
/// locked as well, and only if a runtime has not answered.
pub(crate) struct SharedCore {
    core: Mutex<Core<Engine>>,
    runtimes: Runtimes,
}

impl SharedCore {
    pub(crate) fn new(runtimes: Runtimes) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::default(),
            runtimes,
        })
    }

    /// Calls a method of the core.
    pub(crate) fn with<T>(&self, method: impl FnOnce(&mut Core<Engine>) -> T) -> T {
        let mut core = lock(&self.core);
        let result = method(&mut core);
        let outgoing = core.lines.take_outgoing();
        drop(core);
        for (Caller { polled, told }, message) in outgoing.callers {
            // If the caller has left meanwhile, its clean-up gives the turn back.
            isolated(move || {
                message.map(|message| told.send(message));
                drop(polled);
            });
        }
        drop(outgoing.batches);
        result
    }

    /// Returns whether the runtime that polled a caller does not run.
    fn is_silent(&self, now: Moment) -> impl Fn(&Caller) -> bool {
        let have_answered = self.runtimes.have_answered(now);
        move |caller| {
            let polled = caller.polled.as_ref();
            !have_answered && polled.is_some_and(|polled| self.runtimes.is_silent(polled, now))
        }
    }

    /// See [`Core::take_up`].
    pub(crate) fn take_up(
        &self,
        link: Link,
        name: &LockName,
        grant: &GrantSnapshot,
        now: Moment,
    ) -> TakenUp {
        let is_silent = self.is_silent(now);
        self.with(|core| core.take_up(link, name, grant, now, &is_silent))
    }

    /// See [`Core::pass`].
    pub(crate) fn pass(&self, name: &LockName, token: u64, now: Moment) -> Passed {
        let is_silent = self.is_silent(now);
        self.with(|core| core.pass(name, token, now, &is_silent))
    }
}

#[cfg(test)]
mod tests;
