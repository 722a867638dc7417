//! A Redis Cluster, whose slots a test can move.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use redis::{FromRedisValue, Value};
use tokio::sync::OnceCell;

use crate::{
    server::{RedisServer, ServerBuilder, ask},
    until,
};

/// The number of slots of a cluster.
const SLOTS: u16 = 16384;
/// The time in ms after which a server that does not answer counts as failed, in a cluster with replicas.
const PROMPT_MS: u32 = 1000;
/// The time in ms after which a server that does not answer counts as failed, in a cluster without replicas. This time
/// is longer than [`PROMPT_MS`], because no replica can take over, and because a server can be slow on a loaded
/// machine.
const PATIENT_MS: u32 = 5000;
/// The longest time for which a test waits until the servers agree about a slot, or about their epochs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The servers of a cluster: first the primaries, then one replica of each primary if the cluster has replicas. The
/// cluster promotes a replica after its primary has not answered for a second.
#[derive(Debug)]
pub struct ClusterServers {
    /// The servers.
    pub servers: Vec<RedisServer>,
    primaries: usize,
}

impl ClusterServers {
    /// Starts a cluster of primaries without replicas, each with an equal share of the slots.
    pub async fn start(primaries: usize) -> Self {
        Self::start_with(primaries, &RedisServer::builder().cluster(PATIENT_MS)).await
    }

    /// Starts a cluster of primaries whose servers have no [shard channels](ServerBuilder::without_shard_channels).
    pub async fn start_without_shard_channels(primaries: usize) -> Self {
        let server = RedisServer::builder().cluster(PATIENT_MS);
        Self::start_with(primaries, &server.without_shard_channels()).await
    }

    async fn start_with(primaries: usize, server: &ServerBuilder) -> Self {
        let mut servers = Vec::new();
        for _ in 0..primaries {
            servers.push(server.clone().start().await);
        }
        let cluster = Self { servers, primaries };
        let share = SLOTS.div_ceil(u16::try_from(primaries).expect("a cluster has few primaries"));
        for (number, server) in cluster.servers.iter().enumerate() {
            let first = share * u16::try_from(number).expect("a cluster has few primaries");
            let mut adding = redis::cmd("CLUSTER");
            adding.arg("ADDSLOTS");
            for slot in first..SLOTS.min(first + share) {
                adding.arg(slot);
            }
            ask::<()>(&mut server.connection().await, &adding).await;
            // If two servers claim a slot, the server with the greater epoch has the slot.
            let epoch = (number + 1).to_string();
            cluster
                .tell::<()>(number, &["SET-CONFIG-EPOCH", &epoch])
                .await;
        }
        cluster.meet().await;
        cluster
    }

    /// Starts a cluster of primaries with one replica each.
    pub async fn with_replicas(primaries: usize) -> Self {
        let mut cluster =
            Self::start_with(primaries, &RedisServer::builder().cluster(PROMPT_MS)).await;
        for _ in 0..primaries {
            let replica = RedisServer::builder().cluster(PROMPT_MS).start().await;
            cluster.servers.push(replica);
        }
        cluster.meet().await;
        for primary in 0..primaries {
            let id: String = cluster.tell(primary, &["MYID"]).await;
            until(async || {
                let known: String = cluster.tell(primary + primaries, &["NODES"]).await;
                known.contains(&id)
            })
            .await;
            cluster
                .tell::<()>(primary + primaries, &["REPLICATE", &id])
                .await;
        }
        for replica in primaries..2 * primaries {
            cluster.until_in_sync(replica).await;
        }
        cluster
    }

    /// Introduces all servers to each other, and waits until all of them know each other and every slot is served.
    async fn meet(&self) {
        for server in &self.servers[1..] {
            let [port, bus] = [server.port(), server.bus_port()].map(|port| port.to_string());
            self.tell::<()>(0, &["MEET", "127.0.0.1", &port, &bus])
                .await;
        }
        self.until_agreed().await;
    }

    /// Waits until all running servers know each other, and every slot is served.
    pub async fn until_agreed(&self) {
        let all = self.servers.len();
        for number in self.running() {
            until(async || {
                let info: String = self.tell(number, &["INFO"]).await;
                info.contains("cluster_state:ok")
                    && info.contains(&format!("cluster_known_nodes:{all}\r"))
            })
            .await;
        }
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        let servers = self.servers.iter().enumerate();
        servers
            .filter(|(_, server)| server.pid() != 0)
            .map(|(number, _)| number)
    }

