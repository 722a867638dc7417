//! The callers that wait in Redisson's layout, which has no queue, and the turns in which they try to get the lock.
//!
//! The callers of one session that wait for one lock take turns: only the caller that has the turn tries to get the
//! lock. Each release thus causes only one try in each session, however many callers wait in the session. The engine tries
//! for its callers, so a caller that is not polled does not block the others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

use lock_core::key::LockName;
use tokio::sync::Notify;

use crate::{
    backend::redis::transport::connection::Connection,
    background::{Context, lock},
    limits,
};

/// The number of a caller among the callers that wait for one lock in one session. A caller that joins later has a
/// higher number.
pub(crate) type Number = u64;

/// The state of one caller that waits for a lock.
#[derive(Debug)]
pub(crate) struct Seat {
    woken: Arc<Notify>,
    /// Whether the server has told a caller of this lock, since this caller joined, that the lock is taken.
    is_answered: bool,
}

/// The callers that wait for one lock in one session, and the state of their turn to try.
#[derive(Debug)]
pub(crate) struct TryQueue {
    seats: BTreeMap<Number, Seat>,
    newest: Number,
    /// The caller that has the turn to try; `None` until the next release or the next periodic try.
    turn: Option<Number>,
    /// Whether a release was announced during the current try. If so, the server may have answered the try before the
    /// release, and the turn is offered again after the try.
    is_stale: bool,
    /// Whether a task of the engine calls [`TryQueue::check_turn`] at regular intervals.
    is_watched: bool,
    /// The callers to wake after the present change.
    woken: Vec<Arc<Notify>>,
}

/// Callers to wake. They wake when this value is dropped. A function that locks a mutex declares this value first, so
/// that the mutex is unlocked before: the waker of a caller can poll the caller at once, on this thread.
#[derive(Debug)]
pub(crate) struct Woken(Vec<Arc<Notify>>);

impl Drop for Woken {
    fn drop(&mut self) {
        for woken in self.0.drain(..) {
            woken.notify_one();
        }
    }
}

impl TryQueue {
    pub(crate) fn new() -> Self {
        Self {
            seats: BTreeMap::new(),
            newest: 0,
            turn: None,
            is_stale: false,
            is_watched: false,
            woken: Vec::new(),
        }
    }

    /// Adds a caller. A caller that is alone in the list is offered the turn at once.
    pub(crate) fn join(&mut self) -> (Number, Arc<Notify>) {
        self.newest += 1;
        let woken = Arc::new(Notify::new());
        let seat = Seat {
            woken: woken.clone(),
            is_answered: false,
        };
        self.seats.insert(self.newest, seat);
        if self.seats.len() == 1 {
            self.offer();
        }
        (self.newest, woken)
    }

    /// Gives the turn to the first caller.
    fn offer(&mut self) {
        self.is_stale = false;
        self.turn = self.seats.first_key_value().map(|(caller, seat)| {
            self.woken.push(seat.woken.clone());
            *caller
        });
    }

    /// Gives the turn to a caller, because the lock may be free. While a caller is trying, only records that the turn has to
    /// be given again after this try.
    pub(crate) fn wake(&mut self) {
        match self.turn {
            None => self.offer(),
            Some(_) => self.is_stale = true,
        }
    }

    /// Gives the turn to a caller, unless a caller has it.
    pub(crate) fn check_turn(&mut self) {
        if self.turn.is_none() {
            self.offer();
        }
    }

    /// Returns whether this caller has the turn to try.
    pub(crate) fn has_turn(&self, caller: Number) -> bool {
        self.turn == Some(caller)
    }

    /// Ends this caller's try, which found the lock busy.
    pub(crate) fn end_try(&mut self, caller: Number) {
        for seat in self.seats.values_mut() {
            seat.is_answered = true;
        }
        if self.has_turn(caller) {
            self.turn = None;
            if self.is_stale {
                self.offer();
            }
        }
    }

    /// Removes a caller that no longer waits. If this caller had the turn, another caller gets it.
    pub(crate) fn leave(&mut self, caller: Number) {
        self.seats.remove(&caller);
        if self.has_turn(caller) {
            self.offer();
        }
    }

