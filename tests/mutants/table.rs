//! The mutants: one or more a promise, and for each test of a row of the fault matrix one that it catches.

/// Which tests shall notice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// A promise's own, and no others of that suite.
    Promises,
    /// These rows, and whatever others.
    Faults,
    /// These options, and whatever others.
    Options,
    /// A soak of a minute, `calm` or with `faults`.
    Soak,
}

pub(crate) struct Mutant {
    pub(crate) suite: Suite,
    /// How the names of the tests that notice begin, without their module in the fault matrix.
    pub(crate) caught_by: &'static [&'static str],
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
            from: "if string.find(held, owner, 1, true) then",
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
                from: "            Some(whom) => kill(&mut redis.clone(), whom).await,\n            None => Ok(()),",
                to: "            Some(whom) if whom.id == i64::MAX.to_string() => kill(&mut redis.clone(), whom).await,\n            _ => Ok(()),",
            },
            Change {
                file: "lock-runtime/src/backend/redis/attempt.rs",
                from: "            if home.may_kill {\n                home.kill(&connection.identity).await.ok()?;\n            }\n",
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
            from: "if ARGV[7] ~= '' then",
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
            file: "lock-runtime/src/renewal.rs",
            from: "                if hold.kept_at.is_kept() {\n                    hold.lose(LossReason::NotHeld);\n                }",
            to: "                let _ = LossReason::NotHeld;",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_15", "row_16"],
        what: "a renewal that has no answer at once is a loss",
        changes: &[Change {
            file: "lock-runtime/src/renewal.rs",
            from: "            clock::boot::timeout_at(deadline, answer).await\n        };",
            to: "            match clock::boot::timeout_at(deadline.min(now + RETRY_AFTER), answer).await {\n                None => {\n                    hold.lose(LossReason::Expired);\n                    None\n                }\n                answer => answer,\n            }\n        };",
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
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "                    grant => self.found(grant, sent),",
            to: "                    grant => drop((grant, sent)),",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_19_connection_cut"],
        what: "a new connection finds nobody waiting",
        changes: &[
            Change {
                file: "lock-runtime/src/backend/redis/link.rs",
                from: "                    grant => self.found(grant, sent),",
                to: "                    grant => drop((grant, sent)),",
            },
            Change {
                file: "lock-runtime/src/backend/redis/link.rs",
                from: "                    self.link.resend(&server, &connection, None);",
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
        caught_by: &["row_23_flushall_while_waiting"],
        what: "a queue that is lost is not missed",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/look.lua",
            from: "    found[#found + 1] = i / 2 --",
            to: "    --",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_24"],
        what: "an extension writes first, and asks for memory",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/renew.lua",
            from: "  redis.call('PEXPIRE', KEYS[1], lease) -- first, for it is allowed when the server is out of memory\n  redis.call('SET'",
            to: "  redis.call('SET'",
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
            from: "            Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {\n                self.server.note(detail);\n                clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;\n                Ok(None)\n            }",
            to: "            Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {\n                Err(BackendError::Refused(detail))\n            }",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_26_loading"],
        what: "a link gives up when it cannot connect",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "                    server.failed(&error);\n                    drop(server);",
            to: "                    server.failed(&error);\n                    return;\n                    #[expect(unreachable_code)]\n                    drop(server);",
        }],
    },
    Mutant {
        suite: Suite::Faults,
        caught_by: &["row_38_request_that_was_sent_again"],
        what: "an owner may leave while a request that was sent again is under way",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/link.rs",
            from: "                        until_closed(&server, &connection, &args).await;",
            to: "                        if false {\n                            until_closed(&server, &connection, &args).await;\n                        }",
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
        caught_by: &["row_31_node_returns_empty", "row_31_a_beginning"],
        what: "a node is counted, whatever it has forgotten",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/node.rs",
            from: "        let until = memory.lost_at? + longest_lease;",
            to: "        let until = memory.lost_at? + longest_lease * 0;",
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
        changes: &[Change {
            file: "lock-runtime/src/reentry.rs",
            from: "Semaphore::new(1)",
            to: "Semaphore::new(2)",
        }],
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
                from: "                    claimed(token, args.lease.min(CLAIM), push.after)",
                to: "                    claimed(token, args.lease.min(CLAIM), clock::now())",
            },
            Change {
                file: "lock-runtime/src/backend/redis/attempt.rs",
                from: "        if !grant.queued || left >= validity * 2 / 3 {",
                to: "        if !grant.queued || left >= Duration::ZERO {",
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
        caught_by: &["strategy::those_who_queue_come_first"],
        what: "a try overtakes the queue",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/scripts/acquire_free.lua",
            from: "if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and",
            to: "if redis.call('EXISTS', KEYS[1]) == 0 and",
        }],
    },
    Mutant {
        suite: Suite::Options,
        caught_by: &[
            "strategy::each_enters_when_the_lock_is_free",
            "strategy::one_process_sends",
        ],
        what: "those who are notified are not woken",
        changes: &[Change {
            file: "lock-runtime/src/backend/redis/notify.rs",
            from: "        if let Some(topic) = lock(&self.0).get(topic) {",
            to: "        if let Some(topic) = lock(&self.0).get(topic).filter(|_| false) {",
        }],
    },
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
                from: "  local token = redis.call('INCR', KEYS[3])",
                to: "  local token = tonumber(redis.call('GET', KEYS[3]) or redis.call('INCR', KEYS[3]))",
            },
            Change {
                file: "lock-runtime/src/backend/redis/scripts/next_token.lua",
                from: "  local token = redis.call('INCR', fence)",
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
                file: "lock-runtime/src/renewal.rs",
                from: "                if hold.kept_at.is_kept() {\n                    hold.lose(LossReason::NotHeld);\n                }",
                to: "                let _ = LossReason::NotHeld;",
            },
        ],
    },
];
