//! The effects of the passing of time and of an operator's commands.

use lock_runtime::Strategy;

use super::{BEAT, Call, CallId, Held, KEYS, MARGIN, Model, Outcome, Stage, With, is_going_on};

impl Model {
    /// Removes a lock's grant, as an operator's command does, and grants the lock to the next waiter.
    pub(crate) fn remove(&mut self, key: usize) {
        let held = self.keys[key].held.expect("the lock is held");
        self.holds[held.hold].stands = false;
        self.grant_next(key);
        self.settle();
    }

    /// Returns `false` if callers wait for a lock but none of them would notice the removal of its grant. A waiter
    /// notices the removal if it sends probes. A waiter sends probes only while, to its knowledge, another process
    /// holds the lock.
    pub(crate) fn is_watched(&self, key: usize) -> bool {
        let waiters = || self.keys[key].queue.iter().chain(&self.keys[key].others);
        waiters().count() == 0
            || waiters().any(|id| self.who(self.calls[id].spec.client, key) == With::AnotherProcess)
    }

    pub(crate) fn advance(&mut self, time: u64) {
        self.run_to(self.now + time);
        self.settle();
    }

    pub(super) fn run_to(&mut self, end: u64) {
        loop {
            let spinner = self.due_spinner();
            // A caller with `spin` pauses for at most a millisecond before it tries again.
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

    /// Makes this caller with `spin` try again. The caller gets the free lock, or its call ends because its client is
    /// shut down. Does nothing if `spinner` is `None`.
    pub(super) fn spin(&mut self, spinner: Option<CallId>) {
        let Some(id) = spinner else { return };
        let (client, key) = (self.calls[&id].spec.client, self.calls[&id].next_key());
        if self.clients[client].closed {
            self.fail(id, Outcome::ShutDown);
        } else {
            self.keys[key].others.retain(|other| *other != id);
            self.grant(id, key, true);
        }
    }

    /// Returns the time at which a taken lock becomes free without a release, or `None` if its lease is renewed.
    pub(super) fn ends(&self, held: Held) -> Option<u64> {
        let until = self.until(held.hold);
        held.kept_until.or(until.map(|until| until + MARGIN))
    }

    pub(super) fn next_event(&self) -> Option<u64> {
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

    pub(super) fn happen(&mut self) {
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
                self.grant_next(key);
            }
        }
        self.arrive();
        self.settle_turns();
    }

    /// Applies all due events that need no action by a caller.
    pub(super) fn settle(&mut self) {
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

    /// Returns a caller with `spin` whose next try ends its wait, because its lock is free or its client is shut down.
    /// Returns `None` if there is no such caller.
    pub(super) fn due_spinner(&self) -> Option<CallId> {
        let due = |id: &CallId| {
            let call = &self.calls[id];
            let key = &self.keys[call.next_key()];
            call.spec.strategy == Strategy::Spin
                && (key.is_free() || self.clients[call.spec.client].closed)
        };
        let mut others = self.keys.iter().flat_map(|key| key.others.iter().copied());
        others.find(due)
    }

    /// Passes each turn that has ended to the next call that is nested in the same call. A turn ends when its call and
    /// all calls nested in that call have ended.
    pub(super) fn settle_turns(&mut self) {
        while let Some((around, key)) = self.turns.iter().find_map(|(at, turn)| {
            let over = turn
                .owner
                .is_none_or(|owner| !is_going_on(&self.calls, owner, at.1));
            (over && !turn.queue.is_empty()).then_some(*at)
        }) {
            let turn = self.turns.get_mut(&(around, key)).expect("just found");
            turn.owner = turn.queue.pop_front();
            let next = turn.owner.expect("a call waits for this turn");
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
