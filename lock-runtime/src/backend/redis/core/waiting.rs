//! The callers that wait in one session, by lock, and the requests that queue these callers. The first caller that waits for
//! a lock sends its own request. Callers that arrive while other callers of their session wait for the same lock share
//! requests, so that one command queues many callers. The shared requests for a lock are sent one at a time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use foldhash::HashMap;
use lock_core::{backend::BackendError, key::LockName, lease::Moment, owner::OwnerId};

use crate::limits;

/// For the model, which visits every state.
#[cfg(test)]
mod copies {
    mod tests;
}

/// The largest number of callers that one request queues.
const BATCH_LIMIT: usize = 64;

/// The types of the engine's values that the core stores without reading them.
pub(crate) trait Parts {
    /// The request of an acquisition.
    type Request: Clone;
    /// The caller of an acquisition, who is told when its wait is over.
    type Caller;
    /// Dropped when the next request for a lock has to be sent at once.
    type Batch;
}

/// The number of a session. Its callers wait for messages on the session's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Link(u64);

/// The data about an owner name that the server is known to store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    /// Its place in the queue. A repeated request names the same place.
    pub(crate) place: Option<u64>,
    /// The token of the newest grant of which the owner is a member, or zero.
    pub(crate) granted: u64,
}

/// Why the wait of a caller has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its turn has come. Whether the caller still has it when it reads this is up to its cohort.
    Turn,
    Failed(BackendError),
    /// Its session has ended, or no longer serves the lock. The caller asks again, and then looks for the session that serves
    /// the lock.
    Dismissed,
}

/// The moment of a scheduled probe, and the lock.
type Probe = Reverse<(Moment, LockName)>;

/// A caller that has a place in the queue, or whose request is being sent.
#[derive(Clone, Hash)]
struct Waiting<P: Parts> {
    stored: Stored,
    request: P::Request,
    /// `None` after the caller was told that its wait has ended. It stays in the list until its acquisition removes it,
    /// because the answer that names its place can come after its turn.
    caller: Option<P::Caller>,
}

/// A caller about whom a request has to be sent.
#[derive(Clone)]
pub(crate) struct ToSend<P: Parts> {
    pub(crate) owner: OwnerId,
    pub(crate) request: P::Request,
    pub(crate) stored: Stored,
}

/// The callers that wait for one lock.
struct WaitList<P: Parts> {
    waiting: HashMap<OwnerId, Waiting<P>>,
    /// The number of callers that wait and have a place in the queue.
    queued: usize,
    /// Leaves the core to signal that the next request has to be sent at once, without waiting for more callers to share
    /// the request.
    batch: Option<P::Batch>,
    /// The owners whose requests have not been sent, in the order in which batches send them.
    unsent: VecDeque<OwnerId>,
    /// Whether a task is sending the requests in `unsent`.
    sending: bool,
    /// The moment of the next probe of the lock, or `None` while no probe is scheduled.
    probe: Option<Moment>,
}

impl<P: Parts> Default for WaitList<P> {
    fn default() -> Self {
        Self {
            waiting: HashMap::default(),
            queued: 0,
            batch: None,
            unsent: VecDeque::new(),
            sending: false,
            probe: None,
        }
    }
}

impl<P: Parts> WaitList<P> {
    fn is_deserted(&self) -> bool {
        self.waiting.is_empty() && !self.sending
    }

    /// Returns the caller with this owner name, unless its wait has ended.
    fn get(&self, owner: OwnerId) -> Option<&Waiting<P>> {
        let waiting = self.waiting.get(&owner)?;
        waiting.caller.is_some().then_some(waiting)
    }

    /// Ends the wait of a caller. Returns the caller, unless its wait has ended already.
    fn end(&mut self, owner: OwnerId, outgoing: &mut Outgoing<P>) -> Option<P::Caller> {
        let waiting = self.waiting.get_mut(&owner)?;
        let caller = waiting.caller.take()?;
        self.queued -= usize::from(waiting.stored.place.is_some());
        if self.queued == 0 {
            outgoing.batches.extend(self.batch.take());
        }
        Some(caller)
    }