    /// Sends `CLUSTER` with these arguments to the server with this number.
    pub async fn tell<T: FromRedisValue>(&self, server: usize, words: &[&str]) -> T {
        let mut command = redis::cmd("CLUSTER");
        command.arg(words);
        ask(&mut self.servers[server].connection().await, &command).await
    }

    /// Returns the URL `redis+cluster://127.0.0.1:port,127.0.0.1:port,..` with the primaries with which the cluster was
    /// started.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts = self.servers[..self.primaries].iter().map(RedisServer::port);
        let hosts: Vec<_> = hosts.map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Returns the slot of a key.
    pub async fn slot_of(&self, key: &str) -> u16 {
        self.tell(0, &["KEYSLOT", key]).await
    }

    /// Returns the number of the primary that stores a slot. Waits until exactly one running server claims the slot.
    ///
    /// # Panics
    /// If none or several servers claim the slot for 20 s.
    pub async fn primary_of(&self, slot: u16) -> usize {
        let asked = Instant::now();
        loop {
            let mut claimed = Vec::new();
            for server in self.running() {
                if self.claims(server, slot).await {
                    claimed.push(server);
                }
            }
            if let [primary] = claimed[..] {
                return primary;
            }
            assert!(asked.elapsed() < PATIENCE, "{claimed:?} store slot {slot}");
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether a server says that it stores a slot itself.
    pub async fn claims(&self, server: usize, slot: u16) -> bool {
        let ranges: Vec<Vec<Value>> = self.tell(server, &["SLOTS"]).await;
        let port = self.servers[server].port();
        ranges.into_iter().any(|range| {
            let [first, last, primary, ..] = &range[..] else {
                return false;
            };
            let primary = Vec::<Value>::from_redis_value(primary.clone());
            let is_it = primary.is_ok_and(|primary| number(&primary[1]) == port.into());
            is_it && (number(first)..=number(last)).contains(&slot.into())
        })
    }

    /// Waits until a server says that it stores a slot itself.
    pub async fn until_primary(&self, server: usize, slot: u16) {
        until(async || self.claims(server, slot).await).await;
    }

    /// Returns the number of the replica that the cluster gave this primary at the start.
    #[must_use]
    pub fn replica_of(&self, primary: usize) -> usize {
        primary + self.primaries
    }

    /// Makes a replica replace its primary, without the votes of the other primaries. Waits until the replica says that
    /// it stores `slot`.
    pub async fn promote(&self, replica: usize, slot: u16) {
        self.tell::<()>(replica, &["FAILOVER", "TAKEOVER"]).await;
        self.until_primary(replica, slot).await;
    }

    /// Waits until a server is a replica that has everything that its primary has stored so far.
    pub async fn until_in_sync(&self, replica: usize) {
        let server = &self.servers[replica];
        until(async || {
            let mut info = redis::cmd("INFO");
            info.arg("replication");
            let info: String = ask(&mut server.connection().await, &info).await;
            info.contains("master_link_status:up")
        })
        .await;
    }

    /// Stops the process of a replica, and closes its connection to its primary. After the process continues, the
    /// replica lacks all later writes of the primary.
    pub async fn cut_off(&self, replica: usize, primary: usize) {
        self.servers[replica].stop_process();
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", "replica"]);
        ask::<usize>(&mut self.servers[primary].connection().await, &kill).await;
    }

    /// Marks a slot as moving to the primary with number `to`. Moves no keys yet.
    pub async fn begin_move(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot).await;
        let slot = slot.to_string();
        let [source, target]: [String; 2] = [
            self.tell(from, &["MYID"]).await,
            self.tell(to, &["MYID"]).await,
        ];
        self.tell::<()>(to, &["SETSLOT", &slot, "IMPORTING", &source])
            .await;
        self.tell::<()>(from, &["SETSLOT", &slot, "MIGRATING", &target])
            .await;
    }

    /// Moves one key of a moving slot to the primary with number `to`.
    pub async fn move_key(&self, slot: u16, key: &str, to: usize) {
        let from = self.primary_of(slot).await;
        let port = self.servers[to].port().to_string();
        let mut moving = redis::cmd("MIGRATE");
        moving.arg(&["127.0.0.1", &port, key, "0", "5000"]);
        ask::<Value>(&mut self.servers[from].connection().await, &moving).await;
    }

    /// Moves the remaining keys of a moving slot to the primary with number `to`, and ends the slot's move.
    pub async fn end_move(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot).await;
        self.move_keys(slot, from, to).await;
        let target: String = self.tell(to, &["MYID"]).await;
        let slot = slot.to_string();
        self.until_epochs_agree().await;
        self.tell::<()>(to, &["SETSLOT", &slot, "NODE", &target])
            .await;
        for server in [from].into_iter().chain(self.running()) {
            // A replica learns from its primary which slots the primary stores, and refuses this command.
            if self.is_primary(server).await {
                self.tell::<()>(server, &["SETSLOT", &slot, "NODE", &target])
                    .await;
            }
        }
    }

