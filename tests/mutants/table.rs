//! The mutants, one or more a promise.

pub(crate) struct Mutant {
    pub(crate) promise: u8,
    pub(crate) what: &'static str,
    pub(crate) changes: &'static [Change],
}

pub(crate) struct Change {
    pub(crate) file: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        promise: 1,
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
        promise: 2,
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
        ],
    },
    Mutant {
        promise: 3,
        what: "a wait lasts twice as long",
        changes: &[Change {
            file: "lock-runtime/src/wait.rs",
            from: "    match bounded(backend, until, attempt.enter()).await {\n        Some(Ok(Answer::Granted(grant))) => return Ok(grant),",
            to: "    match bounded(backend, until + wait, attempt.enter()).await {\n        Some(Ok(Answer::Granted(grant))) => return Ok(grant),",
        }],
    },
    Mutant {
        promise: 4,
        what: "a pushed grant stands for its whole lease",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "'PX', math.min(tonumber(lease), tonumber(claim)))",
            to: "'PX', lease)",
        }],
    },
    Mutant {
        promise: 5,
        what: "a renewal that finds the key gone says nothing",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "                if hold.kept_at.is_kept() {\n                    hold.lose(LossReason::NotHeld);\n                }",
            to: "                let _ = LossReason::NotHeld;",
        }],
    },
    Mutant {
        promise: 6,
        what: "a dropped attempt cleans nothing up",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/attempt.rs",
            from: "if !self.settled\n            && let",
            to: "if false\n            && let",
        }],
    },
    Mutant {
        promise: 7,
        what: "two siblings have a turn at once",
        changes: &[Change {
            file: "lock-runtime/src/reentry.rs",
            from: "Semaphore::new(1)",
            to: "Semaphore::new(2)",
        }],
    },
    Mutant {
        promise: 8,
        what: "a loss replaces the value of a body that has completed",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "            entered.loss();\n            return Poll::Ready(Ok(()));",
            to: "            return Poll::Ready(match (entered.loss(), on_lost) {\n                (Some(lost), OnLost::Cancel) => Err(lost),\n                _ => Ok(()),\n            });",
        }],
    },
    Mutant {
        promise: 9,
        what: "a panic leaves its entry behind",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "    fn drop(&mut self) {\n        drop(self.go());",
            to: "    fn drop(&mut self) {\n        if std::thread::panicking() {\n            std::mem::forget(self.hold.take());\n        }\n        drop(self.go());",
        }],
    },
    Mutant {
        promise: 10,
        what: "an empty key part is a key",
        changes: &[Change {
            file: "lock-core/src/key.rs",
            from: "} else if self.text.len() == start {",
            to: "} else if self.text.len() < start {",
        }],
    },
    Mutant {
        promise: 11,
        what: "values are not escaped",
        changes: &[Change {
            file: "lock-core/src/key.rs",
            from: "self.value(placeholder, value, true)",
            to: "self.value(placeholder, value, false)",
        }],
    },
    Mutant {
        promise: 12,
        what: "every hold that had waited is confirmed at once",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "const CONFIRM_AFTER: Duration = Duration::from_millis(100);",
            to: "const CONFIRM_AFTER: Duration = Duration::from_millis(0);",
        }],
    },
];
