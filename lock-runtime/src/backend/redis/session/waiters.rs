//! The callers that wait in one session, by lock, and the requests that queue these callers. The first caller that
//! waits for a lock sends its own request. Callers that arrive while other callers of their session wait for the same
//! lock share requests, so that one command queues many callers. The shared requests for a lock are sent one at a time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::{Arc, Mutex},
};

use foldhash::HashMap;
use lock_core::{backend::BackendError, key::LockName, lease::Moment, owner::OwnerId};
use tokio::sync::oneshot;

use crate::{
    backend::redis::protocol::request::AcquireRequest,
    background::{Polled, isolated, lock, runtimes::Runtimes},
    limits,
};

/// The largest number of callers that one request queues.
const BATCH_LIMIT: usize = 64;

/// The message to an acquisition that its wait is over: its turn has come, or its request has failed. Whether it has the turn
/// when it reads the message is up to its cohort.
pub(crate) type Turned = Result<(), BackendError>;

/// A caller that has a place in the queue, or whose request is being sent.
struct Waiting {
    request: Arc<AcquireRequest>,
    /// The tokio runtime that polled the caller when it joined.
    polled: Option<Polled>,
    /// Whether [`WaitList::queued`] counts this caller.
    queued: bool,
    sender: oneshot::Sender<Turned>,
}

impl Waiting {
    fn place(&self) -> Option<u64> {
        self.request.place()
    }
}

/// The callers that wait for one lock.
#[derive(Default)]
struct WaitList {
    waiting: HashMap<OwnerId, Waiting>,
    /// The number of callers in `waiting` that have a place in the queue.
    queued: usize,
    /// Dropped to signal that the next request has to be sent at once, without waiting for more callers to share the
    /// request.
    batch_ready: Option<oneshot::Sender<()>>,
    /// The owners whose requests have not been sent, in the order in which batches send them.
    unsent: VecDeque<OwnerId>,
    /// Whether a task is sending the requests in `unsent`.
    sending: bool,
    /// The moment of the next probe of the lock, or `None` while no probe is scheduled.
    probe: Option<Moment>,
}

impl WaitList {
    fn is_deserted(&self) -> bool {
        self.waiting.is_empty() && !self.sending
    }

    /// Sorts callers of this list by their places in the queue. Callers without a place follow in the order of their
    /// requests. If the calling code drops the callers in this order, they also wake in this order.
    fn in_order(&self, callers: HashMap<OwnerId, Waiting>) -> Vec<(OwnerId, Waiting)> {
        let mut callers: Vec<_> = callers.into_iter().collect();
        callers.sort_by_cached_key(|(owner, waiting)| {
            let unsent = self.unsent.iter().position(|unsent| unsent == owner);
            (waiting.place().unwrap_or(u64::MAX), unsent, *owner)
        });
        callers
    }

    fn one_less_queued(&mut self, queued: bool) {
        self.queued -= usize::from(queued);
        if self.queued == 0 {
            self.batch_ready = None;
        }
    }
}

/// All waiters of one session.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<LockName, WaitList>>, Probes);

/// The scheduled probes. The earliest probe is on top of the heap. An entry of the heap is valid only if the field
/// `probe` of the lock's [`WaitList`] has the same moment.
#[derive(Default)]
struct Probes(Mutex<BinaryHeap<Reverse<(Moment, LockName)>>>);

impl Waiters {
    /// Schedules a probe of the lock at `at`, unless an earlier probe is scheduled. Returns whether the next probe of
    /// the session is now the probe of this lock.
    pub(crate) fn probe_at(&self, name: &LockName, at: Moment) -> bool {
        let mut waiters = lock(&self.0);
        let Some(list) = waiters.get_mut(name) else {
            return false;
        };
        if list.probe.is_some_and(|probe| probe <= at) {
            return false;
        }
        list.probe = Some(at);
        let mut probes = lock(&self.1.0);
        probes.push(Reverse((at, name.clone())));
        probes.peek().is_some_and(|Reverse((next, _))| *next == at)
    }

