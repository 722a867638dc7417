//! The callers that wait in Redisson's layout, which has no queue, and the turns in which they try to get the lock.
//!
//! The callers of one session that wait for one lock take turns: only the caller that has the turn tries to get the
//! lock. Each release thus causes only one try in each session, however many callers wait in the session. If a caller
//! does not begin its try in time, the turn is open to the caller that is polled first. A caller that is not polled
//! therefore does not block the others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use lock_core::{
    key::LockName,
    lease::{CLAIM, Moment},
};
use tokio::sync::Notify;

use crate::{
    backend::redis::transport::connection::Connection,
    background::{Context, lock},
};

/// The time between two periodic tries to get a lock. Callers try periodically even if no release is announced, because
/// a holder can crash without a release, and because the message about a release can be lost.
pub(crate) const TRY_AGAIN: Duration = Duration::from_millis(200);
/// The time within which a caller that was offered the turn has to begin its try.
const OFFER_PATIENCE: Duration = Duration::from_millis(100);

/// The number of a caller among the callers that wait for one lock in one session. A caller that joins later has a
/// higher number.
pub(crate) type Number = u64;

/// The state of one caller that waits for a lock.
#[derive(Debug)]
pub(crate) struct Seat {
    woken: Arc<Notify>,
    /// Whether this caller has not been polled since the turn was last opened to all callers.
    is_late: bool,
    /// Whether the server has told a caller of this lock, since this caller joined, that the lock is taken.
    is_answered: bool,
}

/// The state of the turn: which caller is allowed to try to get the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No caller is allowed to try before the next release or the next periodic try.
    Resting,
    /// The caller with this number was offered the turn at this moment.
    Offered(Number, Moment),
    /// The caller that is polled first is allowed to try.
    Open,
    /// The caller with this number began its try at this moment.
    Trying(Number, Moment),
}

impl Turn {
    pub(crate) fn is_of(self, caller: Number) -> bool {
        matches!(self, Self::Offered(whom, _) | Self::Trying(whom, _) if whom == caller)
    }
}

