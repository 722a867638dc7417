//! Primaries with replicas: how a replica replaces its primary, and what the ledger learns about it.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use crate::{network::ServerId, plan::Store, redis::Persistence, world::World};

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
    /// The process of the primary dies. Later, it starts again with its data.
    Death,
    /// The primary is cut off from its replicas and from the Sentinels, but not from the clients.
    Isolation,
    /// The process of the primary is stopped. It continues after a replica has replaced it.
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
        let shard = Shard {
            primary: 0,
            servers: (0..store.servers()).collect(),
        };
        let Store::Group { .. } = store else {
            return;
        };
        for replica in shard.replicas() {
            self.network.follow(replica, Some(shard.primary), false);
        }
        for sentinel in self.sentinels() {
            self.network.name_primary(sentinel, shard.primary);
        }
        self.shards().push(shard);
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
        // Each replica has all writes up to its offset, so the one with the highest offset has all acknowledged writes.
        let (_, newest) = candidates.iter().max()?;
        let all = shard.replicas().count();
        Some((*newest, needed >= all || candidates.len() == all))
    }

    /// Tells the ledger which grants of the old primary the new primary lacks or has for a shorter time. If `keeps` is
    /// set, the new primary must have every grant under which a body has begun. `splits` says whether the old primary
    /// continues to serve clients.
    fn compare(&self, old: ServerId, new: ServerId, keeps: bool, splits: bool) {
        for key in (0..self.plan.keys).map(|key| format!("k{key}")) {
            let name = self.name_of(&key);
            let grant = |server| {
                let read = |redis: &mut crate::redis::Redis, now| redis.expiring(&name, now);
                self.network.at_server(server, read)
            };
            let Some((before, until)) = grant(old) else {
                continue;
            };
            let token = |grant: &str| grant.split('|').next().map(str::to_owned);
            match grant(new) {
                Some((now, left)) if token(&now) == token(&before) => {
                    if splits || left < until {
                        self.ledger
                            .lose_grant(&key, self.network.in_world(new, left));
                    }
                }
                _ if keeps => {}
                _ => self.ledger.lose_grant(&key, self.network.in_world(new, 0)),
            }
        }
        if splits && !keeps {
            self.ledger.split();
        }
    }

    /// Returns the name of the key in which a server stores the grant of a lock.
    pub(crate) fn name_of(&self, key: &str) -> String {
        match self.plan.store {
            Store::Redisson => key.to_owned(),
            Store::Redis | Store::Redlock | Store::Group { .. } => format!("{{lock:{key}}}"),
        }
    }

    /// Lets a replica replace its primary.
    pub(crate) async fn fail_over(&self, cause: Cause) {
        let (network, chance) = (&self.network, &self.chance);
        let number = chance.index(self.shards().len());
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
            Cause::Death | Cause::Isolation | Cause::Stop => sleep(chance.millis(0..2_000)).await,
        }
        let Some((new, keeps)) = self.successor(&shard) else {
            match cause {
                Cause::Death => network.begin(old),
                Cause::Isolation => shard.replicas().for_each(|it| network.cut_off(it, false)),
                Cause::Stop | Cause::Order => network.go_on(old),
                Cause::HastyOrder => {}
            }
            return;
        };
        let splits = matches!(cause, Cause::Isolation | Cause::Stop | Cause::HastyOrder);
        self.compare(old, new, keeps, splits);
        network.follow(new, None, false);
        self.shards()[number].primary = new;
        if cause == Cause::Order {
            network.follow(old, Some(new), false);
            network.go_on(old);
        }
        self.announce(new).await;
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
            Cause::Death => {
                sleep(a_while).await;
                if !keeps && chance.percent(50) {
                    self.ledger.split();
                    network.begin(old);
                }
            }
        }
        sleep(chance.millis(0..1_500)).await;
        network.follow(old, Some(new), chance.percent(80));
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