    /// Dismisses all callers, sorted by their places in the queue. Callers without a place follow in the order of their
    /// requests.
    fn dismiss_all(&mut self, outgoing: &mut Outgoing<P>) {
        let mut owners: Vec<_> = self.waiting.keys().copied().collect();
        owners.sort_by_cached_key(|owner| {
            let unsent = self.unsent.iter().position(|unsent| unsent == owner);
            let place = self.waiting[owner].stored.place;
            (place.unwrap_or(u64::MAX), unsent, *owner)
        });
        for owner in owners {
            let caller = self.end(owner, outgoing);
            outgoing
                .callers
                .extend(caller.map(|caller| (caller, Some(Ended::Dismissed))));
        }
    }
}

impl<P: Parts> Waiting<P> {
    fn to_send(&self, owner: OwnerId) -> ToSend<P> {
        ToSend {
            owner,
            request: self.request.clone(),
            stored: self.stored,
        }
    }
}

/// The state of one session.
struct LinkState<P: Parts> {
    session_id: Arc<str>,
    has_ended: bool,
    /// The callers that wait, by lock. The map is ordered, so that each run of a program visits them in the same order.
    lists: BTreeMap<LockName, WaitList<P>>,
    /// The scheduled probes. The earliest probe is on top of the heap. An entry of the heap is valid only if the field
    /// `probe` of the lock's [`WaitList`] has the same moment.
    probes: BinaryHeap<Probe>,
}

/// Values of the engine that leave the core. They are dropped after the mutex is unlocked: the waker of a caller can poll
/// the caller at once, on this thread, and the last handle to a runtime drops the user's hooks.
pub(crate) struct Outgoing<P: Parts> {
    /// Callers whose wait has ended, each with its message; a caller that has left by itself gets none.
    pub(crate) callers: Vec<(P::Caller, Option<Ended>)>,
    pub(crate) batches: Vec<P::Batch>,
}

impl<P: Parts> Default for Outgoing<P> {
    fn default() -> Self {
        Self {
            callers: Vec::new(),
            batches: Vec::new(),
        }
    }
}

/// All callers of a client that wait for the locks of one server.
pub(crate) struct Lines<P: Parts> {
    links: BTreeMap<Link, LinkState<P>>,
    newest: u64,
    outgoing: Outgoing<P>,
}

impl<P: Parts> Default for Lines<P> {
    fn default() -> Self {
        Self {
            links: BTreeMap::new(),
            newest: 0,
            outgoing: Outgoing::default(),
        }
    }
}

/// Removes the list of a lock for which nobody waits.
fn tidy<P: Parts>(lists: &mut BTreeMap<LockName, WaitList<P>>, name: &LockName) {
    if lists.get(name).is_some_and(WaitList::is_deserted) {
        lists.remove(name);
    }
}

impl<P: Parts> Lines<P> {
    /// Adds the session with this id.
    pub(crate) fn open_link(&mut self, session_id: &Arc<str>) -> Link {
        self.newest += 1;
        let link = Link(self.newest);
        let state = LinkState {
            session_id: session_id.clone(),
            has_ended: false,
            lists: BTreeMap::new(),
            probes: BinaryHeap::new(),
        };
        self.links.insert(link, state);
        link
    }

    /// Ends a session. Its callers are dismissed, and nobody in it shares a grant again.
    pub(crate) fn end_link(&mut self, link: Link) {
        if let Some(state) = self.links.get_mut(&link) {
            state.has_ended = true;
        }
        self.dismiss(link, |_| true);
    }

    /// Forgets a session that no longer exists.
    pub(crate) fn forget_link(&mut self, link: Link) {
        self.end_link(link);
        self.links.remove(&link);
    }

    /// Returns whether the session has this id.
    pub(crate) fn has_id(&self, link: Link, session_id: &str) -> bool {
        let state = self.links.get(&link);
        state.is_some_and(|state| *state.session_id == *session_id)
    }

    pub(crate) fn has_ended(&self, link: Link) -> bool {
        self.links.get(&link).is_none_or(|state| state.has_ended)
    }

    /// Returns the values that have left the core since the last call.
    pub(crate) fn take_outgoing(&mut self) -> Outgoing<P> {
        std::mem::take(&mut self.outgoing)
    }

    /// Returns what the server stores about this owner, until its acquisition removes it.
    pub(crate) fn stored(&self, link: Link, name: &LockName, owner: OwnerId) -> Option<Stored> {
        let waiting = self.list(link, name)?.waiting.get(&owner)?;
        Some(waiting.stored)
    }

