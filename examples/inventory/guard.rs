//! The ways to guard the stock.

use std::{fmt, str::FromStr};

use crate::ours::Way;

/// One way to guard the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// No guard: a buyer reads, thinks and writes.
    Nothing,
    /// `WATCH`. If the stock has changed since the buyer read it, the write is refused, and the purchase starts again.
    Watch,
    /// `SETNX`, and later `DEL`. The lock has neither a lease nor an owner.
    SetNx,
    /// `SET NX PX`, and later a script that deletes the lock if the caller owns it.
    SetPx,
    /// Two scripts, and a hash that stores the owner and how often the owner has entered.
    Reentrant,
    /// This project's lock on one server.
    Ours(Way),
    /// This project's lock on a majority of five servers.
    Redlock,
}

impl Guard {
    pub(crate) const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Watch,
        Self::SetNx,
        Self::SetPx,
        Self::Reentrant,
        Self::Ours(Way::Spin),
        Self::Ours(Way::Notify),
        Self::Ours(Way::Handoff),
        Self::Redlock,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Watch => "WATCH, MULTI, EXEC",
            Self::SetNx => "SETNX, DEL",
            Self::SetPx => "SET NX PX",
            Self::Reentrant => "re-entrant Lua",
            Self::Ours(Way::Spin) => "ours, spin",
            Self::Ours(Way::Notify) => "ours, notify",
            Self::Ours(Way::Handoff) => "ours, handoff",
            Self::Redlock => "ours, Redlock",
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Ours(_) | Self::Redlock)
    }

    /// Returns whether buyers may share a connection. Under `WATCH`, buyers may not share a connection, because an
    /// `EXEC` of one buyer would end the watches of all buyers on the connection.
    pub(crate) fn shares_connections(self) -> bool {
        self != Self::Watch
    }

    /// Returns the commands that this guard sends itself, but that other guards run only within scripts.
    pub(crate) fn plain(self) -> &'static [&'static str] {
        match self {
            Self::Watch => &["get", "set", "rpush"],
            Self::SetNx => &["del"],
            Self::SetPx => &["set"],
            Self::Nothing | Self::Reentrant | Self::Ours(_) | Self::Redlock => &[],
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Guard {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|guard| guard.name() == name);
        found.ok_or_else(|| format!("no guard is called `{name}`"))
    }
}
