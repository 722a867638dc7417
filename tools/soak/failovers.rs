//! Failovers: primaries are killed one after another, their replicas take over, and the killed servers return as
//! replicas.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use progress::suspend;
use redis::Value;
use support::{
    clock::now,
    cluster::ClusterServers,
    sentinels::{GROUP, SentinelGroup},
    server::{RedisServer, ask},
    until,
};
use tokio::time::{Instant, sleep};

use crate::{
    Options,
    dice::Dice,
    host::Record,
    plan::{SLOW_FROM, slot_of},
    site::Site,
};

const MS: Duration = Duration::from_millis(1);
/// The time within which a killed server has to become an up-to-date replica of the new primary. Sentinels take about
/// 10 s to turn a returning primary into a replica.
const RETURN_PATIENCE: Duration = Duration::from_secs(60);

/// The keys that a failover affects, because their primary was killed.
#[derive(Debug, Clone)]
pub(crate) enum Affected {
    All,
    Slots(Vec<RangeInclusive<u16>>),
}

/// One failover. All times are in ns, and are read from the clock that all processes share.
#[derive(Debug, Clone)]
pub(crate) struct Failover {
    /// The time just before the primary was killed.
    pub(crate) killed: u64,
    /// The time at which the host saw that a replica had been promoted, or `u64::MAX` until then.
    pub(crate) promoted: u64,
    affected: Affected,
    /// For each delayed caller, the time of its call and the time at which it got the lock. Only callers of the kind
    /// `Poller::Prompt` count. A caller is delayed if it waits for an affected lock when the primary is killed, or if
    /// it calls before the host sees that a replica was promoted.
    waits: Vec<(u64, u64)>,
}

impl Failover {
    pub(crate) fn new(killed: u64, affected: Affected) -> Self {
        Self {
            killed,
            promoted: u64::MAX,
            affected,
            waits: Vec::new(),
        }
    }

    pub(crate) fn affects(&self, key: u32) -> bool {
        match &self.affected {
            Affected::All => true,
            Affected::Slots(ranges) => {
                let slot = slot_of(key);
                ranges.iter().any(|range| range.contains(&slot))
            }
        }
    }

    /// Records the wait of a caller if the failover delayed the caller. Leaves out callers that want a key of the slow
    /// pollers with long pauses, because these callers also wait for the slow pollers.
    pub(crate) fn note_wait(&mut self, key: u32, asked: u64, entered: u64) {
        let waited = asked > 0 && asked <= self.promoted && self.killed < entered;
        if waited && key < SLOW_FROM && self.affects(key) {
            self.waits.push((asked, entered));
        }
    }

    /// Returns, in ns, how long each delayed caller waited for the lock. The wait begins when the primary is killed, or
    /// when the caller calls if that is later.
    pub(crate) fn stood(&self) -> impl Iterator<Item = u64> {
        let waits = self.waits.iter();
        // When a visit is reported, the host has possibly not seen the promotion yet. The condition is therefore
        // checked again here.
        let delayed = waits.filter(|(asked, _)| *asked <= self.promoted);
        delayed.map(|(asked, entered)| entered - asked.max(&self.killed))
    }
}

/// Kills one primary after another.
pub(crate) struct Failovers {
    dice: Dice,
    left: u64,
    /// The numbers of the servers that were primaries after the last failover.
    primaries: BTreeSet<usize>,
    /// The number of failovers that the host has not caused. In such a failover, the cluster or the Sentinels replace a
    /// primary that has not answered for too long.
    pub(crate) unplanned: u64,
}

