//! Who waits on one session, lock by lock, and how they queue. A caller that is alone asks for itself. Those who come while
//! others of their session are at the same lock go together, one request at a time: the places of many cost one command.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use lock_core::{backend::BackendError, key::LockName, lease::Moment, owner::OwnerId};
use tokio::sync::oneshot;

use crate::{backend::redis::protocol::request::AcquireRequest, background::sync::lock};

/// How many callers one request queues.
const BATCH_LIMIT: usize = 64;

/// What a waiting caller is told: the token of the turn that it is offered. It enters by that at its next poll, if the offer
/// still stands then.
pub(crate) type OfferResult = Result<u64, BackendError>;

/// A caller that the server knows, or is being told of.
struct Waiting {
    request: Arc<AcquireRequest>,
    /// Whether it is one of those with a place.
    queued: bool,
    /// `None` once it is told.
    sender: Option<oneshot::Sender<OfferResult>>,
}

impl Waiting {
    fn place(&self) -> Option<u64> {
        self.sender.as_ref()?;
        self.request.place()
    }
}

/// All who wait for one lock.
#[derive(Default)]
struct WaitList {
    waiting: HashMap<OwnerId, Waiting>,
    /// How many of them have a place.
    queued: usize,
    /// To be told when a request does not wait for more any longer.
    batch_ready: Option<oneshot::Sender<()>>,
    /// Whose request is to be sent together with others', in this order.
    unsent: VecDeque<OwnerId>,
    /// Whether somebody is sending these.
    sending: bool,
    /// When the lock is probed next, once somebody is queued for it.
    probe: Option<Moment>,
}

impl WaitList {
    fn is_deserted(&self) -> bool {
        self.waiting.is_empty() && !self.sending
    }

    fn one_less_queued(&mut self, queued: bool) {
        self.queued -= usize::from(queued);
        if self.queued == 0 {
            self.batch_ready = None;
        }
    }
}

/// All who wait on one session.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<LockName, WaitList>>, Probes);

/// When which lock is probed. An entry counts if its list says the same.
#[derive(Default)]
struct Probes(Mutex<BinaryHeap<Reverse<(Moment, LockName)>>>);

impl Waiters {
    /// The lock is probed then, or before. True if no lock is probed earlier.
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

    /// When the next lock is to be probed.
    pub(crate) fn next_probe(&self) -> Option<Moment> {
        lock(&self.1.0).peek().map(|Reverse((at, _))| *at)
    }

    /// How many locks are waited for.
    pub(crate) fn locks(&self) -> usize {
        lock(&self.0).len()
    }

