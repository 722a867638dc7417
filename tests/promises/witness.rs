//! A value that records the current hold when it is dropped. Tests use a [`Witness`] to check in which hold the values
//! of a body are dropped.

use std::sync::{Arc, OnceLock};

use lock_runtime::Hold;

/// The hold in which a [`Witness`] was dropped.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen(Arc<OnceLock<Option<Hold>>>);

impl Seen {
    pub(crate) fn witness(&self) -> Witness {
        Witness(self.clone())
    }

    /// Returns the hold in which the witness was dropped.
    pub(crate) fn hold(&self) -> Hold {
        let seen = self.0.get().expect("the witness was dropped");
        seen.clone().expect("the witness was dropped inside a hold")
    }
}

/// A value that records the current hold when it is dropped.
#[derive(Debug)]
pub(crate) struct Witness(Seen);

impl Drop for Witness {
    fn drop(&mut self) {
        let first = self.0.0.set(Hold::current());
        assert!(first.is_ok(), "a witness is dropped only once");
    }
}
