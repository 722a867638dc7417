//! The ways in which callers use locks.

/// The way in which a caller uses locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Runs a body under a lock.
    Run,
    /// Runs a body under a lock, and does not wait for the release.
    RunInBackground,
    /// Runs a body under a lock with a minimum hold.
    RunForAtLeast,
    /// Calls a function that has the attribute `#[distributed_lock]`.
    Function,
    /// Acquires a guard and releases it.
    Guard,
    /// Acquires a guard and drops it.
    DroppedGuard,
    /// Acquires a guard and extends its lease.
    ExtendedGuard,
    /// Acquires a guard and leaks it.
    LeakedGuard,
    /// Tries to acquire the lock once, without waiting.
    Try,
    /// Takes several locks in one call.
    Several,
    /// Runs a body that enters its own lock again.
    Nested,
    /// Runs a body whose concurrent parts all enter the body's lock again.
    Siblings,
    /// Runs a body that spawns a task within its hold. The task enters the body's lock again.
    TakenAlong,
    /// Drops the call after a random time of up to a second.
    Dropped,
    /// Polls the call only now and then, in a `select!` loop.
    Select,
    /// Stops polling the call, but does not drop it.
    Forgotten,
    /// Moves the call to another task, which continues to poll it.
    Moved,
    /// Makes several calls in a buffered stream with a slow consumer.
    Buffered,
}

impl Way {
    /// All ways in which a caller can use locks.
    pub const ALL: [Self; 18] = [
        Self::Run,
        Self::RunInBackground,
        Self::RunForAtLeast,
        Self::Function,
        Self::Guard,
        Self::DroppedGuard,
        Self::ExtendedGuard,
        Self::LeakedGuard,
        Self::Try,
        Self::Several,
        Self::Nested,
        Self::Siblings,
        Self::TakenAlong,
        Self::Dropped,
        Self::Select,
        Self::Forgotten,
        Self::Moved,
        Self::Buffered,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::RunInBackground => "run, released in the background",
            Self::RunForAtLeast => "run, hold at least",
            Self::Function => "function",
            Self::Guard => "guard",
            Self::DroppedGuard => "dropped guard",
            Self::ExtendedGuard => "extended guard",
            Self::LeakedGuard => "leaked guard",
            Self::Try => "try",
            Self::Several => "several keys",
            Self::Nested => "nested",
            Self::Siblings => "siblings",
            Self::TakenAlong => "taken along",
            Self::Dropped => "dropped",
            Self::Select => "select loop",
            Self::Forgotten => "forgotten",
            Self::Moved => "moved",
            Self::Buffered => "buffered",
        }
    }

    /// Returns whether a call that is made in this way is polled after each of its wake-ups.
    #[must_use]
    pub fn is_prompt(self) -> bool {
        !matches!(self, Self::Select | Self::Forgotten | Self::Buffered)
    }

    /// Returns whether calls that are made in this way can take permits: they make one acquisition of one lock.
    #[must_use]
    pub fn takes_permits(self) -> bool {
        !matches!(
            self,
            Self::Function | Self::Several | Self::Nested | Self::Siblings | Self::TakenAlong
        )
    }

    /// Returns whether calls that are made in this way get their lock in the order in which they began.
    #[must_use]
    pub fn is_orderly(self) -> bool {
        self.is_prompt() && !matches!(self, Self::Several | Self::LeakedGuard)
    }
}
