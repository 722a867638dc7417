//! The in-process backend: the locks of one process, for a first run and for users' unit tests.
//!
//! All guarantees apply inside the process: exclusion, order, bounded waiting, loss at the end of a fixed lease,
//! clean-up after a call is cancelled. The backend uses no network, and no lock remains when the process ends. The
//! backend uses tokio's clock, so in a test with a paused clock, waits and leases end without real waiting. On a
//! runtime without a timer, the engine's thread measures real time.
//!
//! A renewable lease lasts as long as its hold or, if `max_hold` is set, until one lease time after `max_hold` has
//! passed. The engine therefore never renews this lease.
//!
//! A nested call with a renewable lease can re-enter a lock whose hold has a fixed lease. The fixed lease then does not
//! end until the nested call leaves, or until the `max_hold` of the nested call has passed. From that moment, the fixed
//! lease lasts for at least the lease time of the nested call.
//!
//! All waiters queue: a caller with the strategy `notify` waits like one with `handoff`.
//!
//! No thread watches callers that are not polled. Instead, each waiter checks the time limits of the caller that has
//! the lock, or to which the lock is offered. If that caller does not take its offer in time, or does not begin its
//! body in time, a waiter ends the caller's grant. The lock is then offered to the next waiter.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque, binary_heap::PeekMut},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lock_core::{
    backend::{
        Answer, Attempt, Backend, BackendError, BoxFuture, Caller, Extend, Holder, LatchStep,
        Leaving, Led, LimitStep, MultiAnswer, Released, Renewed, Replicated, Request, Round,
        Status, TermStep,
    },
    error::HeldBy,
    fencing::FencingToken,
    key::{LockKey, LockName},
    lease::{CLAIM, Grant, LeaseTerms, MAX_LEASE, Moment, Renewal, claim_after},
    options::{Mode, Replicas},
    owner::OwnerId,
};
use once_cell::sync::Lazy;
use tokio::sync::Notify;

use crate::{
    backend::open::Open,
    background::{
        Process,
        clock::{Clock, TokioClock},
        lock,
        watched::Watched,
    },
    connect_error::ConnectError,
    events::{Counters, count},
    limits,
};

mod requests;

/// The number of earlier rounds of a latch whose results are remembered.
const ROUNDS_KEPT: usize = 64;

/// The clock of the calling runtime.
const CLOCK: TokioClock = TokioClock;

/// The registries that clients share by name. A registry exists as long as one of its clients exists.
static REGISTRIES: Lazy<Mutex<HashMap<String, Weak<Registry>>>> = Lazy::new(Mutex::default);

/// The next ticket of a waiter. A ticket is taken while the mutex of a registry is locked, so that tickets rise in the
/// order in which callers join the registry's queues.
static TICKETS: AtomicU64 = AtomicU64::new(0);

/// The connection of a client with its registry. It always works, unless a test pretends an outage.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The moment at which the pretended outage ends; `None` if there was none.
    down_until: Watched<Option<Moment>>,
}

impl Link {
    /// Pretends an outage that ends at `until`, and replaces an earlier one.
    pub(crate) fn interrupt(&self, until: Moment) {
        self.down_until.replace(Some(until));
    }

    fn is_down(&self) -> bool {
        self.down_until
            .get()
            .is_some_and(|until| CLOCK.now() < until)
    }

    /// Completes when the connection works.
    async fn works(&self) {
        while self.is_down() {
            let until = *self.down_until.get();
            let changed = |now: &Option<Moment>| (*now != until).then_some(());
            tokio::select! {
                biased;
                () = self.down_until.until(changed) => {}
                () = CLOCK.sleep_until(until.unwrap_or_else(|| CLOCK.now())) => {}
            }
        }
    }
}

/// The error of a request during an outage that a test pretends.
const PRETENDED_OUTAGE: &str = "a test pretends that the lock server is unreachable";

