//! What one call asks for: a lock, or several.

pub(crate) mod entry;
pub(crate) mod multi;
pub(crate) mod one;
pub(crate) mod options;
pub(crate) mod reentry;
pub(crate) mod siblings;

use std::sync::Arc;

use lock_core::{backend::BoxFuture, error::LockError};

use crate::{
    acquire::{entry::Entered, one::AcquireSpec, reentry::Frame},
    call::ExitPolicy,
};

/// The locks of one call, all of one client and on the same terms.
#[derive(Debug)]
pub(crate) enum Locks {
    One(AcquireSpec),
    /// One at least, in any order.
    Several(Vec<AcquireSpec>),
}

impl Locks {
    /// How a body under them ends.
    pub(crate) fn ends(&self) -> ExitPolicy {
        let first = match self {
            Self::One(spec) => Some(spec),
            Self::Several(spec) => spec.first(),
        };
        first.map_or_else(ExitPolicy::default, |spec| ExitPolicy {
            on_lost: spec.terms.on_lost,
            release: spec.terms.release,
            _renewals: Some(spec.renewals.clone()),
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
