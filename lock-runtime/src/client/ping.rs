//! The check whether the lock server answers.

use std::{error::Error, fmt, time::Duration};

use lock_core::advice::Detail;

use crate::{acquire::deadline::bounded, client::LockClient};

impl LockClient {
    /// Checks whether the lock server answers within `within`, for instance for a readiness probe. Takes no lock.
    ///
    /// The check sends one command, or waits for the first connection of a client that was created by
    /// [`connect_lazy`](crate::LockClientBuilder::connect_lazy). In a Redis Cluster, every primary has to answer; of a
    /// Redlock, a majority of the nodes. For a second after the server has refused a command because it was not ready,
    /// for instance while it loads its data, the check fails. In-process locks always answer.
    ///
    /// # Errors
    /// Returns [`PingError`] if the server does not answer in time, or if the client was shut down.
    ///
    /// # Cancel safety
    /// The future can be dropped at any point.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lock_runtime::LockClient;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder().url("redis://127.0.0.1:1/").connect_lazy()?;
    /// let error = client.ping(Duration::from_millis(200)).await.unwrap_err();
    /// assert!(error.to_string().contains("127.0.0.1:1"), "{error}"); // nothing listens on port 1
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ping(&self, within: Duration) -> Result<(), PingError> {
        let shared = &*self.handle().shared;
        let backend = &shared.backend;
        let failed = |detail: String| PingError {
            server: self.server().to_owned(),
            within,
            detail: detail.into(),
        };
        if shared.shutdown.has_begun() {
            return Err(failed("the client was shut down".into()));
        }
        let deadline = backend.now() + within;
        let asking = backend.is_answering(None, within);
        match bounded(backend, deadline, asking).await {
            Some(true) => Ok(()),
            _ => Err(failed(
                backend.last_error().unwrap_or_else(|| "no answer".into()),
            )),
        }
    }
}

/// The error of [`LockClient::ping`]. Its [`source`](Error::source) is the newest error of the connection or the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingError {
    server: String,
    within: Duration,
    detail: Detail,
}

impl fmt::Display for PingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, within, .. } = self;
        write!(
            f,
            "the lock server {server} was not ready within {within:?}"
        )
    }
}

impl Error for PingError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.detail)
    }
}