    async fn is_primary(&self, server: usize) -> bool {
        let nodes: String = self.tell(server, &["NODES"]).await;
        nodes.contains("myself,master")
    }

    /// Waits until all running servers know each other's epochs, and no two servers have the same epoch. If a move of a
    /// slot ends after this wait, the target gets the greatest epoch. Messages that the source sent earlier contain a
    /// smaller epoch, so they do not assign the slot to the source again.
    async fn until_epochs_agree(&self) {
        let asked = Instant::now();
        loop {
            let mut known = Vec::new();
            for server in self.running() {
                let nodes: String = self.tell(server, &["NODES"]).await;
                let epoch = |line: &str| {
                    let fields: Vec<_> = line.split(' ').collect();
                    Some((fields.first()?.to_string(), fields.get(6)?.to_string()))
                };
                let primaries = nodes.lines().filter(|line| line.contains("master"));
                known.push(primaries.filter_map(epoch).collect::<BTreeMap<_, _>>());
            }
            let distinct: BTreeSet<_> = known[0].values().collect();
            if known.iter().all(|epochs| *epochs == known[0]) && distinct.len() == known[0].len() {
                return;
            }
            assert!(
                asked.elapsed() < PATIENCE,
                "the servers do not agree on their epochs: {known:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    async fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let port = self.servers[to].port().to_string();
        loop {
            let slot = slot.to_string();
            let keys: Vec<String> = self.tell(from, &["GETKEYSINSLOT", &slot, "100"]).await;
            if keys.is_empty() {
                return;
            }
            let mut moving = redis::cmd("MIGRATE");
            moving
                .arg(&["127.0.0.1", &port, "", "0", "5000", "REPLACE", "KEYS"])
                .arg(keys);
            // `MIGRATE` skips keys that have expired in the meantime.
            ask::<Value>(&mut self.servers[from].connection().await, &moving).await;
        }
    }

    /// Adds a primary that stores no slot yet. Returns the number of the new primary.
    pub async fn join(&mut self) -> usize {
        self.servers
            .push(RedisServer::builder().cluster(PATIENT_MS).start().await);
        self.meet().await;
        self.servers.len() - 1
    }

    /// Waits until the replica of the key's primary has everything that the primary has stored so far. Overwrites the
    /// key with a value that expires after 1 ms.
    ///
    /// # Panics
    /// If the replica is not up to date within ten seconds.
    pub async fn until_replicated(&self, key: &str) {
        let primary = self.primary_of(self.slot_of(key).await).await;
        let mut connection = self.servers[primary].connection().await;
        // `WAIT` waits until the last write of its own connection is replicated. All earlier writes of other
        // connections are replicated before that write.
        let write = redis::cmd("SET").arg(&[key, "1", "PX", "1"]).to_owned();
        ask::<()>(&mut connection, &write).await;
        let mut wait = redis::cmd("WAIT");
        let replicas: u8 = ask(&mut connection, wait.arg(1).arg(10_000)).await;
        assert_eq!(replicas, 1, "the replica has the newest write");
    }

    /// Moves a slot with its keys to the primary with number `to`.
    pub async fn move_slot(&self, slot: u16, to: usize) {
        if self.primary_of(slot).await != to {
            self.begin_move(slot, to).await;
            self.end_move(slot, to).await;
        }
    }

    /// Returns the keys on all running servers, without the token counters.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for server in self.servers.iter().filter(|server| server.pid() != 0) {
            keys.extend(server.keys().await);
        }
        keys.retain(|key| !key.ends_with(":fence"));
        keys
    }
}

fn number(value: &Value) -> i64 {
    i64::from_redis_value(value.clone()).expect("the value is a number")
}

/// Returns a cluster of three primaries that all tests of a process share. No test moves the slots of this cluster. The
/// servers end with the process.
pub async fn shared_cluster() -> &'static ClusterServers {
    static SHARED: OnceCell<ClusterServers> = OnceCell::const_new();
    SHARED
        .get_or_init(async || ClusterServers::start(3).await)
        .await
}