    /// Records that a task of the engine watches the turn. Returns false if a task already watches the turn.
    pub(crate) fn begin_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }
}

/// The callers that wait for one lock in one session.
#[derive(Debug)]
pub(crate) struct Callers {
    context: Arc<Context>,
    pub(crate) name: LockName,
    queue: Mutex<TryQueue>,
}

impl Callers {
    /// Applies a change to the queue. Returns the callers that have to notice the change.
    fn changed<T>(&self, change: impl FnOnce(&mut TryQueue) -> T) -> (T, Woken) {
        let mut queue = lock(&self.queue);
        let result = change(&mut queue);
        (result, Woken(std::mem::take(&mut queue.woken)))
    }

    /// Returns whether this caller has the turn to try.
    pub(crate) fn has_turn(&self, caller: Number) -> bool {
        lock(&self.queue).has_turn(caller)
    }

    /// Ends this caller's try, which found the lock busy.
    pub(crate) fn end_try(&self, caller: Number) {
        self.changed(|queue| queue.end_try(caller));
    }

    /// Returns whether the server has said since this caller joined that the lock is taken.
    pub(crate) fn was_answered(&self, caller: Number) -> bool {
        let queue = lock(&self.queue);
        queue
            .seats
            .get(&caller)
            .is_some_and(|seat| seat.is_answered)
    }

    pub(crate) fn wake(&self) {
        self.changed(TryQueue::wake);
    }

    /// Wakes all callers. A woken caller checks whether the client is shutting down, and whether its lock has moved to
    /// another server.
    pub(crate) fn wake_all(&self) {
        self.changed(|queue| {
            let all = queue.seats.values().map(|seat| seat.woken.clone());
            queue.woken.extend(all);
        });
    }

    pub(crate) fn is_deserted(&self) -> bool {
        lock(&self.queue).seats.is_empty()
    }

    /// Starts a task of the engine that calls [`TryQueue::check_turn`] every 200 ms. Does nothing if such a task is
    /// running. The task ends after the last caller has left.
    pub(crate) fn watch(self: &Arc<Self>) {
        if !lock(&self.queue).begin_watch() {
            return;
        }
        let callers = Arc::downgrade(self);
        let context = self.context.clone();
        self.context.spawn(async move {
            loop {
                context.sleep(limits::TRY_AGAIN).await;
                let Some(callers) = callers.upgrade() else {
                    return;
                };
                callers.changed(TryQueue::check_turn);
            }
        });
    }
}

/// All callers that wait for the messages of one topic, which is a channel on which Redisson announces releases.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    /// The callers, grouped by lock. Two locks can share a channel.
    callers: Vec<Arc<Callers>>,
    /// The connection that is subscribed to the channel, if there is one.
    listening: Listening,
}

/// The callers of one session that wait for a release, by topic.
#[derive(Debug)]
pub(crate) struct Subscribers {
    context: Arc<Context>,
    topics: Mutex<BTreeMap<String, Topic>>,
}

/// The connection that is subscribed to a channel. The mutex is locked while the subscription changes. Only tasks of
/// the engine keep the mutex locked during an await, because a caller that is not polled would never unlock it.
pub(crate) type Listening = Arc<tokio::sync::Mutex<Weak<Connection>>>;

/// The registration of one caller that waits for a release.
pub(crate) struct Joined {
    pub(crate) callers: Arc<Callers>,
    pub(crate) number: Number,
    pub(crate) woken: Arc<Notify>,
    pub(crate) listening: Listening,
}

