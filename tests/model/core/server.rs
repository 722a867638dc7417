//! The server: what it stores for one lock, and one function for each script, named after the script in
//! `protocol/native`. A tick is 1 s. A place is a time of the server's clock in its finer unit.

use lock_core::options::Mode;

use crate::Planted;

pub(crate) type Tick = u64;
pub(crate) type Token = u64;
pub(crate) type Place = u64;
pub(crate) type Id = usize;
pub(crate) type ClientId = usize;

/// The parts of a tick in the server's finer unit.
pub(crate) const TICK: Place = 1000;
/// The time within which a client must confirm a grant, in ticks (`lock_core::lease::CLAIM`).
pub(crate) const CLAIM: Tick = 2;
/// The lease of all callers, the lease to which a holder extends its own, and the `wait` of all callers, in ticks.
pub(crate) const LEASE: Tick = 3;
pub(crate) const LONGER: Tick = 4;
pub(crate) const WAIT: Tick = 4;

/// An owner name: the caller, and the number of the name among the caller's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) id: Id,
    pub(crate) name: u8,
}

/// The place that a request names: a place from an earlier reply, or the time of the first request.
pub(crate) type Wanted = Option<Place>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// The request of a caller itself.
    Acquire(Owner, Wanted),
    /// Queues several callers of one client.
    Queue(Vec<(Owner, Wanted)>),
    /// Leaves the queue.
    Leave(Owner),
    /// Leaves the queue, and gives back a grant that belongs to this owner alone.
    Abandon(Owner),
    Release(Token),
    /// Extends the lease to this time.
    Renew(Token, Tick),
    /// Cuts the owners behind one owner off its grant, extends the lease, and queues the others again.
    Dissolve(Token, Owner, Tick, Vec<(Owner, Place)>),
    /// Lets readers enter beside the writer with this grant, which reads from now on.
    Downgrade(Token),
    Probe(Owner),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted(Token),
    /// The owner is among the owners of this grant. The answer to a request of a caller itself names a place, too.
    Held(Found, Place),
    Queued(Place),
    /// The grant if it belongs to this client, and the places of the callers.
    Placed(Vec<Found>, Vec<Place>),
    /// The owner is neither in the queue nor in a grant any longer. It had this place.
    Out(Option<Place>),
    Released,
    Downgraded,
    /// The time left; `None` if the lock is not held with this token.
    Left(Option<Tick>),
    /// The grant if it belongs to this client, and whether the server has lost the owner.
    Probed(Option<Found>, bool),
}

/// A grant as a reply or a push describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Found {
    pub(crate) first: Token,
    pub(crate) owners: Vec<Owner>,
    pub(crate) mode: Mode,
    pub(crate) left: Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) first: Token,
    pub(crate) owners: Vec<Owner>,
    pub(crate) mode: Mode,
    pub(crate) expires: Tick,
}

impl Grant {
    pub(crate) fn is_valid(&self, now: Tick) -> bool {
        self.expires > now
    }

    fn found(&self, now: Tick) -> Found {
        Found {
            first: self.first,
            owners: self.owners.clone(),
            mode: self.mode,
            left: self.expires - now,
        }
    }
}

/// Returns whether a caller with this mode can be inside beside callers with the other modes.
pub(crate) fn fits(mode: Mode, mut others: impl Iterator<Item = Mode>) -> bool {
    let taken = |mode| match mode {
        Mode::Permits { take, .. } => take,
        _ => 0,
    };
    match mode {
        Mode::Permits { take, of } => take + others.map(taken).sum::<u32>() <= of,
        Mode::Read => others.all(|other| other == Mode::Read),
        _ => others.next().is_none(),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// The grants, the oldest first: one to writers, or several to readers or to callers that take permits. If the lease of
    /// one of several has ended, it stays until a script removes it.
    pub(crate) grants: Vec<Grant>,
    /// The waiters in the order of their places.
    pub(crate) queue: Vec<(Place, Owner)>,
    fence: Token,
    /// The newest place.
    placed: Place,
}

/// One run of a script.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// The client and the mode of each caller.
    pub(crate) clients: &'a [ClientId],
    pub(crate) modes: &'a [Mode],
    pub(crate) planted: Option<Planted>,
    pub(crate) now: Tick,
    /// The client that sent the script.
    pub(crate) from: ClientId,
    /// For each client, whether `PUBLISH` counts a receiver.
    pub(crate) heard: [bool; 2],
    pub(crate) pushes: Vec<(ClientId, Found)>,
    /// The owners whose entries were removed because their wait was over, or because their client was silent.
    pub(crate) skipped: Vec<Owner>,
}

