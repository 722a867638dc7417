//! What host and workers agree on.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

pub(crate) const NAMESPACE: &str = "soak";

/// Keys by how many callers want them.
pub(crate) const HOT: u32 = 4;
pub(crate) const WARM: u32 = 32;
pub(crate) const COLD: u32 = 10_000;
/// From here on keys are deleted by an operator now and then.
pub(crate) const DELETED_FROM: u32 = 1_000_000;

/// The clock that all processes of the machine share, in ns.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

macro_rules! outcomes {
    ($($name:ident),+) => {
        /// What became of calls.
        #[derive(Debug, Default)]
        pub(crate) struct Outcomes {
            pub(crate) begun: AtomicU64,
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Outcomes {
            /// As a worker writes it.
            pub(crate) fn line(&self) -> String {
                let mut line = "o".to_owned();
                $(line += &format!(" {}={}", stringify!($name), self.$name.load(Ordering::Relaxed));)+
                // The last: no more have ended than have begun.
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

/// Reads such a line.
pub(crate) fn read_outcomes(line: &str) -> Option<BTreeMap<String, u64>> {
    let pairs = line.strip_prefix("o ")?.split(' ');
    pairs
        .map(|pair| {
            let (name, count) = pair.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}
