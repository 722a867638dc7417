//! The ways to guard the stock against buyers that write at the same time.

use std::{fmt, str::FromStr};

use crate::ours::Way;

/// One way to guard the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// No guard. A buyer reads the stock, pauses, and writes the stock.
    Nothing,
    /// `WATCH`. If the stock has changed since the buyer read it, the write is refused, and the purchase starts again.
    Watch,
    /// `SETNX` to acquire the lock, and `DEL` to release it. The lock has neither a lease nor an owner.
    SetNx,
    /// `SET NX PX` to acquire the lock, and a script that deletes the lock if the caller owns it.
    SetPx,
    /// A script to acquire the lock, and a script to release it. A hash stores the owner, and counts how many times the
    /// owner has acquired the lock.
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

    /// Returns whether buyers under this guard are allowed to share a connection. Under `WATCH`, each buyer needs a
    /// connection of its own, because an `EXEC` of one buyer would end the watches of all buyers on the connection.
    pub(crate) fn shares_connections(self) -> bool {
        self != Self::Watch
    }

    /// Returns the commands that this guard sends to the server directly. Other guards run these commands only within
    /// scripts.
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
