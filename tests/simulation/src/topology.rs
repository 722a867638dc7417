//! Primaries with replicas: how a replica replaces its primary, and which lost grants the ledger then has to allow.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    ledger::OVER,
    network::{ServerId, address_of},
    plan::Store,
    redis::{
        Persistence,
        cluster::{ClusterView, SLOTS, slot_of},
    },
    world::World,
};

/// The longest time, in milliseconds, until a key of a slot has moved, if the slot moves slowly.
const SLOW_MOVE: u64 = 1_500;

/// Which shard of a cluster stores which slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotMap {
    /// The newest configuration epoch.
    epoch: u64,
    /// The first and the last slot of each range, and the number of its shard.
    ranges: Vec<(u16, u16, usize)>,
}

impl SlotMap {
    fn shard(&self, slot: u16) -> usize {
        let range = self.ranges.iter();
        let mut range = range.filter(|(first, last, _)| (*first..=*last).contains(&slot));
        range.next().map_or(0, |(_, _, shard)| *shard)
    }

    /// Gives a slot to another shard.
    fn assign(&mut self, slot: u16, shard: usize) {
        let mut ranges = Vec::new();
        for (first, last, owner) in self.ranges.drain(..) {
            if !(first..=last).contains(&slot) {
                ranges.push((first, last, owner));
                continue;
            }
            if first < slot {
                ranges.push((first, slot - 1, owner));
            }
            ranges.push((slot, slot, shard));
            if slot < last {
                ranges.push((slot + 1, last, owner));
            }
        }
        self.ranges = ranges;
        self.epoch += 1;
    }
}

/// A primary and its replicas.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) primary: ServerId,
    /// All servers, including the primary.
    pub(crate) servers: Vec<ServerId>,
}

impl Shard {
    fn replicas(&self) -> impl Iterator<Item = ServerId> {
        let others = self.servers.iter().copied();
        others.filter(|server| *server != self.primary)
    }
}

/// Why a replica replaces its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The process of the primary dies. Later, the primary starts again with its data.
    Death,
    /// The primary is cut off from its replicas and from the Sentinels, but not from the clients.
    Isolation,
    /// The process of the primary is stopped. The process continues after a replica has replaced the primary.
    Stop,
    /// An operator orders the replacement, and loses no write: the primary waits until the replica has everything.
    Order,
    /// An operator orders the replacement, and the writes that the replica lacks are lost.
    HastyOrder,
}

impl World {
    pub(crate) fn shards(&self) -> MutexGuard<'_, Vec<Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes some servers replicas of others, and tells the Sentinels which server is the primary.
    pub(crate) fn arrange(&self) {
        let store = self.plan.store;
        let shards: Vec<Shard> = match store {
            Store::Redis | Store::Redisson | Store::Redlock => return,
            Store::Group { .. } => vec![Shard {
                primary: 0,
                servers: (0..store.servers()).collect(),
            }],
            Store::Cluster { replicas } => (0..4)
                .map(|number| {
                    // The fourth shard is the server that joins later, without a replica.
                    let primary = if number < 3 {
                        number
                    } else {
                        store.servers() - 1
                    };
                    let replicas = (1..=replicas).map(|replica| 3 * replica + number);
                    let replicas = replicas.filter(|_| number < 3);
                    let servers = std::iter::once(primary).chain(replicas).collect();
                    Shard { primary, servers }
                })
                .collect(),
        };
        for shard in &shards {
            for replica in shard.replicas() {
                self.network.follow(replica, Some(shard.primary), false);
            }
            for sentinel in self.sentinels() {
                self.network.name_primary(sentinel, shard.primary);
            }
        }
        *self.shards() = shards;
        if let Store::Cluster { .. } = store {
            self.divide_slots();
        }
    }

    pub(crate) fn sentinels(&self) -> std::ops::Range<ServerId> {
        let store = self.plan.store;
        store.servers()..store.servers() + store.sentinels()
    }

    /// Returns a random primary that stores locks.
    pub(crate) fn some_primary(&self) -> ServerId {
        let primaries: Vec<_> = self.shards().iter().map(|shard| shard.primary).collect();
        if primaries.is_empty() {
            self.chance.index(self.plan.store.servers())
        } else {
            self.chance.pick(&primaries)
        }
    }

    /// Returns a random replica; `None` if there is none.
    pub(crate) fn some_replica(&self) -> Option<ServerId> {
        let shards = self.shards();
        let replicas: Vec<_> = shards.iter().flat_map(Shard::replicas).collect();
        drop(shards);
        (!replicas.is_empty()).then(|| self.chance.pick(&replicas))
    }

    /// Returns whether a server is a primary, or the only server that stores its locks.
    pub(crate) fn is_primary(&self, server: ServerId) -> bool {
        let shards = self.shards();
        shards.is_empty() || shards.iter().any(|shard| shard.primary == server)
    }

