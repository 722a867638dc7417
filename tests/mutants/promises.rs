//! One or more for each promise.

use super::{Change, Mutant, Suite};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p01_"],
        what: "a caller that misses its offers is offered a claim each time",
        changes: &[Change {
            file: "lock-core/src/lease.rs",
            from: "    CLAIM / 10_u32.pow(missed.min(3))",
            to: "    CLAIM / 10_u32.pow(missed.min(0))",
        }],
    },
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
            from: "    match unless_closing(&wanted.shared, until, attempt.enter()).await? {\n        Some(Ok(Answer::Granted(grant))) => Ok(grant),",
            to: "    match unless_closing(&wanted.shared, until + wait, attempt.enter()).await? {\n        Some(Ok(Answer::Granted(grant))) => Ok(grant),",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p03_"],
        what: "who is too late takes its server for unreachable",
        changes: &[Change {
            file: "lock-runtime/src/wait.rs",
            from: "    if backend.is_answering(LEAVE_PATIENCE / 2).await {",
            to: "    if backend.is_answering(LEAVE_PATIENCE / 2).await && false {",
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
            file: "lock-runtime/src/hold.rs",
            from: "Renewed::NotHeld => return Err(self.lose(LossReason::NotHeld)),",
            to: "Renewed::NotHeld => return Err(LossReason::NotHeld),",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p05_"],
        what: "the renewal that a nested call asks for never ends",
        changes: &[Change {
            file: "lock-runtime/src/lease.rs",
            from: "            self.plans.swap_remove(index);\n",
            to: "            let _ = index;\n",
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
        caught_by: &["p01_"],
        what: "a place of which a caller reads too late is forgotten",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/request.rs",
            from: "                self.learn_place(place);\n                Reply::Queued {",
            to: "                Reply::Queued {",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p01_"],
        what: "a caller that has missed an offer is offered a claim again",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/attempt.rs",
            from: "                        self.offer = None;\n                        self.missed += 1;\n",
            to: "                        self.offer = None;\n",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p06_"],
        what: "renewals outlive their client",
        changes: &[Change {
            file: "lock-runtime/src/closing.rs",
            from: "        self.0.end();",
            to: "        let _ = &self.0;",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "two siblings have a turn at once",
        changes: &[
            Change {
                file: "lock-runtime/src/turns.rs",
                from: "        if current.ticket == ticket {\n",
                to: "        if current.ticket <= ticket {\n",
            },
            Change {
                file: "lock-runtime/src/turns.rs",
                from: "current.filter(|current| current.ticket == ticket)",
                to: "current.filter(|current| current.ticket <= ticket)",
            },
        ],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p08_"],
        what: "a loss replaces the value of a body that has completed",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "            Poll::Ready(()) => {\n                entered.is_lost();",
            to: "            Poll::Ready(()) => {\n                let _ = on_lost == OnLost::Cancel && self.is_lost(entered);",
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
        caught_by: &["p11_"],
        what: "a value is printed to its end, however long it is",
        changes: &[Change {
            file: "lock-core/src/key.rs",
            from: "                return Err(fmt::Error);",
            to: "                return Ok(());",
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
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "a task that a body drives is inside",
        changes: &[Change {
            file: "lock-runtime/src/reentry.rs",
            from: "around.task == here",
            to: "around.task == here || here == task::try_id()",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "a guard hides the calls around it",
        changes: &[Change {
            file: "lock-runtime/src/guard.rs",
            from: "entered.lend(reentry::enclosing(), several)",
            to: "entered.lend(None, several)",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "a guard takes its own turns below a call that has entered through it",
        changes: &[Change {
            file: "lock-runtime/src/reentry.rs",
            from: "enclosing.depth() > level.depth()",
            to: "enclosing.depth() > level.depth() + 1_000",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p05_"],
        what: "a hold that was released is lost when its lease would have ended",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "(self.has_passed() && !self.has_ended())",
            to: "self.has_passed()",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p05_", "p06_"],
        what: "a body is dropped outside its hold",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "this.frame.take().map(|frame| reentry::enter(Some(frame)))",
            to: "this.frame.take().map(drop)",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p01_polled_late"],
        what: "a grant is offered to an owner that has not read its own answer",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "        if !self.unanswered.has(&grant.owners) {",
            to: "        if !grant.owners.is_empty() {",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p01_"],
        what: "in process, a lock is held for a body that never begins",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "let ends = [lease.kept_until(), self.unused_until()];",
            to: "let ends = [lease.kept_until(), None];",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p01_"],
        what: "in process, only the first of those who wait looks after the others",
        changes: &[Change {
            file: "lock-runtime/src/backend/memory.rs",
            from: "            let soon = clock::now() + CLAIM;\n",
            to: "            let soon = clock::now() + CLAIM * 1800;\n",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "a turn that is not taken is kept",
        changes: &[Change {
            file: "lock-runtime/src/turns.rs",
            from: "                ticket: waiter.ticket,\n                until: Some(now + waiter.claim),\n",
            to: "                ticket: waiter.ticket,\n                until: None,\n",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "a turn is taken for good before its body begins",
        changes: &[Change {
            file: "lock-runtime/src/turns.rs",
            from: "            current.until = Some(now + CLAIM);\n",
            to: "            current.until = None;\n",
        }],
    },
    Mutant {
        suite: Suite::Promises,
        caught_by: &["p07_"],
        what: "a hold is kept for an entry whose body has not begun",
        changes: &[Change {
            file: "lock-runtime/src/entry.rs",
            from: "        self.duty.step_out();\n",
            to: "",
        }],
    },
];
