//! A primary with replicas, and the Sentinels that watch them.

use std::collections::HashMap;

use redis::Value;
use tokio::sync::OnceCell;

use crate::{
    server::{RedisServer, ask},
    until,
};

/// The name under which the Sentinels monitor the primary.
pub const GROUP: &str = "shop";

/// A primary, two replicas, and three Sentinels. The Sentinels promote a replica after the primary has not answered for
/// half a second.
#[derive(Debug)]
pub struct SentinelGroup {
    /// The primary and the replicas. The first server is the primary at the start.
    pub servers: Vec<RedisServer>,
    /// The Sentinels.
    pub sentinels: Vec<RedisServer>,
}

impl SentinelGroup {
    /// Starts a group, and waits until its Sentinels know all servers and each other.
    pub async fn start() -> Self {
        let primary = RedisServer::start().await;
        let mut servers = Vec::new();
        for _ in 0..2 {
            servers.push(RedisServer::builder().replica_of(&primary).start().await);
        }
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let sentinel = sentinel_of(&primary).await;
            sentinels.push(sentinel);
        }
        servers.insert(0, primary);
        let group = Self { servers, sentinels };
        until(async || group.is_complete().await).await;
        group
    }

    async fn is_complete(&self) -> bool {
        for sentinel in &self.sentinels {
            let fields = master_fields(sentinel).await;
            let has = |field: &str, number: &str| fields.get(field).is_some_and(|it| it == number);
            if !has("num-slaves", "2")
                || !has("num-other-sentinels", "2")
                || !has("flags", "master")
            {
                return false;
            }
        }
        true
    }

    /// Makes the Sentinels replace the primary only after it has not answered for two seconds.
    ///
    /// By default, the Sentinels of this group count a primary as down after half a second without an answer. They send
    /// the first `PING` to a new primary only after this half second. All of them can therefore count the new primary
    /// as down before it answers the `PING`, and replace it.
    pub async fn be_patient(&self) {
        for sentinel in &self.sentinels {
            let words = ["SET", GROUP, "down-after-milliseconds", "2000"];
            tell(sentinel, &words).await;
        }
    }

    /// Returns the URL `redis+sentinel://127.0.0.1:port,127.0.0.1:port,127.0.0.1:port/shop`.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(RedisServer::port);
        let hosts: Vec<_> = hosts.map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{GROUP}", hosts.join(","))
    }

    /// Waits until both replicas have everything that the first primary has stored so far.
    ///
    /// # Panics
    /// If a replica is not up to date within ten seconds.
    pub async fn until_replicated(&self) {
        let mut primary = self.servers[0].connection().await;
        // `WAIT` waits until the last write of its own connection is replicated. All earlier writes of other
        // connections are replicated before that write.
        let write = redis::cmd("SET").arg("replicated").arg(1).to_owned();
        ask::<()>(&mut primary, &write).await;
        let mut wait = redis::cmd("WAIT");
        let replicas: u8 = ask(&mut primary, wait.arg(2).arg(10_000)).await;
        assert_eq!(replicas, 2, "both replicas have the newest write");
    }

    /// Makes a server answer all clients except the Sentinels. The Sentinels count the server as down, cannot close its
    /// connections to clients, and cannot make it a replica.
    pub async fn hide_from_sentinels(&self, server: usize) {
        let rules = ["-ping", "-multi", "-slaveof", "-replicaof", "-client"];
        set_user(&self.servers[server], "default", &rules).await;
    }

    /// Creates the user `locks` on all servers. Returns the group's URL with this user, whom
    /// [`hide_from_sentinels`](Self::hide_from_sentinels) does not affect.
    pub async fn url_of_user(&self) -> String {
        for server in &self.servers {
            let rules = ["on", ">secret", "~*", "&*", "+@all"];
            set_user(server, "locks", &rules).await;
        }
        self.url().replace("//", "//locks:secret@")
    }

    /// Waits until the first Sentinel names a primary other than the server with this number. Returns the number of the
    /// new primary.
    pub async fn promoted_instead_of(&self, old: usize) -> usize {
        let mut new = None;
        until(async || {
            new = self.named_by(&self.sentinels[0]).await;
            new != Some(old)
        })
        .await;
        new.expect("the Sentinel names a server of the group")
    }

    /// Waits until all Sentinels name a primary other than the server with this number, so that no message about this
    /// promotion arrives later.
    pub async fn all_have_left(&self, old: usize) {
        // During a failover, a Sentinel that is asked for the address already names the new primary. The Sentinel still
        // monitors the old primary, and has not sent its message yet.
        let old = self.servers[old].port().to_string();
        for sentinel in &self.sentinels {
            until(async || master_fields(sentinel).await["port"] != old).await;
        }
    }

    /// Returns the number of the server that a Sentinel names as the primary.
    async fn named_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let mut asking = redis::cmd("SENTINEL");
        asking.arg("GET-MASTER-ADDR-BY-NAME").arg(GROUP);
        let (_, port): (String, u16) = ask(&mut sentinel.connection().await, &asking).await;
        self.servers.iter().position(|server| server.port() == port)
    }
}

/// Starts a Sentinel that monitors this primary under the name [`GROUP`].
pub async fn sentinel_of(primary: &RedisServer) -> RedisServer {
    let sentinel = RedisServer::builder().sentinel().start().await;
    let port = primary.port().to_string();
    tell(&sentinel, &["MONITOR", GROUP, "127.0.0.1", &port, "2"]).await;
    for (setting, value) in [
        ("down-after-milliseconds", "500"),
        ("failover-timeout", "3000"),
        ("parallel-syncs", "2"),
    ] {
        tell(&sentinel, &["SET", GROUP, setting, value]).await;
    }
    sentinel
}

/// Returns what a Sentinel knows about the primary that it monitors.
async fn master_fields(sentinel: &RedisServer) -> HashMap<String, String> {
    let mut asking = redis::cmd("SENTINEL");
    asking.arg("MASTER").arg(GROUP);
    ask(&mut sentinel.connection().await, &asking).await
}

async fn set_user(server: &RedisServer, user: &str, rules: &[&str]) {
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg(user).arg(rules);
    ask::<()>(&mut server.connection().await, &set).await;
}

async fn tell(sentinel: &RedisServer, words: &[&str]) {
    let mut command = redis::cmd("SENTINEL");
    command.arg(words);
    let _: Value = ask(&mut sentinel.connection().await, &command).await;
}

/// Returns a group that all tests of a process share. No test promotes a replica of this group. The servers end with
/// the process.
pub async fn shared_group() -> &'static SentinelGroup {
    static SHARED: OnceCell<SentinelGroup> = OnceCell::const_new();
    SHARED.get_or_init(SentinelGroup::start).await
}
