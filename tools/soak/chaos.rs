//! The random faults of the soak.

use std::{collections::BTreeMap, time::Duration};

use support::{process, proxy::FaultProxy, server::RedisServer};
use tokio::time::sleep;

use crate::{
    dice::Dice,
    host::Crew,
    plan::{DELETED_FROM, NAMESPACE, WARM},
};

const MS: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    ConnectionCut,
    HalfOpen,
    SlowLine,
    SplitBytes,
    RepliesLost,
    WorkerKilled,
    WorkerStopped,
    ServerStopped,
    ServerKilled,
    ScriptsFlushed,
    ClientsKilled,
    KeysDeleted,
}

const ALL: [Fault; 12] = [
    Fault::ConnectionCut,
    Fault::HalfOpen,
    Fault::SlowLine,
    Fault::SplitBytes,
    Fault::RepliesLost,
    Fault::WorkerKilled,
    Fault::WorkerStopped,
    Fault::ServerStopped,
    Fault::ServerKilled,
    Fault::ScriptsFlushed,
    Fault::ClientsKilled,
    Fault::KeysDeleted,
];

/// Injects one fault at a time. Every kind of fault is injected once, in random order. Then the next series begins, in
/// another random order.
pub(crate) struct Chaos {
    dice: Dice,
    deck: Vec<Fault>,
    pub(crate) injected: BTreeMap<Fault, u64>,
}

impl Chaos {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            deck: Vec::new(),
            injected: BTreeMap::new(),
        }
    }

    fn draw(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = ALL.to_vec();
        }
        let index = usize::try_from(self.dice.below(self.deck.len() as u64)).unwrap_or(0);
        self.deck.swap_remove(index)
    }

    fn within(&mut self, from: u64, to: u64) -> Duration {
        MS * u32::try_from(from + self.dice.below(to - from)).unwrap_or(1)
    }

    /// Injects the next fault, and waits until the fault is over.
    pub(crate) async fn strike(
        &mut self,
        server: &mut RedisServer,
        proxies: &[FaultProxy],
        crew: &Crew,
    ) {
        let fault = self.draw();
        let index = usize::try_from(self.dice.below(proxies.len() as u64)).unwrap_or(0);
        let proxy = &proxies[index];
        match fault {
            Fault::ConnectionCut => proxy.cut(),
            Fault::HalfOpen => {
                proxy.half_open();
                sleep(self.within(10, 500)).await;
            }
            Fault::SlowLine => {
                proxy.delay(self.within(5, 50));
                proxy.jitter(self.within(5, 50));
                sleep(self.within(200, 1000)).await;
                proxy.delay(Duration::ZERO);
                proxy.jitter(Duration::ZERO);
            }
            Fault::SplitBytes => {
                proxy.split_bytes(true);
                sleep(self.within(100, 400)).await;
                proxy.split_bytes(false);
            }
            Fault::RepliesLost => {
                proxy.drop_replies(true);
                sleep(self.within(10, 300)).await;
                proxy.cut();
                proxy.drop_replies(false);
            }
            Fault::WorkerKilled => crew.kill(index),
            Fault::WorkerStopped => {
                let pid = crew.pid(index);
                process::signal(pid, "STOP");
                // The process is stopped for up to 4 s, which is longer than the lease of 3 s.
                sleep(self.within(50, 4000)).await;
                process::signal(pid, "CONT");
            }
            Fault::ServerStopped => {
                server.stop_process();
                sleep(self.within(50, 1500)).await;
                server.continue_process();
            }
            Fault::ServerKilled => server.restart().await,
            Fault::ScriptsFlushed => tell(server, &["SCRIPT", "FLUSH"]).await,
            Fault::ClientsKilled => tell(server, &["CLIENT", "KILL", "TYPE", "pubsub"]).await,
            Fault::KeysDeleted => {
                for _ in 0..8 {
                    let key = u64::from(DELETED_FROM) + self.dice.below(WARM.into());
                    let name = format!("{{{NAMESPACE}:{key}}}");
                    tell(server, &["DEL", &name]).await;
                }
            }
        }
        *self.injected.entry(fault).or_default() += 1;
        sleep(self.within(20, 200)).await;
    }
}

async fn tell(server: &RedisServer, command: &[&str]) {
    let mut told = redis::cmd(command[0]);
    told.arg(&command[1..]);
    let mut connection = server.connection().await;
    let told = told.exec_async(&mut connection).await;
    told.expect("the server accepts the command");
}
