//! The identity of an acquisition.

use std::{fmt, str::FromStr};

/// The identity of one acquisition, chosen before anything is sent.
///
/// A retry with the same owner is the same acquisition, and no two calls share an owner. It is written as 32
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u128);

impl OwnerId {
    /// Wraps 128 random bits, such as a version 4 UUID.
    #[must_use]
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({self})")
    }
}

impl FromStr for OwnerId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_reads_back_as_it_was_written() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef] {
            let owner = OwnerId::from_u128(bits);
            assert_eq!(owner.to_string().len(), 32);
            assert_eq!(owner.to_string().parse(), Ok(owner));
        }
        assert!("not hex".parse::<OwnerId>().is_err());
        let owner = OwnerId::from_u128(0xabc);
        assert_eq!(format!("{owner:?}"), format!("OwnerId({owner})"));
    }
}
