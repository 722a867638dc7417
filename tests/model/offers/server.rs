//! The server: what it stores for one lock, and one function for each script, named after the script in
//! `protocol/native`. `dissolve`, and the put-back list of `release`, are the plan's; no such script exists yet.

use crate::world::{CLAIM, ClientId, Id, Place, TICK, Terms, Tick, Token};

/// An acquisition's name on the server. An acquisition that is withdrawn gets a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) id: Id,
    pub(crate) name: u8,
}

pub(crate) type PutBack = Vec<(Owner, Place)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// With a place: the caller queues at its old place.
    Acquire(Owner, Option<Place>),
    /// Queues a caller whose client has other callers, and grants a free lock to the first waiter.
    Queue(Owner, Option<Place>),
    /// The last try: takes the lock if it is free and no earlier waiter is alive, and leaves the queue otherwise.
    Enter(Owner),
    /// Leaves the queue, and gives back a grant that belongs to this owner alone.
    Abandon(Owner),
    Release(Token, PutBack),
    Renew(Token, Tick),
    /// Cuts the owners of a grant to one, sets its lease, and puts the others back in the queue.
    Dissolve(Token, Owner, Tick, PutBack),
    Probe(Owner),
}

impl Request {
    /// Returns the owner that the request queues or removes from the queue.
    pub(crate) fn owner(&self) -> Option<Owner> {
        match self {
            Self::Acquire(owner, _)
            | Self::Queue(owner, _)
            | Self::Enter(owner)
            | Self::Abandon(owner) => Some(*owner),
            Self::Release(..) | Self::Renew(..) | Self::Dissolve(..) | Self::Probe(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// The owner's place, and the grant if it belongs to this client. The owner may be among the owners of that grant.
    Queued(Place, Option<Found>),
    /// The owner holds the lock.
    Granted(Found),
    /// The owner is neither in the queue nor a holder any longer.
    Left,
    Released(bool),
    Renewed(Option<Tick>),
    /// The grant if it belongs to this client, and whether the server has lost the owner.
    Probed(Option<Found>, bool),
}

/// A grant as a reply or a push describes it. A push does not say how much time is left.
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
    pub(crate) lease: Tick,
    pub(crate) expires: Tick,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) grant: Option<Grant>,
    /// The waiters in the order of their places.
    pub(crate) queue: Vec<(Place, Owner)>,
    claim: Option<(ClientId, Tick)>,
    fence: Token,
    /// The newest place.
    placed: Place,
}

/// One run of a script.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) terms: &'a Terms,
    pub(crate) now: Tick,
    /// The client that sent the script.
    pub(crate) from: ClientId,
    /// For each client, whether `PUBLISH` counts a receiver.
    pub(crate) heard: [bool; 2],
    pub(crate) pushes: Vec<(ClientId, Found)>,
    /// The owners whose entries were removed because their wait was over or their client was not listening.
    pub(crate) skipped: Vec<Owner>,
}

impl Run<'_> {
    fn is_own(&self, found: &Found) -> bool {
        self.terms.client(found.owners[0].id) == self.from
    }
}

impl Server {
    /// The server's clock in its finer unit.
    pub(crate) fn micros(&self, now: Tick) -> Place {
        (now * TICK).max(self.placed)
    }

    /// Removes a grant whose lease has ended, and returns its owners.
    pub(crate) fn expire(&mut self, now: Tick) -> Vec<Owner> {
        let ended = self.grant.take_if(|grant| grant.expires <= now);
        self.claim = self.claim.filter(|(_, until)| now < *until);
        ended.map_or_else(Vec::new, |grant| grant.owners)
    }

    pub(crate) fn is_queued(&self, owner: Owner) -> bool {
        self.queue.iter().any(|(_, queued)| *queued == owner)
    }

    pub(crate) fn execute(&mut self, run: &mut Run<'_>, request: &Request) -> Reply {
        let expired = self.expire(run.now);
        run.skipped.extend(expired);
        match request {
            Request::Acquire(owner, place) => self.acquire(run, *owner, *place),
            Request::Queue(owner, place) => self.queue_up(run, *owner, *place),
            Request::Enter(owner) => self.leave(run, *owner, true),
            Request::Abandon(owner) => self.leave(run, *owner, false),
            Request::Release(first, back) => self.release(run, *first, back),
            Request::Renew(first, lease) => Reply::Renewed(self.renew(run, *first, *lease)),
            Request::Dissolve(first, keep, lease, back) => {
                Reply::Renewed(self.dissolve(run, *first, *keep, *lease, back))
            }
            Request::Probe(owner) => self.probe(run, *owner),
        }
    }

    fn held_by(&self, owner: Owner) -> Option<&Grant> {
        self.grant
            .as_ref()
            .filter(|held| held.owners.contains(&owner))
    }

    fn found(&self, run: &Run<'_>) -> Option<Found> {
        self.grant.as_ref().map(|held| Found {
            first: held.first,
            owners: held.owners.clone(),
            left: held.expires - run.now,
        })
    }

    fn is_living(place: Place, run: &Run<'_>) -> bool {
        place / TICK + run.terms.wait > run.now
    }

    fn give(&mut self, run: &Run<'_>, owners: Vec<Owner>, most: Tick) {
        let first = self.fence + 1;
        self.fence += owners.len() as Token;
        let lease = run.terms.lease;
        self.grant = Some(Grant {
            first,
            owners,
            lease,
            expires: run.now + lease.min(most),
        });
    }