    fn list(&self, link: Link, name: &LockName) -> Option<&WaitList<P>> {
        self.links.get(&link)?.lists.get(name)
    }

    fn list_mut(&mut self, link: Link, name: &LockName) -> Option<&mut WaitList<P>> {
        self.links.get_mut(&link)?.lists.get_mut(name)
    }

    /// Schedules a probe of the lock at `at`, unless an earlier probe is scheduled. Returns whether the next probe of the
    /// session is now the probe of this lock.
    pub(crate) fn probe_at(&mut self, link: Link, name: &LockName, at: Moment) -> bool {
        let Some(LinkState { lists, probes, .. }) = self.links.get_mut(&link) else {
            return false;
        };
        let Some(list) = lists.get_mut(name) else {
            return false;
        };
        if list.probe.is_some_and(|probe| probe <= at) {
            return false;
        }
        list.probe = Some(at);
        probes.push(Reverse((at, name.clone())));
        probes.peek().is_some_and(|Reverse((next, _))| *next == at)
    }

    /// Returns the moment of the next scheduled probe, if there is one.
    pub(crate) fn next_probe(&self, link: Link) -> Option<Moment> {
        let probe = self.links.get(&link)?.probes.peek();
        probe.map(|Reverse((at, _))| *at)
    }

    /// Returns the number of locks for which callers of the session wait.
    pub(crate) fn locks(&self, link: Link) -> usize {
        self.links.get(&link).map_or(0, |state| state.lists.len())
    }

    /// Returns up to `at_most` locks whose probe is due. Each lock is represented by its first queued caller. Schedules the
    /// next probe of these locks at `next`.
    pub(crate) fn due(
        &mut self,
        link: Link,
        now: Moment,
        next: Moment,
        at_most: usize,
    ) -> Vec<ToSend<P>> {
        let mut due = Vec::new();
        let Some(LinkState { lists, probes, .. }) = self.links.get_mut(&link) else {
            return due;
        };
        while due.len() < at_most
            && let Some(Reverse((at, _))) = probes.peek()
            && *at <= now
            && let Some(Reverse((at, name))) = probes.pop()
        {
            let Some(list) = lists.get_mut(&name).filter(|list| list.probe == Some(at)) else {
                continue;
            };
            list.probe = None;
            let queued = list.waiting.iter();
            let queued = queued.filter(|(_, waiting)| waiting.caller.is_some());
            let queued =
                queued.filter_map(|(owner, waiting)| Some((waiting.stored.place?, owner, waiting)));
            let Some((_, owner, first)) = queued.min_by_key(|(place, ..)| *place) else {
                continue;
            };
            // While requests for this lock are being sent, the lock is not probed. A probe could report that the server has
            // lost a caller, although this caller is about to queue again.
            let again = if list.sending {
                now + limits::PROBE_AGAIN
            } else {
                due.push(first.to_send(*owner));
                next
            };
            list.probe = Some(again);
            probes.push(Reverse((again, name)));
        }
        due
    }

    /// Adds a waiting caller. A caller is added before its request is sent, because its turn can come together with the
    /// reply. Returns true if no other caller of the session waits for the lock, and the caller has no place in the queue
    /// yet. It then sends its own request.
    pub(crate) fn join(
        &mut self,
        link: Link,
        name: &LockName,
        owner: OwnerId,
        stored: Stored,
        request: P::Request,
        caller: P::Caller,
    ) -> bool {
        let Some(state) = self.links.get_mut(&link) else {
            return true;
        };
        let list = state.lists.entry(name.clone()).or_default();
        let has_place = stored.place.is_some();
        let alone = list.waiting.is_empty() && !has_place;
        let waiting = Waiting {
            stored,
            request,
            caller: Some(caller),
        };
        list.waiting.insert(owner, waiting);
        list.queued += usize::from(has_place);
        if !alone {
            list.unsent.push_back(owner);
            if list.unsent.len() >= BATCH_LIMIT {
                self.outgoing.batches.extend(list.batch.take());
            }
        }
        alone
    }

