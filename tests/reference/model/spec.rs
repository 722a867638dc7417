//! The options of calls, and their results.

use std::fmt;

use lock_runtime::Strategy;

/// The number of locks in each case.
pub(crate) const KEYS: usize = 3;
/// The names of the locks, in the order in which a call with several keys takes them.
pub(crate) const NAMES: [&str; KEYS] = ["a", "b", "c"];
/// The number of clients in each case.
pub(crate) const CLIENTS: usize = 3;

/// The interval between the times at which callers may begin. All times are in ms. Leases begin and end at even times,
/// waits end at odd times, and callers begin at multiples of this interval. No two events that decide about one lock
/// therefore happen at the same moment.
pub(crate) const BEAT: u64 = 10;
pub(crate) const SHORT_WAIT: u64 = 37;
pub(crate) const SHORT_LEASE: u64 = 54;
pub(crate) const SHORT_KEEP: u64 = 44;
pub(crate) const EXTENSION: u64 = 58;
/// The length of a renewed lease, in ms.
pub(super) const RENEWED_LEASE: u64 = 30_000;
/// A time in ms that is longer than any case.
pub(crate) const LONG: u64 = 3_600_000;
/// In the in-process backend, a lease ends this many ms later for other callers than for its holder.
pub(super) const MARGIN: u64 = 2;

pub(crate) type CallId = u32;
pub(crate) type HoldId = usize;

/// The differences between the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether the test controls the time. Leases and waits can then be short, because they end only when the test
    /// advances the time.
    pub(crate) own_clock: bool,
    /// Whether the test also acts as an operator, which deletes keys and cuts connections over a connection of its own.
    pub(crate) operator: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Zero,
    Short,
    Long,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// A lease that is renewed while the lock is held.
    Renewed,
    /// A fixed, short lease.
    Short,
    /// A fixed, long lease.
    Long,
}

impl Lease {
    pub(super) fn time(self) -> u64 {
        match self {
            Self::Renewed => RENEWED_LEASE,
            Self::Short => SHORT_LEASE,
            Self::Long => LONG,
        }
    }
}

/// The part of the API that a caller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The caller acquires a guard.
    Guard,
    /// The caller runs a body.
    Body,
}

/// The options of one call.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) client: usize,
    /// The indexes of one lock, or of two locks in the order in which the caller names them.
    pub(crate) keys: Vec<usize>,
    pub(crate) form: Form,
    pub(crate) strategy: Strategy,
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) at_least: bool,
    /// The call in whose body or guard this call is nested. The enclosing call is inside its lock when this call
    /// begins.
    pub(crate) under: Option<CallId>,
}

impl Spec {
    /// Returns the options of a single attempt at one lock.
    pub(crate) fn once(client: usize, key: usize) -> Self {
        Self {
            client,
            keys: vec![key],
            form: Form::Guard,
            strategy: Strategy::Handoff,
            wait: Wait::Zero,
            lease: Lease::Renewed,
            at_least: false,
            under: None,
        }
    }

    /// Returns the options of a call that waits for one lock for a long time.
    pub(crate) fn patient(client: usize, key: usize) -> Self {
        Self {
            wait: Wait::Long,
            ..Self::once(client, key)
        }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            client,
            keys,
            form,
            strategy,
            wait,
            lease,
            at_least,
            under,
        } = self;
        let keys: Vec<&str> = keys.iter().map(|key| NAMES[*key]).collect();
        write!(
            f,
            "client {client}, {}, {form:?}, {strategy:?}",
            keys.join(" and ")
        )?;
        write!(f, ", wait {wait:?}, lease {lease:?}")?;
        if *at_least {
            f.write_str(", at least")?;
        }
        under
            .iter()
            .try_for_each(|around| write!(f, ", under {around}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    ThisProcess,
    AnotherProcess,
    Sibling,
    OutOfOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Dropped,
    Busy(With),
    Lost,
    ShutDown,
}
