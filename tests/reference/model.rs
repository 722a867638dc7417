//! What the locks promise, as a program without a server, a future or a clock: who holds, who waits, who comes next.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

use lock_runtime::Strategy;

/// How many locks there are.
pub(crate) const KEYS: usize = 3;
/// Their names, in their order.
pub(crate) const NAMES: [&str; KEYS] = ["a", "b", "c"];
/// How many clients there are.
pub(crate) const CLIENTS: usize = 3;

/// All times are in ms. What ends a lease or begins one is even, what ends a wait is odd, and callers begin at
/// multiples of [`BEAT`]: no two that decide about one lock happen at the same moment.
pub(crate) const BEAT: u64 = 10;
pub(crate) const SHORT_WAIT: u64 = 37;
pub(crate) const SHORT_LEASE: u64 = 54;
pub(crate) const SHORT_KEEP: u64 = 44;
pub(crate) const EXTENSION: u64 = 58;
/// What a renewed lease is extended to.
const RENEWED_LEASE: u64 = 30_000;
/// As long as no case lasts.
pub(crate) const LONG: u64 = 3_600_000;
/// How much later than for its holder a lease ends for others, in process.
const MARGIN: u64 = 2;

pub(crate) type CallId = u32;
pub(crate) type HoldId = usize;

/// What differs between the places where locks live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Time is the test's: leases and waits can be short, and end when it says so.
    pub(crate) own_clock: bool,
    /// Callers queue.
    pub(crate) queue: bool,
    /// Somebody with a connection of their own deletes keys and cuts connections.
    pub(crate) operator: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Zero,
    Short,
    Long,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Renewed while it is held.
    Renewed,
    /// Fixed, and over soon.
    Short,
    /// Fixed.
    Long,
}

impl Lease {
    fn time(self) -> u64 {
        match self {
            Self::Renewed => RENEWED_LEASE,
            Self::Short => SHORT_LEASE,
            Self::Long => LONG,
        }
    }
}

/// By which form of the API a caller comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// It acquires a guard.
    Guard,
    /// It runs a body.
    Body,
}

/// What one caller wants.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) client: usize,
    /// One key, or two as the caller names them.
    pub(crate) keys: Vec<usize>,
    pub(crate) form: Form,
    pub(crate) strategy: Strategy,
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) at_least: bool,
    /// The call around it, which is inside.
    pub(crate) under: Option<CallId>,
}

impl Spec {
    /// One attempt at one lock.
    pub(crate) fn once(client: usize, key: usize) -> Self {
        Self {
            client,
            keys: vec![key],
            form: Form::Guard,
            strategy: Strategy::Handoff,
            wait: Wait::Zero,
            lease: Lease::Renewed,
            at_least: false,
            under: None,
        }
    }

    /// The same, and it waits.
    pub(crate) fn patient(client: usize, key: usize) -> Self {
        Self {
            wait: Wait::Long,
            ..Self::once(client, key)
        }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            client,
            keys,
            form,
            strategy,
            wait,
            lease,
            at_least,
            under,
        } = self;
        let keys: Vec<&str> = keys.iter().map(|key| NAMES[*key]).collect();
        write!(
            f,
            "client {client}, {}, {form:?}, {strategy:?}",
            keys.join(" and ")
        )?;
        write!(f, ", wait {wait:?}, lease {lease:?}")?;
        if *at_least {
            f.write_str(", at least")?;
        }
        under
            .iter()
            .try_for_each(|around| write!(f, ", under {around}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    ThisProcess,
    AnotherProcess,
    Sibling,
    OutOfOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Dropped,
    Busy(With),
    Lost,
    ShutDown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// For the turn among those nested in that call.
    Turn(CallId),
    /// For the lock, by its strategy.
    Lock,
    Inside,
    Ended(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) hold: HoldId,
    at: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) spec: Spec,
    pub(crate) stage: Stage,
    pub(crate) entries: Vec<Entry>,
    deadline: u64,
}

impl Call {
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Turn(_) | Stage::Lock)
    }

    pub(crate) fn is_inside(&self) -> bool {
        self.stage == Stage::Inside
    }

    fn is_alive(&self) -> bool {
        self.is_waiting() || self.is_inside()
    }

    fn in_order(&self) -> Vec<usize> {
        let mut keys = self.spec.keys.clone();
        keys.sort_unstable();
        keys
    }

    /// The lock that it comes to next.
    fn next_key(&self) -> usize {
        self.in_order()[self.entries.len()]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) key: usize,
    pub(crate) client: usize,
    /// How many are inside.
    pub(crate) entries: usize,
    lease: Lease,
    /// Its local deadline, unless one of those inside asks for renewal.
    promised: u64,
    pub(crate) keep_until: u64,
    /// Whether the server has it.
    pub(crate) stands: bool,
    /// Whether its holder knows of the loss.
    pub(crate) known_lost: bool,
}

