//! The events of a client: its counters, its log events, and the spans and metrics of its calls.

pub(crate) mod metrics;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{error::LossReason, fencing::FencingToken, key::LockKey};

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
    /// Locks that were granted. This counter does not count re-entries.
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
    /// Holds that ended with a release of the lock. Holds that ended with the loss of the lease are not counted.
    released,
    /// Releases that were sent more than once, because an answer was lost or not read, and that no longer found the grant.
    /// An earlier copy of the request has ended the hold, or the lease was lost before the release.
    release_unknown,
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

/// A body that still runs after 80 % of its fixed lease. When the lease ends, the body is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseWarning {
    /// The key, without its namespace.
    pub key: LockKey,
    /// The template of the key, or the label of a lock of the explicit API.
    pub label: &'static str,
    /// The fencing token of the hold.
    pub token: FencingToken,
    /// The time of the whole lease.
    pub lease: Duration,
    /// The time that is left of the lease.
    pub remaining: Duration,
}

/// A lease that was lost while a body ran, or while a guard held the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseLoss {
    /// The key, without its namespace.
    pub key: LockKey,
    /// The template of the key, or the label of a lock of the explicit API.
    pub label: &'static str,
    /// The path of the annotated function, or the label of a lock of the explicit API. Empty if the call has neither.
    pub function: &'static str,
    /// The fencing token of the hold.
    pub token: FencingToken,
    /// How the lease was lost.
    pub reason: LossReason,
}

/// A function of the user that is called with each event of one kind.
pub(crate) struct Hook<T>(Option<Arc<HookFn<T>>>);

type HookFn<T> = dyn Fn(&T) + Send + Sync;

impl<T> Hook<T> {
    pub(crate) fn new(hook: impl Fn(&T) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn call(&self, event: &T) {
        if let Some(hook) = &self.0 {
            hook(event);
        }
    }
}

impl<T> Default for Hook<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Clone for Hook<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Hook<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}

/// The functions of the user that a client calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) lease_warning: Hook<LeaseWarning>,
    pub(crate) lost: Hook<LeaseLoss>,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
