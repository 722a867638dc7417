//! What clients have sent to a server, by the server's own count.

use crate::server::RedisServer;

/// Commands of making a connection, of an idle one, and of reading the statistics. Connections stand before what is
/// counted.
const NOT_COUNTED: [&str; 5] = ["info", "hello", "client|setinfo", "client|setname", "ping"];

/// Commands that are as a rule run by scripts only: the statistics count those too. What is missing in this list is
/// counted as sent, so an error shows as too many.
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

/// Commands that clients have sent, and how long the server was busy with them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// A script is one, whatever it calls.
    pub commands: u64,
    /// In µs; a script with all that it calls.
    pub micros: u64,
}

impl Sent {
    /// Until now. `plain` are commands that clients send by themselves where others run them within scripts.
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

    /// Since then.
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
