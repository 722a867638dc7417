//! Waiting without a queue: a release wakes the processes that wait so, and these try again. In the native layout that
//! is a release for which nobody queues.
//!
//! In one process those who wait for one lock take turns at trying, so that a release costs a process one try, however
//! many wait in it. A turn that its caller does not take is open to all: a caller that is not polled keeps nobody out.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    key::LockName,
    layout::Layout,
    lease::{CLAIM, Grant, Moment},
    owner::OwnerId,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    backend::redis::{
        Arg, Server, TrackedTask,
        protocol::{layout::redisson_channel, script},
        queue::{attempt::RedisAttempt, session::Session},
        transport::connection::{CallError, Connection},
    },
    background::{self, clock::boot as clock, sync::lock},
};

/// Between two tries where nobody releases: the holder is gone, or the word of its release was lost.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How long a caller may take to begin the try that it was offered.
const OFFER_PATIENCE: Duration = Duration::from_millis(100);
/// How long it may take to tell the server that nobody waits any more.
const FORGET_PATIENCE: Duration = Duration::from_secs(2);

/// A caller's number among those that wait for one lock on one session, in the order in which they came.
type Number = u64;

/// One of those callers.
#[derive(Debug)]
struct Seat {
    woken: Arc<Notify>,
    /// It was offered a turn, and has not been polled since.
    is_late: bool,
}

/// Who may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nobody, before a release or the next look.
    Resting,
    /// This caller, since then.
    Offered(Number, Moment),
    /// Whoever is polled first.
    Open,
    /// This caller is trying, since then.
    Trying(Number, Moment),
}

impl Turn {
    fn is_of(self, caller: Number) -> bool {
        matches!(self, Self::Offered(whom, _) | Self::Trying(whom, _) if whom == caller)
    }
}

/// Those who wait for one lock on one session, and whose turn it is.
#[derive(Debug)]
struct TryQueue {
    seats: BTreeMap<Number, Seat>,
    newest: Number,
    turn: Turn,
    /// A release came while somebody was trying: the answer may be older.
    is_stale: bool,
    /// Whether the engine looks after the turn.
    is_watched: bool,
}

impl TryQueue {
    fn new() -> Self {
        Self {
            seats: BTreeMap::new(),
            newest: 0,
            turn: Turn::Resting,
            is_stale: false,
            is_watched: false,
        }
    }

    /// One caller more. The first one may try at once, others when it is their turn.
    fn join(&mut self, now: Moment) -> (Number, Arc<Notify>) {
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

    /// Lets the first caller try that takes its turns, or all if there is none.
    fn offer(&mut self, now: Moment) {
        match self.seats.iter().find(|(_, seat)| !seat.is_late) {
            Some((caller, seat)) => {
                self.turn = Turn::Offered(*caller, now);
                seat.woken.notify_one();
            }
            None => self.open(),
        }
    }

    /// Lets the caller try that is polled first. Each counts as late until it is polled.
    fn open(&mut self) {
        self.turn = Turn::Open;
        for seat in self.seats.values_mut() {
            seat.is_late = true;
            seat.woken.notify_one();
        }
    }

    /// The lock may be free.
    fn wake(&mut self, now: Moment) {
        match self.turn {
            Turn::Resting => self.offer(now),
            Turn::Offered(..) | Turn::Open => {}
            Turn::Trying(..) => self.is_stale = true,
        }
    }

    /// Passes a turn on that is not taken, and lets somebody try where nobody does.
    fn tend(&mut self, now: Moment) {
        match self.turn {
            Turn::Resting => self.offer(now),
            Turn::Offered(_, since) if now.since(since) >= OFFER_PATIENCE => self.open(),
            Turn::Trying(_, since) if now.since(since) >= CLAIM => self.open(),
            Turn::Offered(..) | Turn::Open | Turn::Trying(..) => {}
        }
    }

    /// Begins a try of this caller, which is being polled, if it is its turn.
    fn take(&mut self, caller: Number, now: Moment) -> bool {
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

    /// ExitPolicy a try in which the lock was busy.
    fn end_try(&mut self, caller: Number, now: Moment) {
        if self.turn.is_of(caller) {
            self.turn = Turn::Resting;
            if self.is_stale {
                self.offer(now);
            }
        }
    }

    /// A caller goes; its turn is the next one's.
    fn leave(&mut self, caller: Number, now: Moment) {
        self.seats.remove(&caller);
        if self.turn.is_of(caller) {
            self.offer(now);
        }
    }

    /// Whether the engine has to begin to look after the turn.
    fn begin_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }
}

/// Those who wait for one lock on one session.
#[derive(Debug)]
struct Callers {
    name: LockName,
    queue: Mutex<TryQueue>,
}

impl Callers {
    fn wake(&self) {
        lock(&self.queue).wake(clock::now());
    }

    /// Lets all of them look what has become of the client.
    fn wake_all(&self) {
        for seat in lock(&self.queue).seats.values() {
            seat.woken.notify_one();
        }
    }