/// The in-process backend.
pub(crate) struct MemoryBackend {
    registry: Arc<Registry>,
    link: Arc<Link>,
    application: Arc<str>,
    counters: Arc<Counters>,
    shutting_down: Arc<AtomicBool>,
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

impl MemoryBackend {
    /// Creates a backend that shares its locks with all backends of the same name in this process. A backend with an
    /// empty name shares its locks with no other backend.
    pub(crate) fn named(name: &str, application: String, counters: Arc<Counters>) -> Self {
        let registry = if name.is_empty() {
            Arc::new(Registry::new())
        } else {
            let mut registries = lock(&REGISTRIES);
            registries.retain(|_, registry| registry.strong_count() > 0);
            match registries.get(name).and_then(Weak::upgrade) {
                Some(registry) => registry,
                None => {
                    let registry = Arc::new(Registry::new());
                    registries.insert(name.to_owned(), Arc::downgrade(&registry));
                    registry
                }
            }
        };
        Self {
            registry,
            link: Arc::default(),
            application: application.into(),
            counters,
            shutting_down: Arc::default(),
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }
}

impl Open for MemoryBackend {
    fn connect(&self, _: Duration) -> BoxFuture<'_, Result<(), ConnectError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// All locks of a registry, behind one mutex that is locked only briefly.
struct Registry(Mutex<State>);

struct State {
    common: Common,
    locks: HashMap<LockName, Slot>,
    /// The locks that stay taken after their holds have ended (`hold_at_least`), each with the moment at which the lock
    /// becomes free. The lock that becomes free first is on top of the heap.
    retained: BinaryHeap<Reverse<(Moment, LockName)>>,
}

/// The state that all locks of a registry share.
struct Common {
    fence: u64,
    /// The callers to wake after the registry's mutex is unlocked. A woken caller can be polled at once and lock the
    /// mutex, so callers are not woken earlier.
    woken: Vec<Arc<Notify>>,
    /// The records of the leaders: when a leader was last known to lead, the token of its term, and the record that the leader
    /// reads.
    terms: HashMap<LockName, (Moment, FencingToken, Led)>,
    /// The numbers of permits that operators have set.
    limits: HashMap<LockName, u32>,
    /// The latches. They are forgotten as long after the end of their rounds as these have lasted.
    latches: HashMap<LockName, Latch>,
}

/// The present round of a latch.
struct Latch {
    generation: u64,
    parts: u32,
    counted: HashSet<LockKey>,
    until: Moment,
    forget: Moment,
    earlier: Vec<(u64, bool)>,
}

/// A lock that callers hold or wait for.
#[derive(Default)]
struct Slot {
    /// The grants: at most one, unless all of them are grants of readers.
    held: Vec<Held>,
    /// The number of permits that an operator has set, if the lock is a semaphore.
    limit: Option<u32>,
    /// The waiters, ordered by ticket.
    queue: VecDeque<Waiter>,
}

struct Held {
    owner: OwnerId,
    mode: Mode,
    origin: Origin,
    since: Moment,
    token: FencingToken,
    /// The moment at which the grant ends, or `None` if the grant lasts as long as its hold.
    until: Option<Moment>,
    stage: Stage,
}

/// The application and the function of a caller, as errors and status reports show them.
#[derive(Clone)]
struct Origin {
    application: Arc<str>,
    function: &'static str,
}

impl Origin {
    fn caller(&self) -> Caller {
        let Process { host, pid } = Process::current();
        Caller::new(&self.application, &host, pid, self.function)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lock is offered to the owner, which enters when it is polled next.
    Offered,
    /// The owner has received its grant.
    Entered,
    /// The hold has ended, and the lock stays taken until the end of its `hold_at_least`.
    Retained,
}

struct Waiter {
    ticket: u64,
    owner: OwnerId,
    mode: Mode,
    origin: Origin,
    deadline: Moment,
    /// How long an offer to this waiter lasts.
    claim: Duration,
    /// Wakes the waiter when the lock is offered to it, and when it becomes the head of the queue. The head of the
    /// queue is also woken when the end of the holder's grant has changed.
    look: Arc<Notify>,
}

/// The result of a caller's try to enter a lock.
enum View {
    /// Contains the token and the end of the grant. If the lock was offered to the caller, also contains the time since
    /// the offer.
    Granted(FencingToken, Option<Moment>, Option<Duration>),
    /// The caller is queued. Contains the moment at which the caller tries again.
    Waiting(Moment),
    /// The lock is not free, and the caller does not wait.
    Busy,
}

impl State {
    fn with<T>(&mut self, name: &LockName, change: impl FnOnce(&mut Slot, &mut Common) -> T) -> T {
        let Self { common, locks, .. } = self;
        let slot = locks.entry(name.clone()).or_insert_with(|| Slot {
            limit: common.limits.get(name).copied(),
            ..Slot::default()
        });
        slot.settle(common);
        let result = change(slot, common);
        if slot.is_free() {
            locks.remove(name);
        }
        result
    }

