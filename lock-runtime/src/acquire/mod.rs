//! What one call asks for: a lock, or several.

pub(crate) mod entry;
pub(crate) mod multi;
pub(crate) mod one;
pub(crate) mod reentry;

use std::sync::Arc;

use lock_core::{
    backend::BoxFuture,
    error::LockError,
    options::{OnLost, Release},
};

use crate::{
    acquire::{entry::Entered, one::AcquireSpec, reentry::Frame},
    background::Context,
    lease::scheduler::Renewals,
};

/// How a body under its locks ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExitPolicy {
    /// What becomes of it at a loss.
    pub(crate) on_lost: OnLost,
    /// Whether its value waits for the release.
    pub(crate) release: Release,
    /// The call's client, which lives until then.
    pub(crate) client: Option<(Arc<Renewals>, Arc<Context>)>,
}

impl ExitPolicy {
    /// What a release that nobody awaits runs on. A call without a client has entered nothing.
    pub(crate) fn context(&self) -> &Arc<Context> {
        match &self.client {
            Some((_, context)) => context,
            None => Context::of_process(),
        }
    }
}

/// The locks of one call, all of one client and on the same terms.
#[derive(Debug)]
pub(crate) enum Locks {
    One(AcquireSpec),
    /// One at least, in any order.
    Several(Vec<AcquireSpec>),
}

impl Locks {
    /// How a body under them ends.
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

    /// Enters all of them, and makes the frame of a body inside. The call that encloses the first poll encloses the
    /// body.
    pub(crate) fn enter(self) -> BoxFuture<'static, Result<(Entered, Arc<Frame>), LockError>> {
        // Boxed here: what one lock needs is smaller.
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
