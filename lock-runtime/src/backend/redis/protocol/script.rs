//! The scripts, and how they are asked for.

use std::fmt;

use once_cell::sync::Lazy;
use redis::Cmd;

/// A Lua script that the server runs as one.
pub(crate) struct Script {
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
    pub(crate) fn by_hash(&self, keys: &[&str], args: &[&str]) -> Cmd {
        // One allocation for all that follows the verb.
        let parts = keys.iter().chain(args).map(|part| part.len());
        let bytes = self.hash.len() + 8 + parts.sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), "EVALSHA".len() + bytes);
        command.arg("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys).arg(args);
        command
    }

    /// The same command by the script's source, which the server then knows.
    pub(crate) fn by_source(&self, by_hash: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for arg in by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

/// How tokens rise.
const NEXT_TOKEN: &str = include_str!("native/next_token.lua");
/// The state of a lock, and how it is given away.
const GRANT_NEXT: &str = include_str!("native/grant_next.lua");
/// Whether a node of a quorum has all of its state.
const MARK: &str = include_str!("quorum/mark.lua");
/// The state of a lock in Redisson's layout, and how it is taken.
const REDISSON_OWNER: &str = include_str!("redisson/owner.lua");
const REDISSON_GRANT: &str = include_str!("redisson/grant.lua");

macro_rules! scripts {
    ($($name:ident = $($part:expr),+;)*) => {
        $(pub(crate) static $name: Lazy<Script> = Lazy::new(|| Script::new(&[$($part),+]));)*
    };
}

scripts! {
    ACQUIRE = include_str!("native/acquire_free.lua"), NEXT_TOKEN, GRANT_NEXT, include_str!("native/acquire.lua");
    MULTI_ACQUIRE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/multi_acquire.lua");
    RELEASE = include_str!("native/release_last.lua"), NEXT_TOKEN, GRANT_NEXT, include_str!("native/release.lua");
    RETAIN = NEXT_TOKEN, GRANT_NEXT, include_str!("native/retain.lua");
    QUEUE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/queue.lua");
    LEAVE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/leave.lua");
    UNSUBSCRIBE = include_str!("native/unsubscribe.lua");
    PROBE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/probe.lua");
    RENEW = include_str!("native/renew.lua");
    STATUS = include_str!("native/status.lua");

    QUORUM_PROBE = MARK, include_str!("quorum/probe.lua");
    QUORUM_ADMIT = MARK, include_str!("quorum/admit.lua");
    QUORUM_TAKE = NEXT_TOKEN, MARK, include_str!("quorum/take.lua");
    QUORUM_RAISE_TOKEN = include_str!("quorum/raise_token.lua");
    QUORUM_REJOIN = MARK, include_str!("quorum/rejoin.lua");

    REDISSON_ACQUIRE = NEXT_TOKEN, REDISSON_OWNER, REDISSON_GRANT, include_str!("redisson/acquire.lua");
    REDISSON_MULTI_ACQUIRE = NEXT_TOKEN, REDISSON_OWNER, REDISSON_GRANT, include_str!("redisson/multi_acquire.lua");
    REDISSON_RELEASE = REDISSON_OWNER, include_str!("redisson/release.lua");
    REDISSON_RETAIN = REDISSON_OWNER, include_str!("redisson/retain.lua");
    REDISSON_LEAVE = REDISSON_OWNER, include_str!("redisson/leave.lua");
    REDISSON_RENEW = REDISSON_OWNER, include_str!("redisson/renew.lua");
    REDISSON_STATUS = REDISSON_OWNER, include_str!("redisson/status.lua");
}
