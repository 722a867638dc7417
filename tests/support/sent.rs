//! The commands that clients have sent to a server, by the server's own count.

use crate::server::RedisServer;

/// Commands that belong to a new connection, an idle connection, or reading the statistics. Connections exist before
/// the count begins.
const NOT_COUNTED: [&str; 5] = ["info", "hello", "client|setinfo", "client|setname", "ping"];

/// Commands that normally only scripts run; the statistics include them. A command that is missing in this list is
/// counted as sent, so an error shows as too high a number.
const WITHIN_SCRIPTS: [&str; 27] = [
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
    "rpush",
    "set",
    "time",
    "zadd",
    "zcard",
    "zincrby",
    "zpopmin",
    "zrange",
    "zrem",
    "zremrangebyrank",
    "zscore",
];

/// The commands that clients have sent, and the time that the server spent on them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// A script counts as one, whatever it calls.
    pub commands: u64,
    /// In µs. The time of a script includes its calls.
    pub micros: u64,
}

impl Sent {
    /// Returns the commands up to now. `plain` lists commands that these clients send directly and others run within
    /// scripts.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn so_far(server: &RedisServer, plain: &[&str]) -> Self {
        let costs = server.costs().await;
        let sent = costs.iter().filter(|(name, _)| {
            let name = name.as_str();
            let within = WITHIN_SCRIPTS.contains(&name) && !plain.contains(&name);
            !within && !NOT_COUNTED.contains(&name)
        });
        sent.fold(Self::default(), |sent, (_, cost)| Self {
            commands: sent.commands + cost.calls,
            micros: sent.micros + cost.micros,
        })
    }

    /// Returns the commands since `self`.
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
