//! All cohorts of a process, lock by lock: passes turns to members that still wait, takes back offers that nobody takes
//! up, and says when a grant goes back to the server. It decides; [`grants`](super::grants) sends.

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
    /// Offers the turn to the next member that still waits; false if there is none, or no time is left.
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

    /// How many members to come still wait.
    fn waiting(&self, name: &LockName) -> usize {
        let waits = |owner: &&OwnerId| self.session.waiters.waits(name, **owner);
        self.cohort.to_come().iter().filter(waits).count()
    }

    fn has_waiting(&self, name: &LockName) -> bool {
        let waits = |owner: &OwnerId| self.session.waiters.waits(name, *owner);
        self.cohort.to_come().iter().any(waits)
    }
}

/// What becomes of a grant whose turn is free.
#[derive(Debug)]
pub(crate) enum Passed {
    /// The grant is no cohort's.
    Unknown,
    /// The turn is offered to the next member.
    On,
    /// The member had lost its turn.
    Stale,
    /// Nobody is to come: the grant of this token is released.
    Ended(u64),
    /// The local deadline has passed, and members are still to come.
    Late(Arc<Session>),
}

/// How the server knows the grant of a token.
#[derive(Debug)]
pub(crate) enum Known {
    /// By this token, as far as is known here.
    Itself,
    /// By this one: the token is of the member that has the turn.
    Turn(u64),
    /// Not at all: the member has lost its turn.
    Over,
}

/// What the heartbeat has to do for a session's cohorts.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    /// These members did not take their turns.
    pub(crate) missed: Vec<(LockName, u64)>,
    /// Members of these locks queue again, because their local deadline has passed.
    pub(crate) requeue: Vec<LockName>,
    /// Nobody takes up these grants: their last members' tokens, and their local deadlines.
    pub(crate) release: Vec<(LockName, FencingToken, Moment)>,
    /// These offers are renewed to these leases.
    pub(crate) renew: Vec<(LockName, FencingToken, Duration)>,
}

/// What there is to do for a grant that the server told of.
#[derive(Debug, Default)]
pub(crate) struct TakenUp {
    /// In these sessions the waiters of the lock queue again.
    pub(crate) requeue: Vec<Arc<Session>>,
    /// Nobody takes the turn of this token, whose local deadline is this.
    pub(crate) give_back: Option<(FencingToken, Moment)>,
}

/// The cohorts of a process, by lock. In order, as all maps that are gone through here: whatever is decided depends on what
/// has happened alone.
#[derive(Debug, Default)]
pub(crate) struct Cohorts(Mutex<BTreeMap<LockName, Entry>>);

