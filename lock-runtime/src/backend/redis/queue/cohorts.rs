//! The cohorts of a process, lock by lock: who is told of a turn, and when a grant goes back to the server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{
    backend::{BackendError, BoxFuture, Released, Renewed},
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Moment},
    owner::OwnerId,
};

use crate::{
    backend::redis::{
        Server,
        protocol::grant::GrantSnapshot,
        queue::{
            cohort::{Cohort, Confirmation, Departure, Seat, Turn},
            renew::Extend,
            session::Session,
        },
    },
    background::{self, clock::boot as clock, sync::lock},
};

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
enum Passed {
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

/// The cohorts of a process, by lock.
#[derive(Debug, Default)]
pub(crate) struct Cohorts(Mutex<HashMap<LockName, Entry>>);

impl Cohorts {
    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        lock(&self.0).get_mut(name).map(change)
    }

    /// The caller that was offered this turn is being polled, and enters if it may.
    pub(crate) fn enter(&self, name: &LockName, token: u64) -> Seat {
        let enter = |entry: &mut Entry| entry.cohort.enter(token, clock::now());
        self.with(name, enter).unwrap_or(Seat::Missed)
    }

    /// Passes the turn on, because the member under this token leaves.
    fn pass(&self, name: &LockName, token: u64, now: Moment) -> Passed {
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
    fn stretched(&self, name: &LockName, token: u64, now: Moment) -> Option<Duration> {
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
    ) -> bool {
        let confirm = |entry: &mut Entry| entry.cohort.confirm(token.get(), answer, clock::now());
        self.with(name, confirm).unwrap_or(false)
    }

    /// Forgets a cohort that is over, because its release is confirmed or its lease has ended. The token is the grant's, or the
    /// last turn's: another member that has left says nothing of the release.
    pub(crate) fn forget(&self, name: &LockName, token: FencingToken) {
        let token = token.get();
        let mut cohorts = lock(&self.0);
        let Some(entry) = cohorts.get_mut(name).filter(|entry| {
            let cohort = &entry.cohort;
            cohort.is_over() && (cohort.first() == token || cohort.turn().token == token)
        }) else {
            return;
        };
        if entry.session.waiters.are_at(name) {
            entry.cohort.released();
        } else {
            cohorts.remove(name);
        }
    }

    /// The server does not hold the grant any more. Returns the session of the members to come.
    fn lose(&self, name: &LockName, first: u64) -> Option<Arc<Session>> {
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
    fn lease_of_others(&self, name: &LockName, token: FencingToken) -> Option<Duration> {
        self.with(name, |entry| {
            let others = entry.cohort.has_turn(token.get()) && entry.has_waiting(name);
            others.then(|| entry.cohort.lease())
        })?
    }

    /// Lets nobody in; false if nobody was let in already.
    fn retain(&self, name: &LockName, token: FencingToken) -> bool {
        self.with(name, |entry| entry.cohort.retain(token.get()))
            .unwrap_or(false)
    }

    /// ExitPolicy a cohort that is retained. Returns the token that its grant has.
    fn end(&self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
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

impl Server {
    /// Begins the cohort of a grant that the server tells of, unless it is known already.
    pub(crate) fn take_up(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &LockName,
        grant: &GrantSnapshot,
    ) {
        if *grant.session_id != *session.session_id {
            return; // of another session: its owners have left it, and have other names here
        }
        let is_new = session.waiters.note_grant(name, &grant.owners, grant.first);
        if grant.is_pushed && !is_new {
            return; // each grant is pushed once: this is an old message, which somebody repeats
        }
        let now = clock::now();
        let Some(cohort) = Cohort::new(grant, now) else {
            return;
        };
        let mut entry = Entry {
            session: session.clone(),
            cohort,
        };
        let (requeue, replaced) = {
            let mut cohorts = lock(&self.cohorts.0);
            if let Some(known) = cohorts.get(name).map(|entry| &entry.cohort) {
                let newer = known.first() > grant.first;
                let again = grant.is_pushed || !known.is_suspended();
                if newer || (known.first() == grant.first && again) {
                    return;
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
                    let token = FencingToken::new(grant.first);
                    background::spawn(self.clone().give_back(name.clone(), token, grant.until()));
                    return;
                }
                if !session.waiters.waits(name, *owner) {
                    return;
                }
            }
            if !passed && entry.has_waiting(name) {
                // Its local deadline has passed.
                (true, cohorts.remove(name))
            } else {
                if !passed {
                    // All of them have left: the grant goes back.
                    let token = FencingToken::new(entry.cohort.turn().token);
                    let until = entry.cohort.until();
                    entry.cohort.end();
                    background::spawn(self.clone().give_back(name.clone(), token, until));
                }
                (false, cohorts.insert(name.clone(), entry))
            }
        };
        if let Some(replaced) = replaced.filter(|replaced| !replaced.cohort.is_over()) {
            // The server has lost it.
            replaced.session.requeue(self, Some(name));
        }
        if requeue {
            session.requeue(self, Some(name));
        }
    }

    /// Renews the grant of an offer on the engine: its member could not enter on the rest of it.
    pub(crate) fn confirm_offer(
        self: &Arc<Self>,
        name: LockName,
        token: u64,
        lease: Duration,
    ) -> BoxFuture<'static, Result<(), BackendError>> {
        let server = self.clone();
        let confirming = background::spawn(async move {
            let token = FencingToken::new(token);
            server.renew(&name, token, Extend::To(lease)).await
        });
        Box::pin(async move {
            match confirming.await {
                // Whether it may enter now is decided where it enters.
                Ok(Ok(Renewed::Until(_) | Renewed::NotHeld)) => Ok(()),
                Ok(Err(error)) => Err(error),
                Err(panic) => Err(BackendError::Unreachable(panic.to_string())),
            }
        })
    }

    /// Does what the heartbeat found for the cohorts of a session.
    pub(crate) fn tend_cohorts(
        self: &Arc<Self>,
        session: &Arc<Session>,
        now: Moment,
        next_beat: Moment,
    ) {
        let chores = self.cohorts.tend(session, now, next_beat);
        for (name, token) in chores.missed {
            tracing::debug!(server = %self.address(), key = %self.key(&name), token, "a waiter did not take its turn, passing it on");
        }
        for name in chores.requeue {
            session.requeue(self, Some(&name));
        }
        for (name, token, until) in chores.release {
            background::spawn(self.clone().give_back(name, token, until));
        }
        for (name, token, lease) in chores.renew {
            let server = self.clone();
            background::spawn(async move {
                let patience = clock::now() + lease;
                let renewing = server.renew(&name, token, Extend::To(lease));
                if let Some(Err(error)) = clock::timeout_at(patience, renewing).await {
                    tracing::debug!(server = %server.address(), key = %server.key(&name), %token, %error, "an offer was not renewed");
                }
            });
        }
    }

    /// Releases what the holder under this token has: in memory, where another member of its cohort is to come. What takes
    /// more than one step is the engine's, however the caller is polled, and goes over the connection of all renewals: what
    /// shortens a lease cannot come after the next member has extended it.
    pub(crate) async fn release(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        let now = clock::now();
        let retain_until = retain_until.filter(|until| *until > now);
        let retained =
            retain_until.is_some() && self.cohorts.lease_of_others(name, token).is_some();
        if !retained && self.cohorts.stretched(name, token.get(), now).is_none() {
            return self.release_turn(name, token, retain_until).await;
        }
        let (server, name) = (self.clone(), name.clone());
        let releasing =
            background::spawn(
                async move { server.release_in_steps(&name, token, retain_until).await },
            );
        releasing
            .await
            .unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
    }

    async fn release_in_steps(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        if let Some(until) = retain_until
            && let Some(lease) = self.cohorts.lease_of_others(name, token)
        {
            return self.retain(name, token, until, lease).await;
        }
        while let Some(lease) = self.cohorts.stretched(name, token.get(), clock::now()) {
            // The next member has asked for less. Its lease begins before it enters, and it may extend it again.
            if self.renew(name, token, Extend::Restart(lease)).await? == Renewed::NotHeld {
                break;
            }
        }
        self.release_turn(name, token, retain_until).await
    }

    /// Offers the turn to the next member, or releases the grant.
    async fn release_turn(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        let first = match self.cohorts.pass(name, token.get(), clock::now()) {
            Passed::Unknown => return self.release_grant(name, token, retain_until).await,
            Passed::Stale => return Ok(Released::NotHeld),
            Passed::On => return Ok(Released::Released),
            Passed::Ended(first) => first,
            Passed::Late(session) => {
                // They take their places again: in this grant, where the server still has it. Released, it would go to others.
                session.requeue(self, Some(name));
                return Ok(Released::NotHeld);
            }
        };
        let grant = FencingToken::new(first);
        let released = self.release_grant(name, grant, retain_until).await;
        if released.is_ok() {
            self.cohorts.forget(name, grant);
        }
        released
    }

    /// ExitPolicy a cohort whose grant is gone from the server, and queues its waiting members again.
    pub(crate) fn lose_cohort(self: &Arc<Self>, name: &LockName, first: u64) {
        if let Some(session) = self.cohorts.lose(name, first) {
            session.requeue(self, Some(name));
        }
    }

    /// Gives back a turn that nobody takes.
    pub(crate) fn give_back(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        lease_ends: Moment,
    ) -> BoxFuture<'static, ()> {
        let task = self.track_cleanup();
        Box::pin(async move {
            let until = lease_ends.max(clock::now() + CLAIM);
            let _ = clock::timeout_at(until, self.release(&name, token, None)).await;
            self.cohorts.forget(&name, token);
            drop(task);
        })
    }

    /// What the member under this token has is gone.
    pub(crate) fn lose(self: &Arc<Self>, name: &LockName, token: FencingToken) {
        if let Known::Turn(first) = self.cohorts.known(name, token) {
            self.lose_cohort(name, first);
            self.cohorts.forget(name, token);
        }
    }

    /// Lets nobody in until then, and then the next member. The server keeps the lock for as long, should this process end.
    async fn retain(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        until: Moment,
        lease: Duration,
    ) -> Result<Released, BackendError> {
        let lease = Extend::To(lease.max(until.since(clock::now()) + CLAIM));
        match self.cohorts.known(name, token) {
            Known::Turn(_) if self.renew(name, token, lease).await? == Renewed::NotHeld => {
                return Ok(Released::NotHeld);
            }
            _ => {}
        }
        if !self.cohorts.retain(name, token) {
            return Ok(Released::Released); // asked once more
        }
        background::spawn(self.release_at(until, name.clone(), token));
        Ok(Released::Released)
    }

    fn release_at(
        self: &Arc<Self>,
        moment: Moment,
        name: LockName,
        token: FencingToken,
    ) -> BoxFuture<'static, ()> {
        let (server, task) = (self.clone(), self.track_acquisition());
        Box::pin(async move {
            let ends = moment + CLAIM;
            tokio::select! {
                () = clock::sleep_until(moment) => server.give_back(name, token, ends).await,
                // Nobody is to come any more: the server keeps it alone.
                () = server.until_shutdown() => {
                    if let Some(first) = server.cohorts.end(&name, token) {
                        let keeping = server.release_grant(&name, first, Some(moment));
                        let _ = clock::timeout_at(ends, keeping).await;
                        server.cohorts.forget(&name, first);
                    }
                }
            }
            drop(task);
        })
    }
}