    /// Returns the replica that replaces its primary, and whether it is certain to have each grant that as many
    /// replicas have acknowledged as the calls need. Returns `None` if no replica has received data.
    fn successor(&self, shard: &Shard) -> Option<(ServerId, bool)> {
        let received = |replica| Some((self.network.received(replica)?, replica));
        let candidates: Vec<_> = shard.replicas().filter_map(received).collect();
        let needed = self.plan.replicas;
        if needed == 0 {
            let random = (!candidates.is_empty()).then(|| self.chance.pick(&candidates))?;
            return Some((random.1, false));
        }
        // Each replica has all writes up to its offset, so the replica with the highest offset has all acknowledged
        // writes.
        let (_, newest) = candidates.iter().max()?;
        let all = shard.replicas().count();
        Some((*newest, needed >= all || candidates.len() == all))
    }

    /// Tells the ledger which grants of the old primary the new primary lacks or has for a shorter time. If `keeps` is
    /// set, the new primary must have had every grant under which a body has begun. `splits` says whether the old primary
    /// continues to serve clients. Also tells the ledger if the new primary lacks newer token counters.
    fn compare(&self, old: ServerId, new: ServerId, keeps: bool, splits: bool) {
        for key in (0..self.plan.keys).map(|key| format!("k{key}")) {
            let name = self.plan.name_of(&key);
            let grant = |server| {
                let read = |redis: &mut crate::redis::Redis, now| redis.expiring(&name, now);
                self.network.at_server(server, read)
            };
            let Some((before, until)) = grant(old) else {
                continue;
            };
            // Later extensions need not have arrived, so the grant can have ended on the new primary.
            let known = self.network.peek(new, |redis, _| redis.grant(&name, 0));
            let known = known.map(|grant| grant.tokens.start.to_string());
            let token = |grant: &str| grant.split('|').next().map(str::to_owned);
            match grant(new) {
                Some((now, left)) if token(&now) == token(&before) => {
                    if splits || left < until {
                        self.ledger
                            .lose_grant(&key, self.network.in_world(new, left));
                    }
                }
                _ if keeps && known != token(&before) => {}
                _ => self.ledger.lose_grant(&key, self.network.in_world(new, 0)),
            }
        }
        let offset = |server| self.network.at_server(server, |redis, _| redis.offset());
        if splits || !keeps && offset(new) < offset(old) {
            self.ledger.lose_counters();
        }
        if splits && !keeps {
            self.ledger.split();
        }
    }

    /// Lets a replica replace its primary.
    pub(crate) async fn fail_over(&self, cause: Cause) {
        let (network, chance) = (&self.network, &self.chance);
        let with_replicas: Vec<usize> = {
            let shards = self.shards();
            let all = shards.iter().enumerate();
            let some = all.filter(|(_, shard)| shard.replicas().next().is_some());
            some.map(|(number, _)| number).collect()
        };
        let number = chance.pick(&with_replicas);
        let shard = self.shards()[number].clone();
        let old = shard.primary;
        match cause {
            Cause::Death => network.end(old, Persistence::Everything),
            Cause::Isolation => shard.replicas().for_each(|it| network.cut_off(it, true)),
            Cause::Stop | Cause::Order => network.stop(old),
            Cause::HastyOrder => {}
        }
        match cause {
            Cause::Order => {
                // The primary carries out no write until the replica has everything.
                let offset = network.at_server(old, |redis, _| redis.offset());
                for _ in 0..500 {
                    let lags = |it| network.received(it) != Some(offset);
                    if !shard.replicas().any(lags) {
                        break;
                    }
                    sleep(Duration::from_millis(2)).await;
                }
            }
            Cause::HastyOrder => {}
            Cause::Death | Cause::Isolation | Cause::Stop => {
                sleep(chance.millis(0..2_000)).await;
                self.notice(old).await;
            }
        }
        let Some((new, keeps)) = self.successor(&shard) else {
            match cause {
                Cause::Death => network.begin(old),
                Cause::Isolation => shard.replicas().for_each(|it| network.cut_off(it, false)),
                Cause::Stop | Cause::Order => network.go_on(old),
                Cause::HastyOrder => {}
            }
            self.set_cluster_up(true);
            return;
        };
        let splits = matches!(cause, Cause::Isolation | Cause::Stop | Cause::HastyOrder);
        self.compare(old, new, keeps, splits);
        // Replicas that still follow the old primary can acknowledge its next grants, which the new primary lacks.
        if cause == Cause::HastyOrder && shard.replicas().count() > self.plan.replicas {
            self.ledger.split();
        }
        network.follow(new, None, false);
        self.shards()[number].primary = new;
        self.slots().epoch += 1;
        self.teach(new);
        if cause == Cause::Order {
            network.follow(old, Some(new), false);
            self.teach(old);
            network.go_on(old);
        }
        self.announce(new).await;
        if matches!(cause, Cause::Isolation | Cause::HastyOrder) {
            self.ledger.announce_successor(old);
        }
        self.gossip(Some(old)).await;
        for replica in shard.replicas().filter(|replica| *replica != new) {
            sleep(chance.millis(0..200)).await;
            network.follow(replica, Some(new), false);
        }
        self.demote(old, new, cause, keeps).await;
    }

