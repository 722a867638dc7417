//! The counters of a client's events, and the target of its log events.

use std::sync::atomic::{AtomicU64, Ordering};

/// The target of all log events, from whichever file.
pub(crate) const TARGET: &str = "lock_runtime";

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of the event counts of one client since it was created. The counts never decrease.
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
    /// Grants, without re-entries.
    acquired,
    /// Re-entries into the hold of an enclosing call.
    reentered,
    /// Grants for which the caller had queued.
    waited,
    /// Turns that a probe told of, because the message about the grant was lost or late.
    missed_wakeups,
    /// Acquisitions that ended in `Busy`.
    busy,
    /// Acquisitions that ended in another error: `Unreachable`, `Refused`, `WrongLayout` or `ShutDown`.
    failed,
    /// Holds that were released while they were valid.
    released,
    /// Releases that were not confirmed before the lease ended.
    release_failed,
    /// Renewals that extended a lease.
    renewed,
    /// Renewals that failed, or had no answer within a second, and were retried.
    renewal_failed,
    /// Leases that were lost during a hold.
    lost,
    /// Commands sent to the server, without those that set up a connection.
    commands,
    /// Connections established.
    connections,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
