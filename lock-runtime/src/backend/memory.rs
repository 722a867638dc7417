//! The in-process backend: the locks of one process, for a first run and for users' unit tests.
//!
//! Every promise holds inside the process: exclusion, order, bounded waiting, loss at the end of a fixed lease,
//! clean-up on cancel. There is no network, and nothing outlives the process. Time is tokio's: under a paused clock
//! waits and leases pass without waiting. A lease that is renewed lives as long as its hold, so nothing is renewed.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lock_core::{
    backend::{
        Answer, Attempt, Backend, BackendError, BoxFuture, Holder, Leaving, Released, Renewed,
        Request, Status, Together,
    },
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Grant, LeaseTerms, Moment, Renewal},
    options::Strategy,
    owner::OwnerId,
};
use once_cell::sync::Lazy;
use tokio::sync::Notify;

use crate::{
    clock::runtime as clock,
    stats::{Counters, count},
    sync::lock,
};

/// How much later than its local deadline a grant ends here: the body of a lost lease is dropped before the next one
/// starts, unless its runtime has no moment for it.
const MARGIN: Duration = Duration::from_millis(2);

/// The worlds that clients share by name, as long as one of them lives.
static WORLDS: Lazy<Mutex<HashMap<String, Weak<World>>>> = Lazy::new(Mutex::default);

/// The in-process backend.
pub(crate) struct MemoryBackend {
    world: Arc<World>,
    counters: Arc<Counters>,
    refusing: Arc<AtomicBool>,
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

impl MemoryBackend {
    /// The locks of that name in this process; locks of its own for the empty name.
    pub(crate) fn named(name: &str, counters: Arc<Counters>) -> Self {
        let world = if name.is_empty() {
            Arc::new(World::new())
        } else {
            let mut worlds = lock(&WORLDS);
            worlds.retain(|_, world| world.strong_count() > 0);
            match worlds.get(name).and_then(Weak::upgrade) {
                Some(world) => world,
                None => {
                    let world = Arc::new(World::new());
                    worlds.insert(name.to_owned(), Arc::downgrade(&world));
                    world
                }
            }
        };
        Self {
            world,
            counters,
            refusing: Arc::default(),
        }
    }
}

/// All locks, behind one mutex that is held for a few instructions.
struct World(Mutex<State>);

struct State {
    fence: u64,
    locks: HashMap<LockName, Slot>,
}

/// One lock that is held or waited for.
#[derive(Default)]
struct Slot {
    held: Option<Held>,
    queue: VecDeque<Waiter>,
    /// Those who try again when nobody holds or queues any more.
    notified: Vec<Arc<Notify>>,
}

struct Held {
    owner: OwnerId,
    token: FencingToken,
    /// `None`: as long as its hold lives.
    until: Option<Moment>,
    /// Its hold has ended, and the lock stays taken.
    kept: bool,
}

struct Waiter {
    owner: OwnerId,
    deadline: Moment,
    /// Tells the waiter to look again: it holds, or it has become the head.
    look: Arc<Notify>,
}

/// What an owner finds when it looks.
enum View {
    Granted(FencingToken, Option<Moment>),
    /// Not free; `None` where nobody has to look again by time.
    Waiting(Option<Moment>),
}

impl World {
    fn new() -> Self {
        // Tokens rise over restarts of the process too, as long as its clock does not fall behind by the outage.
        let micros = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_micros());
        Self(Mutex::new(State {
            fence: u64::try_from(micros).unwrap_or_default(),
            locks: HashMap::new(),
        }))
    }

    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut Slot, &mut u64) -> T) -> T {
        let mut state = lock(&self.0);
        let State { fence, locks } = &mut *state;
        let slot = locks.entry(name.clone()).or_default();
        slot.settle(fence);
        let result = change(slot, fence);
        if slot.held.is_none() && slot.queue.is_empty() {
            locks.remove(name);
        }
        result
    }

    /// Who is inside under this token is not any more, or will not be from `keep_until` on.
    fn release(
        &self,
        name: &LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
    ) -> Released {
        let keep_until = keep_until.filter(|until| *until > clock::now());
        if keep_until.is_some() {
            self.forget_kept();
        }
        self.with(name, |slot, fence| {
            let Some(held) = slot.held.as_mut().filter(|held| held.token == token) else {
                return Released::NotHeld;
            };
            if keep_until.is_some() {
                held.until = keep_until;
                held.kept = true;
                slot.nudge();
            } else {
                slot.hand_on(fence);
            }
            Released::Released
        })
    }

    /// Nobody comes back to a lock that was kept beyond its hold: what has ended of those is forgotten here.
    fn forget_kept(&self) {
        let mut state = lock(&self.0);
        let State { fence, locks } = &mut *state;
        locks.retain(|_, slot| {
            slot.settle(fence);
            slot.held.is_some() || !slot.queue.is_empty()
        });
    }

    /// All or none.
    fn acquire_together(&self, requests: &[Request]) -> Together {
        let mut state = lock(&self.0);
        let State { fence, locks } = &mut *state;
        for (index, request) in requests.iter().enumerate() {
            if let Some(slot) = locks.get_mut(&request.name) {
                slot.settle(fence);
                if slot.held.is_some() || !slot.queue.is_empty() {
                    return Together::Busy(index);
                }
            }
        }
        let grants = requests.iter().map(|request| {
            let until = end(request.lease);
            let ends = until.map(|until| until + MARGIN);
            let slot = locks.entry(request.name.clone()).or_default();
            Grant {
                token: slot.grant(request.owner, ends, fence),
                valid_until: until,
                validity: request.lease.time,
                queued: false,
            }
        });
        Together::Granted(grants.collect())
    }
}

