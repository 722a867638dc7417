//! How calls end, and how locks pass to the next caller.

use lock_runtime::Strategy;

use super::{
    CallId, EXTENSION, Form, HoldId, LONG, Lease, Model, Outcome, RENEWED_LEASE, SHORT_KEEP, Stage,
};

impl Model {
    /// Ends a call that has not entered, with this outcome.
    pub(super) fn fail(&mut self, id: CallId, outcome: Outcome) {
        let client = self.calls[&id].spec.client;
        match outcome {
            Outcome::Busy(_) => self.counts(client).busy += 1,
            Outcome::ShutDown => self.counts(client).failed += 1,
            Outcome::Done | Outcome::Dropped | Outcome::Lost => {}
        }
        self.stop_waiting(id);
        self.end(id, outcome, false, true);
    }

    pub(super) fn stop_waiting(&mut self, id: CallId) {
        for key in &mut self.keys {
            key.queue.retain(|other| *other != id);
            key.others.retain(|other| *other != id);
        }
        for turn in self.turns.values_mut() {
            turn.queue.retain(|other| *other != id);
        }
    }

    /// Ends a call, and makes it leave every lock that it has entered.
    pub(super) fn end(&mut self, id: CallId, outcome: Outcome, returned: bool, awaited: bool) {
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
                // The last renewal may be sent at this moment, so the deadline is at most one lease after this moment.
                hold.promised = hold.promised.max(self.now + RENEWED_LEASE);
            }
            hold.entries -= 1;
            if hold.entries == 0 {
                self.end_hold(entry.hold, awaited);
            }
        }
    }

    pub(super) fn end_hold(&mut self, id: HoldId, awaited: bool) {
        let hold = self.holds[id].clone();
        let (key, turns) = (&self.keys[hold.key], self.turns.iter());
        let mut turns = turns.filter(|((_, key), _)| *key == hold.key);
        self.has_raced |= key.queue.is_empty()
            && !key.others.is_empty()
            && turns.any(|(_, turn)| !turn.queue.is_empty());
        let newest = &mut self.clients[hold.client].newest[hold.key];
        if *newest == Some(id) {
            *newest = None;
        }
        if hold.stands {
            self.counts(hold.client).released += u64::from(!hold.known_lost);
            if !hold.known_lost && hold.keep_until > self.now {
                let held = self.keys[hold.key].held.as_mut();
                held.expect("the lock is held").kept_until = Some(hold.keep_until);
            } else {
                self.grant_next(hold.key);
            }
        } else if awaited && !hold.known_lost {
            self.find_lost(id);
        } else {
            self.counts(hold.client).unsure += 1;
        }
    }

    /// Frees the lock, and grants it to the first caller in the queue.
    pub(super) fn grant_next(&mut self, key: usize) {
        self.keys[key].held = None;
        if let Some(first) = self.keys[key].queue.pop_front() {
            self.grant(first, key, true);
        }
    }

    /// Notifies the holder of the loss of its hold. A call with a body ends. A call with a guard lasts until the guard
    /// is released.
    pub(super) fn lose(&mut self, id: HoldId) {
        self.find_lost(id);
        let bodies = self.calls.iter().filter(|(_, call)| {
            call.is_inside()
                && call.spec.form == Form::Body
                && call.entries.iter().any(|entry| entry.hold == id)
        });
        for body in bodies.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end(body, Outcome::Lost, false, true);
        }
    }

    fn find_lost(&mut self, id: HoldId) {
        let hold = &mut self.holds[id];
        hold.known_lost = true;
        let (client, used) = (hold.client, hold.used);
        self.counts(client).lost += u64::from(used);
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

    /// Makes the call `release` leave while the call `dropped`, which is next in the queue, is dropped. Whether
    /// `release` leaves before or after the drop, the caller behind `dropped` gets the lock.
    pub(crate) fn release_to(&mut self, release: CallId, dropped: CallId) {
        self.stop_waiting(dropped);
        self.end(dropped, Outcome::Dropped, false, false);
        // The engine may acquire all locks of the call `dropped` before the drop. The real client then counts a release for
        // each of them.
        let spec = &self.calls[&dropped].spec;
        let (client, keys) = (spec.client, spec.keys.len() as u64);
        self.counts(client).unsure += keys;
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

    /// Returns whether no call of the client holds a lock or waits, so that the client's shutdown can end.
    pub(crate) fn is_drained(&self, client: usize) -> bool {
        let mut holds = self.holds.iter();
        let mut calls = self.calls.values();
        !holds.any(|hold| hold.client == client && hold.entries > 0)
            && !calls.any(|call| call.spec.client == client && call.is_waiting())
    }
}
