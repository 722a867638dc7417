//! Definitions that the host of the soak shares with its workers: the numbers of the keys, the kinds of pollers
//! (callers that poll their futures in a certain way), and the outcomes of calls.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crc16::{State, XMODEM};
use lock_runtime::LockError;

pub(crate) const NAMESPACE: &str = "soak";

/// The number of hot keys. A hot key nearly always has several callers.
pub(crate) const HOT: u32 = 4;
/// The number of warm keys. A warm key sometimes has several callers.
pub(crate) const WARM: u32 = 32;
/// The number of cold keys. A cold key is nearly always free.
pub(crate) const COLD: u32 = 10_000;
/// The lowest number of a key for slow pollers that pause for up to three claims (6 s). Each of these keys has only one
/// slow poller.
pub(crate) const SLOW_FROM: u32 = 20_000;
/// In each process, the number of slow pollers that pause for up to three claims, and the number of their keys.
pub(crate) const SLOW: u32 = 4;
/// The lowest number of a key for buffers of futures. The consumer of a buffer pauses for at least half a claim (1 s)
/// after each result.
pub(crate) const BUFFERED_FROM: u32 = 30_000;
/// The number of keys for buffers of futures. All processes share these keys.
pub(crate) const BUFFERED: u32 = 4;
/// The lowest number of a key that an operator deletes from time to time. There are `WARM` such keys.
pub(crate) const DELETED_FROM: u32 = 1_000_000;

/// The kind of a run, which says what servers the run uses, and how the host disturbs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// The run takes place on one server, without disturbances.
    Calm,
    /// Random faults occur on one server and on the connections with it.
    Faults,
    /// The slots of a cluster move from primary to primary during the whole run.
    Moves,
    /// Primaries are killed one after another, and their replicas take over.
    Failovers(Servers),
}

/// Servers with replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Servers {
    Cluster,
    Sentinels,
}

impl Course {
    const ALL: [Self; 5] = [
        Self::Calm,
        Self::Faults,
        Self::Moves,
        Self::Failovers(Servers::Cluster),
        Self::Failovers(Servers::Sentinels),
    ];

    /// Returns the name of the course, which the page of results and the arguments of a worker contain.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Faults => "faults",
            Self::Moves => "moves",
            Self::Failovers(Servers::Cluster) => "cluster failovers",
            Self::Failovers(Servers::Sentinels) => "sentinel failovers",
        }
    }

    pub(crate) fn read(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|course| course.name() == name)
    }

    /// Returns the lease of the workers' locks.
    pub(crate) fn lease(self) -> Duration {
        Duration::from_secs(match self {
            // The lease is long, because no lock should become free by the end of a lease in these runs.
            Self::Calm | Self::Moves => 30,
            Self::Faults => 3,
            // The lease is longer than a failover, but shorter than the callers' `wait`. If a release is lost, the lock
            // therefore still becomes free while callers wait.
            Self::Failovers(_) => 10,
        })
    }

    /// Returns whether workers never lose their connections with the servers that store their locks. All callers then
    /// get their locks in time.
    pub(crate) fn is_clean(self) -> bool {
        matches!(self, Self::Calm | Self::Moves)
    }

    /// Returns whether the queues of the hot keys are seldom empty. If so, a caller that does not queue possibly gets
    /// no lock during its whole `wait`.
    pub(crate) fn has_long_queues(self) -> bool {
        matches!(self, Self::Failovers(_))
    }

    /// Returns how long a body at this key pauses between two of its steps, or `None` if the body only yields. Bodies
    /// pause so that some callers hold the lock, and others are in the queue, when a disturbance happens.
    pub(crate) fn step_at(self, key: u32) -> Option<Duration> {
        Some(Duration::from_millis(match self {
            _ if key >= SLOW_FROM => 20,
            Self::Failovers(_) if key < HOT => 10,
            Self::Faults | Self::Moves | Self::Failovers(_) => 1,
            Self::Calm => return None,
        }))
    }
}

/// Returns the slot of the cluster that stores the lock of this key.
pub(crate) fn slot_of(key: u32) -> u16 {
    State::<XMODEM>::calculate(format!("{NAMESPACE}:{key}").as_bytes()) % 16384
}

/// How a caller polls the future of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Poller {
    /// The caller polls its future as soon as the future is woken.
    Prompt,
    /// The caller polls its future in a `buffer_unordered` stream. The consumer of the stream works on each item for a
    /// while, and polls nothing during this work.
    Buffered,
    /// The caller polls its future in a `select!` loop. The loop does other work between two polls, and sometimes this
    /// work is a second call for the same lock.
    Selected,
    /// The caller polls at random intervals.
    ByHand,
    /// The caller polls its future a few times, and then pauses. After the pause, the caller drops the future, polls it
    /// to its end, or lets another task poll it.
    Forgotten,
}

impl Poller {
    const ALL: [Self; 5] = [
        Self::Prompt,
        Self::Buffered,
        Self::Selected,
        Self::ByHand,
        Self::Forgotten,
    ];

    /// Returns the number that identifies the kind of poller in a worker's reports.
    pub(crate) fn number(self) -> u64 {
        self as u64
    }

    pub(crate) fn read(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

macro_rules! outcomes {
    ($($name:ident),+) => {
        /// Counts calls by their results.
        #[derive(Debug, Default)]
        pub(crate) struct Outcomes {
            pub(crate) begun: AtomicU64,
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Outcomes {
            /// Formats the counts as the line that a worker writes.
            pub(crate) fn line(&self) -> String {
                let mut line = "o".to_owned();
                $(line += &format!(" {}={}", stringify!($name), self.$name.load(Ordering::Relaxed));)+
                // `begun` is read last. The counts in the line therefore never show more ended calls than begun calls.
                line += &format!(" begun={}", self.begun.load(Ordering::Relaxed));
                line
            }
        }
    };
}

outcomes!(
    completed,
    busy,
    starved,
    lost,
    unreachable,
    refused,
    cancelled,
    panicked
);

impl Outcomes {
    pub(crate) fn count(outcome: &AtomicU64) {
        outcome.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counter for the result of a call. `may_be_busy` says that the result `Busy` is acceptable, because
    /// the call makes only one attempt, does not queue, or can miss its turns. If `may_be_busy` is not set, `Busy`
    /// counts as `starved`.
    pub(crate) fn of(&self, result: &Result<(), LockError>, may_be_busy: bool) -> &AtomicU64 {
        match result {
            Ok(()) => &self.completed,
            Err(LockError::Busy { .. }) if may_be_busy => &self.busy,
            Err(LockError::Busy { .. }) => &self.starved,
            Err(LockError::Lost { .. }) => &self.lost,
            Err(LockError::Unreachable { .. }) => &self.unreachable,
            Err(error) => {
                eprintln!("{error}");
                &self.refused
            }
        }
    }
}

/// Parses the line that [`Outcomes::line`] writes.
pub(crate) fn read_outcomes(line: &str) -> Option<BTreeMap<String, u64>> {
    let pairs = line.strip_prefix("o ")?.split(' ');
    pairs
        .map(|pair| {
            let (name, count) = pair.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}
