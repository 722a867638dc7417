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
    acquire::{entry::Entered, one::Wanted, reentry::Frame},
    call::Ends,
};

/// The locks of one call, all of one client and on the same terms.
#[derive(Debug)]
pub(crate) enum Locks {
    One(Wanted),
    /// One at least, in any order.
    Several(Vec<Wanted>),
}

impl Locks {
    /// How a body under them ends.
    pub(crate) fn ends(&self) -> Ends {
        let first = match self {
            Self::One(wanted) => Some(wanted),
            Self::Several(wanted) => wanted.first(),
        };
        first.map_or_else(Ends::default, |wanted| Ends {
            on_lost: wanted.terms.on_lost,
            release: wanted.terms.release,
            _renewals: Some(wanted.renewals.clone()),
        })
    }

    /// Enters all of them, and makes the frame of a body inside. The call that encloses the first poll encloses the
    /// body.
    pub(crate) fn enter(self) -> BoxFuture<'static, Result<(Entered, Arc<Frame>), LockError>> {
        // Boxed here: what one lock needs is smaller.
        match self {
            Self::One(wanted) => Box::pin(async move {
                let outer = reentry::enclosing();
                let entered = one::enter(&wanted, outer.as_ref()).await?;
                let frame = entered.frame(outer);
                Ok((entered, frame))
            }),
            Self::Several(wanted) => Box::pin(multi::enter(wanted)),
        }
    }
}
