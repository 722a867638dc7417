//! The locks that are compared, behind one call.

use std::{fmt, future::Future, str::FromStr, time::Duration};

use lock_runtime::{LockClient, LockError, Release, Strategy};
use uuid::Uuid;

use crate::{
    clock::now,
    floors::{GateFloor, SetFloor, ShaFloor, Tuning},
};

/// The lease of every lock here. Nothing comes near it.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// How long ours may wait. Nothing comes near it.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "bench";

/// Whose lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Ours,
    /// Whose calls return when the release is on its way.
    OursBackground,
    FloorSha,
    FloorShaDefaults,
    FloorSet,
    FloorGate,
}

impl Who {
    const ALL: [Self; 6] = [
        Self::Ours,
        Self::OursBackground,
        Self::FloorSha,
        Self::FloorShaDefaults,
        Self::FloorSet,
        Self::FloorGate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursBackground => "ours, background",
            Self::FloorSha => "floor-sha",
            Self::FloorShaDefaults => "floor-sha/defaults",
            Self::FloorSet => "floor-set",
            Self::FloorGate => "floor-gate",
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Who {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|who| who.name() == name)
            .ok_or_else(|| format!("nobody is called {name}"))
    }
}

/// One task's place at a lock.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) key: String,
    pub(crate) channel: String,
    pub(crate) owner: String,
}

impl Seat {
    pub(crate) fn at(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            channel: format!("channel:{{{key}}}"),
            owner: Uuid::new_v4().to_string(),
        }
    }
}

/// A lock that is measured. Clones share its connection; every task has one of its own.
pub(crate) trait Cycle: Clone + Send + Sync + 'static {
    /// Acquires, runs a body, releases; false if it gave up, as a poller does at `until`.
    fn cycle<F: Future<Output = ()> + Send>(
        &mut self,
        seat: &Seat,
        until: u64,
        body: F,
    ) -> impl Future<Output = bool> + Send;

    /// The commands that it sends by itself, where others run them within scripts only.
    fn plain(&self) -> &'static [&'static str] {
        &[]
    }
}

/// Takes a lock once: what is made on the first call is not measured.
pub(crate) async fn warm<C: Cycle>(mut contender: C) -> C {
    let seat = Seat::at(&format!("first:{}", Uuid::new_v4()));
    // On a worker thread, where the measured calls run.
    let first = tokio::spawn(async move {
        contender.cycle(&seat, u64::MAX, async {}).await;
        contender
    });
    first.await.expect("a first lock is taken")
}

/// Our client, whose calls wait and release in one way.
pub(crate) async fn ours(url: &str, strategy: Strategy, release: Release) -> LockClient {
    let client = LockClient::builder()
        .url(url)
        .namespace(NAMESPACE)
        .strategy(strategy)
        .release(release)
        .connect();
    client.await.expect("the client connects")
}

/// Ours, or a floor.
#[derive(Debug, Clone)]
pub(crate) enum Contender {
    Ours(LockClient),
    Sha(ShaFloor),
    Set(SetFloor),
    Gate(GateFloor),
}

impl Contender {
    /// Connects, and takes a lock once.
    pub(crate) async fn connect(who: Who, url: &str) -> Self {
        let ours = async |release| Self::Ours(ours(url, Strategy::Handoff, release).await);
        warm(match who {
            Who::Ours => ours(Release::Confirmed).await,
            Who::OursBackground => ours(Release::Background).await,
            Who::FloorSha => Self::Sha(ShaFloor::new(url, Tuning::Ours).await),
            Who::FloorShaDefaults => Self::Sha(ShaFloor::new(url, Tuning::Defaults).await),
            Who::FloorSet => Self::Set(SetFloor::new(url).await),
            Who::FloorGate => Self::Gate(GateFloor::new(ShaFloor::new(url, Tuning::Ours).await)),
        })
        .await
    }
}

impl Cycle for Contender {
    fn plain(&self) -> &'static [&'static str] {
        match self {
            Self::Set(_) => &["set"],
            _ => &[],
        }
    }

    async fn cycle<F: Future<Output = ()> + Send>(
        &mut self,
        seat: &Seat,
        until: u64,
        body: F,
    ) -> bool {
        match self {
            Self::Ours(client) => {
                let lock = client.lock(&seat.key).wait(WAIT).lease(LEASE);
                match lock.run(body).await {
                    Ok(()) => {}
                    // One of those that are still waiting when all is over.
                    Err(LockError::Busy { .. } | LockError::Unreachable { .. })
                        if now() >= until =>
                    {
                        return false;
                    }
                    Err(error) => panic!("ours is granted: {error}"),
                }
            }
            Self::Sha(floor) => {
                if !floor.enter(seat, until).await {
                    return false;
                }
                body.await;
                floor.leave(seat).await;
            }
            Self::Set(floor) => {
                if !floor.enter(seat, until).await {
                    return false;
                }
                body.await;
                floor.leave(seat).await;
            }
            Self::Gate(floor) => {
                let gate = floor.gate(&seat.key);
                let _turn = gate.lock().await;
                if !floor.inner.enter(seat, until).await {
                    return false;
                }
                body.await;
                floor.inner.leave(seat).await;
            }
        }
        true
    }
}