    fn grant_next(&mut self, run: &mut Run<'_>) {
        self.grant = None;
        self.claim = None;
        while !self.queue.is_empty() {
            let (place, head) = self.queue.remove(0);
            let client = run.terms.client(head.id);
            if !Self::is_living(place, run) || !run.heard[client] {
                run.skipped.push(head);
                continue;
            }
            let mut owners = vec![head];
            while let Some((place, next)) = self.queue.first().copied()
                && run.terms.client(next.id) == client
            {
                self.queue.remove(0);
                if Self::is_living(place, run) {
                    owners.push(next);
                } else {
                    run.skipped.push(next);
                }
            }
            self.give(run, owners, CLAIM);
            self.claim = Some((client, run.now + CLAIM + 1));
            run.pushes
                .extend(self.found(run).map(|grant| (client, grant)));
            return;
        }
    }

    /// Removes the waiters of a client that did not confirm its grant, unless that client sent the script.
    fn set_claimant_aside(&mut self, run: &mut Run<'_>) {
        if let Some((client, _)) = self.claim.take()
            && client != run.from
        {
            let is_aside = |(_, owner): &(Place, Owner)| run.terms.client(owner.id) == client;
            run.skipped.extend(
                self.queue
                    .extract_if(.., |entry| is_aside(entry))
                    .map(|(_, owner)| owner),
            );
        }
    }

    fn grant_expired(&mut self, run: &mut Run<'_>) {
        self.set_claimant_aside(run);
        self.grant_next(run);
    }

    /// Inserts an entry unless the owner has one, as `ZADD NX` does, and returns the owner's place.
    fn enqueue(&mut self, run: &Run<'_>, owner: Owner, old: Option<Place>) -> Place {
        if let Some((place, _)) = self.queue.iter().find(|(_, queued)| *queued == owner) {
            return *place;
        }
        let place = old
            .filter(|place| Self::is_living(*place, run))
            .unwrap_or_else(|| {
                self.placed = (run.now * TICK).max(self.placed + 1);
                self.placed
            });
        let index = self.queue.partition_point(|(other, _)| *other <= place);
        self.queue.insert(index, (place, owner));
        place
    }

    fn acquire(&mut self, run: &Run<'_>, owner: Owner, place: Option<Place>) -> Reply {
        let is_next = self.queue.first().is_none_or(|(_, head)| *head == owner);
        if self.grant.is_none() && is_next {
            self.queue.drain(..self.queue.len().min(1));
            self.give(run, vec![owner], Tick::MAX - run.now);
        }
        match self.held_by(owner) {
            Some(_) => self.found(run).map_or(Reply::Left, Reply::Granted),
            None => Reply::Queued(self.enqueue(run, owner, place), None),
        }
    }

    fn queue_up(&mut self, run: &mut Run<'_>, owner: Owner, old: Option<Place>) -> Reply {
        let mut place = old.unwrap_or(0);
        if self.held_by(owner).is_none() {
            place = self.enqueue(run, owner, old);
        }
        if self.grant.is_none() {
            self.grant_expired(run);
        }
        Reply::Queued(place, self.found(run).filter(|found| run.is_own(found)))
    }

    fn leave(&mut self, run: &mut Run<'_>, owner: Owner, enters: bool) -> Reply {
        let place = self.queue.iter().find(|(_, queued)| *queued == owner);
        let place = place.map(|(place, _)| *place);
        self.queue.retain(|(_, queued)| *queued != owner);
        if let Some(place) = place
            && self.grant.is_none()
            && enters
        {
            self.set_claimant_aside(run);
            self.queue.retain(|(place, _)| Self::is_living(*place, run));
            if self.queue.first().is_none_or(|(head, _)| *head > place) {
                self.give(run, vec![owner], Tick::MAX - run.now);
                return self.found(run).map_or(Reply::Left, Reply::Granted);
            }
            self.grant_next(run);
        }
        if place.is_some() {
            return Reply::Left;
        }
        match self.held_by(owner).map(|held| held.owners.len()) {
            Some(1) if !enters => self.grant_next(run),
            Some(_) => return self.found(run).map_or(Reply::Left, Reply::Granted),
            None => {}
        }
        Reply::Left
    }

    fn put_back(&mut self, run: &Run<'_>, back: &PutBack) {
        for (owner, place) in back {
            self.enqueue(run, *owner, Some(*place));
        }
    }

    fn release(&mut self, run: &mut Run<'_>, first: Token, back: &PutBack) -> Reply {
        let held = self.grant.as_ref().is_some_and(|held| held.first == first);
        if held {
            self.put_back(run, back);
            self.grant_next(run);
        }
        Reply::Released(held)
    }

    fn renew(&mut self, run: &Run<'_>, first: Token, lease: Tick) -> Option<Tick> {
        let held = self.grant.as_mut().filter(|held| held.first == first)?;
        held.expires = held.expires.max(run.now + lease);
        Some(held.expires - run.now)
    }

    fn dissolve(
        &mut self,
        run: &Run<'_>,
        first: Token,
        keep: Owner,
        lease: Tick,
        back: &PutBack,
    ) -> Option<Tick> {
        let left = self.renew(run, first, lease)?;
        self.put_back(run, back);
        self.grant.as_mut()?.owners = vec![keep];
        Some(left)
    }

    fn probe(&mut self, run: &mut Run<'_>, owner: Owner) -> Reply {
        if self.grant.is_none() && self.is_queued(owner) {
            self.grant_expired(run);
        }
        let is_gone = !self.is_queued(owner) && self.held_by(owner).is_none();
        Reply::Probed(self.found(run).filter(|found| run.is_own(found)), is_gone)
    }
}