    /// Records that a lock whose hold has ended stays taken until `until`. Also frees the recorded locks whose time has
    /// passed, or offers them to their waiters, because these locks might never be requested again.
    fn retain_until(&mut self, name: &LockName, until: Moment) {
        let Self {
            common,
            locks,
            retained,
        } = self;
        let now = CLOCK.now();
        while let Some(first) = retained.peek_mut().filter(|first| first.0.0 <= now) {
            let Reverse((_, name)) = PeekMut::pop(first);
            if let Some(slot) = locks.get_mut(&name) {
                slot.settle(common);
                if slot.is_free() {
                    locks.remove(&name);
                }
            }
        }
        retained.push(Reverse((until, name.clone())));
    }
}

impl Common {
    /// Carries out a step of a latch. Returns the present round, and the end of its life if it is open and the step names it.
    fn latch(
        &mut self,
        name: &LockName,
        step: LatchStep,
        now: Moment,
    ) -> Option<(Round, Option<Moment>)> {
        let Self { fence, latches, .. } = self;
        let present = latches.get(name).filter(|latch| now < latch.forget);
        let (terms, mine, part) = match step {
            LatchStep::Read => (None, None, None),
            LatchStep::Join(terms) => (Some(terms).filter(|_| present.is_none()), None, None),
            LatchStep::Keep(round) => (None, Some(round), None),
            LatchStep::Count(round, part) => (None, Some(round), Some(part)),
            LatchStep::Restart(terms, round) => {
                let ends = present.is_none_or(|latch| latch.generation == round);
                (Some(terms).filter(|_| ends), Some(round), None)
            }
        };
        if let Some(terms) = terms {
            *fence += 1;
            let mut earlier = present.map_or_else(Vec::new, |latch| latch.earlier.clone());
            earlier.extend(present.map(|latch| (latch.generation, latch.is_reached())));
            let latch = Latch {
                generation: *fence,
                parts: terms.parts,
                counted: HashSet::new(),
                until: now + terms.life,
                forget: now + 2 * terms.life,
                earlier: earlier.split_off(earlier.len().saturating_sub(ROUNDS_KEPT)),
            };
            latches.retain(|_, latch| now < latch.forget);
            latches.insert(name.clone(), latch);
        }
        let latch = latches.get_mut(name).filter(|latch| now < latch.forget)?;
        let is_mine = mine == Some(latch.generation);
        if let Some(part) = part.filter(|_| is_mine)
            && latch.is_open(now)
        {
            latch.counted.insert(part);
        }
        let open = (is_mine && latch.is_open(now)).then_some(latch.until);
        Some((latch.round(now), open))
    }
}

impl Registry {
    fn new() -> Self {
        // The tokens of a registry begin at the time of the system clock, in microseconds, at which the registry is
        // created. Tokens therefore rise even across a restart of the process, unless the clock is set back by more
        // than the time between the two starts.
        let micros = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_micros());
        Self(Mutex::new(State {
            common: Common {
                fence: u64::try_from(micros).unwrap_or_default(),
                woken: Vec::new(),
                terms: HashMap::new(),
                limits: HashMap::new(),
                latches: HashMap::new(),
            },
            locks: HashMap::new(),
            retained: BinaryHeap::new(),
        }))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, woken) = {
            let mut state = lock(&self.0);
            let result = change(&mut state);
            (result, std::mem::take(&mut state.common.woken))
        };
        woken.iter().for_each(|look| look.notify_one());
        result
    }

    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut Slot, &mut Common) -> T) -> T {
        self.change(|state| state.with(name, change))
    }

    fn status(&self, name: &LockName) -> Status {
        self.with(name, |slot, _| {
            let mut holders = slot.held.iter().map(|held| {
                let mut holder = Holder::new(held.owner);
                holder.mode = held.mode;
                holder.token = Some(held.token);
                holder.remaining = held.until.map(|until| until.since(CLOCK.now()));
                holder.kept = held.stage == Stage::Retained;
                holder.held_for = Some(CLOCK.now().since(held.since));
                holder.caller = Some(held.origin.caller());
                holder
            });
            let mut status = Status::new(holders.next(), slot.queue.len());
            status.others.extend(holders);
            status
        })
    }

