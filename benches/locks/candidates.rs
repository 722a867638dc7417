//! The candidates: the locks that the benchmark compares, behind a common interface.

use std::{fmt, future::Future, str::FromStr, time::Duration};

use lock_runtime::{LockClient, LockError, Release, Strategy};
use uuid::Uuid;

use crate::{
    baselines::{GateBaseline, SetBaseline, ShaBaseline, Tuning},
    clock::now,
};

/// The lease of every lock in this benchmark, which is far longer than any hold.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The `wait` of this project's locks, which is far longer than any task really waits.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "bench";

/// A kind of lock that the benchmark measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Ours,
    /// This project's lock with background releases: a call returns before its release is confirmed.
    OursBackground,
    BaselineSha,
    BaselineShaDefaults,
    BaselineSet,
    BaselineGate,
}

impl Who {
    const ALL: [Self; 6] = [
        Self::Ours,
        Self::OursBackground,
        Self::BaselineSha,
        Self::BaselineShaDefaults,
        Self::BaselineSet,
        Self::BaselineGate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursBackground => "ours, background",
            Self::BaselineSha => "baseline-sha",
            Self::BaselineShaDefaults => "baseline-sha/defaults",
            Self::BaselineSet => "baseline-set",
            Self::BaselineGate => "baseline-gate",
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
            .ok_or_else(|| format!("no lock is called {name}"))
    }
}

/// A seat: the names with which one task uses a lock. A seat consists of the lock's key, the lock's channel, and the
/// task's owner name.
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

/// A lock that the benchmark measures. Each task has its own clone, and all clones share a connection.
pub(crate) trait Cycle: Clone + Send + Sync + 'static {
    /// Acquires the lock, runs a body, and releases the lock. Returns `false` if the lock was not acquired and the body
    /// did not run. A lock that polls the server tries until the time `until`.
    fn cycle<F: Future<Output = ()> + Send>(
        &mut self,
        seat: &Seat,
        until: u64,
        body: F,
    ) -> impl Future<Output = bool> + Send;

    /// Returns the commands that this lock sends to the server directly. Other locks run these commands only within
    /// scripts.
    fn plain(&self) -> &'static [&'static str] {
        &[]
    }
}

/// Acquires and releases a lock once, so that the benchmark does not measure the additional work of a first call.
pub(crate) async fn warm<C: Cycle>(mut candidate: C) -> C {
    // distkit accepts no key with a colon.
    let seat = Seat::at(&format!("first-{}", Uuid::new_v4()));
    // The first call runs on a worker thread, like the measured calls.
    let first = tokio::spawn(async move {
        candidate.cycle(&seat, u64::MAX, async {}).await;
        candidate
    });
    first.await.expect("the first call does not panic")
}

/// Connects a client of this project whose calls use this strategy and this kind of release.
pub(crate) async fn ours(url: &str, strategy: Strategy, release: Release) -> LockClient {
    let client = LockClient::builder()
        .url(url)
        .namespace(NAMESPACE)
        .strategy(strategy)
        .release(release)
        .connect();
    client.await.expect("the client connects")
}

/// A lock of this project, or a baseline.
#[derive(Debug, Clone)]
pub(crate) enum Candidate {
    Ours(LockClient),
    Sha(ShaBaseline),
    Set(SetBaseline),
    Gate(GateBaseline),
}

impl Candidate {
    /// Connects a lock of this kind. Acquires and releases the lock once, so that the benchmark does not measure the
    /// additional work of a first call.
    pub(crate) async fn connect(who: Who, url: &str) -> Self {
        let ours = async |release| Self::Ours(ours(url, Strategy::Handoff, release).await);
        warm(match who {
            Who::Ours => ours(Release::Confirmed).await,
            Who::OursBackground => ours(Release::Background).await,
            Who::BaselineSha => Self::Sha(ShaBaseline::new(url, Tuning::Ours).await),
            Who::BaselineShaDefaults => Self::Sha(ShaBaseline::new(url, Tuning::Defaults).await),
            Who::BaselineSet => Self::Set(SetBaseline::new(url).await),
            Who::BaselineGate => {
                Self::Gate(GateBaseline::new(ShaBaseline::new(url, Tuning::Ours).await))
            }
        })
        .await
    }
}

impl Cycle for Candidate {
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
                    // The call did not get the lock before the end of the run.
                    Err(LockError::Busy { .. } | LockError::Unreachable { .. })
                        if now() >= until =>
                    {
                        return false;
                    }
                    Err(error) => panic!("the lock of this project was not granted: {error}"),
                }
            }
            Self::Sha(baseline) => {
                if !baseline.enter(seat, until).await {
                    return false;
                }
                body.await;
                baseline.leave(seat).await;
            }
            Self::Set(baseline) => {
                if !baseline.enter(seat, until).await {
                    return false;
                }
                body.await;
                baseline.leave(seat).await;
            }
            Self::Gate(baseline) => {
                let gate = baseline.gate(&seat.key);
                let _turn = gate.lock().await;
                if !baseline.inner.enter(seat, until).await {
                    return false;
                }
                body.await;
                baseline.inner.leave(seat).await;
            }
        }
        true
    }
}
