//! What one call asks for: a lock, or several.

use std::sync::Arc;

use lock_core::{backend::BoxFuture, error::LockError};

use crate::{
    entry::Entered,
    reentry::{self, Frame},
    run::Ends,
    several,
    wait::{self, Wanted},
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
                let entered = wait::enter(&wanted, outer.as_ref()).await?;
                let frame = entered.frame(outer);
                Ok((entered, frame))
            }),
            Self::Several(wanted) => Box::pin(several::enter(wanted)),
        }
    }
}
