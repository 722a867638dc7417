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
        Self::command("EVALSHA", &self.hash, keys, args)
    }

    /// The command that runs the script by its source, which the server then knows.
    pub(super) fn by_source(&self, keys: &[&str], args: &[&str]) -> Cmd {
        Self::command("EVAL", &self.source, keys, args)
    }

    fn command(verb: &str, script: &str, keys: &[&str], args: &[&str]) -> Cmd {
        // One allocation for all that follows the verb.
        let bytes = script.len()
            + 8
            + keys
                .iter()
                .chain(args)
                .map(|part| part.len())
                .sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), verb.len() + bytes);
        command.arg(verb);
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command
    }
}

/// Lets the server know all scripts, in one round trip. Each of them is sent whole where that is not permitted, or
/// where the server has forgotten it.
pub(super) fn load_all() -> redis::Pipeline {
    let mut pipeline = redis::Pipeline::new();
    for script in [
        &ACQUIRE, &TOGETHER, &RELEASE, &KEEP, &LEAVE, &FORGET, &LOOK, &RENEW, &STATUS, &ADOPT,
    ] {
        pipeline
            .cmd("SCRIPT")
            .arg("LOAD")
            .arg(&script.source)
            .ignore();
    }
    pipeline
}

/// The state of a lock, and how it is given away.
const HAND_ON: &str = include_str!("scripts/hand_on.lua");

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($part:expr),+;)*) => {
        $($(#[$doc])* pub(super) static $name: Lazy<Script> = Lazy::new(|| Script::new(&[$($part),+]));)*
    };
}

scripts! {
    ACQUIRE = include_str!("scripts/acquire_free.lua"), HAND_ON, include_str!("scripts/acquire.lua");
    TOGETHER = HAND_ON, include_str!("scripts/acquire_together.lua");
    RELEASE = include_str!("scripts/release_last.lua"), HAND_ON, include_str!("scripts/release.lua");
    KEEP = HAND_ON, include_str!("scripts/keep.lua");
    LEAVE = HAND_ON, include_str!("scripts/leave.lua");
    FORGET = include_str!("scripts/forget.lua");
    LOOK = HAND_ON, include_str!("scripts/look.lua");
    RENEW = include_str!("scripts/renew.lua");
    STATUS = include_str!("scripts/status.lua");
    ADOPT = include_str!("scripts/adopt.lua");
}
