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
            from: "self.stage = match self.ends.release {",
            to: "self.stage = match Release::Confirmed {",
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
            from: "self.stage = match self.ends.release {",
            to: "self.stage = match Release::Background {",
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
                from: "        hold.shared.keeper.forget(&hold);\n        Some(Arc::new(Releasing {",
                to: "        hold.shared.keeper.forget(&hold);\n        hold.shared.held.remove(&hold);\n        Some(Arc::new(Releasing {",
            },
            Change {
                file: "lock-runtime/src/hold.rs",
                from: "        hold.shared.held.remove(hold);\n        outcome",
                to: "        outcome",
            },
            Change {
                file: "lock-runtime/src/hold.rs",
                from: "        // Only now: shutting down waits for the release too, or for its going on in the background.\n        hold.shared.held.remove(hold);\n",
                to: "",
            },
        ],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["strategy::a_waiter_that_is_not_polled_keeps_no_turn"],
        what: "a turn is its caller's, whether it takes it or not",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/notify.rs",
            from: "            Turn::Offered(_, since) if now.since(since) >= OFFER_PATIENCE => self.open(),\n            Turn::Trying(_, since) if now.since(since) >= CLAIM => self.open(),\n",
            to: "            Turn::Offered(_, since) if since > now => self.open(),\n",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["strategy::a_lock_that_is_free_when_the_wait_ends_is_entered"],
        what: "the end of a wait does not look",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/notify.rs",
            from: "            Ok(match attempt.enter().await? {\n",
            to: "            Ok(match Answer::Busy {\n",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["extend::extensions_called_together_do_not_add_up"],
        what: "an extension counts from its first poll",
        changes: &[Change {
            file: "lock-runtime/src/guard.rs",
            from: "        self.extend_until(until)\n",
            to: "        let _ = until;\n        async move { self.extend_until(self.state.lease_ends() + by).await }\n",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["extend::what_was_handed_on_is_extended_from_the_end_of_its_lease"],
        what: "an extension counts from the end of the claim",
        changes: &[Change {
            file: "lock-runtime/src/lease.rs",
            from: "Some(deadline) if self.claim => deadline.max(self.begun + self.time),",
            to: "Some(deadline) if self.claim => deadline,",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["extend::an_extension_lasts_as_long_as_the_lease_is_renewed"],
        what: "an extension ends at the deadline that it found",
        changes: &[
            Change {
                file: "lock-runtime/src/guard.rs",
                from: "                None => state.not_lost()?,\n",
                to: "                None => return Err(lost(LossReason::Expired)),\n",
            },
            Change {
                file: "lock-runtime/src/hold.rs",
                from: "        let asked = engine::run(asking).await;\n        asked.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))\n",
                to: "        asking.await\n",
            },
        ],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["hold_at_least::thousands_of_kept_locks"],
        what: "each release looks at all that is kept",
        changes: &[Change {
            file: "lock-runtime/src/backend/memory.rs",
            from: "        kept.push(Reverse((until, name.clone())));\n",
            to: "        kept.push(Reverse((until, name.clone())));\n        locks.values_mut().for_each(|slot| slot.settle(fence));\n",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["keys::what_is_lost_while_another_one_is_waited_for_is_taken_again"],
        what: "what is lost before the body is not taken again",
        changes: &[Change {
            file: "lock-runtime/src/several.rs",
            from: "Some(_) if budget.waits_until() > shared.backend.now() => {}",
            to: "Some(_) if budget.waits_until() == shared.backend.now() => {}",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["multi_lock::nested_in_a_guard_nothing_waits_out_of_order"],
        what: "what runs in a guard of several locks waits out of order",
        changes: &[Change {
            file: "lock-runtime/src/guard.rs",
            from: "self.several.as_ref(), body",
            to: "None, body",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["multi_lock::two_runs_of_one_guard_take_turns"],
        what: "the other locks of a guard keep its own calls from taking turns",
        changes: &[Change {
            file: "lock-runtime/src/reentry.rs",
            from: "found.is_none_or(|found| !frame.is_of_the_same_call(found))",
            to: "found.is_none_or(|_| true)",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &["runtimes::in_process"],
        what: "every runtime is taken to have a timer",
        changes: &[Change {
            file: "lock-runtime/src/clock.rs",
            from: "catch_unwind(|| drop(time::sleep(Duration::ZERO))).is_ok()",
            to: "catch_unwind(|| drop(Duration::ZERO)).is_ok()",
        }],
    },
];