    fn lead(&self, name: &LockName, token: FencingToken, step: TermStep) -> Option<Led> {
        let now = CLOCK.now();
        self.with(name, |slot, common| {
            slot.entered(token)?;
            let before = common.terms.get(name).copied();
            let first = Led {
                vacant_for: before.map(|(led, ..)| now.since(led)),
                dismissed: false,
            };
            let of_term = before.filter(|(_, of, _)| *of == token);
            let mut led = of_term.map_or(first, |(.., led)| led);
            let last = match step {
                TermStep::Lead => now,
                TermStep::Dismiss => before.map_or(now, |(last, ..)| last),
            };
            led.dismissed |= step == TermStep::Dismiss;
            common.terms.insert(name.clone(), (last, token, led));
            Some(led)
        })
    }

    fn limit(&self, name: &LockName, step: LimitStep) -> Option<u32> {
        self.with(name, |slot, common| {
            if let LimitStep::Set(limit, _) = step {
                match limit {
                    Some(limit) => common.limits.insert(name.clone(), limit),
                    None => common.limits.remove(name),
                };
                slot.limit = limit;
                slot.admit(common);
            }
            common.limits.get(name).copied()
        })
    }

    fn latch(
        &self,
        name: &LockName,
        lock: Option<&LockName>,
        step: LatchStep,
        origin: Origin,
    ) -> Option<Round> {
        let keeps = matches!(step, LatchStep::Keep(_));
        // No round ends between the look at it and the change of its lock.
        self.change(|state| {
            let round = state.common.latch(name, step, CLOCK.now());
            let open = round.as_ref().and_then(|(_, open)| *open);
            let kept = lock.and_then(|lock| {
                state.with(lock, |slot, common| match open {
                    Some(until) if keeps && slot.held.is_empty() => {
                        let who = (OwnerId::from_u128(0), Mode::Write);
                        slot.grant(who, origin, Some(until), Stage::Retained, common);
                        Some((lock, until))
                    }
                    Some(_) => None,
                    None => {
                        if slot.held.iter().any(|held| held.stage == Stage::Retained) {
                            slot.held.clear();
                            slot.admit(common);
                        }
                        None
                    }
                })
            });
            if let Some((lock, until)) = kept {
                state.retain_until(lock, until);
            }
            round.map(|(round, _)| round)
        })
    }

    /// Ends the hold with this token. If `retain_until` is later than now, the lock stays taken until that moment.
    fn release(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Released {
        let retain_until = retain_until.filter(|until| *until > CLOCK.now());
        let released = self.with(name, |slot, common| {
            let Some(place) = slot.held.iter().position(|held| held.token == token) else {
                return Released::NotHeld;
            };
            if retain_until.is_some() {
                slot.held[place].until = retain_until;
                slot.held[place].stage = Stage::Retained;
                slot.nudge(common);
            } else {
                slot.held.remove(place);
                slot.admit(common);
            }
            Released::Released
        });
        if let Some(until) = retain_until {
            self.change(|state| state.retain_until(name, until));
        }
        released
    }

    /// Takes all requested locks, or none of them.
    fn acquire_multi(&self, requests: &[Request], application: &Arc<str>) -> MultiAnswer {
        self.change(|State { common, locks, .. }| {
            for (index, request) in requests.iter().enumerate() {
                if let Some(slot) = locks.get_mut(&request.name) {
                    slot.settle(common);
                    if !slot.fits(request.mode) || !slot.queue.is_empty() {
                        return MultiAnswer::Busy(index);
                    }
                }
            }
            let grants = requests.iter().map(|request| {
                let until = end(request.lease);
                let ends = until.map(|until| until + limits::MEMORY_MARGIN);
                let slot = locks.entry(request.name.clone()).or_default();
                Grant {
                    token: slot.grant(
                        (request.owner, request.mode),
                        origin(request, application),
                        ends,
                        Stage::Entered,
                        common,
                    ),
                    valid_until: until,
                    validity: request.lease.time,
                    queued: false,
                    handoff: None,
                }
            });
            MultiAnswer::Granted(grants.collect())
        })
    }
}

impl Latch {
    fn is_open(&self, now: Moment) -> bool {
        now < self.until && !self.is_reached()
    }

    fn is_reached(&self) -> bool {
        self.counted.len() >= self.parts as usize
    }

    fn round(&self, now: Moment) -> Round {
        Round {
            generation: self.generation,
            parts: self.parts,
            counted: u32::try_from(self.counted.len()).unwrap_or(u32::MAX),
            remaining: self.until.since(now),
            earlier: self.earlier.clone(),
        }
    }
}

impl Slot {
    fn is_free(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }

