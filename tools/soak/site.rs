//! The servers of a run of the soak, and the disturbances that the host causes on them.

use std::time::Duration;

use support::{
    cluster::ClusterServers, proxy::FaultProxy, sentinels::SentinelGroup, server::RedisServer,
};
use tokio::time::sleep;

use crate::{
    Options,
    chaos::{Chaos, Fault},
    failovers::Failovers,
    host::{Crew, Record},
    moves::Moves,
    plan::{Course, Servers},
};

/// The servers on which the workers acquire locks.
pub(crate) enum Site {
    /// One server. Each worker process has a proxy of its own, which the worker uses in runs with faults.
    Single(Box<RedisServer>, Vec<FaultProxy>),
    Cluster(ClusterServers),
    Sentinels(SentinelGroup),
}

impl Site {
    pub(crate) async fn start(options: &Options) -> Self {
        match options.course {
            Course::Calm | Course::Faults => {
                let builder = RedisServer::builder().arg("--loglevel", "warning");
                let builder = match options.course {
                    Course::Faults => builder.aof_always(),
                    _ => builder,
                };
                let server = builder.start().await;
                let mut proxies = Vec::new();
                for _ in 0..options.processes {
                    proxies.push(FaultProxy::start(server.port()).await);
                }
                Self::Single(Box::new(server), proxies)
            }
            Course::Moves => Self::Cluster(ClusterServers::start(3).await),
            Course::Failovers(Servers::Cluster) => {
                Self::Cluster(ClusterServers::with_replicas(3).await)
            }
            Course::Failovers(Servers::Sentinels) => {
                let group = SentinelGroup::start().await;
                group.be_patient().await;
                Self::Sentinels(group)
            }
        }
    }

    /// Returns the URL for the worker at this position.
    pub(crate) fn url(&self, options: &Options, index: usize) -> String {
        match self {
            // Without faults, workers connect to the server directly.
            Self::Single(_, proxies) if options.course == Course::Faults => proxies[index].url(),
            Self::Single(server, _) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels(group) => group.url(),
        }
    }

    /// Returns the keys on all running servers, except for the counters of fencing tokens.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let servers = match self {
            Self::Single(server, _) => std::slice::from_ref(&**server),
            Self::Cluster(cluster) => &cluster.servers,
            Self::Sentinels(group) => &group.servers,
        };
        let mut keys = Vec::new();
        for server in servers.iter().filter(|server| server.pid() != 0) {
            keys.extend(server.keys().await);
        }
        keys.retain(|key| !key.ends_with(":fence"));
        keys
    }
}

/// The disturbances of a run.
pub(crate) enum Trouble {
    None,
    Chaos(Chaos),
    Moves(Moves),
    Failovers(Failovers),
}

impl Trouble {
    pub(crate) fn of(options: &Options) -> Self {
        match options.course {
            Course::Calm => Self::None,
            Course::Faults => Self::Chaos(Chaos::new(options.seed)),
            Course::Moves => Self::Moves(Moves::new(options)),
            Course::Failovers(_) => Self::Failovers(Failovers::new(options)),
        }
    }

    /// Causes the next disturbance, and waits until the disturbance is over.
    pub(crate) async fn strike(&mut self, site: &mut Site, crew: &Crew, record: &Record) {
        match (self, site) {
            (Self::Chaos(chaos), Site::Single(server, proxies)) => {
                chaos.strike(server, proxies, crew).await;
            }
            (Self::Moves(moves), Site::Cluster(cluster)) => moves.strike(cluster).await,
            (Self::Failovers(failovers), site) if !failovers.are_over() => {
                failovers.strike(site, record).await;
            }
            _ => sleep(Duration::from_millis(200)).await,
        }
    }

    /// Returns whether the run is allowed to end, because all planned failovers are over.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Failovers(failovers) => failovers.are_over(),
            _ => true,
        }
    }

    /// Returns the number of failovers that the host has not caused.
    pub(crate) fn unplanned_failovers(&self) -> u64 {
        match self {
            Self::Failovers(failovers) => failovers.unplanned,
            _ => 0,
        }
    }

    /// Returns the number of worker processes that were killed.
    pub(crate) fn workers_killed(&self) -> u64 {
        match self {
            Self::Chaos(chaos) => {
                let killed = chaos.injected.get(&Fault::WorkerKilled);
                killed.copied().unwrap_or(0)
            }
            _ => 0,
        }
    }
}
