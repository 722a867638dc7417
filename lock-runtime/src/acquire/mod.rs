//! Acquisition: the locks that one call asks for, and how the call enters these locks.

pub(crate) mod deadline;
pub(crate) mod entry;
pub(crate) mod multi;
pub(crate) mod one;
pub(crate) mod record;
pub(crate) mod reentry;
pub(crate) mod replicas;
pub(crate) mod spec;

use std::sync::Arc;

use lock_core::{
    backend::BoxFuture,
    error::LockError,
    options::{OnLost, Release},
};

use crate::{
    acquire::{entry::Entered, reentry::Frame, spec::AcquireSpec},
    background::Context,
    lease::scheduler::Renewals,
};

/// The behaviour of a call after the loss of one of its leases, and at the end of its body.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExitPolicy {
    /// What happens to the body when a lease is lost.
    pub(crate) on_lost: OnLost,
    /// Whether the call waits for the confirmation of its release.
    pub(crate) release: Release,
    /// Keeps the call's client alive until the call has left its locks.
    pub(crate) client: Option<(Arc<Renewals>, Arc<Context>)>,
}

impl ExitPolicy {
    /// Returns the context in which a background release runs. A call without a client has no lock to release, so any
    /// context is suitable for that call.
    pub(crate) fn context(&self) -> &Arc<Context> {
        match &self.client {
            Some((_, context)) => context,
            None => Context::of_process(),
        }
    }
}

/// The locks of one call, all with the same client and options.
#[derive(Debug)]
pub(crate) enum Locks {
    One(AcquireSpec),
    /// A list of locks in any order. The list is not empty.
    Several(Vec<AcquireSpec>),
}

impl Locks {
    /// Returns the exit policy of a call with these locks.
    pub(crate) fn exit_policy(&self) -> ExitPolicy {
        let first = match self {
            Self::One(spec) => Some(spec),
            Self::Several(spec) => spec.first(),
        };
        first.map_or_else(ExitPolicy::default, |spec| ExitPolicy {
            on_lost: spec.terms.on_lost,
            release: spec.terms.release,
            client: Some((spec.renewals.clone(), spec.shared.context.clone())),
        })
    }

    /// Enters all locks, and creates the body's [`Frame`], in which nested calls find these locks. The body is nested
    /// in the call that encloses the first poll of the returned future.
    pub(crate) fn enter(self) -> BoxFuture<'static, Result<(Entered, Arc<Frame>), LockError>> {
        // Each arm boxes its own future, because the future for one lock is smaller than the future for several locks.
        match self {
            Self::One(spec) => Box::pin(async move {
                let outer = reentry::enclosing();
                let entered = one::enter(&spec, outer.as_ref()).await?;
                let frame = entered.frame(outer);
                Ok((entered, frame))
            }),
            Self::Several(spec) => Box::pin(multi::enter(spec)),
        }
    }
}
