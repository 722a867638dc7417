//! The faults of the simulated world.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    ledger::OVER,
    network::{Break, ServerId, Way},
    plan::Store,
    redis::{Mode, Persistence},
    topology::Cause,
    world::World,
};

/// A fault that the simulation causes. Each variant's comment says what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// All connections of a process to a server break.
    Break,
    /// All connections of a process to a server break, but the server notices the break only later.
    HalfOpen,
    /// Messages from a process to a server arrive late.
    HoldUp,
    /// Messages from a server to a process arrive late.
    HoldDown,
    /// A process is cut off from a server for a while.
    Partition,
    /// The server is stopped for a while.
    Stop,
    /// The server restarts and keeps its data.
    Restart,
    /// The server restarts and loses its data.
    RestartEmpty,
    /// A replica that lacks the newest writes replaces the server.
    Promote,
    /// An operator deletes all keys of the server.
    Flush,
    /// An operator deletes the key of a lock.
    Delete,
    /// The server loses its cached scripts.
    ForgetScripts,
    /// The server is out of memory for a while.
    OutOfMemory,
    /// The server is a replica for a while, and refuses writes.
    ReadOnly,
    /// The server loads its data for a while, and refuses most commands.
    Loading,
    /// The server's clock is set ahead.
    ClockAhead,
    /// The server's clock is set back.
    ClockBack,
    /// A process is killed, and another one is started.
    Crash,
    /// A process is stopped for a while.
    StopProcess,
    /// The process of a primary dies, and a replica replaces the primary.
    PrimaryDies,
    /// A primary is cut off from its replicas and from the Sentinels, and a replica replaces the primary.
    PrimaryIsCutOff,
    /// A primary is stopped, and a replica replaces the primary.
    PrimaryStops,
    /// A primary hands over to a replica that has all writes.
    HandOver,
    /// A primary hands over to a replica, which can lack the newest writes.
    HastyHandOver,
    /// A replica is down for a while.
    ReplicaDown,
    /// A replica receives no data from its primary for a while.
    ReplicaCutOff,
    /// Some Sentinels are down for a while.
    SentinelsDown,
    /// Some Sentinels are stopped for a while.
    SentinelsStop,
    /// A Sentinel names a replica as the primary for a while.
    SentinelErrs,
    /// The slot of a lock moves to another primary.
    MoveSlot,
    /// The slot of a lock moves to a server that stored no slot before.
    Join,
    /// The nodes of a cluster consider the cluster as down for a while.
    ClusterDown,
    /// The nodes of a cluster lose the messages that clients publish on other nodes.
    LoseMessages,
    /// The client of a process is shut down, and another process is started.
    ShutDown,
    /// The connections of a process to a server fall silent: all messages are lost, and neither side notices.
    Silence,
    /// One of the two runtimes of a process is blocked for a while.
    BlockRuntime,
    /// One of the two runtimes of a process ends with its callers, and another one is started.
    EndRuntime,
}

impl Fault {
    /// Returns the faults that may occur with this backend.
    #[must_use]
    pub fn of(store: Store) -> Vec<Self> {
        let fits = |fault: &Self| match fault {
            Self::Promote => store.replicas() == 0 && !matches!(store, Store::Cluster { .. }),
            Self::PrimaryDies
            | Self::PrimaryIsCutOff
            | Self::PrimaryStops
            | Self::HandOver
            | Self::HastyHandOver
            | Self::ReplicaDown
            | Self::ReplicaCutOff => store.replicas() > 0,
            Self::SentinelsDown | Self::SentinelsStop | Self::SentinelErrs => store.sentinels() > 0,
            Self::MoveSlot | Self::Join | Self::ClusterDown | Self::LoseMessages => {
                matches!(store, Store::Cluster { .. })
            }
            _ => true,
        };
        Self::ALL.into_iter().filter(fits).collect()
    }

    /// All faults, except those that a plan draws separately.
    pub const ALL: [Self; 33] = [
        Self::Break,
        Self::HalfOpen,
        Self::HoldUp,
        Self::HoldDown,
        Self::Partition,
        Self::Stop,
        Self::Restart,
        Self::RestartEmpty,
        Self::Promote,
        Self::Flush,
        Self::Delete,
        Self::ForgetScripts,
        Self::OutOfMemory,
        Self::ReadOnly,
        Self::Loading,
        Self::ClockAhead,
        Self::ClockBack,
        Self::Crash,
        Self::StopProcess,
        Self::PrimaryDies,
        Self::PrimaryIsCutOff,
        Self::PrimaryStops,
        Self::HandOver,
        Self::HastyHandOver,
        Self::ReplicaDown,
        Self::ReplicaCutOff,
        Self::SentinelsDown,
        Self::SentinelsStop,
        Self::SentinelErrs,
        Self::MoveSlot,
        Self::Join,
        Self::ClusterDown,
        Self::LoseMessages,
    ];

    /// Returns whether a plan draws this fault separately (see [`ALL`](Self::ALL)).
    #[must_use]
    pub fn is_drawn_apart(self) -> bool {
        matches!(self, Self::ShutDown | Self::Silence)
    }