    /// Records the places that the server has given to callers of one lock. After a reconnect, the callers request the same
    /// places again.
    pub(crate) fn queued(&mut self, link: Link, name: &LockName, places: &[(OwnerId, u64)]) {
        let Some(list) = self.list_mut(link, name) else {
            return;
        };
        for (owner, place) in places {
            if let Some(waiting) = list.waiting.get_mut(owner) {
                let before = waiting.stored.place.replace(*place);
                list.queued += usize::from(before.is_none() && waiting.caller.is_some());
            }
        }
    }

    /// Removes a caller that no longer waits for its turn. Returns what the server stores about it.
    pub(crate) fn leave_list(
        &mut self,
        link: Link,
        name: &LockName,
        owner: OwnerId,
    ) -> Option<Stored> {
        let lists = &mut self.links.get_mut(&link)?.lists;
        let list = lists.get_mut(name)?;
        let caller = list.end(owner, &mut self.outgoing);
        self.outgoing
            .callers
            .extend(caller.map(|caller| (caller, None)));
        let left = list.waiting.remove(&owner);
        tidy(lists, name);
        Some(left?.stored)
    }

    /// Returns whether any caller of the session waits for this lock, or was told that its wait has ended.
    pub(crate) fn are_at(&self, link: Link, name: &LockName) -> bool {
        self.list(link, name).is_some()
    }

    /// Returns whether this caller is still waiting.
    pub(crate) fn waits(&self, link: Link, name: &LockName, owner: OwnerId) -> bool {
        let list = self.list(link, name);
        list.is_some_and(|list| list.get(owner).is_some())
    }

    /// Returns whether `is_silent` is true for this caller, if it is still waiting.
    pub(crate) fn is_silent(
        &self,
        link: Link,
        name: &LockName,
        owner: OwnerId,
        is_silent: &dyn Fn(&P::Caller) -> bool,
    ) -> bool {
        let waiting = self.list(link, name).and_then(|list| list.get(owner));
        waiting
            .and_then(|waiting| waiting.caller.as_ref())
            .is_some_and(is_silent)
    }

    /// Records the token by which the server identifies a grant, for each owner of the grant that is still waiting. Returns
    /// false if this grant or a later one was already recorded for one of these owners.
    pub(crate) fn note_grant(
        &mut self,
        link: Link,
        name: &LockName,
        owners: &[OwnerId],
        first: u64,
    ) -> bool {
        let Some(list) = self.list_mut(link, name) else {
            return true;
        };
        let mut is_new = true;
        for owner in owners {
            if let Some(waiting) = list.waiting.get_mut(owner) {
                is_new &= waiting.stored.granted < first;
                waiting.stored.granted = waiting.stored.granted.max(first);
            }
        }
        is_new
    }

    /// Records that this is the present grant of each of its owners that is still waiting.
    pub(crate) fn set_grant(
        &mut self,
        link: Link,
        name: &LockName,
        owners: &[OwnerId],
        first: u64,
    ) {
        if let Some(list) = self.list_mut(link, name) {
            for owner in owners {
                if let Some(waiting) = list.waiting.get_mut(owner) {
                    waiting.stored.granted = first;
                }
            }
        }
    }