    /// Returns the moment of the next scheduled probe, if there is one.
    pub(crate) fn next_probe(&self) -> Option<Moment> {
        lock(&self.1.0).peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the number of locks for which callers wait.
    pub(crate) fn locks(&self) -> usize {
        lock(&self.0).len()
    }

    /// Returns requests for up to `at_most` locks whose probe is due. Each lock is represented by the request of its
    /// first queued caller. Schedules the next probe of these locks at `next`.
    pub(crate) fn due(
        &self,
        now: Moment,
        next: Moment,
        at_most: usize,
    ) -> Vec<Arc<AcquireRequest>> {
        let mut waiters = lock(&self.0);
        let mut probes = lock(&self.1.0);
        let mut due = Vec::new();
        while due.len() < at_most
            && let Some(Reverse((at, _))) = probes.peek()
            && *at <= now
            && let Some(Reverse((at, name))) = probes.pop()
        {
            let Some(list) = waiters.get_mut(&name).filter(|list| list.probe == Some(at)) else {
                continue;
            };
            list.probe = None;
            let queued = list.waiting.values();
            let queued = queued.filter_map(|waiting| Some((waiting.place()?, &waiting.request)));
            let Some((_, first)) = queued.min_by_key(|(place, _)| *place) else {
                continue;
            };
            // While requests for this lock are being sent, the lock is not probed. A probe could report that the server
            // has lost a caller, although this caller is about to queue again.
            let again = if list.sending {
                now + limits::PROBE_AGAIN
            } else {
                due.push(first.clone());
                next
            };
            list.probe = Some(again);
            probes.push(Reverse((again, name)));
        }
        due
    }

    /// Adds a waiting caller to the list. A caller is added before its request is sent, because its turn can come together
    /// with the reply. The returned flag is true if no other caller of the session waits for the lock,
    /// and the caller has no place in the queue yet. If the flag is true, the caller sends its own request.
    pub(crate) fn join(
        &self,
        request: &Arc<AcquireRequest>,
        polled: Option<Polled>,
    ) -> (oneshot::Receiver<Turned>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = lock(&self.0);
        let list = waiters.entry(request.names.lock.clone()).or_default();
        let alone = list.waiting.is_empty() && request.place().is_none();
        let waiting = Waiting {
            request: request.clone(),
            polled,
            queued: request.place().is_some(),
            sender,
        };
        list.waiting.insert(request.owner, waiting);
        list.queued += usize::from(request.place().is_some());
        if !alone {
            list.unsent.push_back(request.owner);
            if list.unsent.len() >= BATCH_LIMIT {
                list.batch_ready = None;
            }
        }
        (receiver, alone)
    }

    /// Records the places that the server has given to callers of one lock. After a reconnect, the callers request the
    /// same places again.
    pub(crate) fn queued(&self, name: &LockName, places: &[(&AcquireRequest, u64)]) {
        let mut waiters = lock(&self.0);
        let mut list = waiters.get_mut(name);
        for (request, place) in places {
            if let Some(list) = &mut list
                && let Some(waiting) = list.waiting.get_mut(&request.owner)
                && !std::mem::replace(&mut waiting.queued, true)
            {
                list.queued += 1;
            }
            request.set_place(*place);
        }
    }

    fn take(&self, name: &LockName, owner: OwnerId) -> Option<Waiting> {
        let mut waiters = lock(&self.0);
        let list = waiters.get_mut(name)?;
        let waiting = list.waiting.remove(&owner);
        if let Some(waiting) = &waiting {
            list.one_less_queued(waiting.queued);
        }
        if list.is_deserted() {
            waiters.remove(name);
        }
        waiting
    }

    /// Removes the caller of this request, because the caller no longer waits for its turn.
    pub(crate) fn remove(&self, request: &AcquireRequest) {
        let waiting = self.take(&request.names.lock, request.owner);
        isolated(|| drop(waiting));
    }

    /// Returns whether any caller of the session waits for this lock.
    pub(crate) fn are_at(&self, name: &LockName) -> bool {
        lock(&self.0).contains_key(name)
    }

    /// Returns whether this caller is still waiting.
    pub(crate) fn waits(&self, name: &LockName, owner: OwnerId) -> bool {
        let waiters = lock(&self.0);
        let list = waiters.get(name);
        list.is_some_and(|list| list.waiting.contains_key(&owner))
    }

    /// Returns whether the runtime that polled this caller does not run.
    pub(crate) fn is_silent(
        &self,
        name: &LockName,
        owner: OwnerId,
        runtimes: &Runtimes,
        now: Moment,
    ) -> bool {
        let waiters = lock(&self.0);
        let waiting = waiters.get(name).and_then(|list| list.waiting.get(&owner));
        let polled = waiting.and_then(|waiting| waiting.polled.as_ref());
        polled.is_some_and(|polled| runtimes.is_silent(polled, now))
    }

    /// Records the token by which the server identifies a grant, for each owner of the grant that is still waiting.
    /// Returns false if this grant or a later one was already recorded for one of these owners.
    pub(crate) fn note_grant(&self, name: &LockName, owners: &[OwnerId], first: u64) -> bool {
        let waiters = lock(&self.0);
        let Some(list) = waiters.get(name) else {
            return true;
        };
        let mut is_new = true;
        for waiting in owners.iter().filter_map(|owner| list.waiting.get(owner)) {
            is_new &= waiting.request.note_grant(first);
        }
        is_new
    }

    /// Returns the queue entries of these owners that still wait, each with its place. Leaves out owners whose places are not
    /// known yet.
    pub(crate) fn entries<'a>(
        &self,
        name: &LockName,
        owners: impl IntoIterator<Item = &'a OwnerId>,
    ) -> Vec<(String, String)> {
        let waiters = lock(&self.0);
        let Some(list) = waiters.get(name) else {
            return Vec::new();
        };
        let waiting = owners
            .into_iter()
            .filter_map(|owner| list.waiting.get(owner));
        let entries = waiting.filter_map(|waiting| {
            let place = waiting.place()?;
            Some((waiting.request.member(), place.to_string()))
        });
        entries.collect()
    }

