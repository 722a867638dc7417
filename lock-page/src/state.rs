//! What the page knows about the locks, and which question it sends to the lock server next. This file does no I/O, and
//! reads no clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
};

use lock_runtime::{Caller, FencingToken, Holder, Mode, Status, Waiter};

/// The largest number of locks on one page of the list.
pub(crate) const PAGE: usize = 100;
/// The largest number of waiters that the page of one lock shows.
pub(crate) const QUEUE: usize = 1000;
/// The largest number of locks that are kept in memory. If there are more locks, the page says so, and a visitor can
/// search for a longer prefix, which selects fewer locks.
pub(crate) const LOCKS_AT_MOST: usize = 20_000;
/// The largest number of events that the history keeps.
const HISTORY: usize = 200;
/// The largest number of different views that are served at the same time, and the largest number of streams.
const VIEWS_AT_MOST: usize = 256;
/// For how long, in ms, a view counts as watched after a single request. In a browser without scripts, the page loads
/// itself again within this time.
const LINGERS: Ms = 15_000;
/// The shortest time, in ms, from the start of one walk to the start of the next walk. A walk scans the server, in many
/// steps, for the keys of all held locks.
const WALK_EVERY: Ms = 400;
/// The number of steps that a walk takes before the states of single locks are read. After these steps, the further
/// steps of the walk alternate with readings of single locks.
const STEPS_AT_ONCE: usize = 10;
/// The age, in ms, at which a lock's state is read again. The first age is for a lock whose own page is watched, the
/// second for a lock in a watched list, and the third for any other lock.
const STALE: [Ms; 3] = [500, 2_000, 10_000];
/// The number of locks that are examined in one step, so that no step takes long.
const EXAMINED: usize = 100;
/// How often, in ms, the page determines which locks to read for the watched pages.
const AGENDA_EVERY: Ms = 200;
/// How long, in ms, before the end of its lease a lock is read again, because the lease can have been renewed.
const NEAR_END: Ms = 1_500;
/// The pause, in ms, after a question that the lock server refused or did not answer.
const RETRY: Ms = 500;
/// Each reading of a lock gives a slightly different moment for the same event, because the network delays answers. Two
/// moments that differ by less than this time, in ms, count as the same moment.
const JITTER: Ms = 300;

/// A moment, in milliseconds since 1970.
pub(crate) type Ms = u64;

/// What a visitor looks at: the list of locks, one lock, or the history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    List {
        prefix: String,
        /// The number of the page, from 0.
        page: usize,
        /// Shows only locks for which callers wait.
        waiting: bool,
    },
    Lock {
        key: String,
    },
    History,
}

/// The hold of a lock, as last read from the lock server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) token: Option<FencingToken>,
    pub(crate) owner: String,
    pub(crate) caller: Option<Caller>,
    /// When the hold began. If the server does not store this moment, this is when the page first saw the hold.
    pub(crate) since: Since,
    pub(crate) ends: Option<Ms>,
    /// The length of the lease, in ms. If the server does not store it, this is the longest remaining time that was ever
    /// read during this hold.
    pub(crate) lease: Ms,
    /// The number of readers that hold the lock; 0 if a writer holds it. Callers of one process that share a grant count as
    /// one reader. The other fields describe the first reader.
    pub(crate) readers: usize,
    /// Whether the hold has ended, and `hold_at_least` keeps the lock taken.
    pub(crate) kept: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    Exactly(Ms),
    /// The hold began at this moment or earlier.
    AtLatest(Ms),
}

/// A caller in the queue of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) owner: String,
    /// The waiter's session, that is, its process's connection. Waiters with the same session are in the same process.
    pub(crate) session: String,
    pub(crate) caller: Option<Caller>,
    pub(crate) since: Ms,
    pub(crate) gives_up: Ms,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    at: Ms,
    /// `None` if nobody holds the lock, if its key is not valid, or if the server stores other data under its name.
    pub(crate) hold: Option<Hold>,
    pub(crate) waiting: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Lock {
    /// The number of the latest walk that has found the lock.
    walk: u64,
    /// The latest moment at which the lock was known to be held.
    present: Ms,
    pub(crate) reading: Option<Reading>,
}

