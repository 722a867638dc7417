//! The options of calls, and their results.

use std::fmt;

use lock_runtime::Strategy;

/// The number of locks.
pub(crate) const KEYS: usize = 3;
/// The names of the locks, in the order of locking.
pub(crate) const NAMES: [&str; KEYS] = ["a", "b", "c"];
/// The number of clients.
pub(crate) const CLIENTS: usize = 3;

/// All times are in ms. Times that begin or end a lease are even, times that end a wait are odd, and callers begin at
/// multiples of [`BEAT`], so that no two events that decide about one lock happen at the same moment.
pub(crate) const BEAT: u64 = 10;
pub(crate) const SHORT_WAIT: u64 = 37;
pub(crate) const SHORT_LEASE: u64 = 54;
pub(crate) const SHORT_KEEP: u64 = 44;
pub(crate) const EXTENSION: u64 = 58;
/// The length of a renewed lease.
pub(super) const RENEWED_LEASE: u64 = 30_000;
/// Longer than any case.
pub(crate) const LONG: u64 = 3_600_000;
/// How much later a lease ends for others than for its holder, in process.
pub(super) const MARGIN: u64 = 2;

pub(crate) type CallId = u32;
pub(crate) type HoldId = usize;

/// The differences between the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The test controls the time: leases and waits can be short and end on command.
    pub(crate) own_clock: bool,
    /// Callers wait in a queue.
    pub(crate) queue: bool,
    /// An operator with its own connection deletes keys and cuts connections.
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
    /// Renewed while it is held.
    Renewed,
    /// Fixed and short.
    Short,
    /// Fixed.
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

/// The form of the API that a caller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Acquires a guard.
    Guard,
    /// Runs a body.
    Body,
}

/// The options of one call.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) client: usize,
    /// One key, or two in the order in which the caller names them.
    pub(crate) keys: Vec<usize>,
    pub(crate) form: Form,
    pub(crate) strategy: Strategy,
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) at_least: bool,
    /// The enclosing call, which is inside.
    pub(crate) under: Option<CallId>,
}

impl Spec {
    /// One attempt at one lock.
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

    /// The same with a long wait.
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