impl Server {
    /// The server's clock in its finer unit. No two scripts see the same time.
    pub(crate) fn clock(&self, now: Tick) -> Place {
        (now * TICK).max(self.placed)
    }

    /// Removes the grants if the leases of all have ended. Returns the owners of each grant whose lease has ended.
    pub(crate) fn expire(&mut self, now: Tick) -> Vec<Owner> {
        let ended = self.grants.iter().filter(|grant| !grant.is_valid(now));
        let owners = ended.flat_map(|grant| grant.owners.clone()).collect();
        if self.grants.iter().all(|grant| !grant.is_valid(now)) {
            self.grants.clear();
        }
        owners
    }

    /// Returns whether the lock is free, or the first waiter can enter.
    pub(crate) fn is_open(&self, modes: &[Mode], now: Tick) -> bool {
        let valid = self.grants.iter().filter(|grant| grant.is_valid(now));
        let valid: Vec<_> = valid.map(|grant| grant.mode).collect();
        let head = self.queue.first().map(|(_, head)| modes[head.id]);
        valid.is_empty() || head.is_some_and(|mode| fits(mode, valid.into_iter()))
    }

    pub(crate) fn execute(&mut self, run: &mut Run<'_>, request: &Request) -> Reply {
        self.placed = self.clock(run.now) + 1;
        match request {
            Request::Acquire(owner, wanted) => self.acquire(run, *owner, *wanted),
            Request::Queue(callers) => self.queue(run, callers),
            Request::Leave(owner) => self.leave(run, *owner, false),
            Request::Abandon(owner) => self.leave(run, *owner, true),
            Request::Release(first) => {
                self.release(run, *first);
                Reply::Released
            }
            Request::Renew(first, lease) => Reply::Left(self.renew(run, *first, *lease)),
            Request::Dissolve(first, keep, lease, others) => {
                Reply::Left(self.dissolve(run, *first, *keep, *lease, others))
            }
            Request::Downgrade(first) => {
                self.downgrade(run, *first);
                Reply::Downgraded
            }
            Request::Probe(owner) => self.probe(run, *owner),
        }
    }

    pub(crate) fn is_queued(&self, owner: Owner) -> bool {
        self.queue.iter().any(|(_, queued)| *queued == owner)
    }

    /// Returns whether the owner has a grant.
    pub(crate) fn has_let_in(&self, owner: Owner, now: Tick) -> bool {
        self.held_by(owner, now).is_some()
    }

    fn with(&mut self, first: Token) -> Option<&mut Grant> {
        self.grants.iter_mut().find(|held| held.first == first)
    }

    fn held_by(&self, owner: Owner, now: Tick) -> Option<Found> {
        let mut valid = self.grants.iter().filter(|held| held.is_valid(now));
        let held = valid.find(|held| held.owners.contains(&owner))?;
        Some(held.found(now))
    }

    fn is_shared(&self) -> bool {
        self.grants.iter().any(|held| held.mode.is_shared())
    }

    /// Returns the grant of a writer of this client.
    fn own(&self, run: &Run<'_>) -> Option<Found> {
        let held = self.grants.first().filter(|_| !self.is_shared());
        let held = held.filter(|held| run.clients[held.owners[0].id] == run.from);
        held.map(|held| held.found(run.now))
    }