impl Lock {
    /// Returns whether the list shows the lock. A lock whose state was not read yet counts as held, because a walk has
    /// found it.
    fn is_held(&self) -> bool {
        let reading = self.reading.as_ref();
        reading.is_none_or(|reading| reading.hold.is_some())
    }

    fn waiting(&self) -> usize {
        self.reading.as_ref().map_or(0, |reading| reading.waiting)
    }

    fn is_stale(&self, now: Ms, age: Ms) -> bool {
        let reading = self.reading.as_ref();
        reading.is_none_or(|reading| reading.at + age <= now)
    }
}

/// The end of a hold, as the page's history shows it.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) number: u64,
    pub(crate) at: Ms,
    pub(crate) key: String,
    pub(crate) token: Option<FencingToken>,
    pub(crate) owner: String,
    pub(crate) caller: Option<Caller>,
    pub(crate) kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A visitor has released the lock by force through this page.
    Forced { by: String },
    /// The lease has ended without a release, because the holder has crashed or was cut off from the server.
    LeaseEnded,
    /// The hold existed before the server stopped answering, and was gone when the server answered again.
    GoneAfterOutage,
}

/// A question to the lock server. Each question is one command, or one command to each node of a Redlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The next step of the walk that finds the held locks. `Some` begins a new walk, through the locks with this
    /// prefix.
    Walk(Option<String>),
    Status(String),
    Queue(String),
}

impl Ask {
    fn kind(&self) -> &'static str {
        match self {
            Self::Walk(_) => "walk",
            Self::Status(_) => "status",
            Self::Queue(_) => "queue",
        }
    }
}

/// Why the lock server does not answer one kind of question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) is_away: bool,
    pub(crate) since: Ms,
    pub(crate) text: String,
    retry: Ms,
}

#[derive(Debug, Default)]
struct Interest {
    streams: usize,
    until: Ms,
}

#[derive(Debug, Default)]
struct Walk {
    number: u64,
    began: Ms,
    steps: usize,
    is_under_way: bool,
    /// Whether the walk has found more locks than memory keeps.
    is_cut: bool,
    /// The prefixes of the keys that the current walk looks for.
    prefixes: Vec<String>,
    /// The prefixes of the keys that the latest complete walk looked for.
    complete: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    views: BTreeMap<View, Interest>,
    locks: BTreeMap<String, Lock>,
    queues: BTreeMap<String, (Ms, Vec<Queued>)>,
    walk: Walk,
    /// Whether the current or the last walk has found more locks than [`LOCKS_AT_MOST`].
    pub(crate) is_cut: bool,
    history: VecDeque<Event>,
    events: u64,
    troubles: BTreeMap<&'static str, Trouble>,
    /// The trouble of a server that has not answered the first question yet.
    slow: Option<Trouble>,
    /// Whether the server has answered a question since somebody looks at a view.
    has_answered: bool,
    /// When the server last answered again after an outage.
    back: Ms,
    turn: usize,
    readings: usize,
    agenda: Ms,
    /// Locks on watched pages that were not read yet.
    unread: VecDeque<String>,
    /// Locks on watched pages whose readings are old, and locks whose lease is about to end.
    stale: VecDeque<String>,
    /// A search for old readings examines only a part of all locks. The next search continues after this key, at which
    /// the last search ended.
    cursor: String,
}

/// What a page of the list shows.
pub(crate) struct Listed<'a> {
    pub(crate) rows: Vec<(&'a str, &'a Lock)>,
    /// The number of locks that the prefix selects.
    pub(crate) held: usize,
    /// The number of these `held` locks whose state was read.
    pub(crate) read: usize,
    /// The number of callers that wait for these locks.
    pub(crate) waiting: usize,
    /// The number of locks on all pages of the list.
    pub(crate) selected: usize,
}

impl State {
    /// Records that a visitor looks at a view, once or through a stream of changes. Returns false if too many views or
    /// streams are watched.
    pub(crate) fn watch(&mut self, view: &View, is_stream: bool, now: Ms) -> bool {
        self.views
            .retain(|_, interest| interest.streams > 0 || interest.until > now);
        let streams: usize = self.views.values().map(|interest| interest.streams).sum();
        let is_full = self.views.len() >= VIEWS_AT_MOST && !self.views.contains_key(view);
        if is_full || (is_stream && streams >= VIEWS_AT_MOST) {
            return false;
        }
        let interest = self.views.entry(view.clone()).or_default();
        interest.streams += usize::from(is_stream);
        interest.until = now + LINGERS;
        true
    }

