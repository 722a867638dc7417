//! The plan of a run, which a seed determines: the participants, their options, and the faults.

use std::time::Duration;

use lock_runtime::Strategy;

use crate::{callers::Way, chance::Chance, faults::Fault, network::HostId};

mod coincidences;
mod deadlines;
mod lost_answers;
mod situations;

/// The backend of the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// One server with the native layout.
    Redis,
    /// One server with Redisson's layout.
    Redisson,
    /// A Redlock of three servers.
    Redlock,
    /// A primary with replicas, and three Sentinels.
    Group {
        /// The number of replicas.
        replicas: usize,
    },
    /// A Redis Cluster of three primaries, and a server that stores no slot at first.
    Cluster {
        /// The number of replicas of each primary.
        replicas: usize,
    },
}

/// The number of the stream of random numbers that decides which plans are ordered.
const ORDERLY: u64 = 18;

/// The numbers of the streams of random numbers that decide in which plans connections fall silent, which plans have
/// only one or two kinds of faults, and in which plans bodies leave nested calls unpolled. With these streams, the plans
/// of the seeds in the corpus stay the same.
const SILENCE: u64 = 69;
const FOCUSED: u64 = 137;
const UNPOLLED: u64 = 1365;
/// The same for the streams that decide in which plans callers have further habits (see [`Plan::habits`]), and in which
/// plans the clocks around a Redlock drift further apart.
const HABITS: u64 = 75_730;
const DRIFT: u64 = 155_777;
/// The same for the stream that decides in which plans callers and clients end in unusual ways (see [`Plan::quirks`]).
const QUIRKS: u64 = 526_381;

/// The same for the stream that decides in which plans one rare situation is common (see [`Plan::with_rare_situation`]).
const RARE_SITUATIONS: u64 = 204_831;

/// The same for the stream that decides in which plans another rare situation is common (see [`Plan::with_rare_fault`]).
const RARE_FAULTS: u64 = 800_751;

/// The same for the stream that decides in which plans a situation for a check of the judge is common (see
/// [`Plan::with_check_target`]).
const CHECK_TARGETS: u64 = 920_445;

/// The same for the stream that decides in which plans several rare events happen together (see [`Plan::with_rare_events`]).
const RARE_EVENTS: u64 = 973_323;

/// The same for the stream that decides in which plans runtimes fail (see [`Plan::with_failing_runtimes`]).
const FAILING_RUNTIMES: u64 = 1_500_185;

/// The same for the stream that decides in which plans events often coincide that rarely do so in other plans (see
/// [`Plan::with_coincidence`]).
const COINCIDENCES: u64 = 1_900_025;

/// The same for the stream that decides in which plans answers are often lost or late (see [`Plan::with_lost_answers`]).
const LOST_ANSWERS: u64 = 2_000_650;

/// The same for the stream that decides in which plans a lease, a quarantine or a `wait` often ends while
/// something else is still under way (see [`Plan::with_deadlines`]).
const DEADLINES: u64 = 2_100_002;

/// The same for the stream that decides in which plans some calls read (see [`Plan::readers`]).
const READERS: u64 = 2_200_477;

/// A change of a plan, which draws its options from the given random numbers.
type Change = fn(Plan, &Chance) -> Plan;

/// The largest error in the rate of a process's clock, in millionths. Apart from rounding, this error and twice the
/// error of a server's clock may take 1 % of a lease on a Redlock.
const LARGEST_DRIFT: u64 = 5_000;

/// The name under which the Sentinels know their group.
pub const GROUP: &str = "shop";

impl Store {
    /// Returns the name of the backend.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redisson => "redisson",
            Self::Redlock => "redlock",
            Self::Group { .. } => "sentinel",
            Self::Cluster { .. } => "cluster",
        }
    }

    /// Returns the number of servers that store data.
    #[must_use]
    pub fn servers(self) -> usize {
        match self {
            Self::Redis | Self::Redisson => 1,
            Self::Redlock => 3,
            Self::Group { replicas } => 1 + replicas,
            Self::Cluster { replicas } => 3 * (1 + replicas) + 1,
        }
    }

    /// Returns the number of Sentinels. The server numbers of the Sentinels follow those of the servers that store
    /// data.
    #[must_use]
    pub fn sentinels(self) -> usize {
        match self {
            Self::Redis | Self::Redisson | Self::Redlock | Self::Cluster { .. } => 0,
            Self::Group { .. } => 3,
        }
    }

    /// Returns the number of replicas of each primary.
    #[must_use]
    pub fn replicas(self) -> usize {
        match self {
            Self::Redis | Self::Redisson | Self::Redlock => 0,
            Self::Group { replicas } | Self::Cluster { replicas } => replicas,
        }
    }

    /// Returns whether callers wait in a queue.
    #[must_use]
    pub fn has_queue(self) -> bool {
        match self {
            Self::Redis | Self::Group { .. } | Self::Cluster { .. } => true,
            Self::Redisson | Self::Redlock => false,
        }
    }

    /// Returns this backend, or one server with the native layout if callers of this backend wait in no queue.
    fn or_queued(self) -> Self {
        match self.has_queue() {
            true => self,
            false => Self::Redis,
        }
    }
}