    /// Returns whether this fault concerns one server at a time, and takes nothing from the data of the server.
    #[must_use]
    pub fn spares_data(self) -> bool {
        matches!(
            self,
            Self::Break
                | Self::HalfOpen
                | Self::HoldUp
                | Self::HoldDown
                | Self::Partition
                | Self::Stop
                | Self::Restart
                | Self::ForgetScripts
                | Self::OutOfMemory
                | Self::ReadOnly
                | Self::Loading
        )
    }

    /// Returns whether this fault only delays messages or loses them.
    #[must_use]
    pub fn concerns_messages(self) -> bool {
        matches!(
            self,
            Self::Break
                | Self::HalfOpen
                | Self::HoldUp
                | Self::HoldDown
                | Self::Partition
                | Self::ForgetScripts
                | Self::Silence
        )
    }

    /// Returns whether this fault neither changes a clock nor replaces a server, and stops no process that continues.
    #[must_use]
    pub fn keeps_clocks(&self) -> bool {
        matches!(
            self,
            Self::Break
                | Self::HalfOpen
                | Self::HoldUp
                | Self::HoldDown
                | Self::Partition
                | Self::Stop
                | Self::Restart
                | Self::RestartEmpty
                | Self::Flush
                | Self::Delete
                | Self::ForgetScripts
                | Self::OutOfMemory
                | Self::ReadOnly
                | Self::Loading
                | Self::Crash
                | Self::MoveSlot
                | Self::Join
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::Break => "connections break",
            Self::HalfOpen => "connections break, the server notices later",
            Self::HoldUp => "requests are held back",
            Self::HoldDown => "replies are held back",
            Self::Partition => "a process is cut off",
            Self::Stop => "the server is stopped",
            Self::Restart => "the server restarts with its state",
            Self::RestartEmpty => "the server restarts without its state",
            Self::Promote => "a replica that lags takes over",
            Self::Flush => "everything is deleted",
            Self::Delete => "the key of a lock is deleted",
            Self::ForgetScripts => "the server forgets its scripts",
            Self::OutOfMemory => "the server is out of memory",
            Self::ReadOnly => "the server is read only",
            Self::Loading => "the server loads its data",
            Self::ClockAhead => "the server's clock is set ahead",
            Self::ClockBack => "the server's clock is set back",
            Self::Crash => "a process is killed",
            Self::StopProcess => "a process is stopped",
            Self::BlockRuntime => "a runtime is blocked",
            Self::EndRuntime => "a runtime ends",
            Self::PrimaryDies => "a primary dies, a replica takes over",
            Self::PrimaryIsCutOff => "a primary is cut off, a replica takes over",
            Self::PrimaryStops => "a primary is stopped, a replica takes over",
            Self::HandOver => "a primary hands over",
            Self::HastyHandOver => "a primary hands over at once",
            Self::ReplicaDown => "a replica is down",
            Self::ReplicaCutOff => "a replica is cut off",
            Self::SentinelsDown => "Sentinels are down",
            Self::SentinelsStop => "Sentinels are stopped",
            Self::SentinelErrs => "a Sentinel names a replica",
            Self::MoveSlot => "a slot moves",
            Self::Join => "a slot moves to a server that joins",
            Self::ClusterDown => "the cluster is down",
            Self::LoseMessages => "messages between nodes are lost",
            Self::ShutDown => "a client is shut down",
            Self::Silence => "connections fall silent",
        }
    }
}

impl World {
    /// Causes faults, one after another, until this moment, or until the run is over.
    pub(crate) async fn go_wrong(&self, until: Instant) {
        if self.plan.faults.is_empty() {
            return;
        }
        let is_over = || self.is_over.load(Ordering::Acquire) || Instant::now() >= until;
        while !is_over() {
            let calm = self.chance.millis(0..self.plan.calm + 1);
            sleep(calm).await;
            let fault = self.chance.pick(&self.plan.faults);
            if !is_over() {
                self.happen(fault).await;
            }
        }
    }