/// Who has a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) hold: HoldId,
    /// The hold is over, and the lock taken until then.
    pub(crate) kept_until: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Key {
    pub(crate) held: Option<Held>,
    pub(crate) queue: VecDeque<CallId>,
    /// Those who wait without a queue.
    pub(crate) others: Vec<CallId>,
}

impl Key {
    pub(crate) fn is_free(&self) -> bool {
        self.held.is_none() && self.queue.is_empty()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) acquired: u64,
    pub(crate) reentered: u64,
    pub(crate) waited: u64,
    pub(crate) busy: u64,
    pub(crate) failed: u64,
    pub(crate) released: u64,
    pub(crate) lost: u64,
    /// Releases in the background that find nothing: they may be counted as carried out before.
    pub(crate) unsure: u64,
    /// Second locks of calls: their holders may end in the same instant as the first one's, before or after the call comes to
    /// them.
    pub(crate) tied: u64,
    /// Calls that were dropped: who comes while one is being forgotten queues behind it, though the lock is free.
    pub(crate) dropped: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    pub(crate) closed: bool,
    /// The newest hold of each lock.
    newest: [Option<HoldId>; KEYS],
    pub(crate) counts: Counts,
}

#[derive(Debug, Clone, Default)]
struct Turn {
    owner: Option<CallId>,
    queue: VecDeque<CallId>,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) rules: Rules,
    pub(crate) now: u64,
    pub(crate) keys: [Key; KEYS],
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) calls: BTreeMap<CallId, Call>,
    pub(crate) holds: Vec<Hold>,
    turns: BTreeMap<(CallId, usize), Turn>,
    /// Those who got one of their locks, and come to the next one when all has left that leaves at the same moment.
    arriving: Vec<CallId>,
    /// The moments of the newest step at which something happened.
    pub(crate) moments: Vec<u64>,
}

/// What decides about the next step, in a few lines.
impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ms", self.now)?;
        for (name, key) in NAMES.iter().zip(&self.keys) {
            let held = key.held.map(|held| (held, &self.holds[held.hold]));
            write!(
                f,
                "\n  {name}: held by {held:?}, queue {:?}, others {:?}",
                key.queue, key.others
            )?;
        }
        for (id, call) in self.calls.iter().filter(|(_, call)| call.is_alive()) {
            write!(f, "\n  call {id} is {:?}: {:?}", call.stage, call.spec)?;
        }
        Ok(())
    }
}