    /// Lets the Sentinels learn of a new primary, one after another.
    async fn announce(&self, primary: ServerId) {
        let mut sentinels: Vec<_> = self.sentinels().collect();
        while !sentinels.is_empty() {
            let next = sentinels.swap_remove(self.chance.index(sentinels.len()));
            sleep(self.chance.millis(0..300)).await;
            self.network.name_primary(next, primary);
        }
    }

    /// Makes an old primary a replica of the new one, when it can be reached again.
    async fn demote(&self, old: ServerId, new: ServerId, cause: Cause, keeps: bool) {
        let (network, chance) = (&self.network, &self.chance);
        let a_while = chance.millis(0..chance.pick(&[100, 1_500, 4_000]));
        match cause {
            Cause::Order => return,
            Cause::HastyOrder => {}
            Cause::Isolation => sleep(a_while).await,
            Cause::Stop => {
                sleep(a_while).await;
                network.go_on(old);
            }
            Cause::Death if self.plan.stays_down => {
                // The fault is over for the clients.
                self.ledger.disturb(OVER);
                sleep(chance.millis(3_000..10_000)).await;
            }
            Cause::Death => {
                sleep(a_while).await;
                if !keeps && chance.percent(50) {
                    self.ledger.split();
                    network.begin(old);
                }
            }
        }
        sleep(chance.millis(0..1_500)).await;
        let kills = !self.sentinels().is_empty() && chance.percent(80);
        network.follow(old, Some(new), kills);
        self.ledger.end_replacement();
        self.teach(old);
        if network.is_down(old) {
            network.begin(old);
        }
        self.ledger.reunite();
    }

    /// Lets a replica be down for a while.
    pub(crate) async fn lose_replica(&self, time: Duration) {
        if let Some(replica) = self.some_replica() {
            self.network.end(replica, Persistence::Everything);
            sleep(time).await;
            self.network.begin(replica);
        }
    }

    /// Cuts a replica off from its primary for a while.
    pub(crate) async fn cut_replica_off(&self, time: Duration) {
        if let Some(replica) = self.some_replica() {
            self.network.cut_off(replica, true);
            sleep(time).await;
            self.network.cut_off(replica, false);
        }
    }

    /// Stops some Sentinels or ends their processes for a while.
    pub(crate) async fn lose_sentinels(&self, only_stops: bool, time: Duration) {
        let drawn = self.sentinels().filter(|_| self.chance.percent(70));
        let drawn: Vec<_> = drawn.collect();
        for sentinel in &drawn {
            if only_stops {
                self.network.stop(*sentinel);
            } else {
                self.network.end(*sentinel, Persistence::Nothing);
            }
        }
        sleep(time).await;
        for sentinel in drawn {
            if only_stops {
                self.network.go_on(sentinel);
            } else {
                self.network.begin(sentinel);
            }
        }
    }

    /// Lets a Sentinel name a replica as the primary for a while.
    pub(crate) async fn contradict(&self, time: Duration) {
        let sentinels: Vec<_> = self.sentinels().collect();
        if let (Some(replica), false) = (self.some_replica(), sentinels.is_empty()) {
            let sentinel = self.chance.pick(&sentinels);
            self.network.name_primary(sentinel, replica);
            sleep(time).await;
            self.network.name_primary(sentinel, self.some_primary());
        }
    }
}