    pub(crate) async fn happen(&self, fault: Fault) {
        self.ledger.disturb(fault.name());
        let (network, chance) = (&self.network, &self.chance);
        let host = self.somebody();
        let store = self.plan.store;
        let server = match fault {
            Fault::Flush
            | Fault::Delete
            | Fault::ForgetScripts
            | Fault::OutOfMemory
            | Fault::ReadOnly
            | Fault::Loading => self.some_primary(),
            Fault::Restart | Fault::RestartEmpty => chance.index(store.servers()),
            _ => chance.index(store.servers() + store.sentinels()),
        };
        let a_while = chance.millis(1..chance.pick(&[100, 1_000, 4_000]));
        if store.servers() == 1 {
            match fault {
                Fault::HoldUp | Fault::HoldDown | Fault::Partition => {
                    self.ledger.cut_off(Some(host));
                }
                Fault::Stop => self.ledger.cut_off(None),
                _ => {}
            }
        }
        match fault {
            Fault::Break => network.break_connections(host, server, Break::Both),
            Fault::HalfOpen => {
                let how = Break::ClientSees(chance.millis(0..5_000));
                network.break_connections(host, server, how);
            }
            Fault::HoldUp | Fault::HoldDown | Fault::Partition => {
                let ways = match fault {
                    Fault::HoldUp => &[Way::Up][..],
                    Fault::HoldDown => &[Way::Down],
                    _ => &[Way::Up, Way::Down],
                };
                for held in [true, false] {
                    for way in ways {
                        network.hold(host, server, *way, held);
                    }
                    if held {
                        sleep(a_while).await;
                    }
                }
            }
            Fault::Stop => {
                network.stop(server);
                self.ledger.stop_server(server);
                sleep(a_while).await;
                network.go_on(server);
                self.ledger.continue_server(server);
            }
            Fault::Restart | Fault::RestartEmpty => {
                let persistence = if fault == Fault::Restart {
                    Persistence::Everything
                } else {
                    if self.is_primary(server) {
                        self.lose_all_of(server);
                    }
                    Persistence::Nothing
                };
                network.end(server, persistence);
                sleep(a_while / 4).await;
                network.begin(server);
            }
            Fault::Promote => {
                let lagging = network.at_server(server, |redis, _| redis.snapshot());
                sleep(a_while / 4).await;
                self.ledger.lose_state();
                network.end(server, Persistence::Nothing);
                network.at_server(server, |redis, _| redis.load(lagging));
                sleep(chance.millis(0..200)).await;
                network.begin(server);
            }
            Fault::Flush => {
                self.lose_all_of(server);
                network.at_server(server, |redis, _| redis.flush());
            }
            Fault::Delete => {
                self.ledger.lose_state();
                let key = self
                    .plan
                    .name_of(&format!("k{}", chance.index(self.plan.keys)));
                network.at_server(server, |redis, _| redis.delete(&key));
            }
            Fault::ForgetScripts => network.at_server(server, |redis, _| redis.forget_scripts()),
            Fault::OutOfMemory | Fault::ReadOnly | Fault::Loading => {
                let mode = match fault {
                    Fault::OutOfMemory => Mode::OutOfMemory,
                    Fault::ReadOnly => Mode::ReadOnly,
                    _ => Mode::Loading,
                };
                network.at_server(server, |redis, _| redis.set_mode(mode));
                sleep(a_while).await;
                network.at_server(server, |redis, _| redis.set_mode(Mode::Normal));
            }
            Fault::ClockAhead => {
                self.ledger.set_ahead();
                self.set_clocks(server, micros(chance.millis(1..10_000)));
            }
            Fault::ClockBack => {
                let back = chance.millis(1..10_000);
                self.ledger.set_back(back);
                self.set_clocks(server, -micros(back));
            }
            Fault::Crash => self.replace(host).await,
            Fault::StopProcess => self.stop(host, 3 * a_while).await,
            Fault::PrimaryDies => self.fail_over(Cause::Death).await,
            Fault::PrimaryIsCutOff => self.fail_over(Cause::Isolation).await,
            Fault::PrimaryStops => self.fail_over(Cause::Stop).await,
            Fault::HandOver => self.fail_over(Cause::Order).await,
            Fault::HastyHandOver => self.fail_over(Cause::HastyOrder).await,
            Fault::ReplicaDown => self.lose_replica(a_while).await,
            Fault::ReplicaCutOff => self.cut_replica_off(a_while).await,
            Fault::SentinelsDown => self.lose_sentinels(false, a_while).await,
            Fault::SentinelsStop => self.lose_sentinels(true, a_while).await,
            Fault::SentinelErrs => self.contradict(a_while).await,
            Fault::MoveSlot => self.move_slot(false).await,
            Fault::Join => self.move_slot(true).await,
            Fault::ClusterDown => self.be_down(a_while).await,
            Fault::LoseMessages => self.lose_messages(a_while).await,
            Fault::ShutDown => self.shut_down(host).await,
            Fault::Silence => network.fall_silent(host, server),
            Fault::BlockRuntime => self.block_runtime(host, 3 * a_while).await,
            Fault::EndRuntime => self.end_runtime(host).await,
        }
        self.ledger.disturb(OVER);
    }

    /// Tells the ledger that a server loses its whole state now. The loss of one node of a Redlock admits no second
    /// holder, unless a majority of the nodes loses its state within one lease.
    fn lose_all_of(&self, server: ServerId) {
        if self.plan.store != Store::Redlock {
            return self.ledger.lose_state();
        }
        self.ledger.forget_mark(server);
        let now = tokio::time::Instant::now();
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(server, now);
        let together = 2 * self.plan.longest_lease() + Duration::from_secs(5);
        let recent = lost.values().filter(|at| now - **at < together).count();
        if 2 * recent > self.plan.store.servers() {
            self.ledger.lose_state();
        }
    }

    /// Sets the clock of a server. If the servers have replicas, sets the clocks of all servers, because one server can
    /// replace another.
    fn set_clocks(&self, server: ServerId, by_micros: i64) {
        let has_replicas = !self.shards().is_empty();
        for other in 0..self.plan.store.servers() {
            if has_replicas || other == server {
                self.network.set_clock(other, by_micros);
            }
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