impl Model {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            now: 0,
            keys: Default::default(),
            clients: Default::default(),
            calls: BTreeMap::new(),
            holds: Vec::new(),
            turns: BTreeMap::new(),
            arriving: Vec::new(),
            moments: Vec::new(),
        }
    }

    /// The calls around one, the innermost first. What runs in a guard is inside the guard's own lock, and not inside the
    /// calls in which the guard was acquired: the system runs guards outside all of them.
    fn around(&self, id: CallId) -> impl Iterator<Item = CallId> {
        around(&self.calls, id)
    }

    fn call(&mut self, id: CallId) -> &mut Call {
        self.calls.get_mut(&id).expect("a call that has begun")
    }

    fn counts(&mut self, client: usize) -> &mut Counts {
        &mut self.clients[client].counts
    }

    /// Whether a call has lost one of its holds, and knows.
    fn has_lost(&self, id: CallId) -> bool {
        let mut entries = self.calls[&id].entries.iter();
        entries.any(|entry| self.holds[entry.hold].known_lost)
    }

    pub(crate) fn begin(&mut self, id: CallId, spec: Spec) {
        let wait = match spec.wait {
            Wait::Zero => 0,
            Wait::Short => SHORT_WAIT,
            Wait::Long => LONG,
        };
        let (client, under) = (spec.client, spec.under);
        let call = Call {
            deadline: self.now + wait,
            spec,
            stage: Stage::Lock,
            entries: Vec::new(),
        };
        let several = call.in_order();
        self.calls.insert(id, call);
        if under.is_some_and(|under| self.has_lost(under)) {
            self.call(id).stage = Stage::Ended(Outcome::Lost);
        } else if self.clients[client].closed {
            self.fail(id, Outcome::ShutDown);
        } else if let [_, _] = several[..] {
            let busy = several.iter().find(|key| !self.keys[**key].is_free());
            match (busy, wait) {
                (None, _) => {
                    for key in several {
                        self.give(id, key, false);
                    }
                    self.call(id).stage = Stage::Inside;
                }
                (Some(key), 0) => self.fail(id, Outcome::Busy(self.who(client, *key))),
                (Some(_), _) => self.enter(id),
            }
        } else {
            self.enter(id);
        }
        self.settle();
    }

    /// Who a call of this client finds in its way.
    fn who(&self, client: usize, key: usize) -> With {
        let newest = self.clients[client].newest[key];
        if newest.is_some_and(|hold| !self.holds[hold].known_lost) {
            With::ThisProcess
        } else {
            With::AnotherProcess
        }
    }

    /// Comes to the call's next lock.
    fn enter(&mut self, id: CallId) {
        let key = self.calls[&id].next_key();
        let inside = self.inside_of(id, key);
        let once = self.calls[&id].spec.wait == Wait::Zero;
        let Some(around) = inside else {
            let out_of_order = !once && self.is_out_of_order(id, key);
            return self.acquire(id, key, once || out_of_order, out_of_order);
        };
        let out_of_order = !once && self.is_out_of_order(id, key);
        let turn = self.turns.entry((around, key)).or_default();
        if turn.owner.is_none() && turn.queue.is_empty() {
            turn.owner = Some(id);
            self.take_turn(id, around, key, once || out_of_order, out_of_order);
        } else if out_of_order {
            self.fail(id, Outcome::Busy(With::OutOfOrder));
        } else if once {
            self.fail(id, Outcome::Busy(With::Sibling));
        } else {
            turn.queue.push_back(id);
            self.call(id).stage = Stage::Turn(around);
        }
    }

    /// The innermost call around that has entered this lock.
    fn inside_of(&self, id: CallId, key: usize) -> Option<CallId> {
        self.around(id)
            .find(|around| self.calls[around].spec.keys.contains(&key))
    }

    /// Whether a call with two locks, one of which comes later, stands between this one and the lock.
    fn is_out_of_order(&self, id: CallId, key: usize) -> bool {
        let inside = self.inside_of(id, key);
        self.around(id)
            .take_while(|around| Some(*around) != inside)
            .map(|around| &self.calls[&around].spec.keys)
            .any(|keys| keys.len() > 1 && keys.iter().any(|other| *other > key))
    }

    fn take_turn(&mut self, id: CallId, around: CallId, key: usize, once: bool, ooo: bool) {
        self.call(id).stage = Stage::Lock;
        let entries = self.calls[&around].entries.iter();
        let hold = entries
            .map(|entry| entry.hold)
            .find(|hold| self.holds[*hold].key == key)
            .expect("the call around has entered it");
        if self.holds[hold].entries == 0 {
            self.turns.entry((around, key)).or_default().owner = None;
            return self.acquire(id, key, once, ooo);
        }
        let spec = self.calls[&id].spec.clone();
        let covered = self.holds[hold].lease == Lease::Renewed || self.has_renewal(hold);
        if !covered && !self.holds[hold].stands && !self.holds[hold].known_lost {
            self.lose(hold);
        }
        if self.holds[hold].known_lost {
            return self.fail(id, Outcome::Lost);
        }
        let until = self.now + spec.lease.time();
        let state = &mut self.holds[hold];
        state.promised = state.promised.max(until);
        state.entries += 1;
        self.counts(spec.client).reentered += 1;
        let at = self.now;
        self.call(id).entries.push(Entry { hold, at });
        self.call(id).stage = Stage::Inside;
    }

    /// Whether one of those inside asks for renewal.
    fn has_renewal(&self, hold: HoldId) -> bool {
        self.calls.values().any(|call| {
            call.is_inside()
                && call.spec.lease == Lease::Renewed
                && call.entries.iter().any(|entry| entry.hold == hold)
        })
    }

    /// The local deadline; none while the lease is kept.
    fn until(&self, hold: HoldId) -> Option<u64> {
        let asks = |call: &Call| {
            call.is_alive()
                && call.spec.lease == Lease::Renewed
                && call.entries.iter().any(|entry| entry.hold == hold)
        };
        let state = &self.holds[hold];
        let is_kept = state.lease == Lease::Renewed || self.calls.values().any(asks);
        (!is_kept).then_some(state.promised)
    }

    fn acquire(&mut self, id: CallId, key: usize, once: bool, out_of_order: bool) {
        let spec = self.calls[&id].spec.clone();
        if self.clients[spec.client].closed {
            self.fail(id, Outcome::ShutDown);
        } else if self.keys[key].is_free() {
            self.grant(id, key, false);
        } else if out_of_order {
            self.fail(id, Outcome::Busy(With::OutOfOrder));
        } else if once {
            self.fail(id, Outcome::Busy(self.who(spec.client, key)));
        } else {
            self.call(id).stage = Stage::Lock;
            if spec.strategy == Strategy::Handoff {
                self.keys[key].queue.push_back(id);
            } else {
                self.keys[key].others.push(id);
            }
        }
    }

    /// Gives a lock to a call, which comes to its next one, or in.
    fn grant(&mut self, id: CallId, key: usize, waited: bool) {
        self.give(id, key, waited);
        let call = self.call(id);
        if call.entries.len() == call.spec.keys.len() {
            call.stage = Stage::Inside;
        } else {
            self.arriving.push(id);
        }
    }

    fn arrive(&mut self) {
        while let Some(id) = self.arriving.pop() {
            let client = self.calls[&id].spec.client;
            self.counts(client).tied += 1;
            self.enter(id);
        }
    }

    fn give(&mut self, id: CallId, key: usize, waited: bool) {
        let spec = self.calls[&id].spec.clone();
        let hold = self.holds.len();
        self.holds.push(Hold {
            key,
            client: spec.client,
            entries: 1,
            lease: spec.lease,
            promised: self.now + spec.lease.time(),
            keep_until: 0,
            stands: true,
            known_lost: false,
        });
        self.keys[key].held = Some(Held {
            hold,
            kept_until: None,
        });
        let client = &mut self.clients[spec.client];
        client.newest[key] = Some(hold);
        client.counts.acquired += 1;
        client.counts.waited += u64::from(waited);
        let at = self.now;
        self.call(id).entries.push(Entry { hold, at });
    }

    /// Ends a call that has not come in.
    fn fail(&mut self, id: CallId, outcome: Outcome) {
        let client = self.calls[&id].spec.client;
        match outcome {
            Outcome::Busy(_) => self.counts(client).busy += 1,
            Outcome::ShutDown => self.counts(client).failed += 1,
            Outcome::Done | Outcome::Dropped | Outcome::Lost => {}
        }
        self.stop_waiting(id);
        self.end(id, outcome, false, true);
    }

    fn stop_waiting(&mut self, id: CallId) {
        for key in &mut self.keys {
            key.queue.retain(|other| *other != id);
            key.others.retain(|other| *other != id);
        }
        for turn in self.turns.values_mut() {
            turn.queue.retain(|other| *other != id);
        }
    }

    /// A call leaves all that it has entered.
    fn end(&mut self, id: CallId, outcome: Outcome, returned: bool, awaited: bool) {
        self.call(id).stage = Stage::Ended(outcome);
        let call = self.calls[&id].clone();
        for entry in call.entries {
            let keep = if self.rules.own_clock {
                SHORT_KEEP
            } else {
                LONG
            };
            let hold = &mut self.holds[entry.hold];
            if returned && call.spec.at_least {
                hold.keep_until = hold.keep_until.max(entry.at + keep);
            }
            if call.spec.lease == Lease::Renewed {
                // Its last renewal.
                hold.promised = hold.promised.max(self.now + RENEWED_LEASE);
            }
            hold.entries -= 1;
            if hold.entries == 0 {
                self.end_hold(entry.hold, awaited);
            }
        }
    }

    /// Whether its leaving would free a lock for one that waits by notify and one that waits for its turn under the same
    /// hold: neither is promised to be first.
    pub(crate) fn begins_a_race(&self, id: CallId) -> bool {
        self.calls[&id].entries.iter().any(|entry| {
            let hold = &self.holds[entry.hold];
            let key = &self.keys[hold.key];
            let mut turns = self.turns.iter().filter(|((_, key), _)| *key == hold.key);
            hold.entries == 1
                && key.queue.is_empty()
                && !key.others.is_empty()
                && turns.any(|(_, turn)| !turn.queue.is_empty())
        })
    }

    fn end_hold(&mut self, id: HoldId, awaited: bool) {
        let hold = self.holds[id].clone();
        let newest = &mut self.clients[hold.client].newest[hold.key];
        if *newest == Some(id) {
            *newest = None;
        }
        if hold.stands {
            self.counts(hold.client).released += 1;
            if !hold.known_lost && hold.keep_until > self.now {
                let held = self.keys[hold.key].held.as_mut();
                held.expect("it stands").kept_until = Some(hold.keep_until);
            } else {
                self.hand_on(hold.key);
            }
        } else if awaited && !hold.known_lost {
            self.holds[id].known_lost = true;
            self.counts(hold.client).lost += 1;
        } else {
            self.counts(hold.client).unsure += 1;
        }
    }

    /// The lock is free: the first in the queue gets it, else who waits without one.
    fn hand_on(&mut self, key: usize) {
        self.keys[key].held = None;
        if let Some(first) = self.keys[key].queue.pop_front() {
            self.grant(first, key, true);
        } else if let Some(place) = self.keys[key]
            .others
            .iter()
            .position(|id| self.calls[id].spec.strategy == Strategy::Notify)
        {
            let next = self.keys[key].others.remove(place);
            self.grant(next, key, true);
        }
    }

    /// The holder finds out. A body ends; a guard stays until it is released.
    fn lose(&mut self, id: HoldId) {
        self.holds[id].known_lost = true;
        let client = self.holds[id].client;
        self.counts(client).lost += 1;
        let bodies = self.calls.iter().filter(|(_, call)| {
            call.is_inside()
                && call.spec.form == Form::Body
                && call.entries.iter().any(|entry| entry.hold == id)
        });
        for body in bodies.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end(body, Outcome::Lost, false, true);
        }
    }

    pub(crate) fn release(&mut self, id: CallId) {
        self.end(id, Outcome::Done, true, true);
        self.settle();
    }

    pub(crate) fn abandon(&mut self, client: usize) {
        self.counts(client).dropped += 1;
    }

    pub(crate) fn drop_call(&mut self, id: CallId) {
        self.abandon(self.calls[&id].spec.client);
        self.stop_waiting(id);
        self.end(id, Outcome::Dropped, false, false);
        self.settle();
    }

    /// One call leaves, and another one is gone by then: whatever the order of the two, the one behind is next.
    pub(crate) fn release_to(&mut self, release: CallId, dropped: CallId) {
        self.stop_waiting(dropped);
        self.end(dropped, Outcome::Dropped, false, false);
        // Its turn, which nobody has taken, is given back.
        let client = self.calls[&dropped].spec.client;
        self.counts(client).unsure += 1;
        self.abandon(client);
        self.release(release);
    }

    /// Extends the lease of a call's first hold.
    pub(crate) fn extend(&mut self, id: CallId) {
        let entry = self.calls[&id].entries[0];
        let until = self.until(entry.hold);
        let hold = &mut self.holds[entry.hold];
        if hold.known_lost {
            return;
        }
        if !hold.stands {
            self.lose(entry.hold);
            self.settle();
        } else if self.rules.own_clock {
            let ends = until.unwrap_or(hold.promised.max(self.now + hold.lease.time()));
            hold.promised = ends + EXTENSION;
        }
    }

    pub(crate) fn shut_down(&mut self, client: usize) {
        self.clients[client].closed = true;
        let waiting = self.calls.iter().filter(|(_, call)| {
            call.spec.client == client
                && call.stage == Stage::Lock
                && call.spec.strategy != Strategy::Spin
        });
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        for id in &waiting {
            self.stop_waiting(*id);
        }
        for id in waiting {
            self.fail(id, Outcome::ShutDown);
        }
        self.settle();
    }

    /// Whether nothing keeps the shutting down of a client waiting.
    pub(crate) fn is_drained(&self, client: usize) -> bool {
        let mut holds = self.holds.iter();
        let mut calls = self.calls.values();
        !holds.any(|hold| hold.client == client && hold.entries > 0)
            && !calls.any(|call| call.spec.client == client && call.is_waiting())
    }

    /// The server has the lock's grant no more.
    pub(crate) fn remove(&mut self, key: usize) {
        let held = self.keys[key].held.expect("it is held");
        self.holds[held.hold].stands = false;
        self.hand_on(key);
        self.settle();
    }

    /// Whether one of those who wait for a lock would find out that it was removed: it does not believe that its own
    /// process holds it.
    pub(crate) fn is_watched(&self, key: usize) -> bool {
        let waiters = || self.keys[key].queue.iter().chain(&self.keys[key].others);
        waiters().count() == 0
            || waiters().any(|id| self.who(self.calls[id].spec.client, key) == With::AnotherProcess)
    }

    pub(crate) fn advance(&mut self, time: u64) {
        self.run_to(self.now + time);
        self.settle();
    }

    fn run_to(&mut self, end: u64) {
        loop {
            let spinner = self.due_spinner();
            // It sleeps for a ms at most.
            let tries = spinner.map(|_| self.now + 1);
            let next = self.next_event().into_iter().chain(tries).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = next;
            self.moments.push(next);
            self.spin(spinner);
            self.happen();
        }
        self.now = end;
        self.moments.push(end);
    }

    /// One who is due tries again.
    fn spin(&mut self, spinner: Option<CallId>) {
        let Some(id) = spinner else { return };
        let (client, key) = (self.calls[&id].spec.client, self.calls[&id].next_key());
        if self.clients[client].closed {
            self.fail(id, Outcome::ShutDown);
        } else {
            self.keys[key].others.retain(|other| *other != id);
            self.grant(id, key, true);
        }
    }

    /// When a lock is free by itself.
    fn ends(&self, held: Held) -> Option<u64> {
        let until = self.until(held.hold);
        held.kept_until.or(until.map(|until| until + MARGIN))
    }

    fn next_event(&self) -> Option<u64> {
        let waits = self.calls.values().filter(|call| call.is_waiting());
        let waits = waits.map(|call| call.deadline);
        let losses = self.holds.iter().enumerate();
        let losses = losses
            .filter(|(_, hold)| hold.entries > 0 && !hold.known_lost)
            .filter_map(|(id, _)| self.until(id));
        let ends = self.keys.iter().filter_map(|key| key.held);
        let ends = ends.filter_map(|held| self.ends(held));
        waits.chain(losses).chain(ends).min()
    }

    fn happen(&mut self) {
        let late = |call: &Call, now| call.is_waiting() && call.deadline <= now;
        let calls = self.calls.iter().filter(|(_, call)| late(call, self.now));
        for id in calls.map(|(id, _)| *id).collect::<Vec<_>>() {
            let (stage, key) = (self.calls[&id].stage, self.calls[&id].next_key());
            let with = match stage {
                Stage::Turn(_) => With::Sibling,
                _ => self.who(self.calls[&id].spec.client, key),
            };
            self.fail(id, Outcome::Busy(with));
        }
        for hold in 0..self.holds.len() {
            let state = &self.holds[hold];
            let over = self.until(hold).is_some_and(|until| until <= self.now);
            if state.entries > 0 && !state.known_lost && over {
                self.lose(hold);
            }
        }
        for key in 0..KEYS {
            if let Some(held) = self.keys[key].held
                && self.ends(held).is_some_and(|end| end <= self.now)
            {
                self.holds[held.hold].stands = false;
                self.hand_on(key);
            }
        }
        self.arrive();
        self.settle_turns();
    }

    /// Lets happen what needs nobody's doing.
    fn settle(&mut self) {
        self.arrive();
        self.settle_turns();
        while self.due_spinner().is_some() {
            if self.rules.own_clock {
                self.run_to(self.now + BEAT);
            } else {
                self.spin(self.due_spinner());
            }
            self.arrive();
            self.settle_turns();
        }
    }

    /// One who tries again and again, and will not try in vain.
    fn due_spinner(&self) -> Option<CallId> {
        let due = |id: &CallId| {
            let call = &self.calls[id];
            let key = &self.keys[call.next_key()];
            call.spec.strategy == Strategy::Spin
                && (key.is_free() || self.clients[call.spec.client].closed)
        };
        let mut others = self.keys.iter().flat_map(|key| key.others.iter().copied());
        others.find(due)
    }

    /// A turn lasts as long as the call that has it, or anything nested in that.
    fn settle_turns(&mut self) {
        while let Some((around, key)) = self.turns.iter().find_map(|(at, turn)| {
            let over = turn
                .owner
                .is_none_or(|owner| !is_going_on(&self.calls, owner, at.1));
            (over && !turn.queue.is_empty()).then_some(*at)
        }) {
            let turn = self.turns.get_mut(&(around, key)).expect("just found");
            turn.owner = turn.queue.pop_front();
            let next = turn.owner.expect("somebody waits for it");
            self.take_turn(next, around, key, false, false);
        }
        for ((_, key), turn) in &mut self.turns {
            let owner = turn.owner;
            let calls = &self.calls;
            if owner.is_some_and(|owner| !is_going_on(calls, owner, *key)) {
                turn.owner = None;
            }
        }
    }
}

fn around(calls: &BTreeMap<CallId, Call>, id: CallId) -> impl Iterator<Item = CallId> {
    std::iter::successors(calls[&id].spec.under, |id| {
        let call = &calls[id].spec;
        call.under.filter(|_| call.form == Form::Body)
    })
}

/// Whether a call that has a turn at this lock is alive, or one that is nested in it. A guard of another lock that is held is
/// inside no call around it.
fn is_going_on(calls: &BTreeMap<CallId, Call>, id: CallId, key: usize) -> bool {
    calls[&id].is_alive()
        || calls.iter().any(|(other, call)| {
            let is_held_guard = call.spec.form == Form::Guard && call.is_inside();
            let is_outside = is_held_guard && !call.spec.keys.contains(&key);
            call.is_alive() && !is_outside && around(calls, *other).any(|around| around == id)
        })
}