impl Slot {
    /// Lets an expired grant end.
    fn settle(&mut self, fence: &mut u64) {
        let expired = |held: &Held| held.until.is_some_and(|until| clock::now() >= until);
        if self.held.as_ref().is_some_and(expired) {
            self.hand_on(fence);
        }
    }

    fn grant(&mut self, owner: OwnerId, until: Option<Moment>, fence: &mut u64) -> FencingToken {
        *fence += 1;
        let token = FencingToken::new(*fence);
        self.held = Some(Held {
            owner,
            token,
            until,
            kept: false,
        });
        token
    }

    /// Gives the lock to the first living waiter, as a claim that it has to take up, or to nobody.
    fn hand_on(&mut self, fence: &mut u64) {
        self.held = None;
        let now = clock::now();
        while let Some(waiter) = self.queue.pop_front() {
            if waiter.deadline > now {
                self.grant(waiter.owner, Some(now + CLAIM), fence);
                waiter.look.notify_one();
                break;
            }
        }
        if self.held.is_none() {
            for look in self.notified.drain(..) {
                look.notify_one();
            }
        }
        self.nudge();
    }

    /// The head watches the holder's end for all who queue; those who do not queue watch it each by itself.
    fn nudge(&self) {
        if let Some(head) = self.queue.front() {
            head.look.notify_one();
        }
        if self.held.as_ref().is_some_and(|held| held.until.is_some()) {
            for look in &self.notified {
                look.notify_one();
            }
        }
    }

    /// Removes an owner from wherever it is.
    fn remove(&mut self, owner: OwnerId, look: &Arc<Notify>, fence: &mut u64) {
        self.notified.retain(|other| !Arc::ptr_eq(other, look));
        if self.held.as_ref().is_some_and(|held| held.owner == owner) {
            self.hand_on(fence);
        } else if let Some(place) = self.queue.iter().position(|waiter| waiter.owner == owner) {
            self.queue.remove(place);
            if place == 0 {
                self.nudge();
            }
        }
    }
}

/// When a grant made now ends by itself.
fn end(lease: LeaseTerms) -> Option<Moment> {
    match lease.renewal {
        Renewal::Fixed => Some(clock::now() + lease.time),
        Renewal::WhileHeld { max_hold } => {
            max_hold.map(|max_hold| clock::now() + max_hold + lease.time)
        }
    }
}

struct MemoryAttempt {
    world: Arc<World>,
    refusing: Arc<AtomicBool>,
    request: Request,
    look: Arc<Notify>,
    deadline: Moment,
    queued: bool,
    settled: bool,
}

impl MemoryAttempt {
    /// Tries; queues at the first try.
    fn view(&mut self) -> View {
        let Self {
            world,
            request,
            look,
            deadline,
            queued,
            ..
        } = self;
        world.with(&request.name, |slot, fence| {
            if let Some(held) = &mut slot.held
                && held.owner == request.owner
            {
                // The claim is taken up: the lease counts from the entry.
                let until = end(request.lease);
                held.until = until.map(|until| until + MARGIN);
                let granted = View::Granted(held.token, until);
                slot.nudge();
                return granted;
            }
            if slot.held.is_none() && slot.queue.is_empty() {
                let until = end(request.lease);
                let ends = until.map(|until| until + MARGIN);
                return View::Granted(slot.grant(request.owner, ends, fence), until);
            }
            let holder_ends = slot.held.as_ref().and_then(|held| held.until);
            if request.strategy == Strategy::Notify && !request.wait.is_zero() {
                // Once is enough, however often it looks.
                if !slot.notified.iter().any(|other| Arc::ptr_eq(other, look)) {
                    slot.notified.push(look.clone());
                }
                *queued = true;
                return View::Waiting(holder_ends);
            }
            let is_me = |waiter: &Waiter| waiter.owner == request.owner;
            if !request.wait.is_zero() && !slot.queue.iter().any(is_me) {
                let waiter = Waiter {
                    owner: request.owner,
                    deadline: *deadline,
                    look: look.clone(),
                };
                // Queued before and not any more: a claim that was not taken up in time. It is first again.
                if *queued {
                    slot.queue.push_front(waiter);
                } else {
                    slot.queue.push_back(waiter);
                }
                *queued = true;
            }
            let heads = slot.queue.front().is_some_and(is_me);
            View::Waiting(holder_ends.filter(|_| heads))
        })
    }

