//! The servers that the host starts for a sale. The servers end with the host.

use support::{cluster::ClusterServers, sentinels::SentinelGroup, server::RedisServer};

use crate::args::{Servers, Topology};

/// The servers that store the locks, if the host has started them.
enum Locks {
    Foreign,
    Cluster(ClusterServers),
    Sentinel(SentinelGroup),
}

/// The servers of a sale.
pub(crate) struct Rack {
    /// The URL of the server that stores the locks.
    pub(crate) locks: String,
    /// The URL of the server that stores the stock.
    pub(crate) database: String,
    own: Locks,
    /// The server of the stock, if the host has started it.
    _database: Option<RedisServer>,
}

impl Rack {
    /// Starts the servers, unless they already run.
    pub(crate) async fn start(servers: &Servers) -> Self {
        let topology = match servers {
            Servers::Running { locks, database } => {
                return Self {
                    locks: locks.clone(),
                    database: database.clone(),
                    own: Locks::Foreign,
                    _database: None,
                };
            }
            Servers::Own(topology) => topology,
        };
        let (locks, own) = match topology {
            Topology::Cluster => {
                let cluster = ClusterServers::with_replicas(3).await;
                (cluster.url(), Locks::Cluster(cluster))
            }
            Topology::Sentinel => {
                let group = SentinelGroup::start().await;
                group.be_patient().await;
                (group.url(), Locks::Sentinel(group))
            }
        };
        let database = RedisServer::start().await;
        println!("locks       {locks}");
        println!("stock       {}", database.url());
        Self {
            locks,
            database: database.url(),
            own,
            _database: Some(database),
        }
    }

    /// Kills the primary that stores a lock, and returns the primary's port. `key` is the Redis key of the lock.
    pub(crate) async fn kill_primary(&mut self, key: &str) -> Option<u16> {
        let server = match &mut self.own {
            Locks::Foreign => return None,
            Locks::Cluster(cluster) => {
                let primary = cluster.primary_of(cluster.slot_of(key).await).await;
                &mut cluster.servers[primary]
            }
            // No other server of this group fails, so the first server of the group is still the primary.
            Locks::Sentinel(group) => &mut group.servers[0],
        };
        server.kill();
        Some(server.port())
    }

    /// Returns the keys on the running servers of the locks, or `None` if the host has not started these servers.
    pub(crate) async fn lock_keys(&self) -> Option<Vec<String>> {
        let servers = match &self.own {
            Locks::Foreign => return None,
            Locks::Cluster(cluster) => &cluster.servers,
            Locks::Sentinel(group) => &group.servers,
        };
        let mut found = Vec::new();
        for server in servers.iter().filter(|server| server.pid() != 0) {
            found.extend(server.keys().await);
        }
        found.sort();
        found.dedup();
        Some(found)
    }
}