/// The faults of a Redis Cluster.
impl World {
    fn slots(&self) -> MutexGuard<'_, SlotMap> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn divide_slots(&self) {
        *self.slots() = SlotMap {
            epoch: 3,
            ranges: vec![(0, 5_460, 0), (5_461, 10_922, 1), (10_923, SLOTS - 1, 2)],
        };
        for server in 0..self.plan.store.servers() {
            self.teach(server);
        }
    }

    /// Makes a node of the cluster learn the newest map of the slots. Has no effect on other servers.
    fn teach(&self, server: ServerId) {
        let (map, shards) = (self.slots().clone(), self.shards().clone());
        let ranges = map.ranges.iter().map(|(first, last, shard)| {
            let primary = shards[*shard].primary;
            (*first, *last, address_of(primary))
        });
        let replicas = shards.iter().map(|shard| {
            let replicas = shard.replicas().map(address_of).collect();
            (address_of(shard.primary), replicas)
        });
        self.network.at_server(server, |redis, _| {
            if let Some(view) = redis.view() {
                let before = std::mem::take(view);
                *view = ClusterView {
                    epoch: map.epoch,
                    is_up: true,
                    ranges: ranges.collect(),
                    replicas: replicas.collect(),
                    ..before
                };
            }
        });
    }

    /// Lets the nodes of the cluster learn the newest map of the slots, one after another, except this node.
    async fn gossip(&self, except: Option<ServerId>) {
        let Store::Cluster { .. } = self.plan.store else {
            return;
        };
        let servers = 0..self.plan.store.servers();
        let mut servers: Vec<_> = servers.filter(|server| Some(*server) != except).collect();
        while !servers.is_empty() {
            let next = servers.swap_remove(self.chance.index(servers.len()));
            sleep(self.chance.millis(0..60)).await;
            self.teach(next);
        }
    }

    fn set_cluster_up(&self, is_up: bool) {
        for server in 0..self.plan.store.servers() {
            self.set_up(server, is_up);
        }
    }

    fn set_up(&self, server: ServerId, is_up: bool) {
        self.network.at_server(server, |redis, _| {
            if let Some(view) = redis.view() {
                view.is_up = is_up;
            }
        });
    }

    /// Lets nodes consider the cluster as down, so that they refuse commands, because a primary has failed. Random
    /// numbers decide whether the failed primary refuses commands, and whether all nodes refuse commands for up to a
    /// second.
    async fn notice(&self, failed: ServerId) {
        let Store::Cluster { .. } = self.plan.store else {
            return;
        };
        if self.chance.percent(50) {
            self.set_up(failed, false);
        }
        if self.chance.percent(50) {
            self.set_cluster_up(false);
            sleep(self.chance.millis(0..1_000)).await;
            self.set_cluster_up(true);
        }
    }

    /// Lets all nodes consider the cluster as down for a while, so that they refuse commands.
    pub(crate) async fn be_down(&self, time: Duration) {
        self.set_cluster_up(false);
        sleep(time).await;
        self.set_cluster_up(true);
    }

    /// Lets the nodes of the cluster lose the messages that they send to each other.
    pub(crate) async fn lose_messages(&self, time: Duration) {
        self.network.lose_messages(true);
        sleep(time).await;
        self.network.lose_messages(false);
    }

    /// Moves the slot of a lock to another primary while callers use the lock. `joins` says whether the slot moves to
    /// the server that stores no slot at first.
    pub(crate) async fn move_slot(&self, joins: bool) {
        let chance = &self.chance;
        let key = self
            .plan
            .name_of(&format!("k{}", chance.index(self.plan.keys)));
        let slot = slot_of(key.as_bytes());
        let from = self.slots().shard(slot);
        let others: Vec<usize> = (0..4).filter(|shard| *shard != from).collect();
        let to = if joins && from != 3 {
            3
        } else {
            chance.pick(&others)
        };
        let (old, new) = {
            let shards = self.shards();
            (shards[from].primary, shards[to].primary)
        };
        self.open(slot, old, new).await;
        loop {
            if !self.move_keys(slot, old, new).await {
                break;
            }
        }
        self.slots().assign(slot, to);
        for server in [new, old] {
            self.network.at_server(server, |redis, _| {
                if let Some(view) = redis.view() {
                    view.migrating.remove(&slot);
                    view.importing.remove(&slot);
                }
            });
            self.teach(server);
            if server == new && chance.percent(50) {
                sleep(chance.millis(0..50)).await;
            }
        }
        self.gossip(None).await;
    }

    /// Marks a slot as moving, first on its new primary and then on the old one.
    async fn open(&self, slot: u16, old: ServerId, new: ServerId) {
        self.network.at_server(new, |redis, _| {
            if let Some(view) = redis.view() {
                view.importing.insert(slot, address_of(old));
            }
        });
        sleep(self.chance.millis(0..50)).await;
        self.network.at_server(old, |redis, _| {
            if let Some(view) = redis.view() {
                view.migrating.insert(slot, address_of(new));
            }
        });
    }

    /// Moves the keys of a slot, one after another. Returns whether the old primary had keys of the slot.
    async fn move_keys(&self, slot: u16, old: ServerId, new: ServerId) -> bool {
        let network = &self.network;
        let pause = match self.plan.slow_moves {
            true => SLOW_MOVE,
            false => self.chance.pick(&[1, 20, 300]),
        };
        let keys = network.at_server(old, |redis, now| redis.keys_in(slot, now));
        for key in &keys {
            sleep(self.chance.millis(0..pause)).await;
            if let Some(moving) = network.at_server(old, |redis, now| redis.take(key, now)) {
                network.at_server(new, |redis, _| redis.put(key, moving));
            }
        }
        !keys.is_empty()
    }
}