/// All inputs that determine a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The source of all random numbers.
    pub seed: u64,
    /// The backend of the locks.
    pub store: Store,
    /// The time, in seconds, during which callers begin calls and faults happen.
    pub seconds: u64,
    /// The number of processes at the beginning.
    pub processes: usize,
    /// The number of processes that may be started to replace crashed ones.
    pub spares: usize,
    /// The number of locks.
    pub keys: usize,
    /// The number of tasks that make calls in each process.
    pub tasks: usize,
    /// The number of tokio runtimes in each process.
    pub runtimes: u32,
    /// The longest delay of a message, in milliseconds.
    pub delay: u64,
    /// The longest delay of a message between a primary and a replica, in milliseconds.
    pub lag: u64,
    /// The number of replicas that have to acknowledge a grant before a body starts.
    pub replicas: usize,
    /// The leases that callers request.
    pub leases: Vec<Duration>,
    /// The values of `wait` that callers use.
    pub waits: Vec<Duration>,
    /// The strategies that callers use.
    pub strategies: Vec<Strategy>,
    /// The ways in which callers use locks.
    pub ways: Vec<Way>,
    /// The percentage of tasks whose calls are polled late.
    pub slow: u32,
    /// Whether all pauses before the late polls of a task have the same length. If not, their lengths are random.
    pub rhythmic: bool,
    /// The longest duration of a body, in milliseconds.
    pub body: u64,
    /// The faults that may happen.
    pub faults: Vec<Fault>,
    /// The longest pause between two faults, in milliseconds.
    pub calm: u64,
    /// The largest error in the rate of a process's clock, in millionths.
    pub drift: u64,
    /// Whether some calls set `max_hold` or `on_lost`, and some guards are extended twice at the same time.
    pub extras: bool,
    /// Whether some bodies leave a nested call unpolled.
    pub unpolled: bool,
    /// Whether some guards are extended at once, and the leases of nested calls are renewed.
    pub habits: bool,
    /// Whether some calls are no longer polled after a few polls or are polled on two runtimes in turn, some clients are
    /// shut down while they are cut off, and some guards outlast the shutdown of their client.
    pub quirks: bool,
    /// Whether a primary that has died stays down for some time after its replica has replaced it.
    pub stays_down: bool,
    /// Whether the callers of each process use only one of the strategies.
    pub one_strategy_each: bool,
    /// Whether the calls of each process use only one of the leases.
    pub one_lease_each: bool,
    /// The pauses, in milliseconds, from which a task chooses if all its pauses have the same length.
    pub pauses: Vec<u64>,
    /// Whether a slot of a cluster can take longer than a lease to move.
    pub slow_moves: bool,
    /// Whether some releases are no longer polled after their first poll.
    pub unpolled_releases: bool,
    /// The percentage of calls that read. If some read, the judge leaves out the checks that compare one grant with the
    /// servers.
    pub readers: u32,
    /// The number of permits of each lock, if all calls take permits.
    pub permits: Option<u32>,
}

