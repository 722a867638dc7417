//! The identity of an acquisition.

use std::fmt;

const HEX: [u8; 16] = *b"0123456789abcdef";

/// The identity of one acquisition, chosen before the acquisition sends its first request.
///
/// Two requests with the same owner belong to the same acquisition, and no two calls share an owner. The text of an
/// owner has 32 hexadecimal digits.
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
        // Every acquisition formats its owner, and formatting with `{:032x}` executes twice as many instructions as
        // this loop.
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            pair.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]));
        }
        f.write_str(str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_written_as_32_digits() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef] {
            let owner = OwnerId::from_u128(bits);
            assert_eq!(owner.to_string(), format!("{bits:032x}"));
            assert_eq!(format!("{owner:?}"), format!("OwnerId({owner})"));
        }
    }
}
