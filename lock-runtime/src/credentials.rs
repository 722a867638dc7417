//! The credentials of a Redis user, and the user's function that provides them.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use lock_core::backend::BoxFuture;

/// The user and the password with which a connection logs in, as a provider returns them: see
/// [`LockClientBuilder::credentials_provider`](crate::LockClientBuilder::credentials_provider).
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::Credentials;
///
/// let credentials = Credentials::new("locks", "token").valid_for(Duration::from_secs(3600));
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// Creates the credentials of a Redis user. If the server has a password but no named users, the user is `default`.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
            valid_for: None,
        }
    }

    /// Sets how long the server lets a connection with these credentials live, counted from the moment at which the
    /// provider returns them. When four fifths of this time have passed, the engine asks the provider again, and logs
    /// in on the same connection with `AUTH`. Without this setting, a connection keeps its credentials for as long as
    /// it lives.
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

/// A function that returns credentials, or the text of an error.
#[derive(Clone)]
pub(crate) struct Source(Arc<dyn Fn() -> Returned + Send + Sync>);

type Returned = BoxFuture<'static, Result<Credentials, String>>;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(..)")
    }
}

impl Source {
    pub(crate) fn new<F, Fut, E>(provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        Self(Arc::new(move || {
            let asking = provider();
            Box::pin(async move { asking.await.map_err(|error| error.to_string()) })
        }))
    }

    pub(crate) async fn ask(&self) -> Result<Credentials, String> {
        (self.0)().await
    }
}
