//! A model of the promises, without a server, futures or a clock. The model states who holds each lock, who waits, and
//! who is next.

mod leaving;
mod spec;
mod time;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    iter::successors,
};

use lock_runtime::Strategy;

pub(crate) use spec::{
    BEAT, CLIENTS, CallId, EXTENSION, Form, HoldId, KEYS, LONG, Lease, NAMES, Outcome, Rules,
    SHORT_KEEP, SHORT_LEASE, SHORT_WAIT, Spec, Wait, With,
};
use spec::{MARGIN, RENEWED_LEASE};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The call waits for its turn among the calls that are nested in the call with this ID.
    Turn(CallId),
    /// The call waits for the lock, with the strategy in its options.
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

    /// Returns the lock that the call takes next.
    fn next_key(&self) -> usize {
        self.in_order()[self.entries.len()]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) key: usize,
    pub(crate) client: usize,
    /// The number of calls that are inside the lock with this hold.
    pub(crate) entries: usize,
    lease: Lease,
    /// The local deadline, in ms. The deadline has no effect while the lease is renewed for a call inside the hold.
    promised: u64,
    pub(crate) keep_until: u64,
    /// Whether the server still has the grant.
    pub(crate) stands: bool,
    /// Whether the holder knows that the hold is lost.
    pub(crate) known_lost: bool,
    /// Whether the call that acquired the hold has entered. The loss of an unused hold is not counted.
    pub(crate) used: bool,
}

/// The hold that keeps a lock taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) hold: HoldId,
    /// The time until which the lock stays taken after the hold is over, or `None` while the hold lasts.
    pub(crate) kept_until: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Key {
    pub(crate) held: Option<Held>,
    pub(crate) queue: VecDeque<CallId>,
    /// Callers that wait outside the queue, with `spin`.
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
    /// The number of background releases that may find no grant. The model does not know whether the real client counts
    /// such a release in `released`.
    pub(crate) unsure: u64,
    /// The number of calls for two locks whose holders may have left at the same moment. The model does not know
    /// whether the real client counts the second lock of such a call in `waited`.
    pub(crate) tied: u64,
    /// The number of dropped calls. If a caller requests the lock before the server has removed a dropped call, the
    /// caller queues behind that call, although the lock is free in the model.
    pub(crate) dropped: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    pub(crate) closed: bool,
    /// For each lock, the newest hold of this client.
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
    /// The calls with several locks that have just been granted one lock, and still lack another. Each of these calls
    /// takes its next lock after all calls that leave at the same moment have left.
    arriving: Vec<CallId>,
    /// The times at which something happened during the newest step.
    pub(crate) moments: Vec<u64>,
    /// Whether a hold has ended while one call waited for its lock with `spin`, and another waited for its
    /// turn under the same hold. The promises do not say which of these calls is first.
    pub(crate) has_raced: bool,
}

