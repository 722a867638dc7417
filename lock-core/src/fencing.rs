//! The number that lets a resource refuse a holder that was overtaken.

use std::fmt;

/// An integer that rises with every grant of a key. Send it with each write to the guarded resource, and let the
/// resource refuse a token lower than the highest it has seen: that stops a holder which lost its lease and does
/// not know it yet.
///
/// Tokens of one key strictly rise in grant order; they are not contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Wraps the number that a backend granted.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, to be stored beside the guarded data. Below 2^53, so any JSON or Lua number holds it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_number() {
        let token = FencingToken::new(42);
        assert_eq!((token.get(), u64::from(token)), (42, 42));
        assert_eq!(token.to_string(), "42");
        assert!(token < FencingToken::new(43));
    }
}
