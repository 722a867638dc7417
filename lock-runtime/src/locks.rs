//! What one call asks for: a lock, or several.

use lock_core::{backend::BoxFuture, error::LockError};

use crate::{
    entry::Entered,
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
        })
    }

    /// Enters all of them.
    pub(crate) fn enter(self) -> BoxFuture<'static, Result<Entered, LockError>> {
        // Boxed here: what one lock needs is smaller.
        match self {
            Self::One(wanted) => Box::pin(async move { wait::enter(&wanted).await }),
            Self::Several(wanted) => Box::pin(several::enter(wanted)),
        }
    }
}
