//! A user and a password, and how long the server accepts them.

use std::{fmt, time::Duration};

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
    /// Creates the credentials of a Redis user. The user of a server that has only a password is `default`.
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
