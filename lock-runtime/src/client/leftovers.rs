//! A shutdown with a time limit, and what it leaves behind.

use std::{error::Error, fmt, time::Duration};

use lock_core::{advice::Advice, fencing::FencingToken, key::LockKey};

use crate::{acquire::deadline::bounded, client::LockClient};

impl LockClient {
    /// Shuts the client down as [`shutdown`](Self::shutdown) does, but waits at most `limit`. Returns an error that says
    /// which bodies still run, and how many releases and refused calls are not confirmed.
    ///
    /// A body that still runs goes on, but its lease is no longer renewed. Its lock is free when it ends, and at the end
    /// of the lease at the latest.
    ///
    /// # Errors
    /// Returns [`Leftovers`] if a body still runs, or if it is not confirmed that a release or a refused call has left
    /// nothing on the server. The reason is the limit, a server that does not answer, or a refused call that its task has
    /// not polled.
    ///
    /// # Cancel safety
    /// As for [`shutdown`](Self::shutdown): if the future is dropped, the client stays closed. Call the method again to
    /// continue waiting.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lock_runtime::LockClient;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect("memory:").await?;
    /// let guard = client.lock("report").acquire().await?;
    /// let left = client.shutdown_within(Duration::from_millis(50)).await.unwrap_err();
    /// assert_eq!(left.running[0].key.as_str(), "report");
    /// guard.release().await;
    /// assert_eq!(client.shutdown_within(Duration::from_secs(20)).await, Ok(()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown_within(&self, limit: Duration) -> Result<(), Leftovers> {
        let shared = &*self.handle().shared;
        let backend = &shared.backend;
        bounded(backend, backend.now() + limit, self.shutdown()).await;
        let (running, released): (Vec<_>, Vec<_>) = shared
            .registry
            .all()
            .into_iter()
            // A lock whose body has not begun is given back by the shutdown.
            .filter(|hold| !hold.is_given_up())
            .partition(|hold| !hold.has_ended());
        let mut running: Vec<_> = running
            .iter()
            .map(|hold| RunningHold {
                key: hold.key.clone(),
                function: hold.function(),
                token: hold.token,
                remaining: hold.remaining(),
            })
            .collect();
        running.sort_by(|a, b| a.key.as_str().cmp(b.key.as_str()));
        let left = Leftovers {
            running,
            unconfirmed: released.len() + backend.unconfirmed(),
        };
        if left.running.is_empty() && left.unconfirmed == 0 {
            return Ok(());
        }
        Err(left)
    }
}

/// The holds and releases that a [shutdown with a time limit](LockClient::shutdown_within) has left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// The locks that a body or a guard still holds, sorted by their keys. If a body goes on after the loss of its lease
    /// and the client has acquired the lock again, only the newer hold is listed.
    pub running: Vec<RunningHold>,
    /// The number of releases, and of refused calls, for which the server has not confirmed that nothing is left. A
    /// request of a refused call can have been granted without an answer. Each of the locks is free at the end of its
    /// lease at the latest, and a place in the queue at the end of the call's `wait`.
    pub unconfirmed: usize,
}

/// A lock that was still held when a [shutdown with a time limit](LockClient::shutdown_within) returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningHold {
    /// The key, without its namespace.
    pub key: LockKey,
    /// The path of the annotated function, or the label of a lock of the explicit API. Empty if the call has neither.
    pub function: &'static str,
    /// The fencing token of the hold.
    pub token: FencingToken,
    /// The time left of the lease, which is no longer renewed.
    pub remaining: Duration,
}

/// Writes a text such as ``still held: order:42 (`shop::pay`, token 7); without confirmation: 1``.
impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, hold) in self.running.iter().enumerate() {
            f.write_str(if place == 0 { "still held: " } else { ", " })?;
            write!(f, "{} (", hold.key)?;
            if !hold.function.is_empty() {
                write!(f, "`{}`, ", hold.function)?;
            }
            write!(f, "token {})", hold.token)?;
        }
        if self.unconfirmed > 0 {
            if !self.running.is_empty() {
                f.write_str("; ")?;
            }
            write!(f, "without confirmation: {}", self.unconfirmed)?;
        }
        Ok(())
    }
}

impl Error for Leftovers {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&Advice(
            "each of these locks is free at the end of its lease at the latest: give the bodies more time, or let them watch for the end of the process",
        ))
    }
}