impl Subscribers {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            topics: Mutex::default(),
        }
    }

    /// Adds a caller that waits for the release of a lock.
    pub(crate) fn join(&self, topic: &str, name: &LockName) -> Joined {
        let mut topics = lock(&self.topics);
        let topic = topics.entry(topic.to_owned()).or_default();
        let known = topic.callers.iter().find(|one| one.name == *name);
        let callers = known.cloned().unwrap_or_else(|| {
            let callers = Arc::new(Callers {
                context: self.context.clone(),
                name: name.clone(),
                queue: Mutex::new(TryQueue::new()),
            });
            topic.callers.push(callers.clone());
            callers
        });
        let ((number, woken), offered) = callers.changed(TryQueue::join);
        let listening = topic.listening.clone();
        drop(topics);
        drop(offered);
        Joined {
            callers,
            number,
            woken,
            listening,
        }
    }

    /// Removes a caller. Returns true if the topic has no other caller.
    pub(crate) fn leave(&self, topic: &str, callers: &Callers, number: Number) -> bool {
        let mut topics = lock(&self.topics);
        let ((), offered) = callers.changed(|queue| queue.leave(number));
        let is_last = topics.get_mut(topic).is_some_and(|topic| {
            topic.callers.retain(|callers| !callers.is_deserted());
            topic.callers.is_empty()
        });
        drop(topics);
        drop(offered);
        is_last
    }

    pub(crate) fn has_callers(&self, topic: &str) -> bool {
        let topics = lock(&self.topics);
        let topic = topics.get(topic);
        topic.is_some_and(|topic| !topic.callers.is_empty())
    }

    /// Returns whether the last caller of a topic has left, and [`forget`](Self::forget) has not removed the topic yet.
    pub(crate) fn is_deserted(&self, topic: &str) -> bool {
        lock(&self.topics)
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
    }

    /// Removes a topic, unless a caller has joined it.
    pub(crate) fn forget(&self, topic: &str) {
        let mut topics = lock(&self.topics);
        if topics
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
        {
            topics.remove(topic);
        }
    }

    /// For each lock of the topic, lets one caller try to get the lock, because the lock may be free.
    pub(crate) fn wake(&self, topic: &str) {
        let topic = lock(&self.topics)
            .get(topic)
            .map(|topic| topic.callers.clone());
        topic.iter().flatten().for_each(|callers| callers.wake());
    }

    /// Wakes the callers that wait for these locks, so that they notice that another server now stores the locks.
    pub(crate) fn wake_moved(&self, has_moved: impl Fn(&LockName) -> bool) {
        let all = self.callers();
        let moved = all.iter().filter(|callers| has_moved(&callers.name));
        moved.for_each(|callers| callers.wake_all());
    }

    /// Wakes all callers. A woken caller checks whether the client is shutting down, and whether its lock has moved to
    /// another server.
    pub(crate) fn wake_all(&self) {
        self.callers().iter().for_each(|callers| callers.wake_all());
    }

    fn callers(&self) -> Vec<Arc<Callers>> {
        let topics = lock(&self.topics);
        let callers = topics.values().flat_map(|topic| &topic.callers);
        callers.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a queue of this many callers. The first caller has the turn.
    fn trying(callers: u64) -> TryQueue {
        let mut queue = TryQueue::new();
        for caller in 1..=callers {
            assert_eq!(queue.join().0, caller);
        }
        assert!(queue.has_turn(1));
        queue
    }

    /// Returns those of these callers that have the turn.
    fn takers(queue: &TryQueue, polled: impl IntoIterator<Item = Number>) -> Vec<Number> {
        let polled = polled.into_iter();
        polled.filter(|caller| queue.has_turn(*caller)).collect()
    }

    #[test]
    fn one_tries_at_a_time_and_the_next_one_when_it_leaves() {
        let mut queue = trying(3);
        assert_eq!(takers(&queue, [1, 2, 3]), [1]);
        queue.end_try(1);
        assert_eq!(takers(&queue, [1, 2, 3]), []);
        queue.wake();
        queue.wake();
        assert_eq!(takers(&queue, [3, 2, 1]), [1]);
        queue.leave(1);
        assert_eq!(takers(&queue, [3, 2]), [2]);
        queue.leave(3);
        queue.end_try(2);
        queue.check_turn();
        assert_eq!(takers(&queue, [2]), [2]);
    }

    #[test]
    fn a_release_during_a_try_is_not_lost() {
        let mut queue = trying(1);
        queue.wake();
        queue.end_try(1);
        assert_eq!(takers(&queue, [1]), [1]);
        queue.end_try(1);
        assert_eq!(takers(&queue, [1]), []);
    }

    #[test]
    fn a_line_that_was_deserted_begins_again() {
        let mut queue = trying(1);
        queue.leave(1);
        queue.join();
        assert_eq!(takers(&queue, [2]), [2]);
    }
}