    /// The locks that are to be probed by now, `at_most` of them, each with the first of those that are queued for it. Each is
    /// probed again at `next`.
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
            // Where requests are being sent, they come first.
            if !list.sending {
                due.push(first.clone());
            }
            list.probe = Some(next);
            probes.push(Reverse((next, name)));
        }
        due
    }

    /// Expects the caller's turn, which may be as quick as the reply to its request. True if it is alone at its lock and has
    /// no place yet: it asks for itself.
    pub(crate) fn join(
        &self,
        request: &Arc<AcquireRequest>,
    ) -> (oneshot::Receiver<OfferResult>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = lock(&self.0);
        let list = waiters.entry(request.names.lock.clone()).or_default();
        let alone = list.waiting.is_empty() && request.place().is_none();
        let waiting = Waiting {
            request: request.clone(),
            queued: request.place().is_some(),
            sender: Some(sender),
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

    /// Notes the places of callers of one lock, for the sending again after a reconnect.
    pub(crate) fn queued(&self, name: &LockName, places: &[(&AcquireRequest, u64)]) {
        let mut waiters = lock(&self.0);
        let mut list = waiters.get_mut(name);
        for (request, place) in places {
            if let Some(list) = &mut list
                && let Some(waiting) = list.waiting.get_mut(&request.owner)
                && waiting.sender.is_some()
                && !std::mem::replace(&mut waiting.queued, true)
            {
                list.queued += 1;
            }
            request.set_place(*place);
        }
    }

    /// Expects nothing for this caller any longer.
    pub(crate) fn withdraw(&self, name: &LockName, owner: OwnerId) {
        let mut waiters = lock(&self.0);
        let Some(list) = waiters.get_mut(name) else {
            return;
        };
        if let Some(waiting) = list.waiting.remove(&owner) {
            list.one_less_queued(waiting.queued);
        }
        if list.is_deserted() {
            waiters.remove(name);
        }
    }

    /// The same, by what the caller asks for.
    pub(crate) fn remove(&self, request: &AcquireRequest) {
        self.withdraw(&request.names.lock, request.owner);
    }

    /// Whether anybody waits for this lock, or has been offered it.
    pub(crate) fn are_at(&self, name: &LockName) -> bool {
        lock(&self.0).contains_key(name)
    }

    /// Whether this caller still waits, and has not been told.
    pub(crate) fn waits(&self, name: &LockName, owner: OwnerId) -> bool {
        let waiters = lock(&self.0);
        let waiting = waiters.get(name).and_then(|list| list.waiting.get(&owner));
        waiting.is_some_and(|waiting| waiting.sender.is_some())
    }

    /// Notes a grant of those who wait. False if one of them was told of it before, or of a later one.
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

    /// Tells a caller, if it still waits, and returns how many offers it has missed before. It is known here until it has
    /// entered, or missed its turn.
    pub(crate) fn resolve(
        &self,
        name: &LockName,
        owner: OwnerId,
        result: OfferResult,
    ) -> Option<u32> {
        let mut waiters = lock(&self.0);
        let list = waiters.get_mut(name)?;
        let waiting = list.waiting.get_mut(&owner)?;
        let sender = waiting.sender.take()?;
        let missed = waiting.request.missed;
        let queued = std::mem::take(&mut waiting.queued);
        let heard = sender.send(result).is_ok();
        if !heard {
            list.waiting.remove(&owner);
        }
        list.one_less_queued(queued);
        if list.is_deserted() {
            waiters.remove(name);
        }
        heard.then_some(missed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Nobody waits here any more; who does is told nothing.
    pub(crate) fn clear(&self) {
        let waiters = std::mem::take(&mut *lock(&self.0));
        drop(waiters);
    }

    /// The requests of all who were queued are to be sent again, with their old places; of one lock, or of all. Returns the
    /// locks for which there is something to send.
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

    /// Ends when nobody has a place in the queue of this lock any more, or there are enough for one request; nothing, if
    /// that is so already.
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

    /// Whether somebody has to begin sending for this lock.
    pub(crate) fn begin_sending(&self, name: &LockName) -> bool {
        let mut waiters = lock(&self.0);
        let Some(list) = waiters.get_mut(name) else {
            return false;
        };
        let begins = !list.sending && !list.unsent.is_empty();
        list.sending |= begins;
        begins
    }

    /// Ends the sending for this lock for now.
    pub(crate) fn end_sending(&self, name: &LockName) {
        let mut waiters = lock(&self.0);
        if let Some(list) = waiters.get_mut(name) {
            list.sending = false;
            if list.is_deserted() {
                waiters.remove(name);
            }
        }
    }

    /// The next ones to be sent for; none: the sending has ended.
    pub(crate) fn next_batch(&self, name: &LockName) -> Vec<Arc<AcquireRequest>> {
        let mut batch = Vec::new();
        let mut waiters = lock(&self.0);
        let Some(list) = waiters.get_mut(name) else {
            return batch;
        };
        while batch.len() < BATCH_LIMIT
            && let Some(owner) = list.unsent.pop_front()
        {
            if let Some(waiting) = list.waiting.get(&owner)
                && waiting.sender.is_some()
            {
                batch.push(waiting.request.clone());
            }
        }
        if batch.is_empty() {
            // Under the same lock: a caller that joins from now on begins again.
            list.sending = false;
            if list.is_deserted() {
                waiters.remove(name);
            }
        }
        batch
    }

    /// These have not been sent, and are the first to be.
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
