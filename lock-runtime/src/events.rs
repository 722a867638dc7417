//! The counters of a client's events, and the `tracing` target of its log events.

use std::sync::atomic::{AtomicU64, Ordering};

/// The `tracing` target of all log events, whichever module they come from.
pub(crate) const TARGET: &str = "lock_runtime";

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of one client's event counts. The counts begin at zero when the client is created, and never
        /// decrease.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Locks that were granted. Re-entries are not counted.
    acquired,
    /// Re-entries into the hold of an enclosing call.
    reentered,
    /// Grants for which the caller had to wait.
    waited,
    /// Grants that a probe discovered, because the message that announced the grant was lost or late.
    missed_wakeups,
    /// Acquisitions that ended in `Busy`.
    busy,
    /// Acquisitions that failed with `Unreachable`, `Refused`, `WrongLayout`, `NotReplicated` or `ShutDown`.
    failed,
    /// Holds that ended with a release of the lock, not because the lease was lost.
    released,
    /// Releases that the server refused, or did not confirm before the lease ended.
    release_failed,
    /// Renewals that extended a lease.
    renewed,
    /// Renewals that failed, or had no answer within a second.
    renewal_failed,
    /// Leases that were lost after the body had begun, or while a guard held the lock.
    lost,
    /// Commands sent to the server, except those that set up a connection.
    commands,
    /// Connections established.
    connections,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
