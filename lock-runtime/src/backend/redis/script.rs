//! The scripts, and how they are asked for.

use std::fmt;

use once_cell::sync::Lazy;
use redis::Cmd;

/// A Lua script that the server runs as one.
pub(super) struct Script {
    source: String,
    hash: String,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let source = parts.concat();
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }

    /// The command that runs the script by its hash, which the server may not know yet.
    pub(super) fn by_hash(&self, keys: &[&str], args: &[&str]) -> Cmd {
        // One allocation for all that follows the verb.
        let parts = keys.iter().chain(args).map(|part| part.len());
        let bytes = self.hash.len() + 8 + parts.sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), "EVALSHA".len() + bytes);
        command.arg("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys).arg(args);
        command
    }

    /// The same command by the script's source, which the server then knows.
    pub(super) fn by_source(&self, by_hash: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for arg in by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }
}

/// How tokens rise.
const NEXT_TOKEN: &str = include_str!("scripts/next_token.lua");
/// The state of a lock, and how it is given away.
const HAND_ON: &str = include_str!("scripts/hand_on.lua");
/// Whether a node of a quorum has all of its state.
const MARK: &str = include_str!("scripts/quorum/mark.lua");
/// The state of a lock in Redisson's layout, and how it is taken.
const REDISSON_OWNER: &str = include_str!("scripts/redisson/owner.lua");
const REDISSON_GRANT: &str = include_str!("scripts/redisson/grant.lua");

macro_rules! scripts {
    ($($name:ident = $($part:expr),+;)*) => {
        $(pub(super) static $name: Lazy<Script> = Lazy::new(|| Script::new(&[$($part),+]));)*
    };
}

scripts! {
    ACQUIRE = include_str!("scripts/acquire_free.lua"), NEXT_TOKEN, HAND_ON, include_str!("scripts/acquire.lua");
    TOGETHER = NEXT_TOKEN, HAND_ON, include_str!("scripts/acquire_together.lua");
    RELEASE = include_str!("scripts/release_last.lua"), NEXT_TOKEN, HAND_ON, include_str!("scripts/release.lua");
    KEEP = NEXT_TOKEN, HAND_ON, include_str!("scripts/keep.lua");
    QUEUE = NEXT_TOKEN, HAND_ON, include_str!("scripts/queue.lua");
    LEAVE = NEXT_TOKEN, HAND_ON, include_str!("scripts/leave.lua");
    FORGET = include_str!("scripts/forget.lua");
    LOOK = NEXT_TOKEN, HAND_ON, include_str!("scripts/look.lua");
    RENEW = include_str!("scripts/renew.lua");
    STATUS = include_str!("scripts/status.lua");

    QUORUM_LOOK = MARK, include_str!("scripts/quorum/look.lua");
    QUORUM_ADMIT = MARK, include_str!("scripts/quorum/admit.lua");
    QUORUM_TAKE = NEXT_TOKEN, MARK, include_str!("scripts/quorum/take.lua");
    QUORUM_ADOPT = include_str!("scripts/quorum/adopt.lua");
    QUORUM_REJOIN = MARK, include_str!("scripts/quorum/rejoin.lua");

    REDISSON_ACQUIRE = NEXT_TOKEN, REDISSON_OWNER, REDISSON_GRANT, include_str!("scripts/redisson/acquire.lua");
    REDISSON_TOGETHER = NEXT_TOKEN, REDISSON_OWNER, REDISSON_GRANT, include_str!("scripts/redisson/together.lua");
    REDISSON_RELEASE = REDISSON_OWNER, include_str!("scripts/redisson/release.lua");
    REDISSON_KEEP = REDISSON_OWNER, include_str!("scripts/redisson/keep.lua");
    REDISSON_LEAVE = REDISSON_OWNER, include_str!("scripts/redisson/leave.lua");
    REDISSON_RENEW = REDISSON_OWNER, include_str!("scripts/redisson/renew.lua");
    REDISSON_STATUS = REDISSON_OWNER, include_str!("scripts/redisson/status.lua");
}
