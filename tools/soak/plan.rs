//! The conventions of host and workers.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use lock_runtime::LockError;

pub(crate) const NAMESPACE: &str = "soak";

/// The numbers of keys that many, some and few callers want.
pub(crate) const HOT: u32 = 4;
pub(crate) const WARM: u32 = 32;
pub(crate) const COLD: u32 = 10_000;
/// The keys of slow pollers, this many for each process. A key has one slow poller at a time, which pauses for up to
/// three claims.
pub(crate) const SLOW_FROM: u32 = 20_000;
pub(crate) const SLOW: u32 = 4;
/// Keys that whole buffers of futures want, whose consumer pauses for more than half a claim.
pub(crate) const BUFFERED_FROM: u32 = 30_000;
pub(crate) const BUFFERED: u32 = 4;
/// The first of the keys that an operator deletes now and then.
pub(crate) const DELETED_FROM: u32 = 1_000_000;

/// How a caller polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Poller {
    /// Whenever it is woken.
    Prompt,
    /// In a `buffer_unordered` stream whose consumer works for a while on each item.
    Buffered,
    /// In a `select!` loop that works between two polls and may want the same lock there.
    Selected,
    /// At random intervals.
    ByHand,
    /// A few times, and then not for a while or never again.
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

    /// The number that a worker writes.
    pub(crate) fn number(self) -> u64 {
        self as u64
    }

    pub(crate) fn read(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

macro_rules! outcomes {
    ($($name:ident),+) => {
        /// The results of calls.
        #[derive(Debug, Default)]
        pub(crate) struct Outcomes {
            pub(crate) begun: AtomicU64,
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Outcomes {
            /// The line that a worker writes.
            pub(crate) fn line(&self) -> String {
                let mut line = "o".to_owned();
                $(line += &format!(" {}={}", stringify!($name), self.$name.load(Ordering::Relaxed));)+
                // Read last, so that no more calls have ended than have begun.
                line += &format!(" begun={}", self.begun.load(Ordering::Relaxed));
                line
            }
        }
    };
}

outcomes!(
    completed,
    busy,
    waited_in_vain,
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

    /// The counter for the result of a call. `may_be_busy` is set for a single attempt, and for a call that may miss
    /// its turns.
    pub(crate) fn of(&self, result: &Result<(), LockError>, may_be_busy: bool) -> &AtomicU64 {
        match result {
            Ok(()) => &self.completed,
            Err(LockError::Busy { .. }) if may_be_busy => &self.busy,
            Err(LockError::Busy { .. }) => &self.waited_in_vain,
            Err(LockError::Lost { .. }) => &self.lost,
            Err(LockError::Unreachable { .. }) => &self.unreachable,
            Err(error) => {
                eprintln!("{error}");
                &self.refused
            }
        }
    }
}

/// Parses the line of outcomes.
pub(crate) fn read_outcomes(line: &str) -> Option<BTreeMap<String, u64>> {
    let pairs = line.strip_prefix("o ")?.split(' ');
    pairs
        .map(|pair| {
            let (name, count) = pair.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}
