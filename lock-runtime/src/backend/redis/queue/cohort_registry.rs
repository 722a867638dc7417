//! All cohorts of a process, by lock. Passes turns to members that still wait, takes back offers that nobody takes up,
//! and determines when a grant goes back to the server. It decides; [`grants`](super::grants) sends.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{fencing::FencingToken, key::LockName, lease::Moment, owner::OwnerId};

use crate::{
    backend::redis::{
        protocol::grant::GrantSnapshot,
        queue::cohort::{Cohort, Confirmation, Departure, Seat, Turn},
        session::Session,
    },
    background::sync::lock,
};

#[cfg(test)]
mod tests;

/// A cohort, and the session in which its members wait.
#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    cohort: Cohort,
}

impl Entry {
    /// Offers the turn to the next member that still waits. Returns false if there is none, or no time is left.
    fn pass(&mut self, name: &LockName, now: Moment) -> bool {
        while let Some(turn) = self.cohort.next(now) {
            if let Some(missed) = self
                .session
                .waiters
                .resolve(name, turn.owner, Ok(turn.token))
            {
                self.cohort.offer(turn, missed, now);
                return true;
            }
        }
        false
    }

    /// Returns how many of the remaining members still wait.
    fn waiting(&self, name: &LockName) -> usize {
        let waits = |owner: &&OwnerId| self.session.waiters.waits(name, **owner);
        self.cohort.to_come().iter().filter(waits).count()
    }

    fn has_waiting(&self, name: &LockName) -> bool {
        let waits = |owner: &OwnerId| self.session.waiters.waits(name, *owner);
        self.cohort.to_come().iter().any(waits)
    }
}

/// The outcome of passing a turn on.
#[derive(Debug)]
pub(crate) enum Passed {
    /// No cohort has this grant.
    Unknown,
    /// The turn is offered to the next member.
    On,
    /// The member had lost its turn.
    Stale,
    /// No member is left: the grant with this token has to be released.
    Ended(u64),
    /// The local deadline has passed, and members are still waiting.
    Late(Arc<Session>),
}

/// How the server knows the grant of a token.
#[derive(Debug)]
pub(crate) enum Known {
    /// By this token, as far as this process knows.
    Itself,
    /// By this first token: the member that has the turn asks.
    Turn(u64),
    /// Not at all: the member has lost its turn.
    Over,
}

/// The tasks of a heartbeat for a session's cohorts.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    /// These members did not take their turns.
    pub(crate) missed: Vec<(LockName, u64)>,
    /// Members of these locks queue again, because their local deadline has passed.
    pub(crate) requeue: Vec<LockName>,
    /// Nobody takes these grants: their last members' tokens, and their local deadlines.
    pub(crate) release: Vec<(LockName, FencingToken, Moment)>,
    /// These offers have to be renewed to these leases.
    pub(crate) renew: Vec<(LockName, FencingToken, Duration)>,
}

/// The tasks that follow from a grant that the server described.
#[derive(Debug, Default)]
pub(crate) struct TakenUp {
    /// The sessions whose waiters for the lock queue again.
    pub(crate) requeue: Vec<Arc<Session>>,
    /// The token and the local deadline of a turn that nobody takes.
    pub(crate) give_back: Option<(FencingToken, Moment)>,
    /// Whether a waiter was offered the first turn of a grant that was not known before.
    pub(crate) begun: bool,
}

/// The cohorts of a process, by lock. Ordered, like all maps that are iterated here, so that every decision depends on
/// past events alone.
#[derive(Debug, Default)]
pub(crate) struct Cohorts(Mutex<BTreeMap<LockName, Entry>>);