    fn is_deserted(&self) -> bool {
        lock(&self.queue).seats.is_empty()
    }

    /// From now on the engine passes turns on that are not taken, as long as anybody waits.
    fn watch(self: &Arc<Self>) {
        if !lock(&self.queue).begin_watch() {
            return;
        }
        let callers = Arc::downgrade(self);
        background::spawn(async move {
            loop {
                clock::sleep_until(clock::now() + TRY_AGAIN).await;
                let Some(callers) = callers.upgrade() else {
                    return;
                };
                lock(&callers.queue).tend(clock::now());
            }
        });
    }
}

/// All who wait for what is said under one name: the lock's own, or its channel.
#[derive(Debug, Default)]
struct Topic {
    /// By lock; there may be two with one channel.
    callers: Vec<Arc<Callers>>,
    /// The connection that listens to the channel, if there is one.
    listening: Listening,
}

/// All who wait without a queue on one session, by what a release says.
#[derive(Debug, Default)]
pub(crate) struct Notified(Mutex<HashMap<String, Topic>>);

/// Held while that changes, and by tasks of ours alone: a caller that is not polled would keep it.
type Listening = Arc<tokio::sync::Mutex<Weak<Connection>>>;

/// A caller's place among those of its session.
struct Joined {
    callers: Arc<Callers>,
    number: Number,
    woken: Arc<Notify>,
    listening: Listening,
}

impl Notified {
    /// One caller more.
    fn join(&self, topic: &str, name: &LockName) -> Joined {
        let mut topics = lock(&self.0);
        let topic = topics.entry(topic.to_owned()).or_default();
        let known = topic.callers.iter().find(|one| one.name == *name);
        let callers = known.cloned().unwrap_or_else(|| {
            let callers = Arc::new(Callers {
                name: name.clone(),
                queue: Mutex::new(TryQueue::new()),
            });
            topic.callers.push(callers.clone());
            callers
        });
        let (number, woken) = lock(&callers.queue).join(clock::now());
        Joined {
            callers,
            number,
            woken,
            listening: topic.listening.clone(),
        }
    }

    /// One caller less; true if it was the last one of the topic.
    fn leave(&self, topic: &str, callers: &Callers, number: Number) -> bool {
        let mut topics = lock(&self.0);
        lock(&callers.queue).leave(number, clock::now());
        let Some(topic) = topics.get_mut(topic) else {
            return false;
        };
        topic.callers.retain(|callers| !callers.is_deserted());
        topic.callers.is_empty()
    }

    fn is_deserted(&self, topic: &str) -> bool {
        lock(&self.0)
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
    }

    /// Knows a topic no more, unless somebody has joined.
    fn forget(&self, topic: &str) {
        let mut topics = lock(&self.0);
        if topics
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
        {
            topics.remove(topic);
        }
    }

    /// Lets one caller try, for the lock is free.
    pub(crate) fn wake(&self, topic: &str) {
        if let Some(topic) = lock(&self.0).get(topic) {
            topic.callers.iter().for_each(|callers| callers.wake());
        }
    }

    /// Lets all of them look what has become of the client.
    pub(crate) fn wake_all(&self) {
        for topic in lock(&self.0).values() {
            topic.callers.iter().for_each(|callers| callers.wake_all());
        }
    }
}

/// How the server knows an session_id that is to be woken.
pub(crate) fn marker(session_id: &str) -> String {
    format!("notify|{session_id}")
}

/// One caller among those of its session.
struct Caller {
    server: Arc<Server>,
    session: Arc<Session>,
    topic: String,
    joined: Joined,
    task: TrackedTask,
}

impl Caller {
    fn join(server: &Arc<Server>, request: &Request) -> Self {
        let session = server.session();
        let topic = match server.layout {
            Layout::Native => request.name.to_string(),
            Layout::Redisson => redisson_channel(&request.name),
        };
        let joined = session.notified.join(&topic, &request.name);
        Self {
            server: server.clone(),
            session,
            topic,
            joined,
            task: server.track_acquisition(),
        }
    }

    /// ExitPolicy when nobody changes any more what the server was told: the last caller of those before may be taking the marker
    /// along that this one will leave.
    async fn settled(&self) {
        let listening = &self.joined.listening;
        if listening.try_lock().is_err() {
            let listening = listening.clone();
            let settling = background::spawn(async move { drop(listening.lock().await) });
            let _ = settling.await;
        }
    }

    /// ExitPolicy when it is this caller's turn to try.
    async fn turn(&self) -> Result<(), BackendError> {
        let Joined {
            callers,
            number,
            woken,
            ..
        } = &self.joined;
        loop {
            if self.server.is_shutting_down() {
                return Err(BackendError::ShutDown);
            }
            if lock(&callers.queue).take(*number, clock::now()) {
                return Ok(());
            }
            callers.watch();
            woken.notified().await;
        }
    }

    /// ExitPolicy a try in which the lock was busy.
    fn end_try(&self) {
        let Joined {
            callers, number, ..
        } = &self.joined;
        lock(&callers.queue).end_try(*number, clock::now());
    }

