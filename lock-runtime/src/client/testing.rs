//! Failures that a test can cause on an in-process client: the loss of a lease, and an outage of the lock server.

use std::{sync::Arc, time::Duration};

use lock_core::{error::LossReason, key::LockKey};

use crate::{backend::memory::Link, client::LockClient, options::ClientHandle};

impl LockClient {
    /// Returns the failures that a test can cause on this client. Returns `None` if the client's locks are on a server:
    /// only a client with the URL `memory:` can pretend failures.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let testing = client.testing().expect("the client is in-process");
    /// testing.unreachable(Duration::from_secs(60));
    /// let call = client.lock("order:42").wait(Duration::from_millis(50)).run(async {}).await;
    /// assert!(matches!(call, Err(LockError::Unreachable { .. })));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn testing(&self) -> Option<Testing> {
        let link = self.handle().shared.link.clone()?;
        Some(Testing {
            client: self.handle().clone(),
            link,
        })
    }
}

/// The failures that a test can cause on an in-process client, see [`LockClient::testing`].
///
/// The failures use tokio's clock, so they also work while a test has paused it.
#[derive(Debug, Clone)]
pub struct Testing {
    client: ClientHandle,
    link: Arc<Link>,
}

impl Testing {
    /// Ends the grant of a lock that a call or a guard of this client holds, as if the lock had been deleted on a
    /// server. The next caller can enter at once. The body is dropped when it is next polled, and its call returns
    /// [`LockError::Lost`](crate::LockError::Lost) with [`LossReason::NotHeld`].
    ///
    /// `key` is the key in the client's namespace, as the attribute renders it. Returns `false` if the client does not
    /// hold this lock.
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let call = client.lock("order:42").run(async {
    ///     assert!(client.testing().expect("the client is in-process").lose("order:42"));
    ///     std::future::pending::<()>().await
    /// });
    /// assert!(matches!(call.await, Err(LockError::Lost { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lose(&self, key: impl Into<String>) -> bool {
        let Ok(key) = LockKey::new(key) else {
            return false;
        };
        let layout = self.client.defaults.layout;
        let Ok(name) = layout.name(self.client.namespace.as_deref(), &key) else {
            return false;
        };
        let hold = self.client.shared.registry.hold_of(&name);
        let Some(hold) = hold.filter(|hold| !hold.has_ended() && hold.loss().is_none()) else {
            return false;
        };
        hold.lose(LossReason::NotHeld);
        let latest_end = hold.latest_end();
        let backend = &self.client.shared.backend;
        backend.release_in_background(&name, hold.token, None, None, latest_end);
        true
    }

    /// Pretends for `time` from now that the lock server is unreachable for this client. Replaces an earlier outage; a
    /// `time` of zero ends it.
    ///
    /// During the outage:
    /// - acquisitions wait. A call whose `wait` ends first returns [`LockError::Unreachable`](crate::LockError::Unreachable);
    /// - leases are not renewed. A renewed lease that is not longer than `time` ends one lease time from now, and its call
    ///   returns [`LockError::Lost`](crate::LockError::Lost);
    /// - [`Hold::extend`](crate::Hold::extend) returns `Unreachable`, and releases are not confirmed
    ///   ([`ReleaseOutcome::InBackground`](crate::ReleaseOutcome::InBackground)).
    ///
    /// Two things differ from a real outage: a nested call that asks for a longer lease gets it, and a shutdown waits for a
    /// held lock even if the outage lasts longer than 10 s.
    ///
    /// Other clients of the same `memory:name` still reach the locks. [`LockClient::testing`] has an example.
    pub fn unreachable(&self, time: Duration) {
        let shared = &self.client.shared;
        let now = shared.backend.now();
        self.link.interrupt(now + time);
        for hold in shared.registry.all() {
            if let Some(plan) = hold.plan() {
                hold.end_by((plan.lease <= time).then(|| now + plan.lease));
            }
        }
    }
}