impl Cohorts {
    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        lock(&self.0).get_mut(name).map(change)
    }

    /// Lets in the caller that was offered this turn, if it may enter. Called while the caller is polled.
    pub(crate) fn enter(&self, name: &LockName, token: u64, now: Moment) -> Seat {
        let enter = |entry: &mut Entry| entry.cohort.enter(token, now);
        self.with(name, enter).unwrap_or(Seat::Missed)
    }

    /// Begins the cohort of a grant that the server described, unless the cohort is known already.
    pub(crate) fn take_up(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        grant: &GrantSnapshot,
        now: Moment,
    ) -> TakenUp {
        let mut chores = TakenUp::default();
        if *grant.session_id != *session.session_id {
            return chores; // of another session: its owners have left it, and have other names here
        }
        let is_new = session.waiters.note_grant(name, &grant.owners, grant.first);
        if grant.is_pushed && !is_new {
            return chores; // each grant is pushed once: this is an old message that was repeated
        }
        let Some(cohort) = Cohort::new(grant, now) else {
            return chores;
        };
        let mut entry = Entry {
            session: session.clone(),
            cohort,
        };
        let mut cohorts = lock(&self.0);
        let mut is_known = false;
        if let Some(known) = cohorts.get(name).map(|entry| &entry.cohort) {
            let newer = known.first() > grant.first;
            let again = grant.is_pushed || !known.is_suspended();
            is_known = known.first() == grant.first;
            if newer || (is_known && again) {
                return chores;
            }
        }
        let passed = entry.pass(name, now);
        chores.begun = passed && !is_known;
        if let ([owner], false) = (&grant.owners[..], passed) {
            // An owner that has left gives the grant back by itself, and an owner that was granted the lock in a reply
            // is inside. An owner that is inside under an older token was granted the lock twice.
            let twice = |other: &Entry| {
                other.cohort.is_inside(*owner) && other.cohort.first() < grant.first
            };
            if cohorts.get(name).is_some_and(twice) {
                chores.give_back = Some((FencingToken::new(grant.first), grant.until()));
                return chores;
            }
            if !session.waiters.waits(name, *owner) {
                return chores;
            }
        }
        let replaced = if !passed && entry.has_waiting(name) {
            // The local deadline of the grant has passed.
            chores.requeue.push(session.clone());
            cohorts.remove(name)
        } else {
            if !passed {
                // All members have left, so the grant goes back.
                let token = FencingToken::new(entry.cohort.turn().token);
                chores.give_back = Some((token, entry.cohort.until()));
                entry.cohort.end();
            }
            cohorts.insert(name.clone(), entry)
        };
        if let Some(replaced) = replaced.filter(|replaced| !replaced.cohort.is_over()) {
            // The server has lost the replaced grant.
            chores.requeue.insert(0, replaced.session);
        }
        chores
    }

    /// Passes the turn on when the member under this token leaves.
    pub(crate) fn pass(&self, name: &LockName, token: u64, now: Moment) -> Passed {
        let mut cohorts = lock(&self.0);
        let Some(entry) = cohorts.get_mut(name) else {
            return Passed::Unknown;
        };
        let cohort = &mut entry.cohort;
        if !cohort.contains(token) {
            return Passed::Unknown;
        }
        let first = cohort.first();
        match cohort.leave(token) {
            Departure::Stale => return Passed::Stale,
            Departure::Ended => return Passed::Ended(first),
            Departure::Forgotten => {
                cohorts.remove(name);
                return Passed::Stale;
            }
            Departure::Free => {}
        }
        if entry.pass(name, now) {
            return Passed::On;
        }
        if entry.has_waiting(name) {
            let session = entry.session.clone();
            cohorts.remove(name);
            return Passed::Late(session);
        }
        entry.cohort.end();
        Passed::Ended(first)
    }

    /// Returns the lease of a cohort whose grant stands for longer than its lease, if members wait after the one under
    /// this token.
    pub(crate) fn stretched(&self, name: &LockName, token: u64, now: Moment) -> Option<Duration> {
        self.with(name, |entry| {
            let cohort = &entry.cohort;
            let stretched = cohort.has_turn(token) && cohort.is_stretched(now);
            (stretched && entry.has_waiting(name)).then_some(cohort.lease())
        })?
    }

    /// Tends the cohorts of a session. Passes on offers that nobody takes, and requests their renewal until then.
    /// Members of a grant whose local deadline has passed queue again. Forgets released cohorts that nobody waits for.
    pub(crate) fn tend(&self, session: &Arc<Session>, now: Moment, next_beat: Moment) -> Chores {
        let mut chores = Chores::default();
        let mut cohorts = lock(&self.0);
        cohorts.retain(|name, entry| {
            let ours = Arc::ptr_eq(&entry.session, session);
            !ours || !entry.cohort.is_released() || session.waiters.are_at(name)
        });
        for (name, entry) in cohorts.iter_mut() {
            if !Arc::ptr_eq(&entry.session, session) || entry.cohort.is_over() {
                continue;
            }
            if entry.cohort.is_late(now) && entry.has_waiting(name) {
                if entry.cohort.is_offered() {
                    session.waiters.withdraw(name, entry.cohort.turn().owner);
                }
                entry.cohort.suspend();
                chores.requeue.push(name.clone());
            } else if entry.cohort.is_overdue(now) {
                let Turn { token, owner } = entry.cohort.turn();
                chores.missed.push((name.clone(), token));
                session.waiters.withdraw(name, owner);
                if !entry.pass(name, now) {
                    let last = FencingToken::new(entry.cohort.turn().token);
                    let until = entry.cohort.until();
                    entry.cohort.end();
                    chores.release.push((name.clone(), last, until));
                }
            } else if let Some(lease) = entry.cohort.renewal_of_offer(next_beat) {
                let token = FencingToken::new(entry.cohort.turn().token);
                chores.renew.push((name.clone(), token, lease));
            }
        }
        chores
    }

    /// Returns how the server knows the grant of this token.
    pub(crate) fn known(&self, name: &LockName, token: FencingToken) -> Known {
        let token = token.get();
        match lock(&self.0).get(name) {
            Some(Entry { cohort, .. }) if cohort.contains(token) => {
                if cohort.has_turn(token) {
                    Known::Turn(cohort.first())
                } else {
                    Known::Over
                }
            }
            _ => Known::Itself,
        }
    }

    /// Applies the server's answer to a request of the member under this token. Returns false if that member no longer
    /// has the turn: the answer then permits it nothing.
    pub(crate) fn confirm(
        &self,
        name: &LockName,
        token: FencingToken,
        answer: Confirmation,
        now: Moment,
    ) -> bool {
        let confirm = |entry: &mut Entry| entry.cohort.confirm(token.get(), answer, now);
        self.with(name, confirm).unwrap_or(false)
    }

    /// Forgets the cohort of the grant with this token, because its release is confirmed.
    pub(crate) fn forget(&self, name: &LockName, first: FencingToken) {
        self.forget_if(name, |cohort| cohort.first() == first.get());
    }

    /// Notes that the release by the member under this token is confirmed, or that its lease has ended. If that member
    /// had the last turn, it has released the grant, and the cohort is forgotten. Any other member has only passed its
    /// turn on, including the first one, whose token is the grant's.
    pub(crate) fn forget_turn(&self, name: &LockName, token: FencingToken) {
        self.forget_if(name, |cohort| cohort.turn().token == token.get());
    }

    fn forget_if(&self, name: &LockName, is_meant: impl FnOnce(&Cohort) -> bool) {
        let mut cohorts = lock(&self.0);
        let Some(entry) = cohorts
            .get_mut(name)
            .filter(|entry| entry.cohort.is_over() && is_meant(&entry.cohort))
        else {
            return;
        };
        if entry.session.waiters.are_at(name) {
            entry.cohort.released();
        } else {
            cohorts.remove(name);
        }
    }

    /// Ends a cohort whose grant the server no longer has. Returns the session of its remaining members.
    pub(crate) fn lose(&self, name: &LockName, first: u64) -> Option<Arc<Session>> {
        self.with(name, |entry| {
            if entry.cohort.first() != first {
                return None;
            }
            entry.cohort.end();
            Some(entry.session.clone())
        })?
    }

    /// Returns the token of a lost grant. A server that was asked at `asked` knows this waiting owner neither as queued
    /// nor as a member of a grant, so the grant in which it was to have its turn is lost.
    pub(crate) fn lost_member(
        &self,
        name: &LockName,
        owner: OwnerId,
        asked: Moment,
    ) -> Option<u64> {
        self.with(name, |entry| {
            let cohort = &entry.cohort;
            let lost = !cohort.is_over() && cohort.was_known_at(asked);
            (lost && cohort.to_come().contains(&owner)).then(|| cohort.first())
        })?
    }

    /// Returns the lease of a cohort whose member under this token leaves, if other members are still waiting.
    pub(crate) fn lease_of_others(&self, name: &LockName, token: FencingToken) -> Option<Duration> {
        self.with(name, |entry| {
            let others = entry.cohort.has_turn(token.get()) && entry.has_waiting(name);
            others.then(|| entry.cohort.lease())
        })?
    }

    /// Keeps everybody out of the lock. Returns false if the member has no turn, or the lock is retained already.
    pub(crate) fn retain(&self, name: &LockName, token: FencingToken) -> bool {
        self.with(name, |entry| entry.cohort.retain(token.get()))
            .unwrap_or(false)
    }

    /// Ends a retained cohort. Returns the token of its grant.
    pub(crate) fn end(&self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
        self.with(name, |entry| {
            if !entry.cohort.has_turn(token.get()) {
                return None;
            }
            entry.cohort.end();
            Some(FencingToken::new(entry.cohort.first()))
        })?
    }

    /// Returns how many members have their turn still to come, while one has the turn.
    pub(crate) fn to_come(&self, name: &LockName) -> Option<usize> {
        self.with(name, |entry| {
            (!entry.cohort.is_over()).then(|| entry.cohort.to_come().len())
        })?
    }

    /// Returns the newest turn of this token's grant, and how many members still wait.
    pub(crate) fn seen(&self, name: &LockName, first: u64) -> Option<(Turn, usize)> {
        self.with(name, |entry| {
            (entry.cohort.first() == first).then(|| (entry.cohort.turn(), entry.waiting(name)))
        })?
    }
}