    /// Hears of releases from now on. True if it did not before: of one in between it has not heard.
    async fn listen(&self) -> Result<bool, BackendError> {
        if self.server.layout == Layout::Native {
            return Ok(false); // the try that failed has left a marker
        }
        let Ok(connection) = self.session.connection().await else {
            return Ok(false); // it tries now and then, over another session
        };
        let (listening, topic) = (self.joined.listening.clone(), self.topic.clone());
        let listens = background::spawn(async move {
            let mut listening = listening.lock().await;
            if std::ptr::eq(listening.as_ptr(), Arc::as_ptr(&connection)) {
                return Ok(false);
            }
            match connection.listen(&topic, true).await {
                Ok(()) => {
                    *listening = Arc::downgrade(&connection);
                    Ok(true)
                }
                Err(CallError::Refused(error)) => Err(error),
                Err(_) => Ok(false), // listens again after the next try
            }
        });
        listens.await.unwrap_or(Ok(false))
    }

    /// Takes along what the callers left on the server, for this was the last of them.
    async fn fall_silent(self) {
        let until = clock::now() + FORGET_PATIENCE;
        let silent = async {
            // Whoever joins meanwhile begins after that.
            let mut listening = self.joined.listening.lock().await;
            if !self.session.notified.is_deserted(&self.topic) {
                return;
            }
            if self.server.layout == Layout::Redisson {
                *listening = Weak::new();
                // Also where a caller was dropped before it knew that it listens.
                if let Some(Ok(connection)) = self.session.connection().now_or_never() {
                    let _ = connection.listen(&self.topic, false).await;
                }
            } else {
                let names = self.server.names(&self.joined.callers.name);
                let marker = marker(&self.session.session_id);
                let (keys, args) = ([names.companion()], [Arg::Text(&marker)]);
                let _ = self.server.run(&script::UNSUBSCRIBE, &keys, &args).await;
            }
            self.session.notified.forget(&self.topic);
        };
        // Unanswered, the marker ends with the queue, in two seconds; and a word that nobody needs does no harm.
        if clock::timeout_at(until, silent).await.is_none() {
            self.session.notified.forget(&self.topic);
        }
        drop(self.task);
    }
}

/// An acquisition that waits without a queue.
pub(crate) struct NotifiedAttempt {
    server: Arc<Server>,
    request: Request,
    caller: Option<Caller>,
    /// The newest try, until it is answered.
    trying: Option<RedisAttempt>,
}

impl NotifiedAttempt {
    pub(crate) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            server,
            request,
            caller: None,
            trying: None,
        }
    }

    /// Waits no more.
    fn end_waiting(&mut self) {
        if let Some(caller) = self.caller.take() {
            let Joined {
                callers, number, ..
            } = &caller.joined;
            if caller
                .session
                .notified
                .leave(&caller.topic, callers, *number)
            {
                background::spawn(caller.fall_silent());
            }
        }
    }
}

impl Attempt for NotifiedAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            let (server, request) = (&self.server, &self.request);
            let caller = self
                .caller
                .get_or_insert_with(|| Caller::join(server, request));
            let mut queued = false;
            loop {
                caller.turn().await?;
                caller.settled().await;
                let attempt = RedisAttempt::notified(server.clone(), request.clone());
                let answer = self.trying.insert(attempt).enter().await?;
                self.trying = None;
                if let Answer::Granted(grant) = answer {
                    return Ok(Answer::Granted(Grant { queued, ..grant }));
                }
                queued = true;
                if caller.listen().await? {
                    caller.joined.callers.wake();
                }
                caller.end_try();
            }
        })
    }

    /// Tries once more: the lock may have become free without a word.
    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        self.end_waiting();
        Box::pin(async move {
            if let Some(mut attempt) = self.trying.take()
                && let Leaving::Granted(grant) = attempt.leave().await?
            {
                return Ok(Leaving::Granted(grant));
            }
            let last = Request {
                // Nothing that an earlier try has left behind is this one's.
                owner: OwnerId::from_u128(Uuid::new_v4().as_u128()),
                wait: Duration::ZERO,
                ..self.request.clone()
            };
            let mut attempt = RedisAttempt::new(self.server.clone(), last);
            Ok(match attempt.enter().await? {
                Answer::Granted(grant) => Leaving::Granted(Grant {
                    queued: true,
                    ..grant
                }),
                Answer::Busy => Leaving::Left,
            })
        })
    }
}

impl Drop for NotifiedAttempt {
    fn drop(&mut self) {
        self.end_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Moment {
        Moment::new(ms * MS)
    }

    /// A queue of this many callers, the first of which is trying.
    fn trying(callers: u64) -> TryQueue {
        let mut queue = TryQueue::new();
        for caller in 1..=callers {
            assert_eq!(queue.join(at(0)).0, caller);
        }
        assert!(queue.take(1, at(0)));
        queue
    }

    /// Who would begin to try, were all of these polled in this order.
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
        // From now on those come first that take their turns.
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
        // Its end, at last, ends nobody else's.
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
