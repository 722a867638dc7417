//! The callers that wait without a place in the queue, and whose turn it is to try.
//!
//! The callers of one process that wait for one lock take turns at trying, so that a release costs a process one try,
//! however many callers wait in it. A turn that its caller does not take is open to all: a caller that is not polled
//! keeps nobody out.

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
    background::{Context, sync::lock},
};

/// The time between two tries without a release: the holder may be gone, or the message of its release lost.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How long a caller may take to begin a try that was offered to it.
const OFFER_PATIENCE: Duration = Duration::from_millis(100);

/// A caller's number among those that wait for one lock on one session, in the order in which they came.
pub(crate) type Number = u64;

/// One of these callers.
#[derive(Debug)]
pub(crate) struct Seat {
    woken: Arc<Notify>,
    /// Whether it was offered a turn, and has not been polled since.
    is_late: bool,
}

/// The caller that may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nobody, until a release or the next periodic try.
    Resting,
    /// This caller, which was offered the turn at this moment.
    Offered(Number, Moment),
    /// The caller that is polled first.
    Open,
    /// This caller, which began its try at this moment.
    Trying(Number, Moment),
}

impl Turn {
    pub(crate) fn is_of(self, caller: Number) -> bool {
        matches!(self, Self::Offered(whom, _) | Self::Trying(whom, _) if whom == caller)
    }
}

/// The callers that wait for one lock on one session, and whose turn it is.
#[derive(Debug)]
pub(crate) struct TryQueue {
    seats: BTreeMap<Number, Seat>,
    newest: Number,
    turn: Turn,
    /// Whether a release came during a try, whose answer may be older than the release.
    is_stale: bool,
    /// Whether the engine watches the turn.
    is_watched: bool,
}

impl TryQueue {
    pub(crate) fn new() -> Self {
        Self {
            seats: BTreeMap::new(),
            newest: 0,
            turn: Turn::Resting,
            is_stale: false,
            is_watched: false,
        }
    }

    /// Adds a caller. The first one may try at once, the others when it is their turn.
    pub(crate) fn join(&mut self, now: Moment) -> (Number, Arc<Notify>) {
        self.newest += 1;
        let woken = Arc::new(Notify::new());
        let seat = Seat {
            woken: woken.clone(),
            is_late: false,
        };
        self.seats.insert(self.newest, seat);
        if self.seats.len() == 1 {
            self.offer(now);
        }
        (self.newest, woken)
    }

    /// Offers the turn to the first caller that is not late, or opens it to all if there is none.
    pub(crate) fn offer(&mut self, now: Moment) {
        match self.seats.iter().find(|(_, seat)| !seat.is_late) {
            Some((caller, seat)) => {
                self.turn = Turn::Offered(*caller, now);
                seat.woken.notify_one();
            }
            None => self.open(),
        }
    }

    /// Opens the turn to the caller that is polled first. Each caller counts as late until it is polled.
    pub(crate) fn open(&mut self) {
        self.turn = Turn::Open;
        for seat in self.seats.values_mut() {
            seat.is_late = true;
            seat.woken.notify_one();
        }
    }

    /// Notes that the lock may be free.
    pub(crate) fn wake(&mut self, now: Moment) {
        match self.turn {
            Turn::Resting => self.offer(now),
            Turn::Offered(..) | Turn::Open => {}
            Turn::Trying(..) => self.is_stale = true,
        }
    }

    /// Passes on a turn that is not taken, and offers one if nobody tries.
    pub(crate) fn tend(&mut self, now: Moment) {
        match self.turn {
            Turn::Resting => self.offer(now),
            Turn::Offered(_, since) if now.since(since) >= OFFER_PATIENCE => self.open(),
            Turn::Trying(_, since) if now.since(since) >= CLAIM => self.open(),
            Turn::Offered(..) | Turn::Open | Turn::Trying(..) => {}
        }
    }

    /// Begins a try of this caller, which is being polled, if it is its turn.
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

    /// Ends a try that found the lock busy.
    pub(crate) fn end_try(&mut self, caller: Number, now: Moment) {
        if self.turn.is_of(caller) {
            self.turn = Turn::Resting;
            if self.is_stale {
                self.offer(now);
            }
        }
    }

