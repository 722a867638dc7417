//! The commands that the scripts run, by feature. The lines in `docs/guides/acl.md` are generated from this table by
//! `tests/support/rights.rs`, which includes this file. So this file uses nothing from the crate.

/// A command that scripts run, and arguments with which it changes nothing. `connect` runs it with these arguments to
/// find out whether the user may run it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptCommand {
    /// The name of the right, such as `get` or `pubsub|numsub`.
    pub(crate) right: &'static str,
    /// The arguments. [`KEY`] and [`CHANNEL`] stand for a key that does not exist and for a channel.
    pub(crate) harmless: &'static [&'static str],
}

/// Stands for a key that does not exist.
pub(crate) const KEY: &str = "<key>";
/// Stands for a channel.
pub(crate) const CHANNEL: &str = "<channel>";

const fn harmless(right: &'static str, harmless: &'static [&'static str]) -> ScriptCommand {
    ScriptCommand { right, harmless }
}

/// The commands in the scripts of all layouts, and of a Redlock.
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

/// The further commands in the scripts of the native layout.
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

/// The further commands in the scripts of Redisson's layout. `HSET` refuses a field without a value.
pub(crate) const REDISSON_SCRIPTS: &[ScriptCommand] = &[
    harmless("hget", &[KEY, "field"]),
    harmless("hset", &[KEY, "field", "value", "field"]),
    harmless("hkeys", &[KEY]),
    harmless("hdel", &[KEY, "field"]),
];

/// The further commands in the scripts of the native layout in a Redis Cluster.
pub(crate) const NATIVE_CLUSTER_SCRIPTS: &[ScriptCommand] =
    &[harmless("pubsub|numsub", &[CHANNEL])];

/// The further commands in the scripts of Redisson's layout in a Redis Cluster. Redis 6.2 does not know `SPUBLISH`, so
/// the scripts then use `PUBLISH`.
pub(crate) const REDISSON_CLUSTER_SCRIPTS: &[ScriptCommand] =
    &[harmless("spublish", &[CHANNEL, ""])];

/// The further commands in the scripts of a Redlock.
pub(crate) const REDLOCK_SCRIPTS: &[ScriptCommand] = &[harmless("info", &["replication"])];