    /// Records that one of the streams of this view's changes has ended.
    pub(crate) fn leave(&mut self, view: &View) {
        if let Some(interest) = self.views.get_mut(view) {
            interest.streams -= 1;
        }
    }

    /// Returns whether anybody looks at a view. If nobody does, forgets the locks, because the task stops, and the
    /// stored states would become wrong.
    pub(crate) fn is_watched(&mut self, now: Ms) -> bool {
        let watched = |interest: &Interest| interest.streams > 0 || interest.until > now;
        if self.views.values().any(watched) {
            return true;
        }
        *self = Self {
            history: std::mem::take(&mut self.history),
            events: self.events,
            ..Self::default()
        };
        false
    }

    /// Returns the prefixes of the keys that the watched lists and the watched history need.
    fn prefixes(&self) -> Vec<String> {
        let prefixes = self.views.keys().filter_map(|view| match view {
            View::List { prefix, .. } => Some(prefix.clone()),
            View::History => Some(String::new()),
            View::Lock { .. } => None,
        });
        prefixes.collect()
    }

    fn watched_keys(&self) -> impl Iterator<Item = &String> {
        self.views.keys().filter_map(|view| match view {
            View::Lock { key } => Some(key),
            View::List { .. } | View::History => None,
        })
    }

    /// Returns the next question to the lock server, or `None` if there is nothing to ask now.
    pub(crate) fn next_question(&mut self, now: Ms) -> Option<Ask> {
        self.views
            .retain(|_, interest| interest.streams > 0 || interest.until > now);
        let may_ask = |kind| {
            let trouble: Option<&Trouble> = self.troubles.get(kind);
            trouble.is_none_or(|trouble| trouble.retry <= now)
        };
        // After a question that the server did not answer, no question of any kind is sent for the time `RETRY`.
        let mut troubles = self.troubles.values();
        if troubles.any(|trouble| trouble.is_away && trouble.retry > now) {
            return None;
        }
        let (may_walk, may_read, may_queue) =
            (may_ask("walk"), may_ask("status"), may_ask("queue"));
        self.turn += 1;
        let prefixes = self.prefixes();
        let is_due = self.walk.is_under_way || self.walk.began + WALK_EVERY <= now;
        let walks = may_walk && is_due && !prefixes.is_empty();
        let is_first = self.walk.steps < STEPS_AT_ONCE || self.turn.is_multiple_of(2);
        if (walks && is_first) || !may_read {
            return walks.then(|| self.step(prefixes, now));
        }
        match self.next_reading(now, may_queue) {
            None => walks.then(|| self.step(prefixes, now)),
            question => question,
        }
    }

    fn step(&mut self, prefixes: Vec<String>, now: Ms) -> Ask {
        self.walk.steps += 1;
        if self.walk.is_under_way {
            return Ask::Walk(None);
        }
        self.walk.number += 1;
        self.walk.is_cut = false;
        self.walk.began = now;
        self.walk.is_under_way = true;
        self.walk.steps = 1;
        let common = prefixes.iter().cloned().reduce(|common, prefix| {
            let pairs = common.chars().zip(prefix.chars());
            let same = pairs.take_while(|(one, other)| one == other);
            same.map(|(one, _)| one).collect()
        });
        self.walk.prefixes = prefixes;
        Ask::Walk(Some(common.unwrap_or_default()))
    }

    /// Returns the next question about a single lock. The four classes of locks take turns, so that each class gets a
    /// share of the questions.
    fn next_reading(&mut self, now: Ms, may_queue: bool) -> Option<Ask> {
        if self.agenda + AGENDA_EVERY <= now {
            self.plan(now);
        }
        self.readings += 1;
        let (first, second) = match self.readings / 3 % 2 {
            0 => (Class::Rest, Class::Stale),
            _ => (Class::Stale, Class::Rest),
        };
        let classes = match self.readings % 3 {
            0 => [Class::Lock, Class::Unread, first, second],
            1 => [Class::Unread, first, second, Class::Lock],
            _ => [Class::Unread, second, first, Class::Lock],
        };
        classes.into_iter().find_map(|class| match class {
            Class::Lock => self.next_of_watched(now, may_queue),
            Class::Unread => self.unread.pop_front().map(Ask::Status),
            Class::Stale => self.stale.pop_front().map(Ask::Status),
            Class::Rest => self.next_of_rest(now).map(Ask::Status),
        })
    }