/// The callers that wait for one lock in one session, and the state of their turn to try.
#[derive(Debug)]
pub(crate) struct TryQueue {
    seats: BTreeMap<Number, Seat>,
    newest: Number,
    turn: Turn,
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
            turn: Turn::Resting,
            is_stale: false,
            is_watched: false,
            woken: Vec::new(),
        }
    }

    /// Adds a caller. A caller that is alone in the list is offered the turn at once.
    pub(crate) fn join(&mut self, now: Moment) -> (Number, Arc<Notify>) {
        self.newest += 1;
        let woken = Arc::new(Notify::new());
        let seat = Seat {
            woken: woken.clone(),
            is_late: false,
            is_answered: false,
        };
        self.seats.insert(self.newest, seat);
        if self.seats.len() == 1 {
            self.offer(now);
        }
        (self.newest, woken)
    }

    /// Offers the turn to the first caller whose `is_late` is false. If `is_late` is true for all callers, opens the
    /// turn to all callers.
    pub(crate) fn offer(&mut self, now: Moment) {
        match self.seats.iter().find(|(_, seat)| !seat.is_late) {
            Some((caller, seat)) => {
                self.turn = Turn::Offered(*caller, now);
                self.woken.push(seat.woken.clone());
            }
            None => self.open(),
        }
    }

    /// Opens the turn to all callers: the caller that is polled first is allowed to try. Each caller counts as late
    /// until it is polled.
    pub(crate) fn open(&mut self) {
        self.turn = Turn::Open;
        for seat in self.seats.values_mut() {
            seat.is_late = true;
            self.woken.push(seat.woken.clone());
        }
    }

    /// Offers the turn to a caller, because the lock may be free. While a caller is trying, only records that the turn
    /// has to be offered again after this try.
    pub(crate) fn wake(&mut self, now: Moment) {
        match self.turn {
            Turn::Resting => self.offer(now),
            Turn::Offered(..) | Turn::Open => {}
            Turn::Trying(..) => self.is_stale = true,
        }
    }

    /// Opens the turn to all callers if the caller that has the turn does not begin or end its try in time. If no
    /// caller has the turn, offers the turn to a caller.
    pub(crate) fn check_turn(&mut self, now: Moment) {
        match self.turn {
            Turn::Resting => self.offer(now),
            Turn::Offered(_, since) if now.since(since) >= OFFER_PATIENCE => self.open(),
            Turn::Trying(_, since) if now.since(since) >= CLAIM => self.open(),
            Turn::Offered(..) | Turn::Open | Turn::Trying(..) => {}
        }
    }

    /// Begins a try of this caller if the turn is open, or was offered to this caller. Returns whether the try has
    /// begun. This method must be called while the caller is polled.
    pub(crate) fn take(&mut self, caller: Number, now: Moment) -> bool {
        if let Some(seat) = self.seats.get_mut(&caller) {
            seat.is_late = false;
        }
        let takes = match self.turn {
            Turn::Open => true,
            Turn::Offered(whom, _) => whom == caller,
            Turn::Resting | Turn::Trying(..) => false,
        };
        if takes {
            self.turn = Turn::Trying(caller, now);
            self.is_stale = false;
        }
        takes
    }

    /// Ends this caller's try, which found the lock busy.
    pub(crate) fn end_try(&mut self, caller: Number, now: Moment) {
        for seat in self.seats.values_mut() {
            seat.is_answered = true;
        }
        if self.turn.is_of(caller) {
            self.turn = Turn::Resting;
            if self.is_stale {
                self.offer(now);
            }
        }
    }

    /// Removes a caller that no longer waits. If this caller had the turn, the turn is offered to another caller.
    pub(crate) fn leave(&mut self, caller: Number, now: Moment) {
        self.seats.remove(&caller);
        if self.turn.is_of(caller) {
            self.offer(now);
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

    /// Begins a try of this caller, as [`TryQueue::take`] does.
    pub(crate) fn take(&self, caller: Number) -> bool {
        self.changed(|queue| queue.take(caller, self.context.now()))
            .0
    }

    /// Ends this caller's try, which found the lock busy.
    pub(crate) fn end_try(&self, caller: Number) {
        self.changed(|queue| queue.end_try(caller, self.context.now()));
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
        self.changed(|queue| queue.wake(self.context.now()));
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
                context.sleep(TRY_AGAIN).await;
                let Some(callers) = callers.upgrade() else {
                    return;
                };
                callers.changed(|queue| queue.check_turn(context.now()));
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
        let ((number, woken), offered) = callers.changed(|queue| queue.join(self.context.now()));
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
        let ((), offered) = callers.changed(|queue| queue.leave(number, self.context.now()));
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

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Moment {
        Moment::new(ms * MS)
    }

    /// Returns a queue of this many callers. The first caller has begun a try.
    fn trying(callers: u64) -> TryQueue {
        let mut queue = TryQueue::new();
        for caller in 1..=callers {
            assert_eq!(queue.join(at(0)).0, caller);
        }
        assert!(queue.take(1, at(0)));
        queue
    }

    /// Polls these callers in this order, and returns the callers that begin a try.
    fn takers(queue: &mut TryQueue, polled: impl IntoIterator<Item = Number>) -> Vec<Number> {
        let polled = polled.into_iter();
        polled.filter(|caller| queue.take(*caller, at(0))).collect()
    }

    #[test]
    fn one_tries_at_a_time_and_the_next_one_when_it_leaves() {
        let mut queue = trying(3);
        assert_eq!(takers(&mut queue, [1, 2, 3]), []);
        queue.end_try(1, at(0));
        assert_eq!(takers(&mut queue, [1, 2, 3]), []);
        queue.wake(at(0));
        queue.wake(at(0));
        assert_eq!(takers(&mut queue, [3, 2, 1]), [1]);
        queue.leave(1, at(0));
        assert_eq!(takers(&mut queue, [3, 2]), [2]);
        queue.leave(3, at(0));
        queue.end_try(2, at(0));
        queue.check_turn(at(0));
        assert_eq!(takers(&mut queue, [2]), [2]);
    }

    #[test]
    fn a_release_during_a_try_is_not_lost() {
        let mut queue = trying(1);
        queue.wake(at(0));
        queue.end_try(1, at(0));
        assert_eq!(takers(&mut queue, [1]), [1]);
        queue.end_try(1, at(0));
        assert_eq!(takers(&mut queue, [1]), []);
    }

    #[test]
    fn a_turn_that_is_not_taken_is_open_to_all() {
        let mut queue = trying(3);
        queue.end_try(1, at(0));
        queue.wake(at(0));
        queue.check_turn(at(99));
        assert_eq!(takers(&mut queue, [2, 3]), []);
        queue.check_turn(at(100));
        assert_eq!(takers(&mut queue, [3, 2]), [3]);
        // Caller 1 has not been polled since it missed its offer, so the turn is offered to the other callers first.
        queue.end_try(3, at(100));
        queue.wake(at(100));
        assert_eq!(takers(&mut queue, [2]), [2]);
        queue.leave(2, at(100));
        assert_eq!(takers(&mut queue, [3]), [3]);
        queue.leave(3, at(100));
        assert_eq!(takers(&mut queue, [1]), [1]);
    }

    #[test]
    fn a_try_that_stands_still_keeps_the_turn_for_a_claim() {
        let mut queue = trying(2);
        queue.check_turn(at(1999));
        assert_eq!(takers(&mut queue, [2]), []);
        queue.check_turn(at(2000));
        assert_eq!(takers(&mut queue, [2, 1]), [2]);
        // Caller 1 ends its old try late. The new try of caller 2 continues nevertheless.
        queue.end_try(1, at(2000));
        queue.leave(1, at(2000));
        assert_eq!(queue.turn, Turn::Trying(2, at(0)));
    }

    #[test]
    fn a_line_that_was_deserted_begins_again() {
        let mut queue = trying(1);
        queue.leave(1, at(0));
        queue.join(at(0));
        assert_eq!(takers(&mut queue, [2]), [2]);
    }
}
