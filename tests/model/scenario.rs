//! A scenario: the callers, their options, and the possible faults.

use std::time::Duration;

use lock_core::lease::CLAIM;

use crate::{
    properties::Reached,
    state::{CallerId, ProcessId, Tick},
};

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) terms: Terms,
    pub(crate) faults: Faults,
    /// Whether the checker also checks the promises that are known not to hold in this scenario.
    pub(crate) shows_gaps: bool,
    /// The conditions that the scenario has to reach. If a scenario does not reach its conditions, its promises prove
    /// nothing.
    pub(crate) reaches: Vec<Reached>,
}

#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The process of each caller.
    pub(crate) callers: Vec<ProcessId>,
    pub(crate) lease: Tick,
    /// The callers whose lease differs from `lease`, each with its own lease.
    pub(crate) leases: Vec<(CallerId, Tick)>,
    /// The largest number of owners in one cohort.
    pub(crate) cohort_limit: usize,
    /// Whether the lease is renewed while the body runs.
    pub(crate) renewed: bool,
    /// The number of ticks for which the server keeps a grant that it has sent in a push and that is not confirmed.
    /// Models the engine's `lease::CLAIM`.
    pub(crate) claim: Tick,
    pub(crate) wait: Tick,
    /// The callers that try once and do not wait.
    pub(crate) once: Vec<CallerId>,
    /// The slow callers, whose futures are polled at any time or never again.
    pub(crate) slow: Vec<CallerId>,
    /// Pairs of owners. A caller that misses its turn as the first owner of a pair continues as the second owner, and
    /// keeps its place.
    pub(crate) next_owners: Vec<(CallerId, CallerId)>,
    /// The number of ticks within which all callers begin.
    pub(crate) begin_within: Tick,
    /// The maximum duration of a body.
    pub(crate) body: Tick,
    /// Whether the server lets a process close its old connections.
    pub(crate) may_kill: bool,
}

/// How often each fault may happen in one sequence of actions, and how many faults may happen in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// The number of ticks that may begin while an action is still due. Such ticks model delayed messages and stopped
    /// processes.
    pub(crate) late: u8,
    pub(crate) crashes: u8,
    pub(crate) breaks: u8,
    pub(crate) cancels: u8,
    pub(crate) lost_pushes: u8,
    /// The number of background requests that the server executes but whose replies are lost.
    pub(crate) lost_replies: u8,
    pub(crate) state_losses: u8,
    pub(crate) restarts: u8,
    pub(crate) jumps_ahead: u8,
    pub(crate) jumps_back: u8,
    /// The number of milliseconds by which the processes' clocks may fall behind in total.
    pub(crate) lags: u8,
    /// The limit for all faults together. The ticks in `late` do not count toward this limit.
    pub(crate) any: u8,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        late: 0,
        crashes: 0,
        breaks: 0,
        cancels: 0,
        lost_pushes: 0,
        lost_replies: 0,
        state_losses: 0,
        restarts: 0,
        jumps_ahead: 0,
        jumps_back: 0,
        lags: 0,
        any: 0,
    };

    pub(crate) const fn late(late: u8) -> Self {
        Self { late, ..Self::NONE }
    }

    pub(crate) const fn crashes(crashes: u8) -> Self {
        let any = crashes;
        Self {
            crashes,
            any,
            ..Self::NONE
        }
    }

    pub(crate) const fn breaks(breaks: u8) -> Self {
        let any = breaks;
        Self {
            breaks,
            any,
            ..Self::NONE
        }
    }

    pub(crate) const fn cancels(cancels: u8) -> Self {
        let any = cancels;
        Self {
            cancels,
            any,
            ..Self::NONE
        }
    }

    /// Allows crashes, broken connections, cancelled calls, lost pushes and lost replies, at most `any` in total. None
    /// of these faults may break a promise to another caller.
    pub(crate) const fn any(any: u8) -> Self {
        Self {
            crashes: 1,
            breaks: any,
            cancels: any,
            lost_pushes: 1,
            lost_replies: 1,
            any,
            ..Self::NONE
        }
    }
}