/// Prints the parts of the state that determine the next step, in a few lines.
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
            has_raced: false,
        }
    }

    /// Returns the calls in which a call is nested, the innermost first. A call that runs in a guard is not nested in
    /// the calls that enclosed the guard's acquisition, because the test uses guards outside all bodies.
    fn around(&self, id: CallId) -> impl Iterator<Item = CallId> {
        around(&self.calls, id)
    }

    fn call(&mut self, id: CallId) -> &mut Call {
        self.calls.get_mut(&id).expect("the call has begun")
    }

    fn counts(&mut self, client: usize) -> &mut Counts {
        &mut self.clients[client].counts
    }

    /// Returns whether a call has lost one of its holds and knows of the loss.
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
        } else if let [_, _] = several[..] {
            if self.clients[client].closed {
                self.fail(id, Outcome::ShutDown);
                return self.settle();
            }
            let busy = several.iter().find(|key| !self.keys[**key].is_free());
            match (busy, wait) {
                (None, _) => {
                    for key in several {
                        self.give(id, key, false);
                    }
                    self.come_in(id);
                }
                (Some(key), 0) => self.fail(id, Outcome::Busy(self.who(client, *key))),
                (Some(_), _) => self.enter(id),
            }
        } else {
            self.enter(id);
        }
        self.settle();
    }

    /// Returns which process holds a lock in the view of a client: the client's own process or another one.
    fn who(&self, client: usize, key: usize) -> With {
        let newest = self.clients[client].newest[key];
        if newest.is_some_and(|hold| !self.holds[hold].known_lost) {
            With::ThisProcess
        } else {
            With::AnotherProcess
        }
    }

    /// Makes the call take its next lock or wait for it.
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

    /// Returns the innermost enclosing call that has entered this lock.
    fn inside_of(&self, id: CallId, key: usize) -> Option<CallId> {
        self.around(id)
            .find(|around| self.calls[around].spec.keys.contains(&key))
    }

    /// Returns whether this call would take the lock out of order. The lock is out of order if an enclosing call has
    /// several locks, and one of them comes after this lock in the order. The search ends at the enclosing call that
    /// has entered this lock.
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
            .expect("an enclosing call has entered the lock");
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
        self.come_in(id);
    }

    /// Returns whether the lease of this hold is renewed for a call inside the hold.
    fn has_renewal(&self, hold: HoldId) -> bool {
        self.calls.values().any(|call| {
            call.is_inside()
                && call.spec.lease == Lease::Renewed
                && call.entries.iter().any(|entry| entry.hold == hold)
        })
    }

    /// Returns the local deadline of a hold, or `None` while its lease is renewed.
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

    /// Grants a lock to a call. A call that has all of its locks enters. A call that lacks further locks takes its next
    /// lock in [`arrive`](Self::arrive).
    fn grant(&mut self, id: CallId, key: usize, waited: bool) {
        self.give(id, key, waited);
        let call = &self.calls[&id];
        if call.entries.len() == call.spec.keys.len() {
            self.come_in(id);
        } else {
            self.arriving.push(id);
        }
    }

    fn come_in(&mut self, id: CallId) {
        self.call(id).stage = Stage::Inside;
        for entry in self.calls[&id].entries.clone() {
            self.holds[entry.hold].used = true;
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
            used: false,
        });
        self.keys[key].held = Some(Held {
            hold,
            kept_until: None,
        });
        let client = &mut self.clients[spec.client];
        let older = client.newest[key].replace(hold);
        client.counts.acquired += 1;
        client.counts.waited += u64::from(waited);
        let at = self.now;
        self.call(id).entries.push(Entry { hold, at });
        // The client then asks the server whether an older hold of the lock still has its grant.
        if let Some(older) = older.filter(|older| !self.holds[*older].known_lost) {
            self.lose(older);
        }
    }
}

fn around(calls: &BTreeMap<CallId, Call>, id: CallId) -> impl Iterator<Item = CallId> {
    successors(calls[&id].spec.under, |id| {
        let call = &calls[id].spec;
        call.under.filter(|_| call.form == Form::Body)
    })
}

/// Returns whether a turn at this lock goes on, because the call that has the turn, or a call nested in it, has not
/// ended. A held guard of another lock does not count as nested. A call in a guard of this lock counts as nested in the
/// calls that enclosed the guard's acquisition, because the guard shares their turns.
fn is_going_on(calls: &BTreeMap<CallId, Call>, id: CallId, key: usize) -> bool {
    let under = |around: &CallId| {
        let call = &calls[around].spec;
        let is_shared = call.form == Form::Body || call.keys.contains(&key);
        call.under.filter(|_| is_shared)
    };
    calls[&id].is_alive()
        || calls.values().any(|call| {
            let is_held_guard = call.spec.form == Form::Guard && call.is_inside();
            let is_outside = is_held_guard && !call.spec.keys.contains(&key);
            let mut around = successors(call.spec.under, under);
            call.is_alive() && !is_outside && around.any(|around| around == id)
        })
}
