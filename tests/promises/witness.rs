//! A value that records the current hold when it is dropped. Tests use a [`Witness`] to check in which hold the values
//! of a body are dropped.

use std::sync::{Arc, OnceLock};

use lock_runtime::Hold;
use tokio::sync::Notify;

/// The hold in which a [`Witness`] was dropped.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen(Arc<State>);

#[derive(Debug, Default)]
struct State {
    begun: Notify,
    hold: OnceLock<Option<Hold>>,
}

impl Seen {
    pub(crate) fn witness(&self) -> Witness {
        Witness(self.clone())
    }

    /// Runs a call until its body [owns the witness forever](Witness::forever), and then drops the call.
    pub(crate) async fn drop_once_begun<T>(&self, call: impl Future<Output = T>) {
        tokio::select! {
            _ = call => panic!("the body has ended"),
            () = self.0.begun.notified() => {}
        }
    }

    /// Returns the hold in which the witness was dropped.
    pub(crate) fn hold(&self) -> Hold {
        let seen = self.0.hold.get().expect("the witness was dropped");
        seen.clone().expect("the witness was dropped inside a hold")
    }
}

/// A value that records the current hold when it is dropped.
#[derive(Debug)]
pub(crate) struct Witness(Seen);

impl Witness {
    /// A body that owns the witness, and never ends.
    pub(crate) async fn forever(self) {
        self.0.0.begun.notify_one();
        std::future::pending::<()>().await;
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let first = self.0.0.hold.set(Hold::current());
        assert!(first.is_ok(), "a witness is dropped only once");
    }
}