    fn fits(&self, run: &Run<'_>, owner: Owner) -> bool {
        let modes = self.grants.iter().map(|held| held.mode);
        fits(run.modes[owner.id], modes)
    }

    fn is_alive(&self, place: Place) -> bool {
        place + WAIT * TICK > self.placed
    }

    fn before_all(&self) -> Place {
        self.queue.first().map_or(self.placed, |(head, _)| *head) - 1
    }

    /// Removes an entry of the queue, and returns its place.
    fn remove(&mut self, owner: Owner) -> Option<Place> {
        let index = self.queue.iter().position(|(_, queued)| *queued == owner)?;
        Some(self.queue.remove(index).0)
    }

    fn give(&mut self, run: &Run<'_>, owners: Vec<Owner>, left: Tick) -> Token {
        let (first, mode) = (self.fence + 1, run.modes[owners[0].id]);
        self.fence += match mode {
            Mode::Permits { take, .. } => Token::from(take),
            _ => owners.len() as Token,
        };
        self.grants.push(Grant {
            first,
            owners,
            mode,
            expires: run.now + left,
        });
        first
    }

    /// Removes the first waiter from the queue. If it is alive and listening, grants the lock to it, and to its neighbours of
    /// the same client and mode.
    fn offer(&mut self, run: &mut Run<'_>) -> bool {
        let (place, head) = self.queue.remove(0);
        let (client, mode) = (run.clients[head.id], run.modes[head.id]);
        if !self.is_alive(place) || !run.heard[client] {
            run.skipped.push(head);
            return false;
        }
        let mut owners = vec![head];
        while let Some((place, next)) = self.queue.first().copied()
            && (run.clients[next.id], run.modes[next.id]) == (client, mode)
            && matches!(mode, Mode::Write | Mode::Read)
        {
            self.queue.remove(0);
            match self.is_alive(place) {
                true => owners.push(next),
                false => run.skipped.push(next),
            }
        }
        self.give(run, owners, LEASE.min(CLAIM));
        let given = self.grants.last().map(|held| held.found(run.now));
        run.pushes.extend(given.map(|found| (client, found)));
        true
    }

    /// Ends all grants, and grants the lock to the next waiter, or to the next waiters that can enter together.
    fn grant_next(&mut self, run: &mut Run<'_>) {
        self.grants.clear();
        while !self.queue.is_empty() {
            if self.offer(run) {
                if self.is_shared() {
                    self.admit(run, false);
                }
                return;
            }
        }
    }

    /// Lets waiters enter, until the first of them cannot. With `asks`, removes this waiter if it does not listen.
    fn admit(&mut self, run: &mut Run<'_>, asks: bool) {
        while let Some((place, head)) = self.queue.first().copied() {
            let hears = !asks || run.heard[run.clients[head.id]];
            if self.is_alive(place) && hears && !self.fits(run, head) {
                return;
            }
            self.offer(run);
        }
    }

    /// Removes grants whose lease has ended: after a release, only the oldest ones. Then lets waiters enter.
    fn grant_beside(&mut self, run: &mut Run<'_>, is_released: bool) {
        let mut keeps = false;
        self.grants.retain(|held| {
            let is_valid = held.is_valid(run.now);
            keeps = (keeps && is_released) || is_valid;
            keeps
        });
        match self.grants.is_empty() {
            true => self.grant_next(run),
            false => self.admit(run, !is_released),
        }
    }

    /// Inserts an entry unless the owner has one, as `ZADD NX` does, and returns the owner's place.
    fn enqueue(&mut self, owner: Owner, wanted: Wanted) -> Place {
        if let Some((place, _)) = self.queue.iter().find(|(_, queued)| *queued == owner) {
            return *place;
        }
        let place = wanted.filter(|place| self.is_alive(*place));
        let place = place.unwrap_or_else(|| {
            let last = self.queue.last().map_or(0, |(last, _)| last + 1);
            self.placed = self.placed.max(last);
            self.placed
        });
        let index = self.queue.partition_point(|(other, _)| *other <= place);
        self.queue.insert(index, (place, owner));
        place
    }