impl Scenario {
    /// Returns a scenario without faults.
    pub(crate) fn of(name: &'static str, terms: Terms) -> Self {
        Self {
            name,
            terms,
            faults: Faults::NONE,
            shows_gaps: false,
            reaches: Vec::new(),
        }
    }

    /// Sets the faults that may happen.
    pub(crate) fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Adds conditions that the scenario has to reach.
    pub(crate) fn reaching(mut self, reaches: impl IntoIterator<Item = Reached>) -> Self {
        self.reaches.extend(reaches);
        self
    }

    /// Makes the checker also check the promises that are known not to hold in this scenario.
    pub(crate) fn with_gaps(self) -> Self {
        Self {
            shows_gaps: true,
            ..self
        }
    }

    /// Raises the limits of faults by the number in the environment variable `MODEL_DEEPER`, as described in `main.rs`.
    pub(crate) fn deeper(mut self) -> Self {
        let more = std::env::var("MODEL_DEEPER").map_or(0, |more| {
            more.parse().expect("MODEL_DEEPER is a small number")
        });
        let faults = &mut self.faults;
        for kind in [
            &mut faults.late,
            &mut faults.crashes,
            &mut faults.breaks,
            &mut faults.cancels,
            &mut faults.lost_pushes,
            &mut faults.lost_replies,
            &mut faults.any,
        ] {
            if *kind > 0 {
                *kind += more;
            }
        }
        self
    }
}

impl Terms {
    /// Returns the options of callers that begin at the same time and hold the lock only briefly. Each element of
    /// `callers` is the process of one caller.
    pub(crate) fn of(callers: &[ProcessId]) -> Self {
        Self {
            callers: callers.to_vec(),
            lease: 4,
            leases: Vec::new(),
            cohort_limit: 3,
            renewed: false,
            claim: 3,
            wait: 5,
            once: Vec::new(),
            slow: Vec::new(),
            next_owners: Vec::new(),
            begin_within: 0,
            body: 1,
            may_kill: true,
        }
    }

    pub(crate) fn process_of(&self, caller: CallerId) -> ProcessId {
        self.callers[usize::from(caller)]
    }

    pub(crate) fn processes(&self) -> usize {
        self.callers.iter().max().map_or(0, |last| last + 1)
    }

    pub(crate) fn wait(&self, caller: CallerId) -> Tick {
        if self.once.contains(&caller) {
            0
        } else {
            self.wait
        }
    }

    pub(crate) fn lease(&self, caller: CallerId) -> Tick {
        let own = self.leases.iter().find(|(id, _)| *id == caller);
        own.map_or(self.lease, |(_, lease)| *lease)
    }

    pub(crate) fn is_slow(&self, caller: CallerId) -> bool {
        self.slow.contains(&caller)
    }

    pub(crate) fn next_owner(&self, caller: CallerId) -> Option<CallerId> {
        let mut owners = self.next_owners.iter();
        owners
            .find(|(before, _)| *before == caller)
            .map(|(_, next)| *next)
    }

    pub(crate) fn is_next_owner(&self, caller: CallerId) -> bool {
        self.next_owners.iter().any(|(_, next)| *next == caller)
    }

    pub(crate) fn longest_lease(&self) -> Tick {
        let own = self.leases.iter().map(|(_, lease)| *lease);
        own.fold(self.lease, Tick::max)
    }

    /// Returns the length of a tick in ms: the engine's claim time divided by the number of ticks in `claim`. The
    /// length is rounded up, so that no local deadline is later than the server's deadline.
    fn tick(&self) -> u64 {
        let claim = u64::try_from(CLAIM.as_millis()).unwrap_or(u64::MAX);
        claim.div_ceil(self.claim.cast_unsigned().into())
    }

    pub(crate) fn millis(&self, ticks: Tick) -> u64 {
        self.tick() * u64::try_from(ticks).unwrap_or(0)
    }

    pub(crate) fn time(&self, ticks: Tick) -> Duration {
        Duration::from_millis(self.millis(ticks))
    }

    /// Converts a duration to ticks, rounded up.
    pub(crate) fn ticks(&self, time: Duration) -> Tick {
        let ticks = time.as_nanos().div_ceil(self.time(1).as_nanos());
        Tick::try_from(ticks).unwrap_or(Tick::MAX)
    }
}