impl Cohorts {
    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        lock(&self.0).get_mut(name).map(change)
    }

    /// The caller that was offered this turn is being polled, and enters if it may.
    pub(crate) fn enter(&self, name: &LockName, token: u64, now: Moment) -> Seat {
        let enter = |entry: &mut Entry| entry.cohort.enter(token, now);
        self.with(name, enter).unwrap_or(Seat::Missed)
    }

    /// Begins the cohort of a grant that the server tells of, unless it is known already.
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
            return chores; // each grant is pushed once: this is an old message, which somebody repeats
        }
        let Some(cohort) = Cohort::new(grant, now) else {
            return chores;
        };
        let mut entry = Entry {
            session: session.clone(),
            cohort,
        };
        let mut cohorts = lock(&self.0);
        if let Some(known) = cohorts.get(name).map(|entry| &entry.cohort) {
            let newer = known.first() > grant.first;
            let again = grant.is_pushed || !known.is_suspended();
            if newer || (known.first() == grant.first && again) {
                return chores;
            }
        }
        let passed = entry.pass(name, now);
        if let ([owner], false) = (&grant.owners[..], passed) {
            // An owner that has left gives the grant back by itself, and one that was granted the lock in a reply is
            // inside. An owner that is inside under an older token was granted the lock twice.
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
            // Its local deadline has passed.
            chores.requeue.push(session.clone());
            cohorts.remove(name)
        } else {
            if !passed {
                // All of them have left: the grant goes back.
                let token = FencingToken::new(entry.cohort.turn().token);
                chores.give_back = Some((token, entry.cohort.until()));
                entry.cohort.end();
            }
            cohorts.insert(name.clone(), entry)
        };
        if let Some(replaced) = replaced.filter(|replaced| !replaced.cohort.is_over()) {
            // The server has lost it.
            chores.requeue.insert(0, replaced.session);
        }
        chores
    }

    /// Passes the turn on, because the member under this token leaves.
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

    /// The lease of a cohort whose grant stands for longer than that, if members are to come after the one under this token.
    pub(crate) fn stretched(&self, name: &LockName, token: u64, now: Moment) -> Option<Duration> {
        self.with(name, |entry| {
            let cohort = &entry.cohort;
            let stretched = cohort.has_turn(token) && cohort.is_stretched(now);
            (stretched && entry.has_waiting(name)).then_some(cohort.lease())
        })?
    }

    /// Looks after the cohorts of a session: offers that nobody takes are passed on, or kept fresh until then; members of a
    /// grant whose local deadline has passed queue again; what nobody asks about is forgotten.
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

    /// How the server knows the grant of this token.
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

    /// Takes in what the server answered to a request of the member under this token. False if that member has the turn
    /// no longer: the answer lets it do nothing.
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

    /// The release of the grant of this token is confirmed: its cohort, which is over, is forgotten.
    pub(crate) fn forget(&self, name: &LockName, first: FencingToken) {
        self.forget_if(name, |cohort| cohort.first() == first.get());
    }

    /// The release by the member under this token is confirmed, or its lease has ended. The member that had the last turn has
    /// released the grant: its cohort, which is over, is forgotten. Any other has only passed its turn on, also the first
    /// one, whose token is the grant's.
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

    /// The server does not hold the grant any more. Returns the session of the members to come.
    pub(crate) fn lose(&self, name: &LockName, first: u64) -> Option<Arc<Session>> {
        self.with(name, |entry| {
            if entry.cohort.first() != first {
                return None;
            }
            entry.cohort.end();
            Some(entry.session.clone())
        })?
    }

    /// The server was asked then, and knows this waiting owner neither as queued nor as a member of the grant: the grant that
    /// it is to come in is lost. Returns the token of that grant.
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

    /// The lease of a cohort whose member under this token leaves, if other members are to come.
    pub(crate) fn lease_of_others(&self, name: &LockName, token: FencingToken) -> Option<Duration> {
        self.with(name, |entry| {
            let others = entry.cohort.has_turn(token.get()) && entry.has_waiting(name);
            others.then(|| entry.cohort.lease())
        })?
    }

    /// Lets nobody in; false if nobody was let in already.
    pub(crate) fn retain(&self, name: &LockName, token: FencingToken) -> bool {
        self.with(name, |entry| entry.cohort.retain(token.get()))
            .unwrap_or(false)
    }

    /// Ends a cohort that is retained. Returns the token that its grant has.
    pub(crate) fn end(&self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
        self.with(name, |entry| {
            if !entry.cohort.has_turn(token.get()) {
                return None;
            }
            entry.cohort.end();
            Some(FencingToken::new(entry.cohort.first()))
        })?
    }

    /// How many members are to come while one has the turn.
    pub(crate) fn to_come(&self, name: &LockName) -> Option<usize> {
        self.with(name, |entry| {
            (!entry.cohort.is_over()).then(|| entry.cohort.to_come().len())
        })?
    }

    /// The member of this token's grant that has or had the turn, and how many are still to come.
    pub(crate) fn seen(&self, name: &LockName, first: u64) -> Option<(Turn, usize)> {
        self.with(name, |entry| {
            (entry.cohort.first() == first).then(|| (entry.cohort.turn(), entry.waiting(name)))
        })?
    }
}