    /// Removes a caller. If it had the turn, the next one gets it.
    pub(crate) fn leave(&mut self, caller: Number, now: Moment) {
        self.seats.remove(&caller);
        if self.turn.is_of(caller) {
            self.offer(now);
        }
    }

    /// Returns whether the engine has to start watching the turn.
    pub(crate) fn begin_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }
}

/// The callers that wait for one lock on one session.
#[derive(Debug)]
pub(crate) struct Callers {
    context: Arc<Context>,
    pub(crate) name: LockName,
    pub(crate) queue: Mutex<TryQueue>,
}

impl Callers {
    pub(crate) fn wake(&self) {
        lock(&self.queue).wake(self.context.now());
    }

    /// Wakes all callers, so that they check whether the client is shutting down.
    pub(crate) fn wake_all(&self) {
        for seat in lock(&self.queue).seats.values() {
            seat.woken.notify_one();
        }
    }

    pub(crate) fn is_deserted(&self) -> bool {
        lock(&self.queue).seats.is_empty()
    }

    /// Makes the engine pass on turns that are not taken, as long as anybody waits.
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
                lock(&callers.queue).tend(context.now());
            }
        });
    }
}

/// All callers that wait for messages under one name: the lock's own, or its channel.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    /// By lock. Two locks may share a channel.
    callers: Vec<Arc<Callers>>,
    /// The connection that listens to the channel, if there is one.
    listening: Listening,
}

/// The callers on one session that wait without a place in the queue, by the name that a release announces.
#[derive(Debug)]
pub(crate) struct Subscribers {
    context: Arc<Context>,
    topics: Mutex<BTreeMap<String, Topic>>,
}

/// The listening connection. The mutex is held while it changes, and only by tasks of the engine: a caller that is not
/// polled would keep it locked.
pub(crate) type Listening = Arc<tokio::sync::Mutex<Weak<Connection>>>;

/// A caller's place among the callers of its session.
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

    /// Adds a caller.
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
        let (number, woken) = lock(&callers.queue).join(self.context.now());
        Joined {
            callers,
            number,
            woken,
            listening: topic.listening.clone(),
        }
    }

    /// Removes a caller. Returns true if it was the last one of the topic.
    pub(crate) fn leave(&self, topic: &str, callers: &Callers, number: Number) -> bool {
        let mut topics = lock(&self.topics);
        lock(&callers.queue).leave(number, self.context.now());
        let Some(topic) = topics.get_mut(topic) else {
            return false;
        };
        topic.callers.retain(|callers| !callers.is_deserted());
        topic.callers.is_empty()
    }

    pub(crate) fn is_deserted(&self, topic: &str) -> bool {
        lock(&self.topics)
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
    }

    /// Removes a topic, unless somebody has joined.
    pub(crate) fn forget(&self, topic: &str) {
        let mut topics = lock(&self.topics);
        if topics
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
        {
            topics.remove(topic);
        }
    }

    /// Lets one caller of each lock try, because the lock is free.
    pub(crate) fn wake(&self, topic: &str) {
        if let Some(topic) = lock(&self.topics).get(topic) {
            topic.callers.iter().for_each(|callers| callers.wake());
        }
    }

    /// Wakes all callers, so that they check whether the client is shutting down.
    pub(crate) fn wake_all(&self) {
        for topic in lock(&self.topics).values() {
            topic.callers.iter().for_each(|callers| callers.wake_all());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Moment {
        Moment::new(ms * MS)
    }

    /// Returns a queue of this many callers, the first of which is trying.
    fn trying(callers: u64) -> TryQueue {
        let mut queue = TryQueue::new();
        for caller in 1..=callers {
            assert_eq!(queue.join(at(0)).0, caller);
        }
        assert!(queue.take(1, at(0)));
        queue
    }

    /// Returns which of these callers would begin to try if they were polled in this order.
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
        queue.tend(at(0));
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
        queue.tend(at(99));
        assert_eq!(takers(&mut queue, [2, 3]), []);
        queue.tend(at(100));
        assert_eq!(takers(&mut queue, [3, 2]), [3]);
        // Callers that take their turns now come first.
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
        queue.tend(at(1999));
        assert_eq!(takers(&mut queue, [2]), []);
        queue.tend(at(2000));
        assert_eq!(takers(&mut queue, [2, 1]), [2]);
        // The late end of the old try does not end the new one.
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