    /// Determines which locks have to be read next for the watched pages.
    fn plan(&mut self, now: Ms) {
        self.agenda = now;
        let watched: BTreeSet<String> = self.watched_keys().cloned().collect();
        self.queues.retain(|key, _| watched.contains(key));
        if self.prefixes().is_empty() {
            self.locks.retain(|key, _| watched.contains(key));
        }
        let mut unread = BTreeSet::new();
        let mut stale = BTreeSet::new();
        for view in self.views.keys() {
            for (key, lock) in self.list(view).rows {
                match &lock.reading {
                    None => drop(unread.insert(key.to_owned())),
                    Some(reading) if lock.is_stale(now, STALE[1]) => {
                        stale.insert((reading.at, key.to_owned()));
                    }
                    Some(_) => {}
                }
            }
        }
        let ending = self.locks.iter().filter_map(|(key, lock)| {
            let reading = lock.reading.as_ref()?;
            let ends = reading.hold.as_ref()?.ends?;
            let is_near = ends < now + NEAR_END && lock.is_stale(now, STALE[0]);
            is_near.then(|| (reading.at, key.clone()))
        });
        let ending: BTreeSet<_> = ending.take(EXAMINED).collect();
        self.unread = unread.into_iter().collect();
        // Locks with an old reading and locks near the end of their lease take turns.
        let mut ending = ending.into_iter();
        let mut mixed = VecDeque::new();
        for one in stale {
            mixed.extend(ending.next());
            mixed.push_back(one);
        }
        mixed.extend(ending);
        self.stale = mixed.into_iter().map(|(_, key)| key).collect();
    }

    fn next_of_watched(&self, now: Ms, may_queue: bool) -> Option<Ask> {
        let statuses = self.watched_keys().map(|key| {
            let reading = self.locks.get(key).and_then(|lock| lock.reading.as_ref());
            let at = reading.map_or(0, |reading| reading.at);
            (at, Ask::Status(key.clone()))
        });
        let queues = self.watched_keys().filter(|_| may_queue).map(|key| {
            let at = self.queues.get(key).map_or(0, |(at, _)| *at);
            (at, Ask::Queue(key.clone()))
        });
        let (at, oldest) = statuses.chain(queues).min_by_key(|(at, _)| *at)?;
        (at + STALE[0] <= now).then_some(oldest)
    }

    fn next_of_rest(&mut self, now: Ms) -> Option<String> {
        let after = (Bound::Excluded(&self.cursor), Bound::Unbounded);
        let later = self.locks.range::<String, _>(after);
        let all = later.chain(&self.locks).take(EXAMINED);
        let mut last = None;
        for (key, lock) in all {
            last = Some(key.clone());
            if lock.is_stale(now, STALE[2]) {
                self.cursor.clone_from(key);
                return last;
            }
        }
        self.cursor = last.unwrap_or_default();
        None
    }

    /// Records the keys that a step of the walk has found.
    pub(crate) fn found(&mut self, keys: impl Iterator<Item = String>, now: Ms) {
        self.answered("walk", now);
        let prefixes = self.prefixes();
        let rank = |key: &str| {
            let fits = prefixes.iter().filter(|prefix| key.starts_with(*prefix));
            fits.map(String::len).max()
        };
        for key in keys {
            let Some(wanted) = rank(&key) else { continue };
            if let Some(lock) = self.locks.get_mut(&key) {
                lock.walk = self.walk.number;
                lock.present = now;
                continue;
            }
            if self.locks.len() >= LOCKS_AT_MOST {
                self.is_cut = true;
                self.walk.is_cut = true;
                // Memory is full. A lock that a longer prefix selects replaces a lock that only shorter prefixes
                // select, so that a search for the longer prefix finds its locks.
                let mut last = self.locks.keys().rev().take(EXAMINED);
                let replaced = last.find(|other| rank(other) < Some(wanted)).cloned();
                let Some(replaced) = replaced else { continue };
                self.locks.remove(&replaced);
            }
            let lock = Lock {
                walk: self.walk.number,
                present: now,
                reading: None,
            };
            self.locks.insert(key, lock);
        }
    }

