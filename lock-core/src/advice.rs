//! What a developer can do about an error.

use std::{error::Error, fmt, ops::Deref};

/// What a developer can do about an error. The error returns the advice as its [`source`](Error::source).
///
/// A report that prints the whole chain of sources includes the advice. The error's own text leaves the advice out, so
/// that text can be shown to a user.
///
/// ```
/// use std::error::Error;
/// use lock_core::{advice::Advice, key::{KeyError, LockKey}};
///
/// let error = LockKey::new("").unwrap_err();
/// assert_eq!(error.to_string(), "the key is empty");
/// let advice = error.source().and_then(|source| source.downcast_ref::<Advice>()).unwrap();
/// assert_eq!(advice.to_string(), "give the lock a name");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice(#[doc(hidden)] pub &'static str);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Advice {}

/// Returns the text of an error and the texts of all its [sources](Error::source) in one line. For an error of this
/// crate, the last source is the [`Advice`] or the [`Detail`].
#[must_use]
pub fn advised(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// The details of a failure, usually the message from the server or the network. The error that describes the failure
/// returns the details as its [`source`](Error::source).
///
/// The details can name Redis users, commands and addresses, so the error's own text leaves the details out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail(Box<str>);

impl<T: Into<Box<str>>> From<T> for Detail {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl Deref for Detail {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Detail {}
