//! What callers want, and how their calls end.

use std::fmt;

use lock_runtime::Strategy;

/// How many locks there are.
pub(crate) const KEYS: usize = 3;
/// Their names, in their order.
pub(crate) const NAMES: [&str; KEYS] = ["a", "b", "c"];
/// How many clients there are.
pub(crate) const CLIENTS: usize = 3;

/// All times are in ms. What ends a lease or begins one is even, what ends a wait is odd, and callers begin at
/// multiples of [`BEAT`]: no two that decide about one lock happen at the same moment.
pub(crate) const BEAT: u64 = 10;
pub(crate) const SHORT_WAIT: u64 = 37;
pub(crate) const SHORT_LEASE: u64 = 54;
pub(crate) const SHORT_KEEP: u64 = 44;
pub(crate) const EXTENSION: u64 = 58;
/// What a renewed lease is extended to.
pub(super) const RENEWED_LEASE: u64 = 30_000;
/// As long as no case lasts.
pub(crate) const LONG: u64 = 3_600_000;
/// How much later than for its holder a lease ends for others, in process.
pub(super) const MARGIN: u64 = 2;

pub(crate) type CallId = u32;
pub(crate) type HoldId = usize;

/// What differs between the places where locks live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Time is the test's: leases and waits can be short, and end when it says so.
    pub(crate) own_clock: bool,
    /// Callers queue.
    pub(crate) queue: bool,
    /// Somebody with a connection of their own deletes keys and cuts connections.
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
    /// Fixed, and over soon.
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

/// By which form of the API a caller comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// It acquires a guard.
    Guard,
    /// It runs a body.
    Body,
}

/// What one caller wants.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) client: usize,
    /// One key, or two as the caller names them.
    pub(crate) keys: Vec<usize>,
    pub(crate) form: Form,
    pub(crate) strategy: Strategy,
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) at_least: bool,
    /// The call around it, which is inside.
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

    /// The same, and it waits.
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
