//! Counts the commands that clients have sent to a server, from the server's own statistics.

use crate::server::RedisServer;

/// Commands that are not counted, because a client sends them to set up a connection, to keep a connection alive, or to
/// read the statistics. The measured clients connect before the count begins, so this list need not contain all
/// commands that set up a connection.
pub const NOT_COUNTED: [&str; 5] = ["info", "hello", "client|setinfo", "client|setname", "ping"];

/// Commands that normally only scripts run. The server's statistics include these commands, but they do not count as
/// sent by a client. If a script's command is missing from this list, the result is too high, so the mistake is
/// noticed.
const WITHIN_SCRIPTS: [&str; 29] = [
    "del",
    "exists",
    "get",
    "hdel",
    "hexists",
    "hget",
    "hincrby",
    "hkeys",
    "hset",
    "incr",
    "incrby",
    "lindex",
    "lpop",
    "pexpire",
    "pttl",
    "publish",
    "pubsub|numsub",
    "rpush",
    "set",
    "time",
    "zadd",
    "zcard",
    "zincrby",
    "zpopmin",
    "zrange",
    "zrank",
    "zrem",
    "zremrangebyrank",
    "zscore",
];

/// Returns whether a command with this name normally counts as sent by a client.
pub fn counts(name: &str) -> bool {
    !WITHIN_SCRIPTS.contains(&name) && !NOT_COUNTED.contains(&name)
}

/// The commands that clients have sent, and the time that the server spent on them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// The number of commands. A script counts as one command, even if the script calls other commands.
    pub commands: u64,
    /// The server's time, in µs. The time of a script includes the commands that it calls.
    pub micros: u64,
}

impl Sent {
    /// Returns the commands that clients have sent so far. `plain` lists commands that these clients send themselves,
    /// although most clients run them only within scripts.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn so_far(server: &RedisServer, plain: &[&str]) -> Self {
        let costs = server.costs().await;
        let sent = costs.iter().filter(|(name, _)| {
            let name = name.as_str();
            counts(name) || plain.contains(&name)
        });
        sent.fold(Self::default(), |sent, (_, cost)| Self {
            commands: sent.commands + cost.calls,
            micros: sent.micros + cost.micros,
        })
    }

    /// Returns the commands that clients have sent since `self` was read. [`so_far`](Self::so_far) explains `plain`.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn since(self, server: &RedisServer, plain: &[&str]) -> Self {
        let now = Self::so_far(server, plain).await;
        Self {
            commands: now.commands - self.commands,
            micros: now.micros - self.micros,
        }
    }
}