    fn is_shared(&self) -> bool {
        self.held.iter().all(|held| held.mode.is_shared())
    }

    /// Whether a caller can be inside beside the present holders.
    fn fits(&self, mode: Mode) -> bool {
        let taken = self.held.iter().map(|held| match held.mode {
            Mode::Permits { take, .. } => take,
            _ => 0,
        });
        match mode {
            Mode::Read => self.held.iter().all(|held| held.mode == Mode::Read),
            Mode::Permits { take, of } => {
                let are_permits = self.held.iter().all(|held| held.mode.is_shared());
                are_permits && taken.sum::<u32>() + take <= self.limit.unwrap_or(of)
            }
            _ => self.held.is_empty(),
        }
    }

    /// Returns the grant with this token, if its owner has received it.
    fn entered(&mut self, token: FencingToken) -> Option<&mut Held> {
        let mut held = self.held.iter_mut();
        held.find(|held| held.token == token && held.stage == Stage::Entered)
    }

    /// Ends the grants that have expired, and offers the lock to the next waiters.
    fn settle(&mut self, common: &mut Common) {
        let (before, now) = (self.held.len(), CLOCK.now());
        self.held
            .retain(|held| held.until.is_none_or(|until| now < until));
        // A caller that is not polled keeps nobody back once its `wait` is over.
        let is_over = |head: &Waiter| head.deadline <= now;
        if self.held.len() < before || self.is_shared() && self.queue.front().is_some_and(is_over) {
            self.admit(common);
        }
    }

    fn grant(
        &mut self,
        (owner, mode): (OwnerId, Mode),
        origin: Origin,
        until: Option<Moment>,
        stage: Stage,
        common: &mut Common,
    ) -> FencingToken {
        common.fence += 1;
        let token = FencingToken::new(common.fence);
        self.held.push(Held {
            owner,
            mode,
            origin,
            since: CLOCK.now(),
            token,
            until,
            stage,
        });
        token
    }

    /// Returns the position of the waiter with this ticket in the queue. If the ticket is not in the queue, returns the
    /// position at which to insert it, as an error.
    fn place(&self, ticket: u64) -> Result<usize, usize> {
        self.queue
            .binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }

    /// Offers the lock, for the time of a claim (2 s), to the first waiter whose `wait` has not ended, if this waiter can be
    /// inside beside the present holders, and to the readers that follow a reader.
    fn admit(&mut self, common: &mut Common) {
        let now = CLOCK.now();
        while let Some(head) = self.queue.front()
            && (self.fits(head.mode) || head.deadline <= now && self.is_shared())
            && let Some(waiter) = self.queue.pop_front()
        {
            if waiter.deadline > now {
                let (until, who) = (Some(now + waiter.claim), (waiter.owner, waiter.mode));
                self.grant(who, waiter.origin, until, Stage::Offered, common);
                common.woken.push(waiter.look);
            }
        }
        self.nudge(common);
    }

    /// Wakes the head of the queue, which waits for the end of the holder's grant. The waiters behind the head are not
    /// woken, because each of them checks the lock again within a claim (2 s).
    fn nudge(&self, common: &mut Common) {
        let head = self.queue.front().map(|head| head.look.clone());
        common.woken.extend(head);
    }

    /// Removes an owner that leaves. Ends the owner's grant, or removes the owner from the queue.
    fn remove(&mut self, owner: OwnerId, ticket: Option<u64>, common: &mut Common) {
        let inside = self.held.iter().position(|held| held.owner == owner);
        if let Some(place) = inside {
            self.held.remove(place);
            self.admit(common);
        } else if let Some(place) = ticket.and_then(|ticket| self.place(ticket).ok()) {
            self.queue.remove(place);
            if place == 0 {
                self.admit(common);
            }
        }
    }
}

/// Returns the moment at which a grant made now ends by itself, or `None` if the grant lasts as long as its hold.
fn end(lease: LeaseTerms) -> Option<Moment> {
    match lease.renewal {
        Renewal::Fixed => Some(CLOCK.now() + lease.time),
        Renewal::WhileHeld { max_hold } => {
            max_hold.map(|max_hold| CLOCK.now() + max_hold + lease.time)
        }
    }
}

/// Returns the application and the function of the caller that sends a request.
fn origin(request: &Request, application: &Arc<str>) -> Origin {
    Origin {
        application: application.clone(),
        function: request.function,
    }
}