    /// Returns those of these owners that still wait, each with its request and its place. Leaves out owners whose places are
    /// not known yet.
    pub(crate) fn places<'a>(
        &self,
        link: Link,
        name: &LockName,
        owners: impl IntoIterator<Item = &'a OwnerId>,
    ) -> Vec<(P::Request, u64)> {
        let Some(list) = self.list(link, name) else {
            return Vec::new();
        };
        let waiting = owners.into_iter().filter_map(|owner| list.get(*owner));
        let places =
            waiting.filter_map(|waiting| Some((waiting.request.clone(), waiting.stored.place?)));
        places.collect()
    }

    /// Ends the wait of a caller. Returns whether the caller was still waiting.
    pub(crate) fn tell(
        &mut self,
        link: Link,
        name: &LockName,
        owner: OwnerId,
        ended: Ended,
    ) -> bool {
        let Some(state) = self.links.get_mut(&link) else {
            return false;
        };
        let list = state.lists.get_mut(name);
        let caller = list.and_then(|list| list.end(owner, &mut self.outgoing));
        let was_waiting = caller.is_some();
        let told = caller.map(|caller| (caller, Some(ended)));
        self.outgoing.callers.extend(told);
        was_waiting
    }

    /// Returns whether the session has no callers.
    pub(crate) fn is_empty(&self, link: Link) -> bool {
        let state = self.links.get(&link);
        state.is_none_or(|state| state.lists.is_empty())
    }

    /// Dismisses the callers of the session that wait for the locks that `is_meant` selects.
    pub(crate) fn dismiss(&mut self, link: Link, is_meant: impl Fn(&LockName) -> bool) {
        let Some(state) = self.links.get_mut(&link) else {
            return;
        };
        for (name, list) in &mut state.lists {
            if is_meant(name) {
                list.dismiss_all(&mut self.outgoing);
            }
        }
    }

    /// Prepares the requests of all queued callers of one lock, or of all locks, to be sent again with their old places.
    /// Returns the locks that have requests to send.
    pub(crate) fn requeue(&mut self, link: Link, only: Option<&LockName>) -> Vec<LockName> {
        let Some(state) = self.links.get_mut(&link) else {
            return Vec::new();
        };
        let lists = state.lists.iter_mut();
        let meant = lists.filter(|(name, _)| only.is_none_or(|only| only == *name));
        let with_some = meant.filter_map(|(name, list)| {
            let waiting = list.waiting.iter();
            let waiting = waiting.filter(|(_, waiting)| waiting.caller.is_some());
            let queued =
                waiting.filter_map(|(owner, waiting)| Some((waiting.stored.place?, *owner)));
            let mut queued: Vec<_> = queued.collect();
            queued.sort_unstable();
            list.unsent.retain(|owner| {
                let waiting = list.waiting.get(owner);
                waiting.is_some_and(|waiting| {
                    waiting.caller.is_some() && waiting.stored.place.is_none()
                })
            });
            for (_, owner) in queued.into_iter().rev() {
                list.unsent.push_front(owner);
            }
            (!list.unsent.is_empty()).then(|| name.clone())
        });
        with_some.collect()
    }

    /// Stores a value that leaves the core when the next request for the lock has to be sent: when no caller of the session
    /// has a place in the lock's queue any longer, or when enough callers for one request have joined. If one of these
    /// conditions already holds, the value leaves the core at once.
    pub(crate) fn await_batch(&mut self, link: Link, name: &LockName, batch: P::Batch) {
        let is_ready = |list: &WaitList<P>| list.queued == 0 || list.unsent.len() >= BATCH_LIMIT;
        let list = self
            .links
            .get_mut(&link)
            .and_then(|state| state.lists.get_mut(name));
        let leaving = match list {
            Some(list) if !is_ready(list) => list.batch.replace(batch),
            _ => Some(batch),
        };
        self.outgoing.batches.extend(leaving);
    }

    /// Returns whether the calling code has to start a task that sends the requests for this lock. If the result is true,
    /// records that the task is running.
    pub(crate) fn begin_sending(&mut self, link: Link, name: &LockName) -> bool {
        let Some(list) = self.list_mut(link, name) else {
            return false;
        };
        let begins = !list.sending && !list.unsent.is_empty();
        list.sending |= begins;
        begins
    }

    /// Records that the task that sends requests for this lock has ended.
    pub(crate) fn end_sending(&mut self, link: Link, name: &LockName) {
        if let Some(state) = self.links.get_mut(&link) {
            if let Some(list) = state.lists.get_mut(name) {
                list.sending = false;
            }
            tidy(&mut state.lists, name);
        }
    }

    /// Takes the next batch of unsent requests. If no request is left, records that the sending task has ended.
    pub(crate) fn next_batch(&mut self, link: Link, name: &LockName) -> Vec<ToSend<P>> {
        let mut batch = Vec::new();
        let Some(list) = self.list_mut(link, name) else {
            return batch;
        };
        while batch.len() < BATCH_LIMIT
            && let Some(owner) = list.unsent.pop_front()
        {
            if let Some(waiting) = list.get(owner) {
                batch.push(waiting.to_send(owner));
            }
        }
        if batch.is_empty() {
            // A caller that joins later sees that no task is sending, and starts a new task.
            self.end_sending(link, name);
        }
        batch
    }

    /// Puts back the requests of a batch, ahead of all other unsent requests.
    pub(crate) fn put_back(&mut self, link: Link, name: &LockName, batch: &[ToSend<P>]) {
        if let Some(list) = self.list_mut(link, name) {
            for one in batch.iter().rev() {
                if !list.unsent.contains(&one.owner) {
                    list.unsent.push_front(one.owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