    /// Records the end of a walk, and removes the locks that the walk has not found, because they are no longer held.
    pub(crate) fn walked(&mut self, now: Ms) {
        let prefixes = self.prefixes();
        let watched: BTreeSet<String> = self.watched_keys().cloned().collect();
        let is_wanted = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let number = self.walk.number;
        // A lock stays if it was read as held after this walk began, even if the walk has not found it.
        let began = self.walk.began;
        let gone = self.locks.iter().filter(|(key, lock)| {
            let was_read = lock.present >= began;
            !watched.contains(*key) && ((lock.walk < number && !was_read) || !is_wanted(key))
        });
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            if let Some(lock) = self.locks.remove(&key)
                && is_wanted(&key)
            {
                self.note_end(&key, &lock, now);
            }
        }
        self.walk.is_under_way = false;
        self.walk.steps = 0;
        self.is_cut = self.walk.is_cut;
        self.walk.complete = std::mem::take(&mut self.walk.prefixes);
    }

    /// Records the answer to a question about a lock's status. `None` means that the key is not valid, or that the
    /// server stores other data under the lock's name.
    pub(crate) fn read(&mut self, key: &str, status: Option<&Status>, now: Ms) {
        self.answered("status", now);
        let before = self.locks.get(key).cloned();
        let last = before
            .as_ref()
            .and_then(|lock| lock.reading.as_ref()?.hold.as_ref());
        let hold = status.and_then(|status| hold(status, last, now));
        let is_same = |last: &Hold| hold.as_ref().is_some_and(|hold| hold.token == last.token);
        if let Some(lock) = &before
            && !last.is_none_or(is_same)
        {
            self.note_end(key, lock, now);
        }
        let is_wanted = |view: &View| match view {
            View::Lock { key: watched } => watched == key,
            View::List { prefix, .. } => key.starts_with(prefix),
            View::History => true,
        };
        if before.is_none() && !self.views.keys().any(is_wanted) {
            return; // nobody looks at the lock any longer
        }
        let present = match (&hold, &before) {
            (None, Some(before)) => before.present,
            _ => now,
        };
        let lock = Lock {
            walk: before.map_or(0, |before| before.walk),
            present,
            reading: Some(Reading {
                at: now,
                hold,
                waiting: status.map_or(0, |status| status.waiters),
            }),
        };
        self.locks.insert(key.to_owned(), lock);
    }

    /// Records the queue of a lock.
    pub(crate) fn queued(&mut self, key: &str, waiters: &[Waiter], now: Ms) {
        self.answered("queue", now);
        let last = self.queues.remove(key).map(|(_, queue)| queue);
        let last: BTreeMap<_, _> = last
            .into_iter()
            .flatten()
            .map(|queued| (queued.owner, queued.since))
            .collect();
        let queue = waiters.iter().map(|waiter| {
            let owner = waiter.owner.to_string();
            let since = now.saturating_sub(millis(waiter.queued_for));
            let since = last
                .get(&owner)
                .copied()
                .filter(|last| last.abs_diff(since) < JITTER)
                .unwrap_or(since);
            Queued {
                session: waiter.session.clone(),
                caller: waiter.caller.clone(),
                gives_up: since + millis(waiter.queued_for) + millis(waiter.remaining),
                since,
                owner,
            }
        });
        self.queues.insert(key.to_owned(), (now, queue.collect()));
    }

    /// Records that the lock server did not answer a question, or refused to answer it.
    pub(crate) fn failed(&mut self, ask: &Ask, is_away: bool, text: String, now: Ms) {
        let known = self.troubles.get(ask.kind()).or(self.slow.as_ref());
        let since = known.map_or(now, |trouble| trouble.since);
        let trouble = Trouble {
            is_away,
            since,
            text,
            retry: now + RETRY,
        };
        self.slow = None;
        self.troubles.insert(ask.kind(), trouble);
    }

    /// Records that a question, which was sent at `asked`, has no answer yet. Only the first question is recorded. The
    /// views show what was read before when a later question has no answer yet.
    pub(crate) fn unanswered(&mut self, asked: Ms) {
        if self.has_answered || !self.troubles.is_empty() {
            return;
        }
        self.slow = Some(Trouble {
            is_away: true,
            since: asked,
            text: "no answer yet".into(),
            retry: asked,
        });
    }

    fn answered(&mut self, kind: &str, now: Ms) {
        self.slow = None;
        self.has_answered = true;
        if self.troubles.values().any(|trouble| trouble.is_away) {
            self.back = now;
        }
        self.troubles
            .retain(|of, trouble| !trouble.is_away && *of != kind);
    }

    /// Records a forced release.
    pub(crate) fn forced(&mut self, key: &str, token: FencingToken, by: String, now: Ms) {
        let hold = self.lock(key).and_then(|reading| reading.hold.as_ref());
        let hold = hold.filter(|hold| hold.token == Some(token)).cloned();
        self.tell(
            key,
            Some(token),
            hold.as_ref(),
            EventKind::Forced { by },
            now,
        );
    }

    /// Adds the end of a hold to the history, unless the hold was probably released.
    fn note_end(&mut self, key: &str, lock: &Lock, now: Ms) {
        let Some(reading) = &lock.reading else { return };
        let Some(hold) = &reading.hold else { return };
        if hold.kept {
            return; // the hold has ended with a release, and the lock has become free as planned
        }
        // A renewed lease always has more than half of its length left. If the last reading showed less, nobody renews
        // the lease. If a walk has found the lock after the end that was last read, however, the lease was renewed
        // after that reading.
        let has_ended = hold.ends.is_some_and(|ends| {
            let was_not_renewed = ends.saturating_sub(reading.at) < hold.lease / 2;
            was_not_renewed && ends + JITTER >= lock.present && ends <= now + JITTER
        });
        let kind = if self.back > lock.present {
            EventKind::GoneAfterOutage
        } else if has_ended {
            EventKind::LeaseEnded
        } else {
            return;
        };
        self.tell(key, hold.token, Some(hold), kind, now);
    }

    fn tell(
        &mut self,
        key: &str,
        token: Option<FencingToken>,
        hold: Option<&Hold>,
        kind: EventKind,
        now: Ms,
    ) {
        self.events += 1;
        self.history.truncate(HISTORY - 1);
        self.history.push_front(Event {
            number: self.events,
            at: now,
            key: key.to_owned(),
            token,
            owner: hold.map(|hold| hold.owner.clone()).unwrap_or_default(),
            caller: hold.and_then(|hold| hold.caller.clone()),
            kind,
        });
    }

    /// Returns the events of the history, the newest first.
    pub(crate) fn history(&self) -> impl Iterator<Item = &Event> {
        self.history.iter()
    }

    /// Returns the reason why a view is not up to date, if it is not.
    pub(crate) fn trouble(&self, view: &View) -> Option<&Trouble> {
        let unused = match view {
            View::List { .. } | View::History => "queue",
            View::Lock { .. } => "walk",
        };
        let troubles = self.troubles.iter();
        let troubles = troubles.filter(|(kind, trouble)| trouble.is_away || **kind != unused);
        troubles
            .map(|(_, trouble)| trouble)
            .chain(&self.slow)
            .max_by_key(|trouble| (trouble.is_away, trouble.since))
    }

    /// Returns the last reading of a lock.
    pub(crate) fn lock(&self, key: &str) -> Option<&Reading> {
        self.locks.get(key)?.reading.as_ref()
    }

    /// Returns the queue of a lock whose page is watched.
    pub(crate) fn queue(&self, key: &str) -> &[Queued] {
        self.queues
            .get(key)
            .map_or(&[][..], |(_, queue)| queue.as_slice())
    }

    /// Returns what a page of the list shows. For any other view, the result has no rows.
    pub(crate) fn list(&self, view: &View) -> Listed<'_> {
        let mut listed = Listed {
            rows: Vec::new(),
            held: 0,
            read: 0,
            waiting: 0,
            selected: 0,
        };
        let View::List {
            prefix,
            page,
            waiting,
        } = view
        else {
            return listed;
        };
        let begin = (Bound::Included(prefix), Bound::Unbounded);
        let selected = self.locks.range::<String, _>(begin);
        let selected = selected.take_while(|(key, _)| key.starts_with(prefix));
        for (key, lock) in selected.filter(|(_, lock)| lock.is_held()) {
            listed.held += 1;
            listed.read += usize::from(lock.reading.is_some());
            listed.waiting += lock.waiting();
            if *waiting && lock.waiting() == 0 {
                continue;
            }
            if listed.selected / PAGE == *page {
                listed.rows.push((key, lock));
            }
            listed.selected += 1;
        }
        listed
    }

    /// Returns whether a walk has looked for all locks with this prefix.
    pub(crate) fn is_walked(&self, prefix: &str) -> bool {
        let mut complete = self.walk.complete.iter();
        complete.any(|walked| prefix.starts_with(walked))
    }

    /// Returns whether everything that a view shows has been read, and is up to date.
    pub(crate) fn is_complete(&self, view: &View, now: Ms) -> bool {
        if self.trouble(view).is_some() {
            return false;
        }
        match view {
            View::List { prefix, .. } => {
                self.is_walked(prefix)
                    && self
                        .list(view)
                        .rows
                        .iter()
                        .all(|(_, lock)| lock.reading.is_some())
            }
            View::Lock { key } => {
                let fresh = |at: Ms| at + STALE[1] > now;
                self.lock(key).is_some_and(|reading| fresh(reading.at))
                    && self.queues.get(key).is_some_and(|(at, _)| fresh(*at))
            }
            View::History => true,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Class {
    Lock,
    Unread,
    Stale,
    Rest,
}

/// Returns the number of readers that hold a lock.
pub(crate) fn readers(status: &Status) -> usize {
    let holders = status.holder.iter().chain(&status.others);
    holders.filter(|holder| holder.mode == Mode::Read).count()
}

fn hold(status: &Status, last: Option<&Hold>, now: Ms) -> Option<Hold> {
    let holder = status.holder.as_ref()?;
    let owner = holder.owner.to_string();
    let last = last.filter(|last| last.token == holder.token && last.owner == owner);
    let left = holder.remaining.map(millis);
    let ends = left.map(|left| now + left);
    let last_ends = last
        .and_then(|last| last.ends)
        .filter(|last| ends.is_some_and(|ends| last.abs_diff(ends) < JITTER));
    Some(Hold {
        token: holder.token,
        caller: holder.caller.clone(),
        since: last.map_or_else(|| since(holder, now), |last| last.since),
        ends: last_ends.or(ends),
        lease: match holder.lease {
            Some(lease) => millis(lease),
            None => left.unwrap_or(0).max(last.map_or(0, |last| last.lease)),
        },
        readers: readers(status),
        // As long as one reader is at work, the lock is held.
        kept: holder.kept && status.others.iter().all(|other| other.kept),
        owner,
    })
}

fn since(holder: &Holder, now: Ms) -> Since {
    match holder.held_for {
        Some(held_for) => Since::Exactly(now.saturating_sub(millis(held_for))),
        None => Since::AtLatest(now),
    }
}

pub(crate) fn millis(time: std::time::Duration) -> Ms {
    Ms::try_from(time.as_millis()).unwrap_or(Ms::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lock_runtime::OwnerId;

    use super::*;

    const BEGAN: Ms = 1_000_000;

    fn list(prefix: &str) -> View {
        View::List {
            prefix: prefix.to_owned(),
            page: 0,
            waiting: false,
        }
    }

    fn lock(number: usize) -> View {
        View::Lock {
            key: format!("watched:{number}"),
        }
    }

    fn held() -> Status {
        let mut holder = Holder::new(OwnerId::from_u128(1));
        holder.token = Some(FencingToken::new(1));
        holder.remaining = Some(Duration::from_secs(60));
        holder.lease = Some(Duration::from_secs(60));
        Status::new(Some(holder), 0)
    }

    #[test]
    fn locks_views_and_events_are_bounded() {
        let mut state = State::default();
        assert!(state.watch(&list(""), false, BEGAN));
        let keys = |count: usize| (0..count).map(|number| format!("k{number}"));
        state.found(keys(LOCKS_AT_MOST), BEGAN);
        assert!(!state.is_cut);
        state.found(keys(LOCKS_AT_MOST + 1), BEGAN);
        assert!(state.is_cut);
        // Although memory is full, a search finds its locks.
        assert!(state.watch(&list("a"), false, BEGAN));
        state.found(["a1", "b1"].map(str::to_owned).into_iter(), BEGAN);
        assert_eq!(state.list(&list("a")).held, 1);
        assert_eq!(state.list(&list("b")).held, 0);
        assert_eq!(state.list(&list("")).held, LOCKS_AT_MOST);
        assert_eq!(state.list(&list("")).rows.len(), PAGE);

        for number in 2..VIEWS_AT_MOST {
            assert!(state.watch(&lock(number), false, BEGAN));
        }
        assert!(!state.watch(&lock(0), false, BEGAN));
        assert!(state.watch(&lock(2), false, BEGAN));
        // If nobody requests a view again within `LINGERS`, another view can take its room.
        assert!(state.watch(&lock(0), false, BEGAN + LINGERS));
        for _ in 0..VIEWS_AT_MOST {
            assert!(state.watch(&lock(0), true, BEGAN));
        }
        assert!(!state.watch(&lock(0), true, BEGAN));

        for number in 0..HISTORY + 10 {
            let token = FencingToken::new(number as u64);
            state.forced("k", token, "alice".into(), BEGAN);
        }
        assert_eq!(state.history().count(), HISTORY);
        assert_eq!(state.history().next().unwrap().token.unwrap().get(), 209);
    }

    #[test]
    fn nothing_is_kept_while_nobody_looks() {
        let mut state = State::default();
        state.watch(&list(""), true, BEGAN);
        state.found(std::iter::once("k".to_owned()), BEGAN);
        state.forced("k", FencingToken::new(1), "alice".into(), BEGAN);
        assert!(state.is_watched(BEGAN + 2 * LINGERS));
        state.leave(&list(""));
        assert!(state.is_watched(BEGAN + LINGERS - 1));
        assert!(!state.is_watched(BEGAN + LINGERS));
        assert!(state.locks.is_empty());
        assert_eq!(state.history().count(), 1);
        assert_eq!(state.next_question(BEGAN + LINGERS), None);
    }

    /// The page has questions of four kinds: steps of the walk, and questions about watched locks, about locks in shown
    /// rows, and about other locks. Each kind gets a share, even if each kind alone could use all questions.
    #[test]
    fn no_kind_of_question_starves_another() {
        let mut state = State::default();
        for number in 0..200 {
            state.watch(&lock(number), true, BEGAN);
        }
        state.watch(&list("k"), true, BEGAN);
        let [mut walks, mut watched, mut shown, mut rest] = [0; 4];
        for turn in 0..3000 {
            let now = BEGAN + turn * 20;
            match state
                .next_question(now)
                .expect("there is always something to ask")
            {
                Ask::Walk(_) => {
                    walks += 1;
                    let keys = (0..500).map(|number| format!("k{number:03}"));
                    state.found(keys, now);
                }
                Ask::Queue(key) => {
                    watched += 1;
                    state.queued(&key, &[], now);
                }
                Ask::Status(key) => {
                    match key.strip_prefix('k').map(|number| number < "100") {
                        None => watched += 1,
                        Some(true) => shown += 1,
                        Some(false) => rest += 1,
                    }
                    state.read(&key, Some(&held()), now);
                }
            }
        }
        assert_eq!(walks, 1500 + STEPS_AT_ONCE / 2);
        let text = format!("{watched} of watched locks, {shown} of shown locks, {rest} of others");
        assert!(watched >= 450 && shown >= 400 && rest >= 400, "{text}");
    }

    #[test]
    fn a_server_that_is_away_is_asked_twice_a_second() {
        let mut state = State::default();
        state.watch(&list(""), true, BEGAN);
        state.watch(&lock(0), true, BEGAN);
        let mut asked = 0;
        for turn in 0..500 {
            let now = BEGAN + turn * 20;
            if let Some(ask) = state.next_question(now) {
                asked += 1;
                state.failed(&ask, true, "no answer".into(), now);
            }
        }
        assert_eq!(asked, 20);
        assert!(state.trouble(&list("")).unwrap().is_away);
        state.found(std::iter::empty(), BEGAN + 10_000);
        assert_eq!(state.trouble(&list("")), None);
    }
}
