//! The server: what it stores for one lock, and one function for each script, named after the script in
//! `protocol/native`. A tick is 1 s. A place is a time of the server's clock in its finer unit.

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
    Probe(Owner),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted(Token),
    /// The owner is among the owners of this grant. The answer to a request of a caller itself names a place, too.
    Held(Found, Place),
    Queued(Place),
    /// The grant if it belongs to this client, and the places of the callers.
    Placed(Option<Found>, Vec<Place>),
    /// The owner is neither in the queue nor in a grant any longer. It had this place.
    Out(Option<Place>),
    Released,
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
    pub(crate) left: Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) first: Token,
    pub(crate) owners: Vec<Owner>,
    pub(crate) expires: Tick,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) grant: Option<Grant>,
    /// The waiters in the order of their places.
    pub(crate) queue: Vec<(Place, Owner)>,
    fence: Token,
    /// The newest place.
    placed: Place,
}

/// One run of a script.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// The client of each caller.
    pub(crate) clients: &'a [ClientId],
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

    /// Removes a grant whose lease has ended, and returns its owners.
    pub(crate) fn expire(&mut self, now: Tick) -> Vec<Owner> {
        let ended = self.grant.take_if(|grant| grant.expires <= now);
        ended.map_or_else(Vec::new, |grant| grant.owners)
    }

    pub(crate) fn execute(&mut self, run: &mut Run<'_>, request: &Request) -> Reply {
        self.placed = self.clock(run.now) + 1;
        match request {
            Request::Acquire(owner, wanted) => self.acquire(run, *owner, *wanted),
            Request::Queue(callers) => self.queue(run, callers),
            Request::Leave(owner) => self.leave(run, *owner, false),
            Request::Abandon(owner) => self.leave(run, *owner, true),
            Request::Release(first) => {
                if self.with(*first).is_some() {
                    self.grant_next(run);
                }
                Reply::Released
            }
            Request::Renew(first, lease) => Reply::Left(self.renew(run, *first, *lease)),
            Request::Dissolve(first, keep, lease, others) => {
                Reply::Left(self.dissolve(run, *first, *keep, *lease, others))
            }
            Request::Probe(owner) => self.probe(run, *owner),
        }
    }

    pub(crate) fn is_queued(&self, owner: Owner) -> bool {
        self.queue.iter().any(|(_, queued)| *queued == owner)
    }

    fn with(&mut self, first: Token) -> Option<&mut Grant> {
        self.grant.as_mut().filter(|held| held.first == first)
    }

    fn held_by(&self, owner: Owner) -> Option<&Grant> {
        let held = self.grant.as_ref();
        held.filter(|held| held.owners.contains(&owner))
    }

    fn found(&self, run: &Run<'_>) -> Option<Found> {
        self.grant.as_ref().map(|held| Found {
            first: held.first,
            owners: held.owners.clone(),
            left: held.expires - run.now,
        })
    }

    fn own(&self, run: &Run<'_>) -> Option<Found> {
        let found = self.found(run);
        found.filter(|found| run.clients[found.owners[0].id] == run.from)
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
        let first = self.fence + 1;
        self.fence += owners.len() as Token;
        self.grant = Some(Grant {
            first,
            owners,
            expires: run.now + left,
        });
        first
    }

    /// Grants the lock to the first waiter that is alive and listening, and to its neighbours of the same client.
    fn grant_next(&mut self, run: &mut Run<'_>) {
        self.grant = None;
        while !self.queue.is_empty() {
            let (place, head) = self.queue.remove(0);
            let client = run.clients[head.id];
            if !self.is_alive(place) || !run.heard[client] {
                run.skipped.push(head);
                continue;
            }
            let mut owners = vec![head];
            while let Some((place, next)) = self.queue.first().copied()
                && run.clients[next.id] == client
            {
                self.queue.remove(0);
                match self.is_alive(place) {
                    true => owners.push(next),
                    false => run.skipped.push(next),
                }
            }
            self.give(run, owners, LEASE.min(CLAIM));
            let pushed = self.found(run).map(|grant| (client, grant));
            run.pushes.extend(pushed);
            return;
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
        let is_next = self.queue.first().is_none_or(|(_, head)| *head == owner);
        if self.grant.is_none() && is_next {
            self.queue.drain(..self.queue.len().min(1));
            return Reply::Granted(self.give(run, vec![owner], LEASE));
        }
        match self.held_by(owner).and(self.found(run)) {
            Some(found) => {
                let place = self.before_all();
                Reply::Held(found, wanted.unwrap_or(place).min(place))
            }
            None => Reply::Queued(self.enqueue(owner, wanted)),
        }
    }

    fn queue(&mut self, run: &mut Run<'_>, callers: &[(Owner, Wanted)]) -> Reply {
        let places = callers.iter().map(|(owner, wanted)| {
            if self.held_by(*owner).is_some() {
                let place = self.before_all();
                return wanted.unwrap_or(place).min(place);
            }
            self.placed += 1;
            self.enqueue(*owner, *wanted)
        });
        let places = places.collect();
        if self.grant.is_none() {
            self.grant_next(run);
        }
        Reply::Placed(self.own(run), places)
    }

    fn leave(&mut self, run: &mut Run<'_>, owner: Owner, abandons: bool) -> Reply {
        let place = self.remove(owner);
        match self.held_by(owner).and(self.found(run)) {
            Some(found) if abandons && found.owners.len() == 1 => {
                let place = self.before_all();
                self.grant_next(run);
                Reply::Out(Some(place))
            }
            Some(found) if place.is_none() => Reply::Held(found, 0),
            _ => Reply::Out(place),
        }
    }

    fn renew(&mut self, run: &Run<'_>, first: Token, lease: Tick) -> Option<Tick> {
        let held = self.with(first)?;
        held.expires = held.expires.max(run.now + lease);
        Some(held.expires - run.now)
    }

    fn dissolve(
        &mut self,
        run: &Run<'_>,
        first: Token,
        keep: Owner,
        lease: Tick,
        others: &[(Owner, Place)],
    ) -> Option<Tick> {
        let held = self.with(first)?;
        let last = held.owners.iter().position(|owner| *owner == keep)?;
        held.owners.truncate(last + 1);
        let left = self.renew(run, first, lease);
        for (owner, place) in others {
            self.enqueue(*owner, Some(*place));
        }
        left
    }

    fn probe(&mut self, run: &mut Run<'_>, owner: Owner) -> Reply {
        if self.grant.is_none() && self.is_queued(owner) {
            self.grant_next(run);
        }
        let is_gone = !self.is_queued(owner) && self.held_by(owner).is_none();
        Reply::Probed(self.own(run), is_gone)
    }
}
