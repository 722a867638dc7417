//! Strategies and Redisson's layout.

use super::{Change, Mutant, Suite};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        suite: Suite::Options,
        caught_by: &["layout::the_jvm_enters_when_we_leave"],
        what: "a release tells Redisson nothing",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/redisson/release.lua",
            from: "tell(KEYS[2])\nreturn 1 -- released",
            to: "return 1 -- released",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["layout::a_lock_that_is_kept"],
        what: "a lock that is kept tells Redisson nothing",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/redisson/keep.lua",
            from: "tell(KEYS[2]) -- who waits",
            to: "-- who waits",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &[
            "layout::a_release_of_the_jvm_wakes_us",
            "layout::a_new_connection_listens",
        ],
        what: "nobody listens to Redisson",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/notify.rs",
            from: "        if self.server.layout == Layout::Native {\n            return Ok(false); // the try",
            to: "        if self.server.layout != Layout::Native {\n            return Ok(false); // the try",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["layout::who_gives_up_or_is_dropped"],
        what: "the last one to go does not stop listening",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/notify.rs",
            from: "            if !self.link.notified.is_deserted(&self.topic) {",
            to: "            if self.link.notified.is_deserted(&self.topic) || !self.topic.is_empty() {",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["layout::the_jvm_enters_when_we_leave"],
        what: "a lock of Redisson's that was left once is free",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/redisson/acquire.lua",
            from: "if redis.call('EXISTS', KEYS[1]) == 0 then",
            to: "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HVALS', KEYS[1])[1] == '1' then",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["layout::tokens_rise_together"],
        what: "tokens of a fenced lock are not looked at",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/redisson/grant.lua",
            from: "  if theirs then",
            to: "  if false then",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["layout::the_other_layout_is_refused"],
        what: "a lock in another layout is any refusal",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "        if text.contains(\"WRONGTYPE\") {",
            to: "        if text.contains(\"WRONGTYPE!\") {",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["strategy::a_try_at_a_lock_that_has_expired"],
        what: "a try overtakes the queue",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/acquire_free.lua",
            from: "if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and",
            to: "if redis.call('EXISTS', KEYS[1]) == 0 and",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["strategy::a_release_wakes"],
        what: "those who are notified are not woken",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/notify.rs",
            from: "        if let Some(topic) = lock(&self.0).get(topic) {",
            to: "        if let Some(topic) = lock(&self.0).get(topic).filter(|_| false) {",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &[
            "release::in_the_background_the_value",
            "release::a_client_says",
        ],
        what: "every release is waited for",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "                        if self.ends.release == Release::Background {",
            to: "                        if false && self.ends.release == Release::Background {",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &[
            "release::a_client_says",
            "release::a_release_is_confirmed_where_nobody_says_otherwise",
        ],
        what: "no release is waited for",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "                        if self.ends.release == Release::Background {",
            to: "                        if true || self.ends.release == Release::Background {",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &[
            "release::the_same_client_is_never_in_its_own_way",
            "release::the_next_acquisition_goes_after_the_release",
        ],
        what: "a release in the background begins some time later",
        changes: &[Change {
            file: "lock-runtime/src/run.rs",
            from: "    if leaving.as_mut().poll(&mut cx).is_pending() {",
            to: "    let _ = &mut cx;\n    let mut leaving: BoxFuture<'static, ()> = Box::pin(async move {\n        tokio::time::sleep(std::time::Duration::from_millis(5)).await;\n        leaving.await;\n    });\n    if leaving.as_mut().poll(&mut cx).is_pending() {",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["release::shutting_down_waits"],
        what: "what is released in the background is no hold any more",
        changes: &[
            Change {
                file: "lock-runtime/src/hold.rs",
                from: "        hold.shared.keeper.forget(&hold);\n        Some(Releasing {",
                to: "        hold.shared.keeper.forget(&hold);\n        hold.shared.held.remove(&hold);\n        Some(Releasing {",
            },
            Change {
                file: "lock-runtime/src/hold.rs",
                from: "        self.hold.shared.held.remove(&self.hold);\n",
                to: "",
            },
        ],
    },
];