    fn granted(&self, token: FencingToken, valid_until: Option<Moment>) -> Grant {
        Grant {
            token,
            valid_until,
            validity: self.request.lease.time,
            queued: self.queued,
        }
    }
}

impl Attempt for MemoryAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            self.deadline = clock::now() + self.request.wait;
            let look = self.look.clone();
            loop {
                if self.refusing.load(Ordering::Acquire) {
                    return Err(BackendError::ShutDown);
                }
                match self.view() {
                    View::Granted(token, until) => {
                        self.settled = true;
                        return Ok(Answer::Granted(self.granted(token, until)));
                    }
                    View::Waiting(_) if self.request.wait.is_zero() => {
                        self.settled = true;
                        return Ok(Answer::Busy);
                    }
                    View::Waiting(Some(holder_ends)) => tokio::select! {
                        () = look.notified() => {}
                        () = clock::sleep_until(holder_ends) => {}
                    },
                    View::Waiting(None) => look.notified().await,
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        let holds = self.world.with(&self.request.name, |slot, _| {
            slot.held
                .as_ref()
                .is_some_and(|held| held.owner == self.request.owner)
        });
        let leaving = match holds.then(|| self.view()) {
            Some(View::Granted(token, until)) => Leaving::Granted(self.granted(token, until)),
            _ => {
                self.world.with(&self.request.name, |slot, fence| {
                    slot.remove(self.request.owner, &self.look, fence);
                });
                Leaving::Left
            }
        };
        self.settled = true;
        Box::pin(std::future::ready(Ok(leaving)))
    }
}

impl Drop for MemoryAttempt {
    fn drop(&mut self) {
        if !self.settled {
            self.world.with(&self.request.name, |slot, fence| {
                slot.remove(self.request.owner, &self.look, fence);
            });
        }
    }
}

impl Backend for MemoryBackend {
    fn now(&self) -> Moment {
        clock::now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        clock::sleep_until(deadline)
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    fn attempt(&self, request: Request) -> Box<dyn Attempt> {
        Box::new(MemoryAttempt {
            world: self.world.clone(),
            refusing: self.refusing.clone(),
            deadline: clock::now() + request.wait,
            request,
            look: Arc::default(),
            queued: false,
            settled: false,
        })
    }

    fn acquire_together(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<Together, BackendError>> {
        Box::pin(async move {
            if self.refusing.load(Ordering::Acquire) {
                return Err(BackendError::ShutDown);
            }
            Ok(self.world.acquire_together(&requests))
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        let released = self.world.release(name, token, keep_until);
        Box::pin(std::future::ready(Ok(released)))
    }

    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
        _lease_ends: Option<Moment>,
    ) {
        if self.world.release(name, token, keep_until) == Released::Released {
            count(&self.counters.released);
        }
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        let renewed = self.world.with(name, |slot, _| match &mut slot.held {
            Some(held) if held.token == token && !held.kept => {
                let until = clock::now() + lease;
                held.until = held.until.map(|old| old.max(until + MARGIN));
                Renewed::Until(held.until.map_or(until, |ends| ends - MARGIN))
            }
            _ => Renewed::NotHeld,
        });
        Box::pin(std::future::ready(Ok(renewed)))
    }

    fn restart<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        let restarted = self.world.with(name, |slot, _| match &mut slot.held {
            Some(held) if held.token == token && !held.kept => {
                let until = clock::now() + lease;
                held.until = Some(until + MARGIN);
                slot.nudge();
                Renewed::Until(until)
            }
            _ => Renewed::NotHeld,
        });
        Box::pin(std::future::ready(Ok(restarted)))
    }

    fn check<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        self.renew(name, token, Duration::ZERO)
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        let status = self.world.with(name, |slot, _| Status {
            holder: slot.held.as_ref().map(|held| Holder {
                owner: held.owner,
                token: Some(held.token),
                remaining: held.until.map(|until| until.since(clock::now())),
            }),
            waiters: slot.queue.len(),
        });
        Box::pin(std::future::ready(Ok(status)))
    }

    fn refuse(&self) {
        self.refusing.store(true, Ordering::Release);
        let state = lock(&self.world.0);
        for slot in state.locks.values() {
            let queued = slot.queue.iter().map(|waiter| &waiter.look);
            for look in queued.chain(&slot.notified) {
                look.notify_one();
            }
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