    fn acquire(&mut self, run: &Run<'_>, owner: Owner, wanted: Wanted) -> Reply {
        if let Some(found) = self.held_by(owner, run.now) {
            let place = self.before_all();
            return Reply::Held(found, wanted.unwrap_or(place).min(place));
        }
        let overtakes = run.planted == Some(Planted::ReadersOvertake);
        let enters = match self.queue.first() {
            Some((_, head)) if !overtakes => self.grants.is_empty() && *head == owner,
            _ => self.fits(run, owner),
        };
        if enters {
            self.remove(owner);
            return Reply::Granted(self.give(run, vec![owner], LEASE));
        }
        Reply::Queued(self.enqueue(owner, wanted))
    }

    fn queue(&mut self, run: &mut Run<'_>, callers: &[(Owner, Wanted)]) -> Reply {
        let mut found = Vec::new();
        let places = callers.iter().map(|(owner, wanted)| {
            if let Some(held) = self.held_by(*owner, run.now) {
                if !found.contains(&held) {
                    found.push(held);
                }
                let place = self.before_all();
                return wanted.unwrap_or(place).min(place);
            }
            self.placed += 1;
            self.enqueue(*owner, *wanted)
        });
        let places = places.collect();
        if self.grants.is_empty() || self.is_shared() {
            self.grant_beside(run, false);
        }
        if !self.is_shared() {
            found = self.own(run).into_iter().collect();
        }
        Reply::Placed(found, places)
    }

    fn leave(&mut self, run: &mut Run<'_>, owner: Owner, abandons: bool) -> Reply {
        let mut place = self.remove(owner);
        if place.is_none()
            && let Some(found) = self.held_by(owner, run.now)
        {
            if !abandons || found.owners.len() > 1 {
                return Reply::Held(found, 0);
            }
            place = Some(self.before_all());
            self.release(run, found.first);
        } else if self.is_shared() {
            self.grant_beside(run, false);
        }
        Reply::Out(place)
    }

    fn release(&mut self, run: &mut Run<'_>, first: Token) {
        if self.with(first).is_some() {
            self.grants.retain(|held| held.first != first);
            self.grant_beside(run, true);
        }
    }

    fn renew(&mut self, run: &Run<'_>, first: Token, lease: Tick) -> Option<Tick> {
        let held = self.with(first).filter(|held| held.is_valid(run.now))?;
        held.expires = held.expires.max(run.now + lease);
        Some(held.expires - run.now)
    }

    fn downgrade(&mut self, run: &mut Run<'_>, first: Token) {
        if let Some(held) = self.with(first).filter(|held| !held.mode.is_shared()) {
            held.mode = Mode::Read;
            self.admit(run, false);
        }
    }

    fn dissolve(
        &mut self,
        run: &Run<'_>,
        first: Token,
        keep: Owner,
        lease: Tick,
        others: &[(Owner, Place)],
    ) -> Option<Tick> {
        let held = self.with(first).filter(|held| !held.mode.is_shared())?;
        let last = held.owners.iter().position(|owner| *owner == keep)?;
        held.owners.truncate(last + 1);
        let left = self.renew(run, first, lease);
        for (owner, place) in others {
            self.enqueue(*owner, Some(*place));
        }
        left
    }

    fn probe(&mut self, run: &mut Run<'_>, owner: Owner) -> Reply {
        if self.is_queued(owner) && (self.grants.is_empty() || self.is_shared()) {
            self.grant_beside(run, false);
        }
        let held = self.held_by(owner, run.now);
        let held = held.filter(|_| !self.is_queued(owner));
        let is_gone = !self.is_queued(owner) && held.is_none();
        Reply::Probed(held.or_else(|| self.own(run)), is_gone)
    }
}
