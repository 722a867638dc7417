//! The request of a call for one lock, the time limits of the call, and the errors with which the call can fail.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{BackendError, Request},
    error::{BusyWith, HeldBy, LockError},
    key::{LockKey, LockName},
    lease::Moment,
    options::Terms,
};

use crate::{
    lease::{scheduler::Renewals, shared::Shared},
    limits, patience,
};

/// The description of an annotated function that the attribute creates at compile time.
#[derive(Debug)]
pub struct Site {
    /// The templates of the keys.
    pub label: &'static str,
    /// The path of the function.
    pub function: &'static str,
}

/// The code that uses a lock, as spans, metrics and other clients name it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallSite {
    /// An annotated function.
    Function(&'static Site),
    /// A lock of the explicit API with a label.
    Label(&'static str),
    /// A lock of the explicit API without a label.
    Unlabelled,
}

impl CallSite {
    /// Returns the name under which spans and metrics report the lock: the template of its key, or its label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Function(site) => site.label,
            Self::Label(label) => label,
            Self::Unlabelled => "unlabelled",
        }
    }

    /// Returns the name under which other clients see the lock's holder ([`Request::function`]).
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Function(site) => site.function,
            Self::Label(label) => label,
            Self::Unlabelled => "",
        }
    }
}

/// A request for one lock, with valid options.
#[derive(Debug, Clone)]
pub(crate) struct AcquireSpec {
    pub(crate) shared: Arc<Shared>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) key: LockKey,
    pub(crate) name: LockName,
    pub(crate) site: CallSite,
    pub(crate) terms: Terms,
}

impl AcquireSpec {
    /// Creates the backend request of a new acquisition with this `wait`.
    pub(crate) fn request(&self, wait: Duration) -> Request {
        Request {
            name: self.name.clone(),
            owner: self.shared.context.new_owner(),
            lease: self.terms.lease,
            mode: self.terms.mode,
            wait,
            function: self.site.function(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.shared.backend.now()
    }

    /// How long an attempt that never queues waits for the server's answer.
    pub(crate) fn try_patience(&self) -> Duration {
        patience::for_answer(
            limits::TRY_PATIENCE,
            self.shared.backend.round_trip(&self.name),
        )
    }

    /// How long a caller that leaves the queue at the end of its `wait` waits for the server's answer. If no answer
    /// arrives within half of this time, the caller checks for the other half whether the server answers at all.
    pub(crate) fn leave_patience(&self) -> Duration {
        patience::for_answer(
            limits::LEAVE_PATIENCE,
            self.shared.backend.round_trip(&self.name),
        )
    }
}

/// The time limits of one call. All steps of the call share these limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    started: Moment,
    wait: Duration,
    /// Whether the backend has answered an earlier request of this call.
    was_answered: bool,
}

impl Budget {
    /// Creates the time limits of a call that begins now.
    pub(crate) fn of(spec: &AcquireSpec) -> Self {
        Self {
            started: spec.now(),
            wait: spec.terms.wait,
            was_answered: false,
        }
    }

    /// Returns the same limits with the note that the backend has answered this call.
    pub(crate) fn answered(self) -> Self {
        Self {
            was_answered: true,
            ..self
        }
    }

    pub(crate) fn started(self) -> Moment {
        self.started
    }

    /// The moment at which the engine reports that the call still waits.
    pub(crate) fn quiet_until(self) -> Moment {
        self.started + limits::LONG_WAIT
    }

    /// Whether the call waits for a lock that is not free.
    pub(crate) fn waits(self) -> bool {
        !self.wait.is_zero()
    }

    /// The moment until which the call waits for other holders to leave.
    pub(crate) fn waits_until(self) -> Moment {
        self.started + self.wait
    }

    /// The moment until which the call waits for the answer to a request that is sent now: until the end of `wait`, but
    /// at least for [`AcquireSpec::leave_patience`]. A call without a `wait` gives the server
    /// [`AcquireSpec::try_patience`] to answer.
    pub(crate) fn answers_until(self, spec: &AcquireSpec) -> Moment {
        let patience = if self.waits() {
            self.wait
        } else {
            spec.try_patience()
        };
        (self.started + patience).max(spec.now() + spec.leave_patience())
    }
}

/// Returns the error of a caller that did not get its last answer in time. The error is `Busy` only if the server still
/// answers a check, and the lock is known to have been taken, because an earlier request of this call was answered
/// (`was_answered`). Otherwise, nothing is known about the lock, and the error is `Unreachable`.
pub(crate) async fn too_late(spec: &AcquireSpec, budget: Budget, was_answered: bool) -> LockError {
    let backend = &spec.shared.backend;
    let is_reachable = (was_answered || budget.was_answered)
        && !backend.is_cut_off(&spec.name)
        && backend
            .is_answering(Some(&spec.name), spec.leave_patience() / 2)
            .await;
    if is_reachable {
        busy_outside(spec, budget, None)
    } else {
        unreachable(spec, budget)
    }
}

pub(crate) fn failed(spec: &AcquireSpec, budget: Budget, error: BackendError) -> LockError {
    LockError::from_backend(error, &spec.key, spec.now().since(budget.started))
}

fn busy(
    spec: &AcquireSpec,
    budget: Budget,
    with: BusyWith,
    held_by: Option<Box<HeldBy>>,
) -> LockError {
    LockError::Busy {
        key: spec.key.clone(),
        waited: spec.now().since(budget.started),
        with,
        held_by,
    }
}

pub(crate) fn busy_with_sibling(spec: &AcquireSpec, budget: Budget) -> LockError {
    busy(spec, budget, BusyWith::Sibling, None)
}

/// Returns the error of a caller that could not enter because another call holds the lock. `held_by` is what the
/// backend reported about the holder.
pub(crate) fn busy_outside(
    spec: &AcquireSpec,
    budget: Budget,
    held_by: Option<Box<HeldBy>>,
) -> LockError {
    let with = if spec.shared.registry.contains(&spec.name) {
        BusyWith::ThisProcess
    } else {
        BusyWith::AnotherProcess
    };
    busy(spec, budget, with, held_by)
}

pub(crate) fn unreachable(spec: &AcquireSpec, budget: Budget) -> LockError {
    LockError::Unreachable {
        key: spec.key.clone(),
        waited: spec.now().since(budget.started),
        detail: spec.shared.backend.no_answer().into(),
    }
}