impl Failovers {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            dice: Dice::new(options.seed),
            left: options.failovers,
            primaries: BTreeSet::new(),
            unplanned: 0,
        }
    }

    /// Compares the current primaries with the primaries after the last failover.
    fn expect(&mut self, now: impl IntoIterator<Item = usize>) {
        let now = now.into_iter().collect();
        if !self.primaries.is_empty() && self.primaries != now {
            let before = &self.primaries;
            suspend(|| {
                println!("the primaries were servers {before:?}, and are now servers {now:?}");
            });
            self.unplanned += 1;
        }
        self.primaries = now;
    }

    pub(crate) fn are_over(&self) -> bool {
        self.left == 0
    }

    /// Waits for a random time of at least `from` ms and less than `to` ms.
    async fn pause(&mut self, from: u64, to: u64) {
        let pause = from + self.dice.below(to - from);
        sleep(MS * u32::try_from(pause).unwrap_or(1)).await;
    }

    /// Kills a primary, waits until a replica was promoted, and starts the killed server again. After that, waits until
    /// the killed server is an up-to-date replica.
    pub(crate) async fn strike(&mut self, site: &mut Site, record: &Record) {
        self.pause(1000, 3000).await;
        let killed = match site {
            Site::Cluster(cluster) => {
                let primaries = primaries(cluster).await;
                self.expect(primaries.iter().map(|(server, _)| *server));
                let index = self.dice.below(primaries.len() as u64);
                let (server, slots) = primaries[usize::try_from(index).unwrap_or(0)].clone();
                let slot = *slots[0].start();
                record.failover(Failover::new(now(), Affected::Slots(slots)));
                cluster.servers[server].kill();
                let promoted = cluster.primary_of(slot).await;
                record.promoted(now());
                self.primaries.remove(&server);
                self.primaries.insert(promoted);
                server
            }
            Site::Sentinels(group) => {
                let server = named(group, &group.sentinels[0]).await;
                self.expect([server]);
                record.failover(Failover::new(now(), Affected::All));
                group.servers[server].kill();
                let promoted = group.promoted_instead_of(server).await;
                record.promoted(now());
                // The killed server is restarted only when all Sentinels know the new primary. Otherwise, a Sentinel
                // could still accept the killed server, which has lost its data, as the primary.
                for sentinel in &group.sentinels {
                    until(async || named(group, sentinel).await == promoted).await;
                }
                self.primaries = [promoted].into();
                server
            }
            Site::Single(..) => unreachable!("a single server has no replica"),
        };
        self.left -= 1;
        self.pause(500, 1500).await;
        let servers = match site {
            Site::Cluster(cluster) => &mut cluster.servers,
            Site::Sentinels(group) => &mut group.servers,
            Site::Single(..) => unreachable!("a single server has no replica"),
        };
        servers[killed].restart().await;
        until_replicas(servers).await;
    }
}

/// Returns the number of the server that a Sentinel names as the primary.
async fn named(group: &SentinelGroup, sentinel: &RedisServer) -> usize {
    let mut asking = redis::cmd("SENTINEL");
    asking.arg("GET-MASTER-ADDR-BY-NAME").arg(GROUP);
    let (_, port): (String, u16) = ask(&mut sentinel.connection().await, &asking).await;
    let mut servers = group.servers.iter();
    let named = servers.position(|server| server.port() == port);
    named.expect("the Sentinels name a server of the group")
}

/// Returns the numbers of all servers that store slots, and the slots that each of them stores.
async fn primaries(cluster: &ClusterServers) -> Vec<(usize, Vec<RangeInclusive<u16>>)> {
    let ranges: Vec<(u16, u16, Vec<Value>)> = {
        let ranges: Vec<Vec<Value>> = cluster.tell(0, &["SLOTS"]).await;
        let read = |range: Vec<Value>| {
            let [first, last, Value::Array(primary), ..] = &range[..] else {
                panic!("a range of slots has a first slot, a last slot and a primary: {range:?}");
            };
            (number(first), number(last), primary.clone())
        };
        ranges.into_iter().map(read).collect()
    };
    let slots = |server: &RedisServer| {
        let own = ranges
            .iter()
            .filter(|(_, _, primary)| number(&primary[1]) == server.port());
        own.map(|(first, last, _)| *first..=*last)
            .collect::<Vec<_>>()
    };
    let servers = cluster.servers.iter().map(slots).enumerate();
    servers.filter(|(_, slots)| !slots.is_empty()).collect()
}

fn number(value: &Value) -> u16 {
    redis::from_redis_value_ref(value).expect("a number")
}

/// Waits until each server is a primary with a replica, or an up-to-date replica.
async fn until_replicas(servers: &[RedisServer]) {
    let asked = Instant::now();
    for server in servers {
        loop {
            let mut info = redis::cmd("INFO");
            info.arg("replication");
            let info: String = ask(&mut server.connection().await, &info).await;
            let is_primary = info.contains("role:master") && !info.contains("connected_slaves:0");
            if is_primary || info.contains("master_link_status:up") {
                break;
            }
            assert!(
                asked.elapsed() < RETURN_PATIENCE,
                "the server on port {} is neither a primary with a replica nor an up-to-date replica:\n{info}",
                server.port()
            );
            sleep(50 * MS).await;
        }
    }
}
