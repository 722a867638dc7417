//! Fencing tokens, with which a resource can refuse the writes of a holder that has lost its lock.

use std::fmt;

/// An integer that rises with every grant of a key.
///
/// Send the token with each write to the guarded resource. Have the resource refuse a write whose token is lower than
/// the highest token that the resource has seen. The resource then refuses the writes of a holder that has lost its
/// lease without noticing the loss, once a later holder has written.
///
/// The tokens of one key strictly rise in grant order, but are not always consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Wraps the number that the backend returned with a grant.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number, to be stored with the guarded data. The number is below 2^53, so any JSON or Lua number can
    /// hold it.
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
