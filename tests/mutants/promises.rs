//! One or more for each promise.

use super::{Change, Mutant, Suite};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p01_"],
        what: "a lost counter starts again at one",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/scripts/acquire_free.lua",
                from: "if token >= ARGV[3] + 0 then",
                to: "if token >= 0 then",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/next_token.lua",
                from: "if token < tonumber(floor) then",
                to: "if token < 0 then",
            },
        ],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p02_"],
        what: "the last waiter goes first",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/scripts/acquire.lua",
                from: "local score = time[1] * 1000000 + time[2]",
                to: "local score = 9e15 - (time[1] * 1000000 + time[2])",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/acquire.lua",
                from: "if before >= score then",
                to: "if false then",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/queue.lua",
                from: "local place = now",
                to: "local place = 9e15 - now",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/queue.lua",
                from: "if last and tonumber(last) >= place then",
                to: "if false then",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/queue.lua",
                from: "      place = place + 1",
                to: "      place = place - 1",
            },
        ],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p03_"],
        what: "a wait lasts twice as long",
        changes: &[Change {
            file: "lock-runtime/src/wait.rs",
            from: "    match bounded(backend, until, attempt.enter()).await {\n        Some(Ok(Answer::Granted(grant))) => return Ok(grant),",
            to: "    match bounded(backend, until + wait, attempt.enter()).await {\n        Some(Ok(Answer::Granted(grant))) => return Ok(grant),",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p04_"],
        what: "a pushed grant stands for its whole lease",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "'PX', math.min(tonumber(lease), tonumber(claim)))",
            to: "'PX', lease)",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p05_"],
        what: "a renewal that finds the key gone says nothing",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "                if hold.kept_at.is_kept() {\n                    hold.lose(LossReason::NotHeld);\n                }",
            to: "                let _ = LossReason::NotHeld;",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p06_"],
        what: "a dropped attempt cleans nothing up",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/attempt.rs",
            from: "if !self.settled\n            && let",
            to: "if false\n            && let",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "two siblings have a turn at once",
        changes: &[Change {
            file: "lock-runtime/src/reentry.rs",
            from: "Semaphore::new(1)",
            to: "Semaphore::new(2)",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p08_"],
        what: "a loss replaces the value of a body that has completed",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "            entered.loss();\n            return Poll::Ready(Ok(()));",
            to: "            return Poll::Ready(match (entered.loss(), on_lost) {\n                (Some(lost), OnLost::Cancel) => Err(lost),\n                _ => Ok(()),\n            });",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p09_"],
        what: "a panic leaves its entry behind",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "    fn drop(&mut self) {\n        drop(self.go());",
            to: "    fn drop(&mut self) {\n        if std::thread::panicking() {\n            std::mem::forget(self.hold.take());\n        }\n        drop(self.go());",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p10_"],
        what: "an empty key part is a key",
        changes: &[Change {
            file: "lock-core/src/key.rs",
            from: "} else if self.text.len() == start {",
            to: "} else if self.text.len() < start {",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p11_"],
        what: "values are not escaped",
        changes: &[Change {
            file: "lock-core/src/key.rs",
            from: "self.value(placeholder, value, true)",
            to: "self.value(placeholder, value, false)",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p12_"],
        what: "every hold that had waited is confirmed at once",
        changes: &[Change {
            file: "lock-runtime/src/plan.rs",
            from: "const CONFIRM_AFTER: Duration = Duration::from_millis(100);",
            to: "const CONFIRM_AFTER: Duration = Duration::from_millis(0);",
        }],
    },
];