    /// Records that this is the present grant of each of its owners that is still waiting.
    pub(crate) fn set_grant(&self, name: &LockName, owners: &[OwnerId], first: u64) {
        let waiters = lock(&self.0);
        if let Some(list) = waiters.get(name) {
            for waiting in owners.iter().filter_map(|owner| list.waiting.get(owner)) {
                waiting.request.set_grant(first);
            }
        }
    }

    /// Removes a caller, and adds the message that its wait is over to `told`. Returns whether the caller was still waiting.
    pub(crate) fn tell(
        &self,
        name: &LockName,
        owner: OwnerId,
        message: Turned,
        told: &mut Told,
    ) -> bool {
        let Some(waiting) = self.take(name, owner) else {
            return false;
        };
        let listens = !waiting.sender.is_closed();
        told.0.push((waiting, message));
        listens
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Removes all waiters, and sends them no result. Each waiter's receiver reports that its sender was dropped. The
    /// waiters of one lock wake in the order of their places in the queue.
    pub(crate) fn clear(&self) {
        let lists = std::mem::take(&mut *lock(&self.0));
        for (_, mut list) in lists {
            let waiting = std::mem::take(&mut list.waiting);
            drop(list.in_order(waiting));
        }
    }

    /// Removes the waiters for the locks that `is_meant` selects. The removed waiters get no result: each waiter's receiver
    /// reports that its sender was dropped. The removed waiters wake in the order of their places in the queue. Waiters
    /// without a place wake last, in the order of their requests.
    pub(crate) fn dismiss(&self, is_meant: impl Fn(&LockName) -> bool) {
        let mut dismissed = Vec::new();
        lock(&self.0).retain(|name, list| {
            if is_meant(name) {
                let waiting = std::mem::take(&mut list.waiting);
                list.queued = 0;
                list.batch_ready = None;
                dismissed.push(list.in_order(waiting));
            }
            !list.is_deserted()
        });
        // Dropping the removed entries wakes their callers, so the entries are dropped after the mutex was unlocked.
        drop(dismissed);
    }

    /// Prepares the requests of all queued callers of one lock, or of all locks, to be sent again with their old
    /// places. Returns the locks that have requests to send.
    pub(crate) fn requeue(&self, only: Option<&LockName>) -> Vec<LockName> {
        let mut waiters = lock(&self.0);
        let waiters = waiters
            .iter_mut()
            .filter(|(name, _)| only.is_none_or(|only| only == *name));
        let with_some = waiters.filter_map(|(name, list)| {
            let queued = list.waiting.values();
            let queued =
                queued.filter_map(|waiting| Some((waiting.place()?, waiting.request.owner)));
            let mut queued: Vec<_> = queued.collect();
            queued.sort_unstable();
            list.unsent.retain(|owner| {
                let waiting = list.waiting.get(owner);
                waiting.is_some_and(|waiting| waiting.request.place().is_none())
            });
            for (_, owner) in queued.into_iter().rev() {
                list.unsent.push_front(owner);
            }
            (!list.unsent.is_empty()).then(|| name.clone())
        });
        with_some.collect()
    }

    /// Returns a receiver that completes when the next request for the lock has to be sent. The session has to send the
    /// request when none of its callers has a place in the lock's queue any longer, or when enough callers for one
    /// request have joined. Returns `None` if one of these conditions already holds.
    pub(crate) fn batch_ready(&self, name: &LockName) -> Option<oneshot::Receiver<()>> {
        let mut waiters = lock(&self.0);
        let list = waiters.get_mut(name)?;
        if list.queued == 0 || list.unsent.len() >= BATCH_LIMIT {
            return None;
        }
        let (batch_ready, receiver) = oneshot::channel();
        list.batch_ready = Some(batch_ready);
        Some(receiver)
    }

    /// Returns whether the calling code has to start a task that sends the requests for this lock. If the result is
    /// true, records that the task is running.
    pub(crate) fn begin_sending(&self, name: &LockName) -> bool {
        let mut waiters = lock(&self.0);
        let Some(list) = waiters.get_mut(name) else {
            return false;
        };
        let begins = !list.sending && !list.unsent.is_empty();
        list.sending |= begins;
        begins
    }

    /// Records that the task that sends requests for this lock has ended.
    pub(crate) fn end_sending(&self, name: &LockName) {
        let mut waiters = lock(&self.0);
        if let Some(list) = waiters.get_mut(name) {
            list.sending = false;
            if list.is_deserted() {
                waiters.remove(name);
            }
        }
    }

    /// Takes the next batch of unsent requests. If no request is left, records that the sending task has ended.
    pub(crate) fn next_batch(&self, name: &LockName) -> Vec<Arc<AcquireRequest>> {
        let mut batch = Vec::new();
        let mut waiters = lock(&self.0);
        let Some(list) = waiters.get_mut(name) else {
            return batch;
        };
        while batch.len() < BATCH_LIMIT
            && let Some(owner) = list.unsent.pop_front()
        {
            if let Some(waiting) = list.waiting.get(&owner) {
                batch.push(waiting.request.clone());
            }
        }
        if batch.is_empty() {
            // The mutex of the wait list is still locked. A caller that joins later therefore sees that no task is
            // sending, and starts a new task.
            list.sending = false;
            if list.is_deserted() {
                waiters.remove(name);
            }
        }
        batch
    }

    /// Puts back the requests of a batch, ahead of all other unsent requests.
    pub(crate) fn put_back(&self, name: &LockName, batch: &[Arc<AcquireRequest>]) {
        if let Some(list) = lock(&self.0).get_mut(name) {
            for request in batch.iter().rev() {
                if !list.unsent.contains(&request.owner) {
                    list.unsent.push_front(request.owner);
                }
            }
        }
    }
}

/// Messages to callers whose wait is over. They are sent when this value is dropped. A function that locks a mutex declares
/// this value first, so that the mutex is unlocked before: the waker of a caller can poll the caller at once, on this thread,
/// and the last handle to a runtime drops the user's hooks.
#[derive(Default)]
pub(crate) struct Told(Vec<(Waiting, Turned)>);

impl Drop for Told {
    fn drop(&mut self) {
        for (waiting, message) in self.0.drain(..) {
            // If the caller has left meanwhile, its clean-up gives the turn back.
            isolated(move || drop(waiting.sender.send(message)));
        }
    }
}
