//! The faults of the simulated world.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::sleep;

use crate::{
    network::{Break, Way},
    plan::Store,
    redis::{Mode, Persistence},
    world::World,
};

/// A fault.
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
    /// The server is a replica for a while.
    ReadOnly,
    /// The server loads its data for a while.
    Loading,
    /// The server's clock is set ahead.
    ClockAhead,
    /// The server's clock is set back.
    ClockBack,
    /// A process is killed, and another one is started.
    Crash,
    /// A process is stopped for a while.
    StopProcess,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 19] = [
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
    ];

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
        }
    }
}

impl World {
    /// Causes faults, one after another, until the run is over.
    pub(crate) async fn go_wrong(&self) {
        if self.plan.faults.is_empty() {
            return;
        }
        while !self.is_over.load(Ordering::Acquire) {
            let calm = self.chance.millis(0..self.plan.calm + 1);
            sleep(calm).await;
            let fault = self.chance.pick(&self.plan.faults);
            if !self.is_over.load(Ordering::Acquire) {
                self.happen(fault).await;
            }
        }
    }

    async fn happen(&self, fault: Fault) {
        self.ledger.disturb(fault.name());
        let (network, chance) = (&self.network, &self.chance);
        let host = self.somebody();
        let server = chance.index(self.plan.store.servers());
        let a_while = chance.millis(1..chance.pick(&[100, 1_000, 4_000]));
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
                sleep(a_while).await;
                network.go_on(server);
            }
            Fault::Restart | Fault::RestartEmpty => {
                let persistence = if fault == Fault::Restart {
                    Persistence::Everything
                } else {
                    self.ledger.lose_state();
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
                self.ledger.lose_state();
                network.at_server(server, |redis, _| redis.flush());
            }
            Fault::Delete => {
                self.ledger.lose_state();
                let key = chance.index(self.plan.keys);
                let key = match self.plan.store {
                    Store::Redisson => format!("k{key}"),
                    Store::Redis | Store::Redlock => format!("{{lock:k{key}}}"),
                };
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
                self.ledger.lose_state(); // leases end early, as after a loss of state
                network.set_clock(server, micros(chance.millis(1..10_000)));
            }
            Fault::ClockBack => {
                let back = chance.millis(1..10_000);
                self.ledger.set_back(back);
                network.set_clock(server, -micros(back));
            }
            Fault::Crash => self.replace(host).await,
            Fault::StopProcess => self.stop(host, 3 * a_while).await,
        }
        self.ledger.disturb("over");
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
