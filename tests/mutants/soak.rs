//! What a soak of a minute finds.

use super::{Change, Mutant, Suite};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        suite: Suite::Soak,
        caught_by: &["calm"],
        what: "a release does not look whose lock it is",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/release_last.lua",
            from: "if not held or string.find(held, ARGV[1], 1, true) ~= 1 then",
            to: "if not held then",
        }],
    },
    Mutant {
        suite: Suite::Soak,
        caught_by: &["calm"],
        what: "a dropped attempt cleans nothing up",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/attempt.rs",
            from: "if !self.settled\n            && let",
            to: "if false\n            && let",
        }],
    },
    Mutant {
        suite: Suite::Soak,
        caught_by: &["calm"],
        what: "tokens repeat",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/scripts/acquire_free.lua",
                from: "  local token = redis.call('INCRBY', KEYS[3], 1)",
                to: "  local token = tonumber(redis.call('GET', KEYS[3]) or redis.call('INCR', KEYS[3]))",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/next_token.lua",
                from: "  local token = redis.call('INCRBY', fence, count) - count + 1",
                to: "  local token = tonumber(redis.call('GET', fence) or redis.call('INCR', fence))",
            },
        ],
    },
    Mutant {
        suite: Suite::Soak,
        caught_by: &["faults"],
        what: "the local deadline is a minute late",
        changes: &[
            Change {
                file: "lock-core/src/lease.rs",
                from: "    lease.saturating_sub(lease / 1000 + Duration::from_millis(1))",
                to: "    lease + Duration::from_secs(60)",
            },
            Change {
                file: "lock-runtime/src/hold.rs",
                from: "Renewed::NotHeld => return Err(self.lose(LossReason::NotHeld)),",
                to: "Renewed::NotHeld => return Err(LossReason::NotHeld),",
            },
        ],
    },
];
