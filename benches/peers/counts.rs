//! Counts the commands that a lock sends to the server.
//!
//! The server's statistics do not tell the commands that clients send from the commands that scripts call. `MONITOR`
//! tells them apart, but `MONITOR` slows the server. The benchmark therefore watches each lock with `MONITOR` in short
//! runs before the measurements. These runs show which share of the calls of each command the clients send themselves.
//! In the measured runs, the benchmark reads the server's statistics, and counts this share of the calls.

use std::{collections::BTreeMap, pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt};
use support::{
    sent::{NOT_COUNTED, Sent, counts},
    server::{RedisServer, ask},
};

/// The text of the last command that a watched server gets.
const LAST: &str = "last";

/// The time in which the clients send what they send after their calls have returned. Redisson deletes a key after each
/// release.
const SETTLING: Duration = Duration::from_millis(100);

/// The share of the calls of each command that the clients of one lock send themselves.
#[derive(Debug)]
pub(crate) struct Shares(BTreeMap<String, f64>);

/// A server whose commands `MONITOR` shows.
pub(crate) struct Watch {
    commands: Pin<Box<dyn Stream<Item = String>>>,
    calls: BTreeMap<String, u64>,
}

impl Watch {
    pub(crate) async fn begin(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("the server's URL");
        let monitor = client.get_async_monitor().await;
        let monitor = monitor.expect("the server accepts MONITOR");
        Self {
            commands: Box::pin(monitor.into_on_message()),
            calls: server.calls().await,
        }
    }

    /// Returns the shares of the commands that the server got since the watch began.
    pub(crate) async fn end(mut self, server: &RedisServer) -> Shares {
        tokio::time::sleep(SETTLING).await;
        let mut calls = server.calls().await;
        calls.retain(|name, calls| {
            *calls -= self.calls.get(name).copied().unwrap_or_default();
            *calls > 0 && !NOT_COUNTED.contains(&name.as_str())
        });
        let last: String = ask(&mut server.connection().await, redis::cmd("ECHO").arg(LAST)).await;
        let mut sent: BTreeMap<String, u64> = calls.keys().map(|name| (name.clone(), 0)).collect();
        loop {
            let command = self.commands.next().await;
            let command = command.expect("the server shows each command");
            let Some([name, first]) = sent_by_a_client(&command) else {
                continue;
            };
            if name == "echo" && first == last {
                break;
            }
            // The statistics have a name like `script|load` for a command with subcommands.
            let with_first = format!("{name}|{first}");
            let name = if sent.contains_key(&with_first) {
                with_first
            } else {
                name
            };
            *sent.entry(name).or_default() += 1;
        }
        Shares(
            calls
                .into_iter()
                .map(|(name, calls)| (name.clone(), sent[&name] as f64 / calls as f64))
                .collect(),
        )
    }
}

/// Returns the name and the first argument of a command that `MONITOR` shows, or `None` if a script has called the
/// command. An example of what `MONITOR` shows is `1700000000.000001 [0 127.0.0.1:50000] "GET" "key"`, which has `lua`
/// in place of the address if a script has called the command.
fn sent_by_a_client(shown: &str) -> Option<[String; 2]> {
    let (from, command) = shown.split_once("] ")?;
    let mut words = command.split('"').skip(1).step_by(2);
    let [name, first] = [(); 2].map(|()| words.next().unwrap_or_default().to_lowercase());
    (!from.ends_with(" lua")).then_some([name, first])
}

impl Shares {
    /// Returns the commands that the clients of this lock have sent so far. Only the difference between two results has
    /// a meaning, and only if no other lock was used between them.
    pub(crate) async fn so_far(&self, server: &RedisServer) -> Sent {
        let mut sent = [0.0, 0.0];
        for (name, cost) in server.costs().await {
            let share = self.0.get(&name).copied();
            let share = share.unwrap_or_else(|| f64::from(u8::from(counts(&name))));
            sent[0] += share * cost.calls as f64;
            sent[1] += share * cost.micros as f64;
        }
        let [commands, micros] = sent.map(|sum: f64| sum.round() as u64);
        Sent { commands, micros }
    }

    /// Returns the commands that the clients of this lock have sent since `before`.
    pub(crate) async fn since(&self, server: &RedisServer, before: Sent) -> Sent {
        let now = self.so_far(server).await;
        Sent {
            commands: now.commands - before.commands,
            micros: now.micros - before.micros,
        }
    }
}
