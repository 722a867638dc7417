//! One for each test of a row of the fault matrix.

use super::{Change, Mutant, Suite};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_01", "row_02", "row_03"],
        what: "a look frees nothing that has expired",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/look.lua",
            from: "  if not held then\n    -- Tells the head",
            to: "  if false then\n    -- Tells the head",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_03"],
        what: "deadlines count on the monotonic clock",
        changes: &[Change {
            file: "lock-runtime/src/clock.rs",
            from: "        let now = rustix::time::clock_gettime(CLOCK);\n        Moment::new(Duration::new(\n            u64::try_from(now.tv_sec).unwrap_or_default(),\n            u32::try_from(now.tv_nsec).unwrap_or_default(),\n        ))",
            to: "        static BIRTH: once_cell::sync::Lazy<std::time::Instant> =\n            once_cell::sync::Lazy::new(std::time::Instant::now);\n        let _ = CLOCK;\n        Moment::new(BIRTH.elapsed())",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_03", "row_13", "row_17"],
        what: "the local deadline is a minute late",
        changes: &[Change {
            file: "lock-core/src/lease.rs",
            from: "    lease.saturating_sub(lease / 1000 + Duration::from_millis(1))",
            to: "    lease + Duration::from_secs(60)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_04", "row_33"],
        what: "what outlives a caller runs on the caller's runtime",
        changes: &[Change {
            file: "lock-runtime/src/engine.rs",
            from: "    ENGINE.spawn(future)",
            to: "    Handle::try_current()\n        .unwrap_or_else(|_| ENGINE.clone())\n        .spawn(future)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_05"],
        what: "`max_hold` is forgotten",
        changes: &[Change {
            file: "lock-runtime/src/plan.rs",
            from: "until: max_hold.map(|max_hold| now + max_hold),",
            to: "until: max_hold.map(|_| now + Duration::from_secs(86_400)),",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_06", "row_07"],
        what: "an entry that is dropped is left behind",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "    fn drop(&mut self) {\n        drop(self.go());",
            to: "    fn drop(&mut self) {\n        std::mem::forget(self.hold.take());",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_08"],
        what: "a dropped attempt cleans nothing up",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/attempt.rs",
            from: "if !self.settled\n            && let",
            to: "if false\n            && let",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_09"],
        what: "a retry does not know its own grant",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/acquire.lua",
            from: "if held and string.find(held, owner, 1, true) then",
            to: "if false then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &[
            "row_10_late_request_of_a_killed_connection",
            "row_38_old_socket",
        ],
        what: "an old connection is not closed on the server",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/connection.rs",
                from: "            closing(previous),\n",
                to: "            closing(previous.filter(|_| false)),\n",
            },
            Change {
                file: "lock-runtime/src/backend/redis/cleanup.rs",
                from: "            if home.may_kill && !answered {\n                home.kill(&connection.identity).await.ok()?;\n            }\n",
                to: "",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_10_late_request_where_connections_cannot_be_killed"],
        what: "a late request does not refuse itself",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/acquire_free.lua",
            from: "if ARGV[6] ~= '' then",
            to: "if false then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_11_release_sent_twice", "row_12"],
        what: "a release does not look whose lock it is",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/release_last.lua",
            from: "if not held or string.find(held, ARGV[1], 1, true) ~= 1 then",
            to: "if not held then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_11_lock_kept_twice"],
        what: "a lock that is kept again is kept for longer",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/keep.lua",
            from: "local longer = string.format('%.0f', math.min(left, tonumber(ARGV[3])))",
            to: "local longer = string.format('%.0f', left + tonumber(ARGV[3]) + 1000)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_13_callers_ask_again"],
        what: "a command outlives its connection",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "() = health.until_broken() => Err(",
            to: "() = std::future::pending::<()>() => Err(",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_13"],
        what: "silence is endured",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "const SILENCE: Duration = Duration::from_secs(2);",
            to: "const SILENCE: Duration = Duration::from_secs(2000);",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_14", "row_23_key_deleted", "row_32_clock_forward"],
        what: "a renewal that finds the key gone says nothing",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "Renewed::NotHeld => return Err(self.lose(LossReason::NotHeld)),",
            to: "Renewed::NotHeld => return Err(LossReason::NotHeld),",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_15", "row_16"],
        what: "a renewal that has no answer at once is a loss",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "            answered = clock::boot::timeout_at(until, &mut answers) => answered,\n        };\n        if answered.is_some() {\n            return answered;\n        }",
            to: "            answered = clock::boot::timeout_at(until.min(clock::boot::now() + RETRY_AFTER), &mut answers) => answered,\n        };\n        if answered.is_some() {\n            return answered;\n        }\n        asked.iter().for_each(|asked| drop(asked.hold.apply(asked.requested, Renewed::NotHeld)));",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_18_slow_line"],
        what: "a connection is made in many round trips",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "        let sent = clock::now();\n        let (closed, probed",
            to: "        for _ in 0..4 {\n            asking().await?;\n        }\n        let sent = clock::now();\n        let (closed, probed",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_18_jitter"],
        what: "a lease counts from the reply",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "        reply.map(|reply| (reply, sent))",
            to: "        reply.map(|reply| (reply, clock::now()))",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_19_push_lost"],
        what: "a look finds no grants",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/look.lua",
            from: "      found[#found + 1] = { 'held', number, held, left }",
            to: "      held = held",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_19_connection_cut"],
        what: "a new connection finds nobody waiting",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/scripts/look.lua",
                from: "      found[#found + 1] = { 'held', number, held, left }",
                to: "      held = held",
            },
            Change {
                file: "lock-runtime/src/backend/redis/link.rs",
                from: "                    self.link.requeue(&server, None);",
                to: "",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_19_hundreds"],
        what: "a look gives away what is held",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/look.lua",
            from: "  if not held then\n    -- Tells the head",
            to: "  if true then\n    -- Tells the head",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_20"],
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
        suite: Suite::Faults,
        caught_by: &["row_21"],
        what: "a waiter that nobody hears is granted",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "if type(heard) == 'number' and heard > 0 then",
            to: "if true then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_22"],
        what: "a script that was forgotten is an error",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {",
            to: "            Err(error) if false && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_23_flushall_while_waiting", "row_42_flushall"],
        what: "a queue that is lost is not missed",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/look.lua",
            from: "    found[#found + 1] = { 'gone', number } --",
            to: "    --",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_24"],
        what: "an extension writes first, and asks for memory",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/renew.lua",
            from: "  redis.call('PEXPIRE', grant, lease) -- first, for it is allowed when the server is out of memory\n  if lease > longest then",
            to: "  if lease <= longest then\n    redis.call('PEXPIRE', grant, lease)\n  else",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_25"],
        what: "eviction is not looked for",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/check.rs",
            from: "        Some(policy) if policy != \"noeviction\" && !allow_eviction => Err(Failure::Eviction(policy)),",
            to: "        Some(policy) if policy.is_empty() && !allow_eviction => Err(Failure::Eviction(policy)),",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_26_noreplicas", "row_26_readonly", "row_26_misconf"],
        what: "what a server cannot do for the moment is refused for good",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/attempt.rs",
            from: "            Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {\n                self.server.note(detail);\n                clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;\n                Ok(Asked::Again)\n            }\n            Err(CallError::Refused",
            to: "            Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {\n                Err(BackendError::Refused(detail))\n            }\n            Err(CallError::Refused",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_26_loading"],
        what: "a link gives up when it cannot connect",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "                    server.outages.note(error);\n                    drop(server);",
            to: "                    server.outages.note(error);\n                    return;\n                    #[expect(unreachable_code)]\n                    drop(server);",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_38_request_that_was_sent_again"],
        what: "an owner may leave while a request that was sent again is under way",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/lines.rs",
            from: "                    until_closed(server, self, connection, first).await;",
            to: "                    if false {\n                        until_closed(server, self, connection, first).await;\n                    }",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_29"],
        what: "a majority is all nodes",
        changes: &[Change {
            file: "lock-runtime/src/backend/redlock/mod.rs",
            from: "        self.nodes.len() / 2 + 1",
            to: "        self.nodes.len()",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_29_two_of_five_down"],
        what: "a vote that is lost waits for the nodes that are down",
        changes: &[Change {
            file: "lock-runtime/src/backend/redlock/attempt.rs",
            from: "haste == Haste::Hasty && heard",
            to: "haste == Haste::Patient && heard",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_30"],
        what: "two of five are a majority",
        changes: &[Change {
            file: "lock-runtime/src/backend/redlock/mod.rs",
            from: "        self.nodes.len() / 2 + 1",
            to: "        self.nodes.len() / 2",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &[
            "row_31_node_returns_empty",
            "row_31_another_clients_lock",
            "row_31_a_flushed_node",
        ],
        what: "a node is counted, whatever it has forgotten",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/quorum/take.lua",
            from: "if not whole(KEYS[3], ARGV[2]) then",
            to: "if false then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_31_another_clients_lock"],
        what: "a node is counted after the longest lease that one client knows of",
        changes: &[Change {
            file: "lock-runtime/src/backend/redlock/mod.rs",
            from: "            .fold(self.longest_lease(), Duration::max);",
            to: "            .fold(self.longest_lease(), |own, _| own);",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_31_a_beginning"],
        what: "a node is counted, however few others have told their marks",
        changes: &[Change {
            file: "lock-runtime/src/backend/redlock/mod.rs",
            from: "        let known = told.len() >= enough || all_answer;",
            to: "        let known = told.len() < enough || all_answer;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["redlock::a_hold_returns"],
        what: "a node that missed a hold never gets it",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/quorum/rejoin.lua",
            from: "if redis.call('EXISTS', KEYS[1]) == 1 then",
            to: "if true then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["redlock::a_waiter_that_is_not_polled"],
        what: "what a round has got waits for its caller for ever",
        changes: &[Change {
            file: "lock-runtime/src/backend/redlock/attempt.rs",
            from: "            clock::sleep_until(claim_ends).await;",
            to: "            clock::sleep_until(claim_ends + CLAIM * 20).await;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["redlock::nothing_is_left_on_a_node"],
        what: "a request to a node is carried out, however late",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/quorum/take.lua",
            from: "if now > tonumber(ARGV[4]) then",
            to: "if false then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_32_clock_back"],
        what: "a lease may last longer than it is",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "  if lease and (left > lease or left < 0) then",
            to: "  if false then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_34"],
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
        suite: Suite::Faults,
        caught_by: &["row_35_unusable"],
        what: "a wrong password is an unreachable server",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/check.rs",
                from: "            ErrorKind::AuthenticationFailed => Self::Authentication(text),",
                to: "            ErrorKind::AuthenticationFailed => Self::Unreachable(text),",
            },
            Change {
                file: "lock-runtime/src/backend/redis/check.rs",
                from: "                Self::Authentication(text)\n            }",
                to: "                Self::Unreachable(text)\n            }",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_35_right"],
        what: "a missing right is asked for again and again",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "                _ => Self::Refused(BackendError::Refused(text)),\n            },",
            to: "                _ => Self::NotNow(text),\n            },",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_36"],
        what: "a push counts from when it is read",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/link.rs",
                from: "Told::read(&push.payload, &self.inbox, push.after)",
                to: "Told::read(&push.payload, &self.inbox, clock::now())",
            },
            Change {
                file: "lock-runtime/src/backend/redis/cohort/mod.rs",
                from: "        if left.is_zero() || left < self.confirmed * 2 / 3 {",
                to: "        if left > self.confirmed {",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_37"],
        what: "a pushed grant stands for its whole lease",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "'PX', math.min(tonumber(lease), tonumber(claim)))",
            to: "'PX', lease)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["many_holds_are_renewed_by_few_commands"],
        what: "each hold is renewed by a command of its own",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/mod.rs",
            from: "        renew::TOGETHER_AT_MOST\n",
            to: "        renew::TOGETHER_AT_MOST / renew::TOGETHER_AT_MOST\n",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["holds_that_began_one_after_the_other_are_renewed_together"],
        what: "each hold comes due at a moment of its own",
        changes: &[Change {
            file: "lock-runtime/src/plan.rs",
            from: "        together(due, third / STEPS)\n",
            to: "        together(due, third / STEPS / 1_000_000)\n",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["of_many_holds_those_that_are_gone_are_lost_and_no_others"],
        what: "something else under one lock's name fails the renewal of all",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/renew.lua",
            from: "pcall(redis.call, 'GET', grant)",
            to: "true, redis.call('GET', grant)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["of_many_holds_those_that_are_gone_are_lost_and_no_others"],
        what: "something else under one lock's name fails the renewal of all, in Redisson's layout",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/redisson/renew.lua",
            from: "local fine, field, _, token = pcall(ours, lock)",
            to: "local fine, field, _, token = true, ours(lock)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["of_many_holds_those_that_are_gone_are_lost_and_no_others"],
        what: "the answers are taken for those of other holds",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "asked.into_iter().zip(answers)",
            to: "asked.into_iter().rev().zip(answers)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["of_many_holds_those_that_the_server_refuses_are_lost_and_no_others"],
        what: "what is refused to one hold is refused to all",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/renew.rs",
            from: "Err(BackendError::Refused(_)) if holders.len() > 1 => {",
            to: "Err(BackendError::Refused(_)) if holders.is_empty() => {",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["a_late_answer_counts_from_the_sending"],
        what: "a renewal counts from its answer",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/renew.rs",
            from: "Some(answered.sent + less_drift(Duration::from_millis(left)))",
            to: "Some(crate::clock::boot::now() + less_drift(Duration::from_millis(left)))",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["a_hold_is_lost_at_its_own_deadline"],
        what: "an unanswered renewal waits for the last deadline",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "    tended.filter_map(|hold| hold.deadline()).min()",
            to: "    tended.filter_map(|hold| hold.deadline()).max()",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["of_many_holds_the_released_leave_the_others_in_the_schedule"],
        what: "a hold that moves up in the schedule is looked for in its old place",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "            holds.swap_remove(place);\n            if let Some(moved) = holds.get(place) {\n                moved.kept_at.move_to(due, place);\n            }",
            to: "            holds.swap_remove(place.min(holds.len() - 1));",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["many_holds_outlive_the_scripts_of_the_server"],
        what: "a script that is sent whole has other arguments",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/script.rs",
            from: "by_hash.args_iter().skip(2)",
            to: "by_hash.args_iter().skip(1)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_39"],
        what: "a block waits for a member that has gone",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/cohorts.rs",
            from: "            if let Some(missed) = self.link.lines.tell(name, turn.owner, Ok(turn.token)) {",
            to: "            let missed = self.link.lines.tell(name, turn.owner, Ok(turn.token)).unwrap_or(0);
            if self.cohort.lease() > Duration::ZERO {",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_40"],
        what: "a block stands for the leases of all its members",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "'PX', math.min(tonumber(lease), tonumber(claim)))",
            to: "'PX', math.min(tonumber(lease), tonumber(claim)) * count)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_41_connection_cut", "row_41_connection_killed"],
        what: "a member of a block queues again when its connection is back",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/queue.lua",
            from: "  if held and string.find(held, owner, 1, true) then",
            to: "  if false then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_42_grant_of_a_block_deleted"],
        what: "the others of a block that is lost are not told",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/cohorts.rs",
            from: "        if let Some(link) = self.cohorts.lose(name, first) {\n            link.requeue(self, Some(name));\n        }",
            to: "        let _ = self.cohorts.lose(name, first);",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &[
            "row_42_grant_of_a_block_deleted",
            "row_42_process_of_a_block_stopped",
        ],
        what: "whoever takes its place again goes to the end",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/lines.rs",
            from: "place.map_or_else(String::new, |place| place.to_string())",
            to: "place.map_or_else(String::new, |_| String::new())",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_43"],
        what: "a look finds no blocks",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/look.lua",
            from: "  if inbox == ARGV[1] then",
            to: "  if inbox == ARGV[1] and not string.find(held, ' ', 1, true) then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_43"],
        what: "the members of a block share one token",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/cohort/mod.rs",
            from: "let token = self.tokens.end - 1 - self.to_come.len() as u64;",
            to: "let token = self.tokens.start;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_44_runtime_blocked_in_a_block_that_is_renewed"],
        what: "a member of a block renews by its own token",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/renew.rs",
            from: "                Known::Turn(first) => FencingToken::new(*first),",
            to: "                Known::Turn(_) => one.token,",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_44_runtime_blocked_in_a_block_that_is_not_renewed"],
        what: "a block goes on when its lease has ended",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/cohort/mod.rs",
                from: "        if self.is_over() || self.until <= now {\n            return None;",
                to: "        if self.is_over() {\n            return None;",
            },
            Change {
                file: "lock-runtime/src/backend/redis/cohort/mod.rs",
                from: "        if left.is_zero() || left < self.confirmed * 2 / 3 {",
                to: "        if left > self.confirmed {",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_45"],
        what: "what a nested entry has asked for stands for those who come after",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/cohort/mod.rs",
            from: "        self.until > now + self.lease",
            to: "        self.until > now + self.lease * 1000",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_46"],
        what: "a member with others behind it keeps nothing",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/cohorts.rs",
            from: "            others.then(|| entry.cohort.lease())",
            to: "            others.then(|| entry.cohort.lease()).filter(|_| false)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_47"],
        what: "a block does not look at leases",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
                from: "local tail = '|' .. inbox .. '|' .. lease .. '|'",
                to: "local tail = '|' .. inbox .. '|'",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
                from: "string.sub(member, last + 1) * 1000 > now",
                to: "string.match(member, '%d+$') * 1000 > now",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_47"],
        what: "a block has those in it whose time is up",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "    if neighbours[i + 1] + string.sub(member, last + 1) * 1000 > now then",
            to: "    if true then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_48"],
        what: "each caller queues by a request of its own",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/lines.rs",
            from: "const TOGETHER_AT_MOST: usize = 64;",
            to: "const TOGETHER_AT_MOST: usize = 1;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_52_waiting", "row_52_holding"],
        what: "shutting down waits for a silent server without end",
        changes: &[
            Change {
                file: "lock-runtime/src/client.rs",
                from: "begun + WAITING_PATIENCE, nobody_waits",
                to: "begun + 10 * HELD_PATIENCE, nobody_waits",
            },
            Change {
                file: "lock-runtime/src/client.rs",
                from: "                if until <= now {",
                to: "                if until <= now && false {",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_52_the_server_comes_back"],
        what: "a server that was silent once is never waited for again",
        changes: &[Change {
            file: "lock-runtime/src/client.rs",
            from: "                silent_since = None;",
            to: "                let _ = &silent_since;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_52_a_shutdown"],
        what: "renewals outlive their client",
        changes: &[Change {
            file: "lock-runtime/src/closing.rs",
            from: "        self.0.end();",
            to: "        let _ = &self.0;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_53_restarted_tcp", "row_53_restarted_unix"],
        what: "a connection is closed by its ID, whatever run of the server had it",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/connection.rs",
            from: "                (run == previous.run).then_some(previous.id)",
            to: "                run.map(|_| previous.id)",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["a_grant_that_is_read_late_is_confirmed_before_the_body_starts"],
        what: "a body starts on whatever is left of its lease",
        changes: &[Change {
            file: "lock-runtime/src/wait.rs",
            from: "    entry.hold().is_fresh() && entry.hold().loss().is_none()\n",
            to: "    entry.hold().loss().is_none()\n",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &[
            "a_grant_that_is_read_after_its_end_is_acquired_again",
            "a_try_whose_grant_is_read_after_its_end_is_busy",
        ],
        what: "a lease that has ended before its body is entered all the same",
        changes: &[Change {
            file: "lock-runtime/src/wait.rs",
            from: "    Ok(false)\n",
            to: "    Ok(true)\n",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &[
            "several_grants_that_are_read_late_are_confirmed_or_acquired_again",
            "what_was_restarted_late_is_confirmed_or_acquired_again",
        ],
        what: "a body under several locks starts on whatever is left of their leases",
        changes: &[Change {
            file: "lock-runtime/src/several.rs",
            from: "if entry.has_begun() && !entry.hold().is_fresh() {",
            to: "if entry.has_begun() && entry.hold().loss().is_some() {",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_49_polled_late", "row_50"],
        what: "an answer seats the member that asked for it, whoever has the turn",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/cohort/mod.rs",
                from: "        if self.turn.token != token || !self.is_offered() {",
                to: "        if !self.contains(token) {",
            },
            Change {
                file: "lock-runtime/src/backend/redis/renew.rs",
                from: "                    if self.cohorts.confirm(one.name, one.token, answer) {",
                to: "                    if self.cohorts.confirm(one.name, one.token, answer) || !restart {",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_51_forgotten", "row_51_the_other_branch"],
        what: "an offer stands for as long as the lease",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/cohort/mod.rs",
            from: "self.lease.min(claim_after(missed))",
            to: "self.lease.max(claim_after(missed))",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &[
            "row_51_an_answer_is_never_read",
            "row_49_an_answer_is_read_late",
        ],
        what: "an answer may be read at any time",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "                revoke(&server, &link, now);\n",
            to: "",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_54"],
        what: "looks are not paced",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/link.rs",
                from: "                let period = HEARTBEAT.max(LOOK_SHARE.saturating_mul(locks));",
                to: "                let period = HEARTBEAT.min(LOOK_SHARE.saturating_mul(locks));",
            },
            Change {
                file: "lock-runtime/src/backend/redis/link.rs",
                from: "                    wake = now + LOOK_SHARE * LOOK_AT_MOST as u32;\n",
                to: "                    wake = now;\n",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_55"],
        what: "nobody looks at the end of a lease",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "        let at = at.min(clock::now() + HEARTBEAT);",
            to: "        let _ = at;\n        let at = clock::now() + HEARTBEAT;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_56"],
        what: "each waiter of a stopped process is granted the lock in its turn",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
            from: "    if inbox ~= speaks then",
            to: "    if inbox == nil then",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_57"],
        what: "a script goes through all entries that are dead",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
                from: "local ENTRIES_AT_MOST = 2000",
                to: "local ENTRIES_AT_MOST = 2000000",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/hand_on.lua",
                from: "  if places[1] then\n    redis.call('ZREM', queue, unpack(places))\n  end",
                to: "  for _, place in ipairs(places) do\n    redis.call('ZREM', queue, place)\n  end",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_58_forged_pushes"],
        what: "a message on the channel of an inbox is believed, whoever sent it",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/grant.rs",
            from: "if signature != sha1(&[inbox, told, inbox])",
            to: "if signature.len() != 40",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_51_a_release_is_never_polled"],
        what: "what a release takes beyond one step is its caller's",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/cohorts.rs",
                from: "        if !retained && self.cohorts.stretched(name, token.get(), now).is_none() {\n            return self.release_turn(name, token, keep_until).await;\n        }\n",
                to: "        if !retained && self.cohorts.stretched(name, token.get(), now).is_none() {\n            return self.release_turn(name, token, keep_until).await;\n        }\n        if now > Moment::new(Duration::ZERO) {\n            return self.release_in_steps(name, token, keep_until).await;\n        }\n",
            },
            Change {
                file: "lock-runtime/src/renewal.rs",
                from: "        late.iter().for_each(|releasing| releasing.go_on_behind());\n",
                to: "",
            },
        ],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_51_no_body_begins"],
        what: "a lock is held for a body that never begins",
        changes: &[Change {
            file: "lock-runtime/src/hold.rs",
            from: "        self.unused_until.set(Some(until));\n",
            to: "        self.unused_until.set(Some(until + Duration::from_secs(3600)));\n",
        }],
    },
];
