//! The hash slots of a Redis Cluster.

use std::sync::LazyLock;

use crc16::{State, XMODEM};

/// The number of hash slots of a Redis Cluster.
pub(crate) const SLOTS: u16 = 16384;

/// Returns the hash slot of a key. If the key has a hash tag, only the hash tag determines the slot.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| Some(rest.split_once('}')?.0))
        .filter(|tag| !tag.is_empty());
    State::<XMODEM>::calculate(tag.unwrap_or(key).as_bytes()) % SLOTS
}

/// Returns the smallest decimal number that hashes to `slot`.
pub(crate) fn tag_in(slot: u16) -> &'static str {
    static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut tags = vec![String::new(); SLOTS.into()];
        let mut left = tags.len();
        let mut number = 0_u32;
        while left > 0 {
            let tag = number.to_string();
            let found = &mut tags[usize::from(slot_of(&tag))];
            if found.is_empty() {
                *found = tag;
                left -= 1;
            }
            number += 1;
        }
        tags
    });
    &TAGS[usize::from(slot % SLOTS)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // `CLUSTER KEYSLOT` returns these slots for these keys.
        for (key, slot) in [
            ("123456789", 12739),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(&format!("{{{}}}", tag_in(slot))), slot);
        }
    }
}
