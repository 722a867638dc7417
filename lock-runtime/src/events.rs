//! What a client has done so far, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// The target of all events, whichever file they come from.
pub(crate) const TARGET: &str = "lock_runtime";

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of what one client has done since it was made. All numbers only rise.
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
    /// Grants, re-entries not counted.
    acquired,
    /// Entries into a hold that an enclosing call had.
    reentered,
    /// Grants that had to wait in the queue for another holder.
    waited,
    /// Acquisitions that ended in `Busy`.
    busy,
    /// Acquisitions that ended in another error: `Unreachable`, `Refused`, `WrongLayout` or `ShutDown`.
    failed,
    /// Holds that were given back while they were valid.
    released,
    /// Releases that were not confirmed by the time the lease had ended.
    release_failed,
    /// Renewals that extended a lease.
    renewed,
    /// Renewals that failed, or had no answer for a second, and were tried again.
    renewal_failed,
    /// Leases lost while they were held.
    lost,
    /// Commands sent to the server, those of making a connection not counted.
    commands,
    /// Connections made.
    connections,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