impl Plan {
    /// Returns the plan that this seed determines.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let chance = Chance::new(seed, 0);
        let some = |all: &[Fault]| -> Vec<Fault> {
            let often = chance.pick(&[0, 15, 40]);
            let drawn = all.iter().filter(|_| chance.percent(often));
            drawn.copied().collect()
        };
        let ways = {
            let often = chance.pick(&[15, 40, 100]);
            let drawn = Way::ALL.iter().filter(|_| chance.percent(often));
            let drawn: Vec<Way> = drawn.copied().collect();
            if drawn.is_empty() {
                vec![Way::Run]
            } else {
                drawn
            }
        };
        let store = chance.pick(&[
            Store::Redis,
            Store::Redis,
            Store::Redis,
            Store::Redisson,
            Store::Redlock,
            Store::Group { replicas: 1 },
            Store::Group { replicas: 2 },
            Store::Cluster { replicas: 0 },
            Store::Cluster { replicas: 1 },
        ]);
        let strategies = match chance.among(0..4) {
            _ if store == Store::Redisson => vec![Strategy::Notify, Strategy::Spin],
            0 => vec![Strategy::Handoff, Strategy::Spin],
            1 => vec![chance.pick(&[Strategy::Handoff, Strategy::Spin])],
            _ => vec![Strategy::Handoff],
        };
        let some_of = |all: &[u64]| -> Vec<Duration> {
            let drawn = (0..2).map(|_| Duration::from_millis(chance.pick(all)));
            drawn.collect()
        };
        let plan = Self {
            seed,
            store,
            seconds: chance.among(3..15),
            processes: 1 + chance.index(4),
            spares: 3,
            keys: chance.pick(&[1, 1, 2, 4]),
            tasks: chance.pick(&[2, 4, 8, 16]),
            // Drawn from another source of random numbers, so that the other options of old seeds stay the same.
            runtimes: Chance::new(seed, 3).pick(&[1, 1, 2]),
            delay: chance.pick(&[0, 2, 10, 40]),
            lag: chance.pick(&[0, 2, 20, 200]),
            replicas: chance
                .pick(&[0, 0, 1, store.replicas()])
                .min(store.replicas()),
            leases: some_of(&[400, 1_000, 2_000, 3_000, 5_000, 10_000]),
            waits: some_of(&[50, 500, 2_000, 5_000, 10_000]),
            strategies,
            ways,
            slow: chance.pick(&[0, 0, 20, 60]),
            rhythmic: chance.percent(30),
            body: chance.pick(&[0, 5, 50, 400, 1_500]),
            faults: {
                let mut faults = some(&Fault::of(store));
                // This draw uses its own source of random numbers, as the draw of `runtimes` does.
                let focus = Chance::new(seed, FOCUSED);
                if focus.percent(30) && !faults.is_empty() {
                    let mut all = Fault::of(store);
                    if store == Store::Redlock && focus.percent(50) {
                        all.retain(|fault| fault.spares_data());
                    }
                    faults = (0..=focus.index(2)).map(|_| focus.pick(&all)).collect();
                }
                if Chance::new(seed, 4).percent(20) {
                    faults.push(Fault::ShutDown);
                }
                if Chance::new(seed, SILENCE).percent(20) {
                    faults.push(Fault::Silence);
                }
                faults
            },
            calm: chance.pick(&[300, 1_000, 4_000]),
            drift: chance.pick(&[0, 400]),
            extras: Chance::new(seed, 50).percent(50),
            unpolled: Chance::new(seed, UNPOLLED).percent(30),
            habits: Chance::new(seed, HABITS).percent(40),
            quirks: Chance::new(seed, QUIRKS).percent(40),
            stays_down: false,
            one_strategy_each: false,
            one_lease_each: false,
            pauses: vec![300, 900, 1_100, 1_500, 1_900, 2_500],
            slow_moves: false,
            unpolled_releases: false,
            readers: 0,
            permits: None,
        };
        let plan = if store == Store::Redlock && Chance::new(seed, DRIFT).percent(40) {
            Self {
                drift: LARGEST_DRIFT,
                ..plan
            }
        } else {
            plan
        };
        // With this stream of random numbers, the plans of the seeds in the corpus stay the same.
        let plan = if Chance::new(seed, ORDERLY).percent(15) {
            plan.into_ordered()
        } else {
            plan
        };
        let changes: [(u64, u32, Change); 8] = [
            (RARE_SITUATIONS, 30, Self::with_rare_situation),
            (RARE_FAULTS, 30, Self::with_rare_fault),
            (CHECK_TARGETS, 25, Self::with_check_target),
            (RARE_EVENTS, 25, Self::with_rare_events),
            (FAILING_RUNTIMES, 20, Self::with_failing_runtimes),
            (COINCIDENCES, 30, Self::with_coincidence),
            (LOST_ANSWERS, 20, Self::with_lost_answers),
            (DEADLINES, 15, Self::with_deadlines),
        ];
        let plan = changes
            .into_iter()
            .fold(plan, |plan, (stream, percent, change)| {
                let chance = Chance::new(seed, stream);
                match chance.percent(percent) {
                    true => change(plan, &chance),
                    false => plan,
                }
            });
        plan.with_readers(&Chance::new(seed, READERS))
    }

    /// Changes the plan so that some calls read, if the locks have readers.
    fn with_readers(self, chance: &Chance) -> Self {
        if !chance.percent(15) || !self.store.has_queue() {
            return self;
        }
        let readers = chance.pick(&[20, 50, 90]);
        let permits = chance.percent(40).then(|| chance.pick(&[1, 2, 3, 6]));
        if permits.is_none() {
            return Self { readers, ..self };
        }
        let mut ways = self.ways;
        ways.retain(|way| way.takes_permits());
        if ways.is_empty() {
            ways = vec![Way::Guard];
        }
        Self {
            readers: 100,
            permits,
            ways,
            ..self
        }
    }

    /// Changes the plan so that each process has one runtime and accurate clocks, and all callers wait in queues, are
    /// polled at once, and need no replica.
    fn with_prompt_callers(self) -> Self {
        Self {
            replicas: 0,
            runtimes: 1,
            slow: 0,
            rhythmic: true,
            drift: self.drift.min(400),
            stays_down: false,
            one_strategy_each: false,
            strategies: vec![Strategy::Handoff],
            ..self
        }
    }

    /// Changes the plan so that its callers enter in order (see [`is_ordered`](Self::is_ordered)). The judge checks
    /// most in such a run.
    fn into_ordered(mut self) -> Self {
        self.store = self.store.or_queued();
        self.replicas = self.replicas.min(self.store.replicas());
        self.lag = self.lag.min(20);
        self.delay = self.delay.min(10);
        self.drift = self.drift.min(400);
        self.slow = 0;
        self.faults.clear();
        self.strategies = vec![Strategy::Handoff];
        self.ways
            .retain(|way| way.is_orderly() && (*way != Way::Moved || self.runtimes == 1));
        if self.ways.is_empty() {
            self.ways = vec![Way::Run];
        }
        let shortest = self.leases.iter().min().copied().unwrap_or_default();
        while 4 * u128::from(self.body) >= shortest.as_millis() {
            self.body /= 2;
        }
        self
    }

    /// Returns smaller plans that may fail in the same way. For each option, the largest reduction comes first.
    #[must_use]
    pub fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            smaller.push(plan);
        };
        if self.faults.len() > 1 {
            add(&|plan| plan.faults.clear());
        }
        for left_out in 0..self.faults.len() {
            add(&|plan| {
                plan.faults.remove(left_out);
            });
        }
        for left_out in 0..self.ways.len() {
            if self.ways.len() > 1 {
                add(&|plan| {
                    plan.ways.remove(left_out);
                });
            }
        }
        for left_out in 0..self.strategies.len() {
            if self.strategies.len() > 1 {
                add(&|plan| {
                    plan.strategies.remove(left_out);
                });
            }
        }
        if self.processes > 1 {
            add(&|plan| plan.processes -= 1);
        }
        if self.tasks > 1 {
            add(&|plan| plan.tasks /= 2);
            add(&|plan| plan.tasks -= 1);
        }
        if self.keys > 1 {
            add(&|plan| plan.keys -= 1);
        }
        if self.seconds > 1 {
            add(&|plan| plan.seconds /= 2);
            add(&|plan| plan.seconds -= 1);
        }
        if self.slow > 0 {
            add(&|plan| plan.slow = 0);
            if self.rhythmic {
                add(&|plan| plan.rhythmic = false);
            }
        }
        if self.delay > 0 {
            add(&|plan| plan.delay = 0);
        }
        if self.lag > 0 {
            add(&|plan| plan.lag = 0);
        }
        if let Store::Cluster { replicas: 1 } = self.store {
            add(&|plan| {
                plan.store = Store::Cluster { replicas: 0 };
                plan.replicas = 0;
                let fitting = Fault::of(plan.store);
                plan.faults
                    .retain(|fault| fault.is_drawn_apart() || fitting.contains(fault));
            });
        }
        if self.replicas > 0 {
            add(&|plan| plan.replicas -= 1);
        }
        if let Store::Group { replicas: 2 } = self.store {
            add(&|plan| {
                plan.store = Store::Group { replicas: 1 };
                plan.replicas = plan.replicas.min(1);
            });
        }
        if self.drift > 0 {
            add(&|plan| plan.drift = 0);
        }
        if self.body > 0 {
            add(&|plan| plan.body = 0);
        }
        if self.runtimes > 1 {
            add(&|plan| plan.runtimes -= 1);
        }
        if self.extras {
            add(&|plan| plan.extras = false);
        }
        if self.unpolled {
            add(&|plan| plan.unpolled = false);
        }
        if self.habits {
            add(&|plan| plan.habits = false);
        }
        if self.quirks {
            add(&|plan| plan.quirks = false);
        }
        if self.stays_down {
            add(&|plan| plan.stays_down = false);
        }
        if self.slow_moves {
            add(&|plan| plan.slow_moves = false);
        }
        if self.readers > 0 && self.permits.is_none() {
            add(&|plan| plan.readers = 0);
        }
        if self.unpolled_releases {
            add(&|plan| plan.unpolled_releases = false);
        }
        smaller
    }

    /// Returns the name of the key in which a server stores the grant of a lock.
    #[must_use]
    pub fn name_of(&self, key: &str) -> String {
        match self.store {
            Store::Redisson => key.to_owned(),
            Store::Redis | Store::Redlock | Store::Group { .. } | Store::Cluster { .. } => {
                format!("{{lock:{key}}}")
            }
        }
    }

    /// Returns the lease of all calls of this process, if the plan has one lease for each process.
    #[must_use]
    pub fn only_lease_of(&self, host: HostId) -> Option<Duration> {
        let lease = self.leases.get(host % self.leases.len().max(1))?;
        self.one_lease_each.then_some(*lease)
    }

    /// Returns the longest lease.
    #[must_use]
    pub fn longest_lease(&self) -> Duration {
        self.leases.iter().copied().max().unwrap_or_default()
    }

    /// Returns the longest wait.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.waits.iter().copied().max().unwrap_or_default()
    }

    /// Returns whether one of the faults makes a server lose data or end leases early.
    #[must_use]
    pub fn loses_state(&self) -> bool {
        let loses = |fault: &Fault| {
            matches!(
                fault,
                Fault::RestartEmpty
                    | Fault::Promote
                    | Fault::Flush
                    | Fault::Delete
                    | Fault::ClockAhead
            )
        };
        self.faults.iter().any(loses)
    }

    /// Returns whether all faults concern only messages, so that each server keeps its data, its clock and its role, and
    /// each process continues.
    #[must_use]
    pub fn spares_servers(&self) -> bool {
        self.faults.iter().all(|fault| fault.concerns_messages())
    }

    /// Returns the largest difference that the error of a process's clock can make within `time`.
    #[must_use]
    pub fn clock_error(&self, time: Duration) -> Duration {
        time * u32::try_from(self.drift).unwrap_or(u32::MAX) / 1_000_000
    }

    /// Returns whether a majority of the nodes of a Redlock serves each call, except for a moment after each fault.
    #[must_use]
    pub fn keeps_majority(&self) -> bool {
        let mut faults = self.faults.iter();
        self.store == Store::Redlock && faults.all(|fault| fault.spares_data())
    }

    /// Returns whether no fault takes a grant from the servers, ends it early, or makes another server the primary.
    #[must_use]
    pub fn keeps_grants(&self) -> bool {
        let takes = |fault: &Fault| {
            matches!(
                fault,
                Fault::ClockBack
                    | Fault::PrimaryDies
                    | Fault::PrimaryIsCutOff
                    | Fault::PrimaryStops
                    | Fault::HandOver
                    | Fault::HastyHandOver
            )
        };
        match self.store {
            Store::Redlock => self.keeps_majority(),
            _ => !self.loses_state() && !self.faults.iter().any(takes),
        }
    }

    /// Returns whether each body ends long before its lease.
    #[must_use]
    pub fn has_short_bodies(&self) -> bool {
        let mut leases = self.leases.iter();
        leases.all(|lease| lease.as_millis() > 4 * u128::from(self.body))
    }

    /// Returns whether callers have to enter in the order in which they began.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.faults.is_empty() && self.is_ordered_without_faults()
    }

    /// Returns whether new callers have to enter in the order in which they begin once the effects of a fault are over.
    #[must_use]
    pub fn is_ordered_again(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.all(Fault::keeps_clocks) && self.is_ordered_without_faults()
    }

    /// Returns whether callers have to enter in the order in which they began, apart from faults. The order requires
    /// short bodies: if a body outlasted its lease, other callers might enter before the members of its cohort are back at
    /// their places.
    fn is_ordered_without_faults(&self) -> bool {
        self.store.has_queue()
            && self.slow == 0
            && self.delay <= 10
            && (self.replicas == 0 || self.lag <= 20)
            && self.has_short_bodies()
            && self.strategies == [Strategy::Handoff]
            && self.ways.iter().all(|way| way.is_orderly())
            // A call that moves to another runtime queues again at its old place, and can be overtaken meanwhile.
            && (self.runtimes == 1 || !self.ways.contains(&Way::Moved))
    }
}
