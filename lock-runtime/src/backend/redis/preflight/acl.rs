//! The commands that the scripts run, grouped by the feature that needs them. The lines in `docs/guides/acl.md` are
//! generated from this table by `tests/support/rights.rs`, which includes this file. This file therefore uses nothing
//! from the crate.

/// A command that scripts run, and arguments with which the command changes nothing. `connect` runs the command with
/// these arguments to find out whether the user may run it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptCommand {
    /// The name of the right, such as `get` or `pubsub|numsub`.
    pub(crate) right: &'static str,
    /// The arguments of the command. [`KEY`] stands for a key that does not exist, and [`CHANNEL`] for a channel.
    pub(crate) harmless: &'static [&'static str],
}

/// Stands for a key that does not exist, in the arguments of a [`ScriptCommand`].
pub(crate) const KEY: &str = "<key>";
/// Stands for a channel, in the arguments of a [`ScriptCommand`].
pub(crate) const CHANNEL: &str = "<channel>";

const fn harmless(right: &'static str, harmless: &'static [&'static str]) -> ScriptCommand {
    ScriptCommand { right, harmless }
}

/// The commands that the scripts of all layouts and of a Redlock run.
pub(crate) const EVERY_SCRIPT: &[ScriptCommand] = &[
    harmless("exists", &[KEY]),
    harmless("get", &[KEY]),
    harmless("set", &[KEY, "", "XX"]),
    harmless("del", &[KEY]),
    harmless("incrby", &[KEY, "not a number"]),
    harmless("pexpire", &[KEY, "1"]),
    harmless("pttl", &[KEY]),
    harmless("publish", &[CHANNEL, ""]),
];

/// The commands that only the scripts of the native layout run.
pub(crate) const NATIVE_SCRIPTS: &[ScriptCommand] = &[
    harmless("zadd", &[KEY, "XX", "0", "member"]),
    harmless("zrange", &[KEY, "0", "0"]),
    harmless("zrem", &[KEY, "member"]),
    harmless("zscore", &[KEY, "member"]),
    harmless("zrank", &[KEY, "member"]),
    harmless("zcard", &[KEY]),
    harmless("zpopmin", &[KEY]),
    harmless("zremrangebyrank", &[KEY, "0", "0"]),
];

/// The commands that only the scripts of Redisson's layout run. The last field in the arguments of `HSET` has no value,
/// so the server refuses this `HSET`, which thus changes nothing.
pub(crate) const REDISSON_SCRIPTS: &[ScriptCommand] = &[
    harmless("hget", &[KEY, "field"]),
    harmless("hset", &[KEY, "field", "value", "field"]),
    harmless("hkeys", &[KEY]),
    harmless("hdel", &[KEY, "field"]),
];

/// The commands that the scripts of the native layout run only in a Redis Cluster.
pub(crate) const NATIVE_CLUSTER_SCRIPTS: &[ScriptCommand] =
    &[harmless("pubsub|numsub", &[CHANNEL])];

/// The commands that the scripts of Redisson's layout run only in a Redis Cluster. On Redis 6.2, which does not know
/// `SPUBLISH`, the scripts use `PUBLISH` instead.
pub(crate) const REDISSON_CLUSTER_SCRIPTS: &[ScriptCommand] =
    &[harmless("spublish", &[CHANNEL, ""])];
